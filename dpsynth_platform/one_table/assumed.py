"""Domains read off the data, because somebody says that they are public.

What belongs here: what `--assume-public-domain` declares of columns of which nothing else is known. What does not:
deciding whether that may be done (`run`). No guarantee covers this look at the data: the statement lists it. Whatever
learns domains with differential privacy belongs beside this module and is charged to the ledger.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

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
from dpsynth_platform.sources.delta_types import in_calendar
from dpsynth_platform.sources.table_files import Source, guessed
from dpsynth_platform.synth.tabular.scales import SECOND

MOST_CATEGORIES = 1000
"""A text column with more different values is taken for free text, and left empty."""


def not_covered(names: Sequence[str]) -> str:
    """The access, in words for the statement."""
    return (
        f"The domains (least and largest value, lists of values, whether values miss) of {', '.join(names)}: read off "
        "the data and not declared, on the word of whoever ran this that they are public. Where they are not, the "
        "synthetic rows can show them as they are."
    )


def assumed_columns(source: Source, names: Sequence[str]) -> dict[str, Column]:
    """Declarations of some columns from all of their values.

    Raises:
        SourceError: the rows cannot be read.
    """
    table = guessed(source)
    return {name: _assumed(table.column(name)) for name in names}


def _assumed(values: pa.ChunkedArray) -> Column:
    """What a column's values look like; text where that is nothing that can be declared, or the same in all rows."""
    try:
        return _looks_like(values)
    except ValidationError:  # such as amounts with more digits than double precision holds
        return TextColumn(type="text")


def _looks_like(values: pa.ChunkedArray) -> Column:
    type_, known = values.type, in_calendar(values.drop_null())
    nullable = bool(values.null_count)
    if pa.types.is_boolean(type_):
        return BooleanColumn(type="boolean", nullable=nullable)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        texts = sorted(pc.unique(known).to_pylist()) if pc.count_distinct(known).as_py() <= MOST_CATEGORIES else []
        if len(texts) >= 2:
            return CategoricalColumn(type="categorical", values=texts, nullable=nullable)
    elif pa.types.is_floating(type_):
        known = known.cast(pa.float64())
        finite = known.filter(pc.is_finite(known))
        low, high = _ends(finite)
        if low is not None and low < high:
            return FloatColumn(type="float", min=low, max=high, nullable=len(finite) < len(values))
    elif pa.types.is_integer(type_):
        low, high = _ends(known)
        if low is not None and low < high:
            return IntegerColumn(type="integer", min=low, max=high, nullable=nullable)
    elif pa.types.is_decimal(type_):
        low, high = _ends(known)
        if low is not None and low < high:
            return FloatColumn(
                type="float", min=float(low), max=float(high), decimals=max(type_.scale, 0), nullable=nullable
            )
    elif pa.types.is_date(type_):
        low, high = _ends(known)
        if low is not None and low < high:
            return DateColumn(type="date", min=low, max=high, nullable=nullable)
    elif pa.types.is_timestamp(type_):
        low, high = _ends(known.cast(pa.timestamp("us"), safe=False).cast(pa.int64()))
        # The whole seconds in between, in UTC: the source's type holds them.
        if low is not None and (first := -(-low // SECOND)) < (last := high // SECOND):
            start, end = (EPOCH + dt.timedelta(seconds=seconds) for seconds in (first, last))
            return DatetimeColumn(type="datetime", min=start, max=end, nullable=nullable)
    elif pa.types.is_time(type_):
        return TimeColumn(type="time", resolution="1s", nullable=nullable)
    return TextColumn(type="text")


def _ends(values: pa.ChunkedArray) -> tuple[Any, Any]:
    ends = pc.min_max(values)
    return ends["min"].as_py(), ends["max"].as_py()
