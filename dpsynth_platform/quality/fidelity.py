"""Fidelity: distances of the synthetic one- to five-way marginals from the real ones.

What belongs here: total variation distances on cell codes, with two reference values: those of independent columns (a
generator should be better), and those of a bootstrap of the real rows (nothing can be much better). What does not:
coding values into cells (`synth.tabular.domain`), or judging the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.foundation.digests import canonical_digest

Codes = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

MOST_MARGINALS = 1000
"""A fixed random sample of so many marginals replaces more."""
MORE_WAYS = (4, 5)
MOST_OF_MORE_WAYS = 100
"""Of so many columns, a sample is smaller: the number of cells is that of the rows."""
_MOST_CELLS = 1 << 21
_MOST_CODES = 1 << 62


@dataclass(frozen=True)
class ColumnDistance:
    """Distance of one column's marginals, in [0, 1], and shares of rows whose value is missing or unlisted.

    `resampled` is the distance of a bootstrap of the real rows.
    """

    column: str
    synthetic: float
    resampled: float
    missing: float
    real_missing: float


@dataclass(frozen=True)
class PairDistance:
    """Distance of a pair's marginals, in [0, 1]; `independent` is that of the product of the real marginals."""

    first: str
    second: str
    synthetic: float
    resampled: float
    independent: float


@dataclass(frozen=True)
class WayDistance:
    """Total variation distances, in [0, 1], of `measured` of the `marginals` that two tables have on `ways` columns."""

    ways: int
    marginals: int
    measured: int
    mean: float
    largest: float


@dataclass(frozen=True)
class Fidelity:
    """All distances, or why there are none. Triples are None with fewer than three columns.

    `more` are those of `MORE_WAYS` columns, as far as there are so many: synthetic ones, and of a bootstrap.
    """

    columns: tuple[ColumnDistance, ...] = ()
    pairs: tuple[PairDistance, ...] = ()
    triples: WayDistance | None = None
    resampled_triples: WayDistance | None = None
    more: tuple[WayDistance, ...] = ()
    resampled_more: tuple[WayDistance, ...] = ()
    not_available: str | None = None

    @property
    def mean_column(self) -> float:
        return float(np.mean([item.synthetic for item in self.columns])) if self.columns else float("nan")

    @property
    def mean_pair(self) -> float:
        return float(np.mean([item.synthetic for item in self.pairs])) if self.pairs else float("nan")


def total_variation(first: Floats, second: Floats) -> float:
    """Half the L1 distance of two count vectors after each is scaled to sum to one; neither may sum to zero."""
    return float(0.5 * np.abs(first / first.sum() - second / second.sum()).sum())


def measure_fidelity(real: Codes, synthetic: Codes, names: Sequence[str], sizes: Sequence[int]) -> Fidelity:
    """Distances of all columns, pairs and (a sample of the) triples, quadruples and quintuples of columns.

    Statistical fidelity is the mean total variation of one- to five-way marginals (Aydore et al. 2021): 0 is the same,
    and the bootstrap's distance cannot be much improved on.

    Tables are cell codes of shape (rows, columns); `sizes` counts each column's cells, the last for missing values.
    """
    if not len(real) or not len(synthetic):
        return Fidelity(not_available=f"there are no {'real' if not len(real) else 'synthetic'} rows to compare")
    resampled = real[np.random.default_rng().integers(len(real), size=len(synthetic))]
    columns = []
    for index, (name, size) in enumerate(zip(names, sizes, strict=True)):
        truth, made, drawn = (rows[:, index] for rows in (real, synthetic, resampled))
        missing, real_missing = (float(np.mean(rows == size - 1)) for rows in (made, truth))
        synthetic_distance, resampled_distance = (distance(truth, rows, size) for rows in (made, drawn))
        columns.append(ColumnDistance(name, synthetic_distance, resampled_distance, missing, real_missing))
    pairs = []
    for first, second in combinations(range(len(names)), 2):
        truth, made, drawn = (_flat(rows, sizes, (first, second)) for rows in (real, synthetic, resampled))
        size = sizes[first] * sizes[second]
        synthetic_distance, resampled_distance = (distance(truth, rows, size) for rows in (made, drawn))
        independent = _distance_from_independent(truth, sizes[first], sizes[second])
        pairs.append(PairDistance(names[first], names[second], synthetic_distance, resampled_distance, independent))
    triples, drawn_triples = (
        k_way_distance(real, rows, sizes, 3, names=names) if len(names) > 2 else None for rows in (synthetic, resampled)
    )
    more, drawn_more = (
        tuple(
            k_way_distance(real, rows, sizes, ways, MOST_OF_MORE_WAYS, names)
            for ways in MORE_WAYS
            if len(names) >= ways
        )
        for rows in (synthetic, resampled)
    )
    return Fidelity(tuple(columns), tuple(pairs), triples, drawn_triples, more, drawn_more)


