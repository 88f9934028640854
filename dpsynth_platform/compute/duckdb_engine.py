"""DuckDB in process: the default SQL engine.

What belongs here: one short-lived session whose spill files lie in a directory of its own under the restricted zone and
are gone with it, and which can reach nothing but the data that it is handed. What does not: any SQL of a step.

The engine's own error texts quote values, so they stop here: what leaves is the error's type.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dpsynth_platform.errors import DpsynthError

if TYPE_CHECKING:
    import duckdb
    import pyarrow.dataset as ds

BATCH_ROWS = 65_536
_SETTINGS = (
    "SET TimeZone = 'UTC'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
# Spark's name for it, so that one text serves both engines.
_MACROS = ("CREATE MACRO sha2(value, bits) AS sha256(value)",)


class EngineError(DpsynthError):
    """The SQL engine stopped. The message holds the error's type, never its text."""

    code = "engine"


class DuckDBEngine:
    """An in-memory database for the length of a `with` block.

    Args:
        spill: directory of the restricted zone; a private directory is made in it and removed at the end.
        memory_limit: above it DuckDB spills to disk (a DuckDB size such as `2GB`).
        threads: by default one for each processor.

    Values go in as bound parameters (`?`), never into the SQL text, which may stand in plans and errors.
    """

    def __init__(self, spill: Path, *, memory_limit: str = "2GB", threads: int | None = None) -> None:
        self._spill_parent = spill
        self._memory_limit = memory_limit
        self._threads = threads or os.cpu_count() or 1
        self._spill: Path | None = None
        self._open_connection: duckdb.DuckDBPyConnection | None = None

    def __enter__(self) -> DuckDBEngine:
        import duckdb

        self._spill_parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._spill = Path(tempfile.mkdtemp(prefix="spill-", dir=self._spill_parent))
        self._open_connection = duckdb.connect(
            ":memory:",
            config={
                "temp_directory": str(self._spill),
                "memory_limit": self._memory_limit,
                "threads": self._threads,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                # No name in the SQL may turn into a Python variable that happens to be called so.
                "python_enable_replacements": False,
            },
        )
        for statement in (*_MACROS, *_SETTINGS):
            self._open_connection.execute(statement)
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

    def register(self, name: str, data: pa.Table | pa.RecordBatchReader | ds.Dataset) -> None:
        """Makes Arrow data readable as the table `name`. A reader can be scanned once only."""
        self._connection.register(name, data)

    def register_delta(self, name: str, uri: Path, *, version: int | None = None) -> None:
        """Makes a Delta table readable as `name`, through Arrow (DuckDB's own Delta extension is not available)."""
        from deltalake import DeltaTable

        self.register(name, DeltaTable(str(uri), version=version).to_pyarrow_dataset())

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Runs a statement. Raises `EngineError`."""
        self._run(lambda: self._connection.execute(sql, list(parameters)))

    def scalar(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first value of the first row. Raises `EngineError`."""
        row = self._run(lambda: self._connection.execute(sql, list(parameters)).fetchone())
        return row[0] if row else None

    def stream(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[pa.RecordBatch]:
        """The rows of a query as record batches, as they come. Raises `EngineError`."""
        reader = self._run(lambda: self._connection.sql(sql, params=list(parameters)).to_arrow_reader(BATCH_ROWS))
        while True:
            batch = self._run(lambda: next(reader, None))
            if batch is None:
                return
            yield batch

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        if self._open_connection is None:
            raise EngineError("the SQL engine is used outside its `with` block")
        return self._open_connection

    def _run(self, action: Any) -> Any:
        import duckdb

        try:
            return action()
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            problem = type(error).__name__
        raise EngineError(f"the SQL engine stopped ({problem})")
