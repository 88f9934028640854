"""The columns of two or three tables in one coding, so that they can be compared.

What belongs here: which columns are numbers and which are categories, and their common coding. What does not:
converting tables to one type (`one_type`), reading files (`files`), or measuring.

Without a contract (`align`) types decide. With one (`declared`) its domain decides, so that unlisted values and numbers
outside the range are coded as the mechanism read them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import is_text
from dpsynth_platform.foundation.reading import in_microseconds
from dpsynth_platform.quality.one_type import in_one_type, plain
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain

Values = npt.NDArray[Any]
Codes = npt.NDArray[np.int64]

CELL_BINS = 32
"""Number of bins of equal width over all tables, for numbers of undeclared columns."""

LARGEST = 1e100
"""Squares of numbers up to this size, and sums of squares, are finite in double precision."""


@dataclass(frozen=True)
class Column:
    """One column of all tables.

    Attributes:
        size: number of categories, of which the last is for missing values; None: numbers.
        parts: one array per table, of shape (rows,): category codes, or float64 with NaN for missing numbers.
        limits: the declared range of numbers; None without one.
    """

    name: str
    size: int | None
    parts: tuple[Values, ...]
    limits: tuple[float, float] | None = None


def of_tables(columns: Sequence[Column], *tables: int) -> tuple[Column, ...]:
    """The columns of these tables only, in this order."""
    return tuple(replace(item, parts=tuple(item.parts[table] for table in tables)) for item in columns)


def of_rows(columns: Sequence[Column], *rows: Values) -> tuple[Column, ...]:
    """The columns with these rows (indices) of each table only."""
    return tuple(
        replace(item, parts=tuple(part[kept] for part, kept in zip(item.parts, rows, strict=True))) for item in columns
    )


def row_counts(columns: Sequence[Column]) -> tuple[int, ...]:
    """Number of rows of each table."""
    return tuple(len(part) for part in columns[0].parts)


def align(tables: Mapping[str, pa.Table], categorical: Collection[str] = ()) -> tuple[Column, ...]:
    """The coded columns of tables with the same columns. Arguments and errors are those of `in_one_type`.

    Integers, floats, decimals, dates, moments and times of day are numbers; text and booleans are categories.
    """
    return coded(in_one_type(tables, categorical), categorical)


def coded(tables: Mapping[str, pa.Table], categorical: Collection[str] = ()) -> tuple[Column, ...]:
    """Like `align`, for tables that `in_one_type` has converted."""
    names = next(iter(tables.values())).column_names
    return tuple(
        _aligned(name, [table.column(name) for table in tables.values()], name in categorical) for name in names
    )


def declared(domain: Domain, tables: Sequence[pa.Table], target: str | None = None) -> tuple[Column, ...]:
    """A contract's columns: numbers clipped to their range, categories as declared, the target as domain cells."""
    return tuple(_declared(item, tables, item.name == target) for item in domain)


def cells(columns: Sequence[Column]) -> tuple[list[Codes], tuple[int, ...]]:
    """Cell codes of every table, each of shape (rows, columns), and the number of cells of each column.

    Numbers fall into `CELL_BINS` bins of equal width over the range of all tables; missing ones have a further cell.
    """
    coded = [item.parts if item.size is not None else _equal_width(item.parts) for item in columns]
    tables = [np.stack(parts, axis=1).astype(np.int64) for parts in zip(*coded, strict=True)]
    return tables, tuple(item.size or CELL_BINS + 1 for item in columns)


def scaled(values: Values, low: float, high: float) -> Values:
    """Maps [low, high] to [0, 1]; all zero if low equals high."""
    return np.asarray((values - low) / ((high - low) or 1.0))


def span(*parts: Values) -> tuple[float, float]:
    """Least and largest number; (0, 0) if all are missing."""
    known = np.concatenate([part[~np.isnan(part)] for part in parts])
    return (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)


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
    """Numbers, dates, moments or times of day as float64 of shape (rows,), with NaN for missing values."""
    column = plain(column)
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        column = in_microseconds(column).cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    if pa.types.is_time(column.type):
        column = column.cast(pa.time64("us")).cast(pa.int64())
    values = column.cast(pa.float64(), safe=False).fill_null(float("nan")).to_numpy(zero_copy_only=False)
    return np.where(np.isfinite(values), values, np.nan)


def _of_numbers(name: str, parts: Sequence[Values]) -> Column:
    """A column of numbers. Very large ones are divided by the largest, since no measure depends on the unit."""
    largest = max(float(np.abs(np.nan_to_num(part)).max(initial=0.0)) for part in parts)
    return Column(name, None, tuple(part / largest for part in parts) if largest > LARGEST else tuple(parts))


def _texts(column: pa.ChunkedArray) -> pa.Array:
    column = plain(column)
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        column = column.cast(pa.float64(), safe=False)
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, pa.float64()), column)
    return column.cast(pa.large_string())


def _declared(domain: ColumnDomain, tables: Sequence[pa.Table], as_cells: bool) -> Column:
    parts = [table.column(domain.name) for table in tables]
    if as_cells or not domain.ordered:
        return Column(domain.name, domain.size, tuple(domain.encode(part).astype(np.int64) for part in parts))
    found = _of_numbers(domain.name, [domain.numbers(part) for part in parts])
    return found if max(map(abs, domain.limits)) > LARGEST else replace(found, limits=domain.limits)
