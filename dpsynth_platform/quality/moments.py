"""Fidelity of moments: hours of the day, weekdays, and gaps between columns in a declared order.

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
from dpsynth_platform.synth.tabular.derivation import DAY, HOUR
from dpsynth_platform.synth.tabular.domain import Domain

Values = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

GAP_CELLS = 32
"""Cells with about equal numbers of real gaps; broken orders and missing gaps have further cells."""
_MONDAY = 3
_PARTS = {"date": ("weekday",), "datetime": ("hour of day", "weekday"), "time": ("hour of day",)}
_SIZES = {"hour of day": 24, "weekday": 7}


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
    """Distance of a column's hours of the day or weekdays, in [0, 1].

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
class MomentsFidelity:
    """The distances of hours and weekdays, and of gaps."""

    parts: tuple[PartDistance, ...] = ()
    gaps: tuple[GapDistance, ...] = ()


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
    """Distances of all hours, weekdays and gaps; None if there are none, or a table has no rows.

    Values must not decrease within an order. Raises `SourceError` for an order without two columns of one ordered kind.
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
