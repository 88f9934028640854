"""Domains read from the data under `--assume-public-domain`, where the user declares that they are public.

What belongs here: the declarations of undeclared columns. What does not: whether that is permitted (`task`), and
learning domains with differential privacy. No guarantee covers this access: the statement lists it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from dpsynth_platform.contracts.columns import (
    EPOCH,
    BooleanColumn,
    CategoricalColumn,
    Column,
    DateColumn,
    DatetimeColumn,
    FloatColumn,
    IntegerColumn,
    TextColumn,
    TimeColumn,
)
from dpsynth_platform.foundation.reading import in_microseconds
from dpsynth_platform.sources.delta_types import in_calendar
from dpsynth_platform.sources.table_files import Source, guessed
from dpsynth_platform.synth.tabular.scales import SECOND

MOST_CATEGORIES = 1000
"""A text column with more distinct values counts as free text, and stays empty."""

_MOST_DECIMALS = 12


def not_covered(names: Sequence[str]) -> str:
    """The statement's text about this access."""
    return (
        f"The domains (least and largest value, lists of values, whether values miss) of {', '.join(names)}: read from "
        "the data instead of declared; the user who ran this states that they are public. If they are not, the "
        "synthetic rows can show them unchanged."
    )


def empty_in_words(names: Sequence[str]) -> str:
    """What columns of text come out as."""
    return (
        f"Empty in every row: {', '.join(names)}. They are texts, by declaration or because no domain can be read off "
        "them (free text, one value)."
    )


def assumed_columns(source: Source, names: Sequence[str]) -> dict[str, Column]:
    """Declarations of columns from all of their values. Raises `SourceError` if the rows cannot be read."""
    table = guessed(source)
    return {name: _assumed(table.column(name)) for name in names}


def empty_columns(table: pa.Table, names: Sequence[str]) -> list[str]:
    """Those of the columns whose assumed declaration is text, so that they come out empty."""
    return [name for name in names if isinstance(_assumed(table.column(name)), TextColumn)]


def _assumed(values: pa.ChunkedArray) -> Column:
    """The declaration by a column's values; text where none fits, or all values are the same."""
    try:
        return _looks_like(values)
    except ValidationError:  # such as amounts with more digits than double precision holds
        return TextColumn(type="text")


def _looks_like(values: pa.ChunkedArray) -> Column:
    if pa.types.is_duration(values.type):
        values = values.cast(pa.int64())
    type_, known, types = values.type, in_calendar(values.drop_null()), pa.types
    nullable = bool(values.null_count)
    if types.is_boolean(type_):
        return BooleanColumn(type="boolean", nullable=nullable)
    if types.is_time(type_):
        return TimeColumn(type="time", resolution="1s", nullable=nullable)
    if types.is_string(type_) or types.is_large_string(type_):
        texts = sorted(pc.unique(known).to_pylist()) if pc.count_distinct(known).as_py() <= MOST_CATEGORIES else []
        if len(texts) >= 2:
            return CategoricalColumn(type="categorical", values=texts, nullable=nullable)
        return TextColumn(type="text")
    if types.is_floating(type_):
        known = known.cast(pa.float64())
        known = known.filter(pc.is_finite(known))
        nullable = len(known) < len(values)
    elif types.is_timestamp(type_):
        known = in_microseconds(known).cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    elif not (types.is_integer(type_) or types.is_decimal(type_) or types.is_date(type_)):
        return TextColumn(type="text")
    ends = pc.min_max(known)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is not None and types.is_timestamp(type_):
        low, high = -(-low // SECOND), high // SECOND  # the whole seconds in between, which the source's type holds
    if low is None or low >= high:
        return TextColumn(type="text")
    if types.is_floating(type_):
        return FloatColumn(type="float", min=low, max=high, nullable=nullable)
    if types.is_integer(type_):
        return IntegerColumn(type="integer", min=low, max=high, nullable=nullable)
    if types.is_decimal(type_):
        decimals = max(type_.scale, 0)
        if decimals > _MOST_DECIMALS:  # the type does not say how many there are
            decimals = next(
                most for most in range(decimals + 1) if pc.all(pc.equal(pc.round(known, most), known)).as_py()
            )
        return FloatColumn(type="float", min=float(low), max=float(high), decimals=decimals, nullable=nullable)
    if types.is_date(type_):
        return DateColumn(type="date", min=low, max=high, nullable=nullable)
    start, end = (EPOCH + dt.timedelta(seconds=seconds) for seconds in (low, high))
    return DatetimeColumn(type="datetime", min=start, max=end, nullable=nullable)
