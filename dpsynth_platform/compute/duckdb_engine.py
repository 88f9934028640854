"""DuckDB in process: the default SQL engine.

What belongs here: one short-lived session, which reads only registered data and whose spill files are in a private
directory of the restricted zone and are deleted with it. What does not: any SQL of a step.

The engine's error texts quote values, so only the error's type leaves this module.

Memory: DuckDB counts the memory of its tables, sorts and joins, and spills what exceeds the limit. It does not count
freed memory that the allocator keeps: a sixth more, measured with 100 million ownerships. So its limit is set lower.
Files are read in small batches (`reading`), since Arrow's memory is not counted either.
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

from dpsynth_platform.compute.engine import Value, refuse_missing, refuse_names, stopped, whole_table
from dpsynth_platform.foundation.errors import EngineError
from dpsynth_platform.foundation.permissions import no_core_dumps, private_directory
from dpsynth_platform.foundation.reading import BATCH_ROWS, read_batches, selected
from dpsynth_platform.foundation.storage import delta_dataset, write_table

if TYPE_CHECKING:
    import duckdb
    import pyarrow.dataset as ds

_T = TypeVar("_T")

_COUNTED_SHARE = 0.85
"""DuckDB's limit, as a share of the memory."""

_BAR = "enable_progress_bar"
_SETTINGS = (
    "SET TimeZone = 'UTC'",
    # Spark's order of nulls, so that a query means the same in both engines.
    "SET default_null_order = 'nulls_first_on_asc_last_on_desc'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
# Spark's names, so that a query runs in both engines.
_MACROS = (
    "CREATE MACRO sha2(value, bits) AS sha256(value)",
    "CREATE MACRO explode(list) AS unnest(list)",
    "CREATE MACRO unix_micros(moment) AS epoch_us(moment)",
)


class DuckDBEngine:
    """An in-memory database for the length of a `with` block; see `compute.engine.Engine`.

    Args:
        spill: directory of the restricted zone; a private directory is made in it and removed at the end.
        memory: bytes of its tables, sorts and joins; it spills the rest to disk.
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
            # No name in the SQL may refer to a Python variable.
            "python_enable_replacements": False,
        }
        try:
            self._open_connection = self._run(lambda: duckdb.connect(":memory:", config=config))
            # The bar would be written to standard output. In a notebook without ipywidgets, DuckDB refuses the setting,
            # also the one that it has.
            if self._run(lambda: self._query(f"SELECT current_setting('{_BAR}')", ()).fetchall()) == [(True,)]:
                self._execute(f"SET {_BAR} = false")
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
        data = self._run(lambda: delta_dataset(uri, version))
        self._register(name, _Batches(data, selected(data.schema, columns)))

    def materialize(self, name: str, sql: str, parameters: Sequence[Value] = ()) -> None:
        """Runs a query once and stores its rows as the table `name`. Raises `EngineError`."""
        self._execute(f"CREATE OR REPLACE TEMPORARY TABLE _new AS {sql}", parameters)
        self.drop(name)
        self._execute(f"ALTER TABLE _new RENAME TO {name}")

    def drop(self, name: str) -> None:
        """Removes a table, if it exists, and frees its space. Raises `EngineError`."""
        self._run(lambda: self._connection.unregister(name))
        self._execute(f"DROP TABLE IF EXISTS {name}")

    def scalar(self, sql: str, parameters: Sequence[Value] = ()) -> Any:
        """The first value of the first row. Raises `EngineError`."""
        rows = self._run(lambda: self._query(sql, parameters).limit(1).fetchall())
        return rows[0][0] if rows else None

    def stream(self, sql: str, parameters: Sequence[Value] = ()) -> Generator[pa.RecordBatch]:
        """The rows of a query as record batches, streamed. Raises `EngineError`."""
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
        # A partly read result of `execute` would block the connection; one of a relation is released with the relation.
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
    """A dataset of files that DuckDB can read repeatedly, each time from the beginning, batch by batch."""

    def __init__(self, data: ds.Dataset, schema: pa.Schema) -> None:
        self._data = data
        self.schema = schema

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, read_batches(self._data, self.schema.names))
        return reader.__arrow_c_stream__(requested_schema)
