"""Moments side by side: hours of the day, weekdays, and the gaps between columns in a declared order.

What belongs here: distances of what a histogram of a year of days does not show, beside anchors as in `fidelity`. What
does not: reading columns (`columns`), and distances of columns as a whole.

Medians of gaps are kept to two digits: they are aggregates for reviewers, and no row's value to the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.columns import numbers_of
from dpsynth_platform.quality.fidelity import distance, total_variation
from dpsynth_platform.synth.tabular.derivation import DAY, HOUR
from dpsynth_platform.synth.tabular.domain import Domain

Values = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

GAP_CELLS = 32
"""Cells of gaps, with about as many of the real ones each, beside those that break the order and missing ones."""
_MONDAY = 3
_PARTS = {"date": ("weekday",), "datetime": ("hour of day", "weekday"), "time": ("hour of day",)}
_SIZES = {"hour of day": 24, "weekday": 7}


@dataclass(frozen=True)
class Series:
    """A column of the real and of the synthetic rows.

    Attributes:
        kind: `date`, `datetime` or `time`; `number` of others that have an order.
        parts: real and synthetic values, NaN where there is none: days, or microseconds.
    """

    name: str
    kind: str
    parts: tuple[Values, Values]


@dataclass(frozen=True)
class PartDistance:
    """Distance of a column's hours or weekdays, in [0, 1].

    Attributes:
        part: `hour of day` or `weekday`.
        resampled: that of a bootstrap of the real rows.
        flat: that of rows which have all of them alike.
    """

    column: str
    part: str
    synthetic: float
    resampled: float
    flat: float


@dataclass(frozen=True)
class GapDistance:
    """Gaps between two columns in an order.

    Attributes:
        synthetic: distance of the gaps' histograms, in [0, 1].
        resampled: that of a bootstrap of the real rows.
        independent: that of real columns which are put together at random.
        unit: of the medians: `s`, `days`, or none of numbers.
        median, real_median: of the gaps that there are, to two digits; None where there is none.
        broken, real_broken: share of them that break the order.
    """

    earlier: str
    later: str
    synthetic: float
    resampled: float
    independent: float
    unit: str
    median: float | None
    real_median: float | None
    broken: float | None
    real_broken: float | None


@dataclass(frozen=True)
class MomentsFidelity:
    """What is measured of moments and orders."""

    parts: tuple[PartDistance, ...] = ()
    gaps: tuple[GapDistance, ...] = ()


def of_domain(domain: Domain, real: pa.Table, synthetic: pa.Table) -> dict[str, Series]:
    """The columns with an order of a contract, in their declared ranges, by name."""
    found = {}
    for column in domain:
        if column.ordered:
            one, other = (column.numbers(table.column(column.name)) for table in (real, synthetic))
            kind = column.kind if column.kind in _PARTS else "number"
            found[column.name] = Series(column.name, kind, (one, other))
    return found


def of_tables(real: pa.Table, synthetic: pa.Table) -> dict[str, Series]:
    """The columns with an order of two tables of the same columns, by name."""
    found = {}
    for name in real.column_names:
        one, other = (table.column(name) for table in (real, synthetic))
        kinds = {_kind(one.type), _kind(other.type)}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is not None:
            unit = DAY if kind == "date" else 1
            found[name] = Series(name, kind, (numbers_of(one) / unit, numbers_of(other) / unit))
    return found


def measure_moments(columns: Mapping[str, Series], orders: Sequence[Sequence[str]]) -> MomentsFidelity | None:
    """Distances of all hours, weekdays and gaps; None where there is none, or a table has no rows.

    Args:
        columns: by name.
        orders: names of columns whose values do not decrease from one to the next.

    Raises:
        SourceError: an order is not of two columns or more of one kind that has an order.
    """
    pairs = list(dict.fromkeys(pair for names in orders for pair in _pairs(columns, names)))
    if any(not values.size for column in columns.values() for values in column.parts):
        return None
    rng = np.random.default_rng()
    parts = [found for column in columns.values() for found in _parts(column, rng)]
    gaps = [_gaps(columns[earlier], columns[later], rng) for earlier, later in pairs]
    return MomentsFidelity(tuple(parts), tuple(gaps)) if parts or gaps else None


def _pairs(columns: Mapping[str, Series], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    accepted = "accepted: two or more columns of one kind: numbers, dates, moments or times of day"
    for name in names:
        if name not in columns:
            raise SourceError(f"ascending: {name!r} is no column that has an order; {accepted}")
    kinds = {columns[name].kind for name in names}
    if len(set(names)) < max(2, len(names)) or len(kinds) > 1:
        raise SourceError(f"ascending: {', '.join(f'{name} ({columns[name].kind})' for name in names)}; {accepted}")
    yield from pairwise(names)


def _parts(column: Series, rng: np.random.Generator) -> Iterator[PartDistance]:
    real, synthetic = (values[~np.isnan(values)] for values in column.parts)
    if not real.size or not synthetic.size:
        return
    for part in _PARTS.get(column.kind, ()):
        size = _SIZES[part]
        truth, made = (_part(values, column.kind, part) for values in (real, synthetic))
        counts = np.bincount(truth, minlength=size).astype(np.float64)
        yield PartDistance(
            column.name,
            part,
            distance(truth, made, size),
            distance(truth, truth[rng.integers(truth.size, size=made.size)], size),
            total_variation(counts, np.ones(size)),
        )


def _part(values: Values, kind: str, part: str) -> Codes:
    if part == "hour of day":
        return np.asarray(values.astype(np.int64) % DAY // HOUR)
    days = values.astype(np.int64) if kind == "date" else values.astype(np.int64) // DAY
    return np.asarray((days + _MONDAY) % 7)


def _gaps(earlier: Series, later: Series, rng: np.random.Generator) -> GapDistance:
    real, synthetic = (high - low for low, high in zip(earlier.parts, later.parts, strict=True))
    apart = rng.permutation(later.parts[0]) - earlier.parts[0]
    there = real[real >= 0]
    edges = np.unique(np.quantile(there, np.arange(1, GAP_CELLS) / GAP_CELLS)) if there.size else np.zeros(0)
    size = edges.size + 3

    def cells(gaps: Values) -> Codes:
        inside = np.searchsorted(edges, gaps, side="left")
        return np.where(np.isnan(gaps), size - 1, np.where(gaps < 0, size - 2, inside)).astype(np.int64)

    truth, unit = cells(real), 1e-6 if later.kind in ("datetime", "time") else 1.0
    return GapDistance(
        earlier.name,
        later.name,
        distance(truth, cells(synthetic), size),
        distance(truth, truth[rng.integers(truth.size, size=synthetic.size)], size),
        distance(truth, cells(apart), size),
        {"date": "days", "number": ""}.get(later.kind, "s"),
        _median(synthetic * unit),
        _median(real * unit),
        _broken(synthetic),
        _broken(real),
    )


def _median(gaps: Values) -> float | None:
    known = gaps[~np.isnan(gaps)]
    return float(f"{np.median(known):.2g}") if known.size else None


def _broken(gaps: Values) -> float | None:
    known = gaps[~np.isnan(gaps)]
    return float((known < 0).mean()) if known.size else None


def _kind(type_: pa.DataType) -> str | None:
    kinds = {
        "date": pa.types.is_date,
        "datetime": pa.types.is_timestamp,
        "time": pa.types.is_time,
        "number": lambda one: pa.types.is_integer(one) or pa.types.is_floating(one) or pa.types.is_decimal(one),
    }
    return next((kind for kind, of in kinds.items() if of(type_)), None)
