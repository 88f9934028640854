"""Fidelity: how far the synthetic one- and two-way marginals are from the real ones.

What belongs here: total variation distances on cell codes, beside two anchors that make them readable: what independent
columns would give (a generator should be better), and what a fresh sample of the real rows would give (nothing can be
much better). What does not: coding values into cells (`synth.tabular.domain`), or a judgement of the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ColumnDistance:
    """Distance of one column's marginals, in [0, 1]; `resampled` is that of a bootstrap of the real rows."""

    column: str
    synthetic: float
    resampled: float


@dataclass(frozen=True)
class PairDistance:
    """Distance of a pair's marginals, in [0, 1]; `independent` is that of the product of the real columns."""

    first: str
    second: str
    synthetic: float
    resampled: float
    independent: float


@dataclass(frozen=True)
class Fidelity:
    """All distances, or the reason why there are none."""

    columns: tuple[ColumnDistance, ...] = ()
    pairs: tuple[PairDistance, ...] = ()
    not_available: str | None = None

    @property
    def mean_column(self) -> float:
        """Mean one-way distance of the synthetic data."""
        return float(np.mean([item.synthetic for item in self.columns])) if self.columns else float("nan")

    @property
    def mean_pair(self) -> float:
        """Mean two-way distance of the synthetic data."""
        return float(np.mean([item.synthetic for item in self.pairs])) if self.pairs else float("nan")


def total_variation(first: Floats, second: Floats) -> float:
    """Half the L1 distance of two count vectors after each is scaled to sum to one; neither may sum to zero."""
    return float(0.5 * np.abs(first / first.sum() - second / second.sum()).sum())


def measure_fidelity(real: Codes, synthetic: Codes, names: Sequence[str], sizes: Sequence[int]) -> Fidelity:
    """Distances of all columns and all pairs of columns.

    Args:
        real: shape (rows, columns), cell codes of the real rows.
        synthetic: shape (rows, columns), of the synthetic rows; the number of rows may differ.
        names: of the columns.
        sizes: number of cells of each column; every code is below it.
    """
    if not len(real) or not len(synthetic):
        return Fidelity(not_available=f"there are no {'real' if not len(real) else 'synthetic'} rows to compare")
    resampled = real[np.random.default_rng().integers(len(real), size=len(synthetic))]
    columns = []
    for index, name in enumerate(names):
        truth, made, drawn = (_counts(rows, sizes, (index,)) for rows in (real, synthetic, resampled))
        columns.append(ColumnDistance(name, total_variation(truth, made), total_variation(truth, drawn)))
    pairs = []
    for pair in combinations(range(len(names)), 2):
        truth, made, drawn = (_counts(rows, sizes, pair) for rows in (real, synthetic, resampled))
        table = truth.reshape(sizes[pair[0]], sizes[pair[1]])
        product = np.outer(table.sum(axis=1), table.sum(axis=0)).ravel()
        distances = (total_variation(truth, other) for other in (made, drawn, product))
        pairs.append(PairDistance(names[pair[0]], names[pair[1]], *distances))
    return Fidelity(tuple(columns), tuple(pairs))


def _counts(rows: Codes, sizes: Sequence[int], columns: tuple[int, ...]) -> Floats:
    """Counts of a marginal's cells, flattened in row-major order."""
    flat = np.zeros(len(rows), dtype=np.int64)
    cells = 1
    for column in columns:
        flat = flat * sizes[column] + rows[:, column]
        cells *= sizes[column]
    return np.bincount(flat, minlength=cells).astype(np.float64)
