"""Fidelity of moments: hours, weekdays, months, gaps of successive rows, and gaps of columns in a declared order.

What belongs here: their distances, with reference values as in `fidelity`. What does not: reading columns (`columns`),
and distances of whole columns.

Medians of gaps have two digits, so that they do not show one row's exact value.
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
from dpsynth_platform.quality.single_columns import kolmogorov_smirnov
from dpsynth_platform.synth.tabular.derivation import DAY, HOUR
from dpsynth_platform.synth.tabular.domain import Domain

Values = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

GAP_CELLS = 32
"""Cells with about equal numbers of real gaps; broken orders and missing gaps have further cells."""
_MONDAY = 3
LEAST_ARRIVALS = 50
MOST_ARRIVALS = 20_000
"""Of fewer and of more moments in each half of the real rows, gaps of successive rows say little or take time."""
_DAYS = ("weekday", "calendar month", "month")
_PARTS = {"date": _DAYS, "datetime": ("hour of day", *_DAYS), "time": ("hour of day",)}
_SIZES = {"hour of day": 24, "weekday": 7, "calendar month": 12}


@dataclass(frozen=True)
class Series:
    """A column of the real and of the synthetic rows.

    Attributes:
        kind: `date`, `datetime`, `time` or, for all others with an order, `number`.
        parts: real and synthetic values, in days (`date`) or microseconds, with NaN for missing ones.
    """

    name: str
    kind: str
    parts: tuple[Values, Values]


@dataclass(frozen=True)
class PartDistance:
    """Distance of a column's hours of the day, weekdays, calendar months or months, in [0, 1]; 0: the same.

    `resampled` is that of a bootstrap of the real rows, `flat` that of the uniform distribution.
    """

    column: str
    part: str
    synthetic: float
    resampled: float
    flat: float


@dataclass(frozen=True)
class GapDistance:
    """Gaps between two columns in an order; None if there are no gaps.

    Attributes:
        synthetic, resampled, independent: distances, in [0, 1], from the real gaps: of the synthetic ones, of a
            bootstrap, and of real columns combined at random.
        unit: of the medians (two digits): `s`, `days`, or empty for numbers.
        broken, real_broken: share of gaps that break the order.
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
class ArrivalDistance:
    """Gaps between successive moments of a column: bursts and pauses, which shares of months do not show.

    Kolmogorov-Smirnov distances, in [0, 1] (0: the same), of the gaps of a random half of the real rows (or as many as
    there are synthetic ones) from those of as many synthetic rows, of rows of the other half, and of moments spread
    evenly over the half's range.
    """

    column: str
    synthetic: float
    real: float
    flat: float


@dataclass(frozen=True)
class MomentsFidelity:
    """The distances of hours, weekdays and months, of gaps in an order, and of gaps between successive rows."""

    parts: tuple[PartDistance, ...] = ()
    gaps: tuple[GapDistance, ...] = ()
    arrivals: tuple[ArrivalDistance, ...] = ()


def of_domain(domain: Domain, real: pa.Table, synthetic: pa.Table) -> dict[str, Series]:
    """A contract's columns with an order, clipped to their declared ranges, by name."""
    found = {}
    for column in domain:
        if column.ordered:
            one, other = (column.numbers(table.column(column.name)) for table in (real, synthetic))
            kind = column.kind if column.kind in _PARTS else "number"
            found[column.name] = Series(column.name, kind, (one, other))
    return found


def of_tables(real: pa.Table, synthetic: pa.Table) -> dict[str, Series]:
    """The columns with an order of two tables, by name."""
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
    """Distances of all hours, weekdays, months and gaps; None if there are none, or a table has no rows.

    Values must not decrease within an order. Raises `SourceError` for an order without two columns of one ordered kind.
    """
    pairs = list(dict.fromkeys(pair for names in orders for pair in _pairs(columns, names)))
    if any(not values.size for column in columns.values() for values in column.parts):
        return None
    rng = np.random.default_rng()
    parts = [found for column in columns.values() for found in _parts(column, rng)]
    gaps = [_gaps(columns[earlier], columns[later], rng) for earlier, later in pairs]
    arrivals = [found for column in columns.values() if (found := _arrivals(column))]
    return MomentsFidelity(tuple(parts), tuple(gaps), tuple(arrivals)) if parts or gaps else None


