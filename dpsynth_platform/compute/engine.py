"""What a SQL engine must do, whichever it is.

What belongs here: the interface that the steps' SQL is written against, the one error that leaves an engine, and the
checks that all engines share. What does not: an engine (`duckdb_engine` in process, `spark_engine` on a cluster), which
of them a dataset has (`choice`), and any SQL of a step.

A step's SQL is one text for all engines. It keeps to what they compute alike:

- names in double quotes, texts (that hold no quote) in single ones, `?` for parameters, an alias for each computed
  column;
- `||`, `substr`, `CAST(... AS STRING)` of integers, texts, dates and truth values (fractions and times are written
  differently by each), `sha2(text, 256)` in lower-case hex, `explode(list)` once in a select list,
  `array_sort(array_agg(text))`; a list of texts as text within `lower(...)` only, and only to order by;
- `isnan`, `floor`, numbers with an exponent for double precision, `DATE '2026-01-31'`, and
  `unix_micros(CAST(... AS TIMESTAMP))` of moments with a time zone and without;
- joins, `UNION ALL`, `GROUP BY`, window functions. Texts are compared byte by byte; NULL comes before every value in
  ascending order and after it in descending order; where rows tie, the order is anybody's.
- `/` is a fraction; a divisor that may be zero stands in `nullif(..., 0)`; an overflow or an impossible cast is an
  error.
"""

from __future__ import annotations

import secrets
import shutil
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.redaction import UNEXPECTED, reason_of, safe_error

if TYPE_CHECKING:
    import pyarrow.dataset as ds

Value = str | bytes | int | float | bool | None
"""What may be bound to a parameter."""


class EngineError(DpsynthError):
    """The SQL engine stopped. The message holds the error's type, never its text."""

    code = "engine"


def stopped(error: BaseException) -> EngineError:
    """What is raised for an error of an engine: its type, or what the operating system refused, under that code."""
    failure = EngineError(f"the SQL engine stopped ({reason_of(error)})")
    code, _ = safe_error(error)
    failure.code = EngineError.code if code == UNEXPECTED else code
    return failure


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
        """Makes Arrow data readable as the table `name`, in place of the one that had the name before.

        Args:
            data: in memory, or a dataset of Parquet files without a filter (`reading.read_batches`).
        """

    def register_delta(
        self, name: str, uri: Path, *, columns: Sequence[str] | None = None, version: int | None = None
    ) -> None:
        """Makes a Delta table readable as the table `name`, in place of the one that had the name before.

        Args:
            columns: those to read; all by default.
            version: the latest by default.
        """

    def materialize(self, name: str, sql: str, parameters: Sequence[Value] = ()) -> None:
        """Runs a query once and keeps its rows as the table `name`.

        The query may read the table that had the name before, which is replaced.
        """

    def drop(self, name: str) -> None:
        """Forgets a table of `register`, `register_delta` or `materialize`, if there is one, and frees its space."""

    def scalar(self, sql: str, parameters: Sequence[Value] = ()) -> Any:
        """The first value of the first row (a number, text or truth value), or None."""

    def stream(self, sql: str, parameters: Sequence[Value] = ()) -> Generator[pa.RecordBatch]:
        """The rows of a query as batches of at most `reading.BATCH_ROWS`, in the query's order where it states one.

        Runs when the first batch is asked for. The engine takes no other query until the last one has come or the
        iterator is closed.
        """

    def write_delta(self, target: Path, schema: pa.Schema, sql: str, parameters: Sequence[Value] = ()) -> int:
        """Writes the rows of a query as the new Delta table `target`, cast to a schema that has the query's columns.

        Returns the number of rows. Readers see the whole table or none.
        """


def refuse_names(name: str, columns: Sequence[str]) -> None:
    """Raises `EngineError` for column names that SQL cannot tell apart or cannot quote in every engine."""
    counts = Counter(column.casefold() for column in columns)
    alike = sorted(column for column in columns if counts[column.casefold()] > 1)
    if alike:
        raise EngineError(f"{name}: columns {', '.join(alike)}: SQL cannot tell them apart; rename all but one")
    quoted = [column for column in columns if '"' in column]
    if quoted:
        raise EngineError(f"{name}: columns {', '.join(quoted)}: a name must hold no double quote; rename them")


def refuse_missing(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raises `EngineError` where a query lacks columns of the schema that its rows are to have."""
    missing = [name for name in schema.names if name not in columns]
    if missing:
        raise EngineError(f"the query gives no column {', '.join(missing)}")


@contextmanager
def whole_table(target: Path) -> Iterator[Path]:
    """A directory beside `target` to write a table into, which takes the target's place at the end of the block.

    If the block fails nothing is left of it. Raises `OSError` where there is something at `target` already.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    private_directory(target.parent)
    try:
        with private_files():
            yield partial
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
