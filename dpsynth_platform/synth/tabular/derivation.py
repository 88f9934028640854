"""Attributes that follow from moments of one record: the hour, the weekday, and the gap to an earlier column.

What belongs here: such an attribute's values in Arrow, and moments with given attributes. What does not: which
attributes a contract's columns get (`attributes`), their SQL (`coding`), and drawing rows (`sampling`).

**Sensitivity.** Each attribute is a function of one record's own values and of public ranges, and has one value per
record, possibly "missing". So a record is in one cell of every marginal over columns and attributes. To the accountant,
attributes are columns, and a unit moves their counts by the sensitivity of `privacy.units`.

**Gaps** count whole steps of the later column from the first value that keeps the order. A record that breaks the order
has the least gap, as values outside of a range become its ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.synth.tabular.scales import SECOND, Scale

Derived = Literal["hour", "weekday", "gap"]
Moments = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

HOUR = 3600 * SECOND
DAY = 24 * HOUR
WEEK = 7 * DAY
MONDAY = -3 * DAY
"""The Monday before 1970, which began on a Thursday."""
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ANY = -1
"""Any hour, or any weekday."""


@dataclass(frozen=True)
class Span:
    """A column of days, moments or times of day, and its declared range.

    Attributes:
        kind: `date`, `datetime` or `time`.
        low: least value in steps of the column's scale; `high` is the largest.
        step: microseconds in a step; 1 of dates, whose unit is the day.
    """

    column: str
    kind: str
    low: int
    high: int
    step: int

    def values(self, table: pa.Table | pa.RecordBatch) -> tuple[Moments, Mask]:
        """The column in its own unit, inside of the range and in whole steps, and where it is missing."""
        column = table.column(self.column)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        found = Scale(self.kind, None, self.step).steps(column, self.low, self.high)
        return (found.values.astype(np.int64) + self.low) * self.step, found.absent


@dataclass(frozen=True)
class Derivation:
    """How an attribute follows from a record.

    Attributes:
        of: the column that it is derived from.
        width: of an hour, in microseconds; longer than an hour if the column's resolution is.
        after: of a gap, the earlier columns, the nearest first; the first of them that a record has counts.
        strict: of a gap, whether equal values break the order.
        alone: of a gap, its value in records without any of the earlier columns; None: the gap is missing there.
    """

    what: Derived
    of: Span
    width: int = HOUR
    after: tuple[Span, ...] = ()
    strict: bool = False
    alone: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.of.column, *(earlier.column for earlier in self.after))

    @property
    def longest(self) -> int:
        """The largest gap, in steps of the later column."""
        return int(max(0, *(self.of.high - self.least(earlier.low * earlier.step) for earlier in self.after)))

    def values(self, table: pa.Table | pa.RecordBatch) -> tuple[Moments, Mask]:
        """The attribute's values in a table, shape (rows,), and where it is missing."""
        moments, absent = self.of.values(table)
        if self.what == "hour":
            return moments % DAY // self.width, absent
        if self.what == "weekday":
            return (moments - MONDAY) % WEEK // DAY, absent
        start, found = self.start([earlier.values(table) for earlier in self.after])
        gaps = np.clip(moments // self.of.step - start, 0, self.longest)
        if self.alone is None:
            return gaps, absent | ~found
        return np.where(found, gaps, self.alone), absent

    def start(self, earlier: Sequence[tuple[Moments, Mask]]) -> tuple[Moments, Mask]:
        """Where gaps start, in steps of the later column, and which records have an earlier value."""
        start, found = self.least(earlier[0][0]), ~earlier[0][1]
        for values, absent in earlier[1:]:
            start = np.where(found, start, self.least(values))
            found = found | ~absent
        return start, found

    def least(self, earlier: Any) -> Any:
        """The first step that keeps the order after an earlier value (in its unit)."""
        return earlier // self.of.step + 1 if self.strict else -(-earlier // self.of.step)

    def label(self, value: int) -> str:
        if self.what == "weekday":
            return WEEKDAYS[value]
        if self.what == "hour":
            minutes = value * self.width // (60 * SECOND)
            return f"{minutes // 60:02d}:{minutes % 60:02d}"
        if value == self.alone:
            return "alone"
        return f"{value} days" if self.of.kind == "date" else f"{value * self.of.step / SECOND:g} s"

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Derivation:
        return cls(
            **(
                dict(document)
                | {"of": Span(**document["of"]), "after": tuple(Span(**each) for each in document["after"])}
            )
        )


def parts_of_weeks(edges: Iterable[int], step: int) -> npt.NDArray[np.float64]:
    """Share of each weekday in cells of moments, shape (cells, 7); ascending edges in steps of `step` microseconds."""
    ends = np.array(list(edges), dtype=np.int64)[:, None] * step - MONDAY
    before = ends // WEEK * DAY + np.clip(ends % WEEK - np.arange(7) * DAY, 0, DAY)
    inside = np.diff(before, axis=0).astype(np.float64)
    return np.asarray(inside / inside.sum(axis=1, keepdims=True))


def moments_in(
    low: Moments, high: Moments, hours: Moments, weekdays: Moments, width: int, step: int, rng: np.random.Generator
) -> tuple[Moments, Mask]:
    """Moments that are uniform in the part of each interval [low, high) with an hour and a weekday.

    If that part is empty, the weekday is ignored, then the hour instead, then both.

    Args:
        low: in microseconds, a whole step; shape (rows,).
        high: likewise.
        hours: of `width` microseconds each, or `ANY`.
        weekdays: from Monday, or `ANY`.
        width: see `hours`.
        step: microseconds in a step.
        rng: the source of randomness.

    Returns:
        Whole steps in microseconds, and whether each has a requested hour or weekday.
    """
    found, left = low.copy(), np.ones(low.size, dtype=np.bool_)
    for with_hour, with_weekday in ((True, True), (True, False), (False, True)):
        asked = left & (hours != ANY) * with_hour | left & (weekdays != ANY) * with_weekday
        if with_hour and with_weekday:
            asked &= (hours != ANY) & (weekdays != ANY)
        rows = np.flatnonzero(asked)
        hour = hours[rows] * width if with_hour else np.zeros(rows.size, dtype=np.int64)
        day = MONDAY + weekdays[rows] * DAY if with_weekday else np.zeros(rows.size, dtype=np.int64)
        length, period = width if with_hour else DAY, WEEK if with_weekday else DAY
        places, possible = _in_slots(low[rows], high[rows], hour + day, length, period, rng)
        found[rows[possible]] = places[possible]
        left[rows[possible]] = False
    rows = np.flatnonzero(left)
    found[rows] = low[rows] + _below(high[rows] - low[rows], rng)
    # Rounding down stays inside, since intervals begin at whole steps.
    return found // step * step, ~left


def _in_slots(
    low: Moments, high: Moments, first: Moments, length: int, period: int, rng: np.random.Generator
) -> tuple[Moments, Mask]:
    """Places that are uniform in the intersection of intervals with periodic slots; where it is not empty."""
    one, last = (low - first - length) // period + 1, (high - 1 - first) // period
    begin = np.maximum(low, first + one * period)
    here = np.minimum(high, first + one * period + length) - begin
    there = np.minimum(high - first - last * period, length)
    total = here + np.where(last > one, (last - one - 1) * length + there, 0)
    possible = last >= one
    place = _below(np.where(possible, total, 1), rng)
    later = place - here
    return np.where(
        place < here, begin + place, first + (one + 1 + later // length) * period + later % length
    ), possible


def _below(sizes: Moments, rng: np.random.Generator) -> Moments:
    return np.asarray(rng.integers(0, sizes), dtype=np.int64)
