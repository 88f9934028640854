"""DuckDB in process: the default SQL engine.

What belongs here: one short-lived session whose spill files lie in a directory of its own under the restricted zone and
are gone with it, and which can reach nothing but the data that it is handed. What does not: any SQL of a step.

The engine's own error texts quote values, so they stop here: what leaves is the error's type.

Memory: DuckDB counts what its tables, sorts and joins hold, and writes to its spill files what goes beyond the limit.
What it has given back to the system's allocator and the allocator still holds is not counted: a sixth more, measured
with 100 million ownerships. So it is told of less. Files are read in small batches on their way in (`reading`), since
Arrow's own memory is not counted either.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dpsynth_platform.compute.engine import EngineError, Value, refuse_missing, refuse_names, stopped, whole_table
from dpsynth_platform.compute.reading import BATCH_ROWS, read_batches, selected
from dpsynth_platform.foundation.permissions import no_core_dumps, private_directory
from dpsynth_platform.foundation.storage import write_table

if TYPE_CHECKING:
    import duckdb
    import pyarrow.dataset as ds

_T = TypeVar("_T")

_COUNTED_SHARE = 0.85
"""Of the memory, what DuckDB is told of."""

_SETTINGS = (
    "SET TimeZone = 'UTC'",
    # Spark's order of nulls, so that one text means the same in both engines.
    "SET default_null_order = 'nulls_first_on_asc_last_on_desc'",
    # It would be written to standard output.
    "SET enable_progress_bar = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
# Spark's names, so that one text serves both engines.
_MACROS = (
    "CREATE MACRO sha2(value, bits) AS sha256(value)",
    "CREATE MACRO explode(list) AS unnest(list)",
    "CREATE MACRO unix_micros(moment) AS epoch_us(moment)",
)


class DuckDBEngine:
    """An in-memory database for the length of a `with` block; see `compute.engine.Engine`.

    Args:
        spill: directory of the restricted zone; a private directory is made in it and removed at the end.
        memory: bytes that its tables, sorts and joins may take; what goes beyond is written to disk.
        threads: processors that it may use.
    """

    def __init__(self, spill: Path, *, memory: int, threads: int) -> None:
        self._spill_parent = spill
        self._memory = memory
        self._threads = threads
        self._spill: Path | None = None
        self._open_connection: duckdb.DuckDBPyConnection | None = None

    def __enter__(self) -> DuckDBEngine:
        import duckdb

        no_core_dumps()  # rows are in this process's memory
        self._spill = Path(tempfile.mkdtemp(prefix="spill-", dir=private_directory(self._spill_parent)))
        config: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": str(self._spill),
            "memory_limit": f"{int(_COUNTED_SHARE * self._memory)}B",
            "threads": self._threads,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            # No name in the SQL may turn into a Python variable that happens to be called so.
            "python_enable_replacements": False,
        }
        try:
            self._open_connection = self._run(lambda: duckdb.connect(":memory:", config=config))
            for statement in (*_MACROS, *_SETTINGS):
                self._execute(statement)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open_connection is not None:
            self._open_connection.close()
            self._open_connection = None
        if self._spill is not None:
            shutil.rmtree(self._spill, ignore_errors=True)
            self._spill = None

    def register(self, name: str, data: pa.Table | ds.Dataset) -> None:
        """Makes Arrow data readable as the table `name`. Raises `EngineError`."""
        self._register(name, data if isinstance(data, pa.Table) else _Batches(data, data.schema))

    def register_delta(
        self, name: str, uri: Path, *, columns: Sequence[str] | None = None, version: int | None = None
    ) -> None:
        """Makes a Delta table readable as `name`, through Arrow (DuckDB's own Delta extension is not available)."""
        from deltalake import DeltaTable

        data = self._run(lambda: DeltaTable(str(uri), version=version).to_pyarrow_dataset())
        self._register(name, _Batches(data, selected(data.schema, columns)))

    def materialize(self, name: str, sql: str, parameters: Sequence[Value] = ()) -> None:
        """Runs a query once and keeps its rows as the table `name`. Raises `EngineError`."""
        self._execute(f"CREATE OR REPLACE TEMPORARY TABLE _new AS {sql}", parameters)
        self.drop(name)
        self._execute(f"ALTER TABLE _new RENAME TO {name}")

    def drop(self, name: str) -> None:
        """Forgets a table, if there is one, and frees its space. Raises `EngineError`."""
        self._run(lambda: self._connection.unregister(name))
        self._execute(f"DROP TABLE IF EXISTS {name}")

    def scalar(self, sql: str, parameters: Sequence[Value] = ()) -> Any:
        """The first value of the first row. Raises `EngineError`."""
        rows = self._run(lambda: self._query(sql, parameters).limit(1).fetchall())
        return rows[0][0] if rows else None

    def stream(self, sql: str, parameters: Sequence[Value] = ()) -> Generator[pa.RecordBatch]:
        """The rows of a query as record batches, as they come. Raises `EngineError`."""
        reader = self._run(lambda: self._query(sql, parameters).to_arrow_reader(BATCH_ROWS))
        with reader:  # until it is closed the connection takes no other query
            while (batch := self._run(lambda: next(reader, None))) is not None:
                yield batch

    def write_delta(self, target: Path, schema: pa.Schema, sql: str, parameters: Sequence[Value] = ()) -> int:
        """Writes the rows of a query as a new Delta table, streaming. Raises `EngineError`."""

        def cast(batch: pa.RecordBatch) -> pa.RecordBatch:
            return self._run(lambda: batch.select(schema.names).cast(schema))

        def write() -> int:
            refuse_missing(schema, self._query(sql, parameters).columns)
            with whole_table(target) as partial, closing(self.stream(sql, parameters)) as batches:
                return write_table(partial, schema, map(cast, batches))

        return self._run(write)

    def _register(self, name: str, data: pa.Table | _Batches) -> None:
        refuse_names(name, data.schema.names)
        self.drop(name)
        self._run(lambda: self._connection.register(name, data))

    def _execute(self, sql: str, parameters: Sequence[Value] = ()) -> None:
        self._run(lambda: self._connection.execute(sql, list(parameters)))

    def _query(self, sql: str, parameters: Sequence[Value]) -> duckdb.DuckDBPyRelation:
        # A result of `execute` that stays half read would block the connection; one of a relation goes with it.
        return self._connection.sql(sql, params=list(parameters))

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        if self._open_connection is None:
            raise EngineError("the SQL engine is used outside its `with` block")
        return self._open_connection

    def _run(self, action: Callable[[], _T]) -> _T:
        import duckdb
        from deltalake.exceptions import DeltaError

        try:
            return action()
        except (duckdb.Error, DeltaError, pa.ArrowException, OSError) as error:
            failure = stopped(error)
        raise failure


class _Batches:
    """A dataset of files as DuckDB may read it: as often as it likes, each time from the beginning, batch by batch."""

    def __init__(self, data: ds.Dataset, schema: pa.Schema) -> None:
        self._data = data
        self.schema = schema

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, read_batches(self._data, self.schema.names))
        return reader.__arrow_c_stream__(requested_schema)
