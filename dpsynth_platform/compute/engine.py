"""The interface of SQL engines.

What belongs here: the interface for the steps' SQL, the error that an engine raises, and checks that all engines share.
What does not: an engine (`duckdb_engine` in process, `spark_engine` on a cluster), a dataset's engine (`choice`), and
any SQL of a step.

A step's SQL is the same for all engines. It uses only what they compute alike:

- names of columns in double quotes (`quoted`), texts (that hold no quote) in single ones, `?` for parameters, an alias
  for each computed column;
- `||`, `substr`, `length`, `CAST(... AS STRING)` of integers, texts, decimals, dates and truth values (fractions and
  times are written differently by each), `sha2(text, 256)` in lower-case hex, `explode(list)` once in a select list,
  `array_sort(array_agg(text))`; a list of texts as text within `lower(...)` only, and only to order by;
- `isnan`, `floor`, numbers with an exponent for double precision, `DATE '2026-01-31'`, and
  `unix_micros(CAST(... AS TIMESTAMP))` of moments with a time zone and without;
- joins, `UNION ALL`, `GROUP BY`, window functions. Texts are compared byte by byte; NULL comes before every value in
  ascending order and after it in descending order; the order of tied rows is undefined.
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

from dpsynth_platform.contracts.base import caseless
from dpsynth_platform.foundation.errors import EngineError
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.redaction import UNEXPECTED, reason_of, safe_error

if TYPE_CHECKING:
    import pyarrow.dataset as ds

Value = str | bytes | int | float | bool | None
"""What may be bound to a parameter."""


def stopped(error: BaseException) -> EngineError:
    """The error to raise for an engine's error: with its type, or the operating system's refusal, and that code."""
    failure = EngineError(f"the SQL engine stopped ({reason_of(error)})")
    code, _ = safe_error(error)
    failure.code = EngineError.code if code == UNEXPECTED else code
    return failure


class Engine(Protocol):
    """A session for the length of a `with` block, which deletes its tables and spill files at the end.

    Values are bound parameters (`?`), never part of the SQL text, which plans and errors may show. Every method raises
    `EngineError`, whose message contains the error's type and never its text: engines quote values.
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
        """Runs a query once and stores its rows as the table `name`.

        The query may read the earlier table of that name, which it replaces.
        """

    def drop(self, name: str) -> None:
        """Removes a table of `register`, `register_delta` or `materialize`, if it exists, and frees its space."""

    def scalar(self, sql: str, parameters: Sequence[Value] = ()) -> Any:
        """The first value of the first row (a number, text or truth value), or None."""

    def stream(self, sql: str, parameters: Sequence[Value] = ()) -> Generator[pa.RecordBatch]:
        """The rows of a query as batches of at most `reading.BATCH_ROWS`, in the query's order if it has one.

        Runs at the first batch. The engine accepts no other query until the last batch was read or the iterator is
        closed.
        """

    def write_delta(self, target: Path, schema: pa.Schema, sql: str, parameters: Sequence[Value] = ()) -> int:
        """Writes the rows of a query as the new Delta table `target`, cast to a schema that has the query's columns.

        Returns the number of rows. Readers see the whole table or none.
        """


def quoted(name: str) -> str:
    """A column's name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def refuse_names(name: str, columns: Sequence[str]) -> None:
    """Raises `EngineError` for column names that SQL cannot distinguish."""
    counts = Counter(map(caseless, columns))
    alike = sorted(column for column in columns if counts[caseless(column)] > 1)
    if alike:
        raise EngineError(f"{name}: columns {', '.join(alike)}: SQL cannot tell them apart; rename all but one")


def refuse_missing(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raises `EngineError` if a query lacks columns of the schema."""
    missing = [name for name in schema.names if name not in columns]
    if missing:
        raise EngineError(f"the query gives no column {', '.join(missing)}")


@contextmanager
def whole_table(target: Path) -> Iterator[Path]:
    """A directory beside `target` to write a table into; it is renamed to `target` at the end of the block.

    It is deleted if the block fails. Raises `OSError` if `target` exists.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    private_directory(target.parent)
    try:
        with private_files():
            yield partial
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