def _pairs(columns: Mapping[str, Series], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    accepted = "accepted: two or more columns of one kind: numbers, dates, moments or times of day"
    for name in names:
        if name not in columns:
            raise SourceError(f"ascending: {name!r} is not a column that has an order; {accepted}")
    kinds = {columns[name].kind for name in names}
    if len(set(names)) < max(2, len(names)) or len(kinds) > 1:
        raise SourceError(f"ascending: {', '.join(f'{name} ({columns[name].kind})' for name in names)}; {accepted}")
    yield from pairwise(names)


def _parts(column: Series, rng: np.random.Generator) -> Iterator[PartDistance]:
    real, synthetic = (values[~np.isnan(values)] for values in column.parts)
    if not real.size or not synthetic.size:
        return
    for part in _PARTS.get(column.kind, ()):
        truth, made = (_part(values, column.kind, part) for values in (real, synthetic))
        if part == "month":
            first = min(truth.min(), made.min())
            truth, made = truth - first, made - first
        size = _SIZES.get(part) or int(max(truth.max(), made.max())) + 1
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
    if part == "weekday":
        return np.asarray((days + _MONDAY) % 7)
    months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    return np.asarray(months % 12 if part == "calendar month" else months)


def _arrivals(column: Series) -> ArrivalDistance | None:
    """The gaps of as many moments of each kind, since gaps shrink with their number; None for too few moments."""
    if column.kind not in ("date", "datetime"):
        return None
    rng = np.random.default_rng(0)  # reviewers can repeat it; it protects nothing
    real, synthetic = (rng.permutation(values[~np.isnan(values)]) for values in column.parts)
    size = min(real.size // 2, synthetic.size, MOST_ARRIVALS)
    if size < LEAST_ARRIVALS:
        return None
    half = real[:size]
    flat = rng.uniform(half.min(), half.max(), size)
    flat = np.floor(flat) if column.kind == "date" else flat
    gaps = [np.diff(np.sort(values)) for values in (half, synthetic[:size], real[size : 2 * size], flat)]
    return ArrivalDistance(column.name, *(kolmogorov_smirnov(gaps[0], other) for other in gaps[1:]))


def _gaps(earlier: Series, later: Series, rng: np.random.Generator) -> GapDistance:
    real, synthetic = (high - low for low, high in zip(earlier.parts, later.parts, strict=True))
    independent = rng.permutation(later.parts[0]) - earlier.parts[0]
    ordered = real[real >= 0]
    edges = np.unique(np.quantile(ordered, np.arange(1, GAP_CELLS) / GAP_CELLS)) if ordered.size else np.zeros(0)
    size = edges.size + 3

    def cells(gaps: Values) -> Codes:
        inside = np.searchsorted(edges, gaps, side="left")
        return np.where(np.isnan(gaps), size - 1, np.where(gaps < 0, size - 2, inside)).astype(np.int64)

    truth, unit = cells(real), 1e-6 if later.kind in ("datetime", "time") else 1.0
    known = [gaps[~np.isnan(gaps)] * unit for gaps in (synthetic, real)]
    return GapDistance(
        earlier.name,
        later.name,
        distance(truth, cells(synthetic), size),
        distance(truth, truth[rng.integers(truth.size, size=synthetic.size)], size),
        distance(truth, cells(independent), size),
        {"date": "days", "number": ""}.get(later.kind, "s"),
        *(float(f"{np.median(gaps):.2g}") if gaps.size else None for gaps in known),
        *(float((gaps < 0).mean()) if gaps.size else None for gaps in known),
    )


def _kind(type_: pa.DataType) -> str | None:
    kinds = {
        "date": pa.types.is_date,
        "datetime": pa.types.is_timestamp,
        "time": pa.types.is_time,
        "number": lambda one: pa.types.is_integer(one) or pa.types.is_floating(one) or pa.types.is_decimal(one),
    }
    return next((kind for kind, of in kinds.items() if of(type_)), None)
