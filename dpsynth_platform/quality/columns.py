"""Tables side by side: the columns of two or three tables in one coding, so that they can be compared.

What belongs here: which columns are numbers and which are categories, and coding both alike in every table. What does
not: bringing tables to one type (`one_type`), reading files (`files`), or measuring.

In a table of its own right (`align`), types decide; in a declared one (`declared`), the contract does, so that values
which it does not list, or numbers outside its range, look as the mechanism saw them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.quality.files import is_text
from dpsynth_platform.quality.one_type import in_one_type, plain
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain

Values = npt.NDArray[Any]
Codes = npt.NDArray[np.int64]

CELL_BINS = 32
"""Numbers of undeclared columns are cut into so many bins of equal width over all tables."""

LARGEST = 1e100
"""Numbers up to here have squares, and sums of them, in double precision."""


@dataclass(frozen=True)
class Column:
    """One column of all tables.

    Attributes:
        size: number of categories, of which the last stands for missing values; None: numbers.
        parts: one array a table, each as long as its table: category codes, or float64 with NaN where there is none.
    """

    name: str
    size: int | None
    parts: tuple[Values, ...]


def of_tables(columns: Sequence[Column], *tables: int) -> tuple[Column, ...]:
    """The same columns of these tables only, in this order."""
    return tuple(Column(item.name, item.size, tuple(item.parts[table] for table in tables)) for item in columns)


def of_rows(columns: Sequence[Column], *rows: Values) -> tuple[Column, ...]:
    """The same columns, of each table the rows with these indices only."""
    return tuple(
        Column(item.name, item.size, tuple(part[kept] for part, kept in zip(item.parts, rows, strict=True)))
        for item in columns
    )


def row_counts(columns: Sequence[Column]) -> tuple[int, ...]:
    """Number of rows of each table."""
    return tuple(len(part) for part in columns[0].parts)


def align(tables: Mapping[str, pa.Table], categorical: Collection[str] = ()) -> tuple[Column, ...]:
    """The columns of tables that have the same ones, in the first table's order.

    Integers, floats, decimals, dates and times of day and date are numbers; text and booleans are categories.

    Args:
        tables: by the name that errors call them.
        categorical: columns whose numbers are codes, to be taken as categories.

    Raises:
        SourceError: a table has no rows or no columns, the columns differ, or one has a type that cannot be compared.
    """
    return coded(in_one_type(tables, categorical), categorical)


def coded(tables: Mapping[str, pa.Table], categorical: Collection[str] = ()) -> tuple[Column, ...]:
    """The same of tables whose columns are of one type already (`in_one_type`)."""
    names = next(iter(tables.values())).column_names
    return tuple(
        _aligned(name, [table.column(name) for table in tables.values()], name in categorical) for name in names
    )


def declared(domain: Domain, tables: Sequence[pa.Table], target: str | None = None) -> tuple[Column, ...]:
    """The columns of a contract: numbers clipped to their declared range, categories as declared.

    Args:
        target: a column that counts as categories whatever it is: the cells of its domain.
    """
    return tuple(_declared(item, tables, item.name == target) for item in domain)


def cells(columns: Sequence[Column]) -> tuple[list[Codes], tuple[int, ...]]:
    """Cell codes of every table, each of shape (rows, columns), and the number of cells of each column.

    Numbers fall into `CELL_BINS` bins of equal width between the least and the largest of all tables; missing ones into
    one cell more.
    """
    coded, sizes = [], []
    for column in columns:
        parts = column.parts if column.size is not None else _equal_width(column.parts)
        coded.append(parts)
        sizes.append(column.size or CELL_BINS + 1)
    tables = [np.stack(parts, axis=1).astype(np.int64) for parts in zip(*coded, strict=True)]
    return tables, tuple(sizes)


def scaled(values: Values, low: float, high: float) -> Values:
    """Numbers as shares of the way from low to high; all zero where those are equal."""
    return np.asarray((values - low) / ((high - low) or 1.0))


def span(*parts: Values) -> tuple[float, float]:
    """Least and largest number; (0, 0) where every one is missing."""
    known = [part[~np.isnan(part)] for part in parts]
    together = np.concatenate(known)
    return (float(together.min()), float(together.max())) if together.size else (0.0, 0.0)


def _equal_width(parts: Sequence[Values]) -> tuple[Values, ...]:
    low, high = span(*parts)
    binned = []
    for part in parts:
        absent = np.isnan(part)
        bins = np.floor(scaled(np.where(absent, low, part), low, high) * CELL_BINS).astype(np.int64)
        binned.append(np.where(absent, CELL_BINS, np.minimum(bins, CELL_BINS - 1)))
    return tuple(binned)


def _aligned(name: str, parts: Sequence[pa.ChunkedArray], categorical: bool) -> Column:
    known = [part.type for part in parts if not pa.types.is_null(part.type)]
    if known and not categorical and not any(is_text(type_) or pa.types.is_boolean(type_) for type_ in known):
        return _of_numbers(name, [numbers_of(part) for part in parts])
    texts = [_texts(part) for part in parts]
    encoded = pa.concat_arrays(texts).dictionary_encode()
    missing = len(encoded.dictionary)
    codes = encoded.indices.fill_null(missing).to_numpy(zero_copy_only=False).astype(np.int64)
    edges = np.cumsum([len(text) for text in texts])[:-1]
    return Column(name, missing + 1, tuple(np.split(codes, edges)))


def numbers_of(column: pa.ChunkedArray) -> Values:
    """A column of numbers, dates, moments or times of day as float64; NaN where there is none. Shape (rows,)."""
    column = plain(column)
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    if pa.types.is_time(column.type):
        column = column.cast(pa.time64("us")).cast(pa.int64())
    values = column.cast(pa.float64(), safe=False).fill_null(float("nan")).to_numpy(zero_copy_only=False)
    return np.where(np.isfinite(values), values, np.nan)


def _of_numbers(name: str, parts: Sequence[Values]) -> Column:
    """A column of numbers; very large ones in parts of the largest, since nothing that is measured has a unit."""
    largest = max(float(np.abs(np.nan_to_num(part)).max(initial=0.0)) for part in parts)
    return Column(name, None, tuple(part / largest for part in parts) if largest > LARGEST else tuple(parts))


def _texts(column: pa.ChunkedArray) -> pa.Array:
    """Values as text; numbers alike, however they are stored."""
    column = plain(column)
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        column = column.cast(pa.float64(), safe=False)
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, pa.float64()), column)
    return column.cast(pa.large_string())


def _declared(domain: ColumnDomain, tables: Sequence[pa.Table], as_cells: bool) -> Column:
    parts = [table.column(domain.name) for table in tables]
    if as_cells or not domain.ordered:
        return Column(domain.name, domain.size, tuple(domain.encode(part).astype(np.int64) for part in parts))
    return _of_numbers(domain.name, [domain.numbers(part) for part in parts])
