"""Periods: their boundaries in the time zone of a contract.

What belongs here: every boundary of a period. What does not: names of periods and their days (`contracts.periods`).

A period begins at the first instant at which clocks show its first day, and ends where the next one begins, so that
each instant is in exactly one. If clocks are set back over midnight of that day (Newfoundland in 2009), the repeated
hour belongs to the later period both times. Dates and timestamps without a time zone are in the contract's zone.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from dpsynth_platform.contracts.periods import period_bounds

if TYPE_CHECKING:
    import pyarrow as pa

    from dpsynth_platform.foundation.reading import Span

_DAY = dt.timedelta(days=1)
_STEP = dt.timedelta(microseconds=1)


def period_instants(period: str, zone: str) -> tuple[dt.datetime, dt.datetime]:
    """The first instant of a period in a time zone and the first one after it, in UTC."""
    first, last = period_bounds(period)
    return _begin(first, zone), _begin(last + _DAY, zone)


def has_ended(period: str, zone: str, now: dt.datetime) -> bool:
    """Whether a period in a time zone is over at an instant."""
    return _begin(period_bounds(period)[1] + _DAY, zone) <= now


def period_span(column: str, type_: pa.DataType, period: str, zone: str) -> Span:
    """The rows of a period, by a column of dates, or of timestamps with or without a time zone.

    Raises:
        pyarrow.ArrowException: the column has another type, or cannot hold the period's bounds.
    """
    import pyarrow as pa

    from dpsynth_platform.foundation.reading import Span

    first, last = period_bounds(period)
    days = (first, last + _DAY)
    if pa.types.is_date(type_):
        return Span(column, *(pa.scalar(day, type_) for day in days))
    if not pa.types.is_timestamp(type_):
        raise pa.ArrowTypeError(f"{type_} where a date or a timestamp is needed")
    if type_.tz is None:
        midnights = (dt.datetime.combine(day, dt.time()) for day in days)
        return Span(column, *(pa.scalar(midnight, type_) for midnight in midnights))
    return Span(column, *(pa.scalar(instant, type_) for instant in period_instants(period, zone)))


def local_schema(schema: pa.Schema, column: str | None, zone: str) -> pa.Schema:
    """A table's columns with the period column in local time, so that its dates are those of the period."""
    import pyarrow as pa

    if column is None or zone == "UTC" or column not in schema.names:
        return schema
    position = schema.get_field_index(column)
    item = schema.field(position)
    if not pa.types.is_timestamp(item.type) or item.type.tz is None:
        return schema
    return schema.set(position, item.with_type(pa.timestamp(item.type.unit)))


def local(values: pa.Array, type_: pa.DataType, zone: str) -> pa.Array:
    """A column, cast to its type in `local_schema`."""
    if values.type == type_:
        return values
    import pyarrow as pa

    # Arrow has no summer time after 2037, and may have other zones: its days would not match the boundaries.
    there = ZoneInfo(zone)
    moments = values.cast(pa.timestamp("us", "UTC")).to_pylist()
    clocks = (None if moment is None else moment.astimezone(there).replace(tzinfo=None) for moment in moments)
    return pa.array(clocks, pa.timestamp("us")).cast(type_)


def _begin(day: dt.date, name: str) -> dt.datetime:
    """The first instant at which clocks in a zone show a day, or a later one if they skip it."""
    midnight = dt.datetime.combine(day, dt.time(), ZoneInfo(name))
    found, other = (midnight.replace(fold=fold).astimezone(dt.UTC) for fold in (0, 1))
    # If clocks skip midnight, both are off by the gap, one to either side of the instant of the skip.
    while other + _STEP < found:
        middle = other + (found - other) / 2
        if middle.astimezone(midnight.tzinfo).replace(tzinfo=None) < midnight.replace(tzinfo=None):
            other = middle
        else:
            found = middle
    return found
