"""Closeness: are synthetic rows nearer to the mechanism's real rows than held-out real rows are?

What belongs here: distances to the nearest of those rows, and exact copies of them, of synthetic and of held-out rows.
What does not: claims about privacy; only the guarantee protects. Distant rows can still reveal a person, and near ones
may be a coincidence. But a synthetic table that is much nearer than held-out rows, or copies far more often, is a
reason to look for a mistake.

Distances are Euclidean on the features of `for_distances`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.columns import Column, Values, of_rows, of_tables, row_counts
from dpsynth_platform.quality.features import for_distances, width

NEIGHBOURS = 5
MOST_ROWS = 2_000
"""A fixed random sample of so many rows of each table is compared with the real ones."""
_MOST_NUMBERS = 50_000_000


@dataclass(frozen=True)
class Nearness:
    """Distances of the rows of one table to the mechanism's real rows.

    Attributes:
        nearest_median, nearest_lowest: median and 5% quantile of the distances to the nearest row.
        neighbours_median: median of the mean distances to the `NEIGHBOURS` nearest rows.
        copies: how many of the table's `rows` equal a real row in every column.
    """

    nearest_median: float
    nearest_lowest: float
    neighbours_median: float
    copies: int
    rows: int

    @property
    def copied(self) -> float:
        return self.copies / self.rows


@dataclass(frozen=True)
class Closeness:
    """Nearness of synthetic and of held-out real rows, with percentiles (0 to 100) of the distances to the nearest row.

    `closer` is the share of pairs (synthetic, held-out) in which the synthetic row is nearer, ties counting half.
    """

    synthetic: Nearness
    real: Nearness
    closer: float
    synthetic_percentiles: tuple[float, ...]
    real_percentiles: tuple[float, ...]


def measure_closeness(columns: Sequence[Column]) -> Closeness:
    """Nearness of held-out (first) and synthetic rows (second table) to the mechanism's real rows (third)."""
    real, made = _nearest(columns)
    copies = exact_copies(of_tables(columns, 1, 2)), exact_copies(of_tables(columns, 0, 2))
    rows = row_counts(columns)
    return closeness_of(made, real, copies, (rows[1], rows[0]))


def closeness_of(made: Values, real: Values, copies: tuple[int, int], rows: tuple[int, int]) -> Closeness:
    """Closeness by distances that were measured elsewhere.

    Args:
        made, real: ascending distances of synthetic and of held-out rows to the mechanism's real rows, shapes (rows,
            neighbours).
        copies, rows: of synthetic and of held-out rows: how many equal a real row, of how many.
    """
    percentiles = [tuple(np.percentile(distances[:, 0], range(101)).tolist()) for distances in (made, real)]
    return Closeness(
        synthetic=_nearness(made, copies[0], rows[0]),
        real=_nearness(real, copies[1], rows[1]),
        closer=_closer(made[:, 0], real[:, 0]),
        synthetic_percentiles=percentiles[0],
        real_percentiles=percentiles[1],
    )


def exact_copies(columns: Sequence[Column]) -> int:
    """How many rows of the first table equal one of the second in every column; missing values are equal."""
    first, _ = row_counts(columns)
    same = np.zeros(sum(row_counts(columns)), dtype=np.int64)
    for column in columns:
        # Rows that agree in all columns so far have the same number.
        _, values = np.unique(np.concatenate(column.parts), return_inverse=True)
        _, same = np.unique(same * (int(values.max()) + 1) + values, return_inverse=True)
    return int(np.isin(same[:first], same[first:]).sum())


def _nearest(columns: Sequence[Column]) -> tuple[Values, Values]:
    """Ascending distances of the first and second table's rows to the third's, of shape (rows, neighbours)."""
    from sklearn.neighbors import NearestNeighbors

    rng = np.random.default_rng(0)  # reviewers can repeat it; it protects nothing
    limits = (MOST_ROWS, MOST_ROWS, _MOST_NUMBERS // width(columns))
    drawn = (
        rng.choice(rows, most, replace=False) if rows > most else np.arange(rows)
        for rows, most in zip(row_counts(columns), limits, strict=True)
    )
    real, made, among = for_distances(of_rows(columns, *drawn))
    index = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(among)), algorithm="brute").fit(among)
    near = [np.asarray(index.kneighbors(rows)[0], dtype=np.float64) for rows in (real, made)]
    return near[0], near[1]


def _nearness(distances: Values, copies: int, rows: int) -> Nearness:
    nearest = distances[:, 0]
    return Nearness(
        nearest_median=float(np.median(nearest)),
        nearest_lowest=float(np.quantile(nearest, 0.05)),
        neighbours_median=float(np.median(distances.mean(axis=1))),
        copies=copies,
        rows=rows,
    )


def _closer(made: npt.NDArray[np.float64], real: npt.NDArray[np.float64]) -> float:
    """Share of pairs (synthetic, held-out) in which the synthetic row is nearer; ties count half."""
    order = np.sort(real)
    left, right = np.searchsorted(order, made, side="left"), np.searchsorted(order, made, side="right")
    return float((len(order) - (left + right) / 2).mean() / len(order))
