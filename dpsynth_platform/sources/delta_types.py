"""Types that Delta tables lack, and their replacements.

What belongs here: converting Arrow columns to types of Delta tables, without a loss that a domain would notice. What
does not: writing tables (`storage`). Delta tables have no times of day, unsigned integers, nanoseconds, or years before
1 or after 9999.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import plain, plain_type
from dpsynth_platform.foundation.reading import in_microseconds
from dpsynth_platform.sources.declared_types import read_as, read_type

_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.float64()}


def kept_type(type_: pa.DataType, *, codes: bool = False) -> pa.DataType:
    """The stored type of a column: times of day become texts, 64-bit unsigned integers double precision.

    Args:
        codes: whether integers are categories, which must stay distinct: then 64-bit unsigned ones become texts.
    """
    type_ = plain_type(type_)
    if codes and pa.types.is_uint64(type_):
        return pa.string()
    if pa.types.is_time(type_):
        return pa.string()
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    if pa.types.is_decimal256(type_):
        return pa.float64()
    return pa.float32() if pa.types.is_float16(type_) else _SIGNED.get(type_, type_)


def kept(column: pa.Array | pa.ChunkedArray, *, codes: bool = False) -> pa.Array | pa.ChunkedArray:
    """A column, cast to its `kept_type`."""
    column = in_microseconds(plain(column))
    if column.type == pa.time64("ns"):
        column = column.cast(pa.time64("us"), safe=False)
    return in_calendar(column).cast(kept_type(column.type, codes=codes), safe=False)


def in_delta(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, codes: bool = False
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Rows with types that Delta tables have; durations are numbers of their unit.

    Args:
        codes: as of `kept_type`, of all columns.
    """
    stored = pa.schema([item.with_type(kept_type(_as_number(item.type), codes=codes)) for item in schema])

    def column(found: pa.Array) -> pa.Array:
        return kept(read_as("integer", found) if pa.types.is_duration(found.type) else found, codes=codes)

    return stored, (pa.RecordBatch.from_arrays(list(map(column, batch.columns)), schema=stored) for batch in batches)


def _as_number(type_: pa.DataType) -> pa.DataType:
    return read_type("integer", type_) if pa.types.is_duration(type_) else type_


def in_calendar(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Dates and timestamps before the year 1 or after 9999 become the nearest inside."""
    type_ = column.type
    if pa.types.is_date(type_):
        plain, ends = type_, (pa.scalar(end, type_) for end in (dt.date.min, dt.date.max))
    elif pa.types.is_timestamp(type_) and type_.unit != "ns":  # the range of nanoseconds is smaller
        plain = pa.timestamp(type_.unit)
        widest = (pa.scalar(end, pa.timestamp("us")) for end in (dt.datetime.min, dt.datetime.max))
        ends = (end.cast(plain, safe=False) for end in widest)
    else:
        return column
    first, last = ends
    inside = pc.max_element_wise(column.cast(plain), first, skip_nulls=False)
    return pc.min_element_wise(inside, last, skip_nulls=False).cast(type_)
