"""What a SQL engine must do, whichever it is.

What belongs here: the interface that the steps' SQL is written against. What does not: an engine (`duckdb_engine` in
process, `spark_engine` on a cluster), and any SQL of a step.

A step's SQL is one text for all engines. It keeps to what they share: ANSI quoting of names, `?` for parameters, `||`,
`CAST(... AS STRING)`, window functions, `sha2(text, 256)` in lower-case hex, `explode(list)` in a select list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.dataset as ds


class Engine(Protocol):
    """A session for the length of a `with` block; its tables and spill files are gone afterwards.

    Values go in as bound parameters (`?`), never into the SQL text, which may stand in plans and errors. Every method
    raises `EngineError`, whose message holds the error's type and never its text: engines quote values.
    """

    def __enter__(self) -> Engine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def register(self, name: str, data: pa.Table | ds.Dataset) -> None:
        """Makes Arrow data readable as the table `name`."""

    def register_delta(self, name: str, uri: Path, *, version: int | None = None) -> None:
        """Makes a Delta table readable as the table `name`."""

    def materialize(self, name: str, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Runs a query once and keeps its rows as the table `name`.

        The query may read the table that had the name before, which is replaced.
        """

    def drop(self, name: str) -> None:
        """Forgets a table of `register`, `register_delta` or `materialize`, if there is one, and frees its space."""

    def scalar(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first value of the first row, or None."""

    def stream(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[pa.RecordBatch]:
        """The rows of a query as record batches, as they come."""

    def write_delta(self, target: Path, schema: pa.Schema, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Writes the rows of a query as the new Delta table `target` of the given schema; the number of rows."""
