"""Rows' cells to values, where moments are counted by their day, weekday, hour and gap.

What belongs here: consistent places inside of cells, and building the columns. What does not: drawing states
(`sampling`), places in one column's cells (`ColumnDomain.places`), and arithmetic of moments (`derivation`).

Attributes drawn for one record may contradict each other where the model has not measured their relation. A gap takes
precedence over the hour, and the hour over the weekday; a day has the weekday if its state has any such day. A missing
hour or weekday of a present moment is drawn as in other rows. All moments are inside of their declared range.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.synth.tabular.derivation import (
    ANY,
    DAY,
    HOUR,
    Mask,
    Moments,
    Span,
    moments_in,
    parts_of_weeks,
)
from dpsynth_platform.synth.tabular.domain import Codes, ColumnDomain, Domain
from dpsynth_platform.synth.tabular.scales import SECOND

Places = npt.NDArray[Any]


@dataclass
class Placed:
    """Values of rows, as places on their columns' scales (`ColumnDomain.places`).

    `counts` of each attribute's cells determine the shapes inside of them.
    """

    domain: Domain
    codes: Codes
    rng: np.random.Generator
    counts: list[npt.NDArray[np.int64]] = field(init=False)
    _places: dict[int, Places] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = [
            np.bincount(self.codes[:, index], minlength=column.size) for index, column in enumerate(self.domain)
        ]
        self._parts: dict[int, dict[str, int]] = {}
        for part, index in self.domain.parts.items():
            self._parts.setdefault(index, {})[self.domain.columns[part].kind] = part
        self._index = {column.name: index for index, column in enumerate(self.domain) if column.part_of is None}
        every = np.arange(len(self.codes))
        for index, column in enumerate(self.domain):
            if column.derived is None:
                self._places[index] = self._of_cells(index, every)

    def fix(self, index: int, column: pa.Array | pa.ChunkedArray) -> None:
        """Gives an ordered column known values, in place of drawn ones; its codes are known already."""
        self._places[index] = self.domain.columns[index].known_places(column)

    def follow(self, index: int, before: int, gap: int) -> npt.NDArray[np.bool_]:
        """Puts a column's values at a gap after those of another, in rows with all three; shape (rows,): inside of it.

        Gaps are in ones, days or seconds (`contracts.tables`). Values beyond the declared range stay at its end.
        """
        column, start, steps = (self.domain.columns[each] for each in (index, before, gap))
        codes = [self.codes[:, each] for each in (index, before, gap)]
        present = np.all(
            [found != each.missing for found, each in zip(codes, (column, start, steps), strict=True)], axis=0
        )
        if not present.any():
            return np.asarray(~present)
        if column.kind == "gap":
            self._place_gap(index)
        released = column.released
        distance = self._places[gap].astype(np.int64) + int(steps.edges[0])
        if released.kind == "datetime":  # to the nearest step: steps may be shorter or longer than a second
            distance = (distance * SECOND + released.step // 2) // released.step
        moved = self._places[before].astype(np.int64) + int(start.edges[0]) - int(released.edges[0])
        moved = moved + distance
        last = int(released.edges[-1]) - 1 - int(released.edges[0])
        found = np.where(present, np.clip(moved, 0, last), self._places[index].astype(np.int64))
        self._places[index] = found.astype(np.uint64)
        return np.asarray(~present | (moved <= last))

    def place(self, index: int, rows: npt.NDArray[np.int64]) -> None:
        """Draws the places of a column again in some rows; not for gaps."""
        self._places[index][rows] = self._of_cells(index, rows)

    def amounts(self, index: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The values of an ordered column as numbers (`ColumnDomain.numbers`); not for gaps."""
        return self.domain.columns[index].amounts(self.codes[rows, index], self._places[index][rows])

    def batch(self, types: pa.Schema) -> pa.RecordBatch:
        """The columns of rows, in the given types; gaps are placed here, after all earlier columns."""
        arrays, names = [], []
        for name, index in self._index.items():
            column, kind = self.domain.columns[index], types.field(name).type
            codes = self.codes[:, index]
            if column.kind == "gap":
                self._place_gap(index)
                missing, column = column.missing, column.released
                codes = np.where(codes == missing, column.missing, 0).astype(np.int32)
            arrays.append(column.restored(codes, self._places[index], kind))
            names.append(name)
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _place_gap(self, index: int) -> None:
        column = self.domain.columns[index]
        if index in self._places or column.derived is None:
            return
        for earlier in column.derived.after:
            self._place_gap(self._index[earlier.column])
        span = column.derived.of
        moments = self._after_gaps(index, column)
        self._places[index] = (moments // span.step - span.low).astype(np.uint64)

    def _of_cells(self, index: int, rows: npt.NDArray[np.int64]) -> Places:
        """Places in the cells of a column, at the rows' hours and weekdays if the column has such attributes."""
        column, codes = self.domain.columns[index], self.codes[rows, index]
        places = column.places(codes, self.rng, self.counts[index])
        if index not in self._parts:
            return places
        edges = np.asarray(column.edges, dtype=np.int64)
        cells = np.where(codes == column.missing, 0, codes)
        moments = self._moments(index, rows, edges[cells], edges[cells + 1], places.astype(np.int64) + edges[0])
        return np.asarray(moments // column.step - edges[0], dtype=np.uint64)

    def _moments(self, index: int, rows: npt.NDArray[np.int64], low: Moments, high: Moments, other: Moments) -> Moments:
        """Moments in intervals, at the rows' hours and weekdays if the interval has them, else `other`."""
        column, parts = self.domain.columns[index], self._parts.get(index, {})
        step = column.step if column.derived is None else column.derived.of.step
        if not parts:
            return other * step
        present = self.codes[rows, index] != column.missing
        hours, weekdays = (self._part(parts.get(kind), rows, present) for kind in ("hour", "weekday"))
        width = HOUR
        if "hour" in parts and (derived := self.domain.columns[parts["hour"]].derived) is not None:
            width = derived.width
        found, had = moments_in(low * step, high * step, hours, weekdays, width, step, self.rng)
        return np.where(had, found, other * step)

    def _part(self, part: int | None, rows: npt.NDArray[np.int64], present: Mask) -> Moments:
        """The hours or weekdays of some rows; one that a present moment lacks is drawn as in other rows."""
        if part is None:
            return np.full(rows.size, ANY, dtype=np.int64)
        missing = self.domain.columns[part].missing
        found = self.codes[rows, part].astype(np.int64)
        lacking = np.flatnonzero(present & (found == missing))
        held = self.counts[part][:missing]
        if lacking.size and held.sum():
            found[lacking] = self.rng.choice(missing, lacking.size, p=held / held.sum())
        return np.where(found == missing, ANY, found)

    def _after_gaps(self, index: int, column: ColumnDomain) -> Moments:
        """Moments at the rows' gaps after the earlier moments."""
        gap = column.derived
        assert gap is not None  # noqa: S101  (a gap's)
        rows, span = np.arange(len(self.codes)), gap.of
        start, timed = gap.start([self._earlier(earlier) for earlier in gap.after])
        codes = self.codes[:, index].astype(np.int64)
        edges = np.asarray(column.edges, dtype=np.int64)
        gaps = len(edges) - 1 - (gap.alone is not None)
        # A moment after another one has a gap, also if its cell is the one without an earlier moment.
        held = self.counts[index][:gaps]
        invalid = np.flatnonzero(timed & (codes >= gaps) & (codes != column.missing))
        if invalid.size and held.sum():
            codes[invalid] = self.rng.choice(gaps, invalid.size, p=held / held.sum())
        codes = np.where(codes < gaps, codes, 0)
        inside = column.places(codes.astype(np.int32), self.rng, self.counts[index]).astype(np.int64)
        low = np.clip(start + edges[codes], span.low, span.high)
        high = np.maximum(np.minimum(start + edges[codes + 1], span.high + 1), low + 1)
        other = np.clip(start + inside, low, high - 1)
        moments = self._moments(index, rows, low, high, other)
        alone = np.flatnonzero(~timed)
        if alone.size:
            moments[alone] = self._without_earlier(index, alone, moments[timed], span)
        return moments

    def _without_earlier(self, index: int, rows: npt.NDArray[np.int64], others: Moments, span: Span) -> Moments:
        """Moments without an earlier one, on days of other rows."""
        low, high = (np.full(rows.size, end, dtype=np.int64) for end in (span.low, span.high + 1))
        if others.size:
            drawn = self.rng.choice(others, rows.size)
            if span.kind != "datetime":
                return np.asarray(drawn)
            days = drawn // DAY * DAY
            low = np.maximum(-(-days // span.step), span.low)
            high = np.maximum(np.minimum(-(-(days + DAY) // span.step), span.high + 1), low + 1)
        return self._moments(index, rows, low, high, self.rng.integers(low, high))

    def _earlier(self, span: Span) -> tuple[Moments, Mask]:
        index = self._index[span.column]
        column = self.domain.columns[index]
        absent = self.codes[:, index] == column.missing
        return (self._places[index].astype(np.int64) + span.low) * span.step, absent


def cells_of_weekdays(column: ColumnDomain, share: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Each weekday's share of a column's cells of days, shape (7, cells); every weekday has all missing moments."""
    weekly = parts_of_weeks([int(edge) for edge in column.edges], column.step)
    return np.asarray(share * np.append(weekly, np.ones((1, 7)), axis=0).T)
