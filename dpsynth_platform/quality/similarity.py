"""Similarity of two tables: the fidelity measures of the DP-2Stage benchmark.

What belongs here: HIST, Pair and CorAcc as in Afonja et al. (DP-2Stage, TMLR 2025, section 5.1.2 and appendix C.2) and
their published code, so that figures are comparable with published ones. What does not: measures of association
(`associations`), or distances on declared cells (`fidelity`).

The protocol's tables have no missing values. Here missing values are a category, and in HIST a bin, so that a table is
always fully similar to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from dpsynth_platform.quality.associations import banded, matrix
from dpsynth_platform.quality.columns import Codes, Column, Values, of_rows, row_counts, scaled, span
from dpsynth_platform.quality.fidelity import distance

_CUT = 1000


@dataclass(frozen=True)
class Similarity:
    """HIST, Pair (None with a single column) and CorAcc, as shares in [0, 1]; 1: the same."""

    histogram_20: float
    histogram_50: float
    pair_20: float | None
    pair_50: float | None
    association_accuracy: float

    @property
    def histogram(self) -> float:
        return (self.histogram_20 + self.histogram_50) / 2

    @property
    def pair(self) -> float | None:
        if self.pair_20 is None or self.pair_50 is None:
            return None
        return (self.pair_20 + self.pair_50) / 2


def measure_similarity(columns: Sequence[Column]) -> Similarity:
    """All three measures of a table (second part of every column) against a real one (first part)."""
    several = len(columns) > 1
    return Similarity(
        histogram_20=histogram_intersection(columns, 20),
        histogram_50=histogram_intersection(columns, 50),
        pair_20=pair_similarity(columns, 20) if several else None,
        pair_50=pair_similarity(columns, 50) if several else None,
        association_accuracy=association_accuracy(columns),
    )


def histogram_intersection(columns: Sequence[Column], bins: int) -> float:
    """Mean over columns of the histogram intersection, in [0, 1] (HIST, appendix C.2.2).

    Numbers are scaled to [0, 1] on both tables together, with `bins` equally spaced edges, hence one bin less.
    """
    return float(np.mean([_intersection(column, bins) for column in columns]))


def pair_similarity(columns: Sequence[Column], bins: int) -> float:
    """Mean over pairs of columns of one minus the total variation distance, in [0, 1] (Pair, appendix C.2.4).

    Numbers are scaled to [0, 1] on the real table alone, with `bins` (at least two) equally spaced edges. Bins are
    closed on the right. Missing values and those out of range fall into the first bin.
    """
    coded = [_scaled_on_real(column, bins) for column in columns]
    found = []
    for first, second in combinations(coded, 2):
        size = second[1]
        real, other = (first[0][table] * size + second[0][table] for table in (0, 1))
        found.append(1.0 - distance(real, other, first[1] * size))
    return float(np.mean(found))


def association_accuracy(columns: Sequence[Column]) -> float:
    """Share of equal cells of the banded matrices of association, diagonal included (CorAcc, appendix C.2.3).

    A fixed random sample of the larger table has the smaller one's size. The measure is noisy: on UCI Adult, four
    splits of real rows gave 0.938 to 0.982.
    """
    counts = row_counts(columns)
    least = min(counts)
    # The published protocol's draw; it protects nothing.
    rows = [
        np.arange(count) if count == least else np.random.RandomState(_CUT).choice(count, least, replace=False)
        for count in counts
    ]
    real, other = (banded(matrix(of_rows(columns, *rows), table)) for table in (0, 1))
    return float((real == other).mean())


def _intersection(column: Column, bins: int) -> float:
    if column.size is not None:
        return 1.0 - distance(column.parts[0], column.parts[1], column.size)
    low, high = span(*column.parts)
    real, other = (_bins(part, low, high, bins, "right") for part in column.parts)
    return 1.0 - distance(real, other, bins)


def _scaled_on_real(column: Column, bins: int) -> tuple[list[Codes], int]:
    if column.size is not None:
        return list(column.parts), column.size
    low, high = span(column.parts[0])
    coded = []
    for part in column.parts:
        inside = (part >= low) & (part <= high)
        coded.append(np.where(inside, _bins(part, low, high, bins, "left"), 0))
    return coded, bins - 1


def _bins(values: Values, low: float, high: float, bins: int, side: Literal["left", "right"]) -> Codes:
    """Bin of each number inside [low, high]; the last code, `bins - 1`, is for missing ones.

    An inner edge belongs to the bin above it (`right`, as in numpy's histograms) or below it (`left`).
    """
    shares = scaled(np.where(np.isnan(values), low, values), low, high)
    found = np.searchsorted(np.linspace(0.0, 1.0, bins)[1:-1], shares, side=side)
    return np.where(np.isnan(values), bins - 1, found)