def k_way_distance(
    real: Codes,
    synthetic: Codes,
    sizes: Sequence[int],
    ways: int,
    most: int = MOST_MARGINALS,
    names: Sequence[str] | None = None,
) -> WayDistance:
    """Total variation distances of the marginals of `ways` columns, or of a fixed random sample of `most` of them.

    Args:
        real, synthetic: cell codes of shape (rows, columns) with at least one row.
        sizes: number of cells of each column.
        names: of the columns; the sample depends on them alone, and not on their order, so that reports compare.
    """
    marginals = list(_marginals(names or [str(place) for place in range(len(sizes))], ways, most))
    found = marginal_distances(real, synthetic, sizes, marginals)
    return WayDistance(ways, math.comb(len(sizes), ways), len(found), float(np.mean(found)), max(found))


def marginal_distances(
    real: Codes, synthetic: Codes, sizes: Sequence[int], marginals: Sequence[tuple[int, ...]]
) -> list[float]:
    """Total variation distance of each of these marginals; arguments as in `k_way_distance`."""
    both = np.asfortranarray(np.concatenate([real, synthetic]))
    found = []
    for marginal in marginals:
        cells = math.prod(sizes[column] for column in marginal)
        flat = _flat(both, sizes, marginal)
        found.append(distance(flat[: len(real)], flat[len(real) :], cells))
    return found


def distance(real: Codes, synthetic: Codes, cells: int) -> float:
    """Total variation distance of two samples of cell numbers below `cells`, neither empty."""
    if cells > min(_MOST_CELLS, max(4096, 4 * (len(real) + len(synthetic)))):  # more would mostly be empty
        both = _ranked(np.concatenate([real, synthetic]))
        real, synthetic, cells = both[: len(real)], both[len(real) :], int(both.max()) + 1
    first, second = (np.bincount(rows, minlength=cells).astype(np.float64) for rows in (real, synthetic))
    return total_variation(first, second)


def _marginals(names: Sequence[str], ways: int, most: int) -> Iterator[tuple[int, ...]]:
    """All column sets, or as many as `most` by a generator that the sorted names seed; it protects nothing."""
    if math.comb(len(names), ways) <= most:
        yield from combinations(range(len(names)), ways)
        return
    order = sorted(range(len(names)), key=names.__getitem__)
    rng = np.random.default_rng(int(canonical_digest([ways, sorted(names)])[:16], 16))
    drawn: set[tuple[int, ...]] = set()
    while len(drawn) < most:
        drawn.add(tuple(sorted(order[place] for place in rng.choice(len(names), ways, replace=False))))
    yield from sorted(drawn)


def _distance_from_independent(pairs: Codes, first: int, second: int) -> float:
    """Distance of a pair's marginal from the product of its columns' marginals, computed from non-empty cells."""
    seen, counts = np.unique(pairs, return_counts=True)
    joint = counts / len(pairs)
    left, right = seen // second, seen % second
    of_first = np.bincount(left, weights=joint, minlength=first)
    of_second = np.bincount(right, weights=joint, minlength=second)
    product = of_first[left] * of_second[right]
    return float(0.5 * (np.abs(joint - product).sum() + max(0.0, 1.0 - product.sum())))


def _flat(rows: Codes, sizes: Sequence[int], columns: tuple[int, ...]) -> Codes:
    """Each row's cell of a marginal, numbered in row-major order; by rank where numbers would exceed 64 bits."""
    flat, cells = rows[:, columns[0]].astype(np.int64), sizes[columns[0]]
    for column in columns[1:]:
        if cells * sizes[column] > _MOST_CODES:
            flat = _ranked(flat)
            cells = int(flat.max()) + 1
        flat = flat * sizes[column] + rows[:, column]
        cells *= sizes[column]
    return flat


def _ranked(codes: Codes) -> Codes:
    """Different codes as different numbers from zero; Arrow hashes, which takes less time than sorting."""
    return np.asarray(pa.array(codes).dictionary_encode().indices.to_numpy(zero_copy_only=False), dtype=np.int64)
