"""Closeness: are synthetic rows nearer to the real rows that the mechanism had than other real rows are?

What belongs here: distances to the nearest of those rows, and exact copies of them, each beside the same of held-out
real rows. What does not: any claim of privacy. Rows that are far from all others can still betray somebody, and near
ones may be chance; what protects is the guarantee. A synthetic table that is much nearer than held-out rows, or that
copies far more often, is a reason to look for a mistake.

Distances are Euclidean, on numbers scaled to [0, 1] and one-hot categories: two rows that differ in one category only
are at a distance of one.
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
"""So many rows of each table are compared with the real ones; drawn at random, always the same."""
_MOST_NUMBERS = 50_000_000


@dataclass(frozen=True)
class Nearness:
    """How near the rows of one table are to the real rows that the mechanism had.

    Attributes:
        nearest_median, nearest_lowest: median and 5% quantile of the distances to the nearest row.
        neighbours_median: median of the mean distances to the `NEIGHBOURS` nearest rows.
        copies: rows that equal one of those rows in every column, of `rows` (all of the table's).
    """

    nearest_median: float
    nearest_lowest: float
    neighbours_median: float
    copies: int
    rows: int

    @property
    def copied(self) -> float:
        """Share of the rows that are copies."""
        return self.copies / self.rows


@dataclass(frozen=True)
class Closeness:
    """Synthetic rows beside held-out real ones.

    Attributes:
        closer: how often a synthetic row is nearer than a held-out one, of all pairs of the two, ties counting half;
            0.5 if they are equally near.
        synthetic_percentiles, real_percentiles: of the distances to the nearest row, from 0 to 100.
    """

    synthetic: Nearness
    real: Nearness
    closer: float
    synthetic_percentiles: tuple[float, ...]
    real_percentiles: tuple[float, ...]


def measure_closeness(columns: Sequence[Column]) -> Closeness:
    """Distances to, and copies of, the third table's rows.

    Args:
        columns: of held-out real rows, synthetic rows, and the real rows that the mechanism had; none may be empty.
    """
    real, made = _nearest(columns)
    copies = exact_copies(of_tables(columns, 0, 2)), exact_copies(of_tables(columns, 1, 2))
    rows = row_counts(columns)
    return Closeness(
        synthetic=_nearness(made, copies[1], rows[1]),
        real=_nearness(real, copies[0], rows[0]),
        closer=_closer(made[:, 0], real[:, 0]),
        synthetic_percentiles=_percentiles(made[:, 0]),
        real_percentiles=_percentiles(real[:, 0]),
    )


def exact_copies(columns: Sequence[Column]) -> int:
    """How many rows of the first table equal one of the second in every column; two missing values are equal."""
    first, _ = row_counts(columns)
    same = np.zeros(sum(row_counts(columns)), dtype=np.int64)
    for column in columns:
        # Rows that agree in all columns so far have one number; another column splits it.
        _, values = np.unique(np.concatenate(column.parts), return_inverse=True)
        _, same = np.unique(same * (int(values.max()) + 1) + values, return_inverse=True)
    return int(np.isin(same[:first], same[first:]).sum())


def _nearest(columns: Sequence[Column]) -> tuple[Values, Values]:
    """Distances of rows of the first and of the second table to their nearest of the third, ascending.

    Both of shape (rows, neighbours).
    """
    from sklearn.neighbors import NearestNeighbors

    rng = np.random.default_rng(0)  # a reviewer can repeat it; nothing private is protected by it
    limits = (MOST_ROWS, MOST_ROWS, _MOST_NUMBERS // width(columns))
    drawn = (
        rng.choice(rows, most, replace=False) if rows > most else np.arange(rows)
        for rows, most in zip(row_counts(columns), limits, strict=True)
    )
    real, made, among = for_distances(of_rows(columns, *drawn))
    index = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(among)), algorithm="brute").fit(among)
    near = [np.asarray(index.kneighbors(rows)[0], dtype=np.float64) for rows in (real, made)]
    return near[0], near[1]


def _percentiles(distances: Values) -> tuple[float, ...]:
    return tuple(np.percentile(distances, range(101)).tolist())


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
    beyond = len(order) - np.searchsorted(order, made, side="right")
    ties = np.searchsorted(order, made, side="right") - np.searchsorted(order, made, side="left")
    return float((beyond + ties / 2).mean() / len(order))
