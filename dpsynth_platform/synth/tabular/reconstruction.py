"""All pairs' shares from the noisy residuals of all pairs at once: post-processing.

What belongs here: separating noise from what columns have in common. What does not: which residuals are measured, and
the model that has the shares (`grem`).

Residuals are unbiased, and closed-form sums of them are the best linear estimate of every marginal (GReM-MLE, Mullins
et al. 2024). With thousands of pairs, noise exceeds nearly all of them. But a relation of many columns shows in many
pairs at once. Let Y be the symmetric matrix, over the states of all columns, of the pairs' deviations from independence
(residual less product of the single columns), in units of its noise. It is taken for L + A + noise:

- L, of few dimensions. Noise alone has eigenvalues up to 2 sqrt(n), for n coordinates. Larger ones y are reduced to
  sqrt(y^2 - 4 n), which minimizes the expected square (Gavish & Donoho 2017). If columns are independent given hidden
  variables, covariances of these are positive semidefinite; so only positive ones are kept.
- A, pairs that stand out alone: each pair's block of Y - L, reduced by its expected noise (James & Stein 1961), or zero
  where that is within `SURE` deviations.

Both are found in turns, A first. The blocks of a column with itself are unknown: those of L are put there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpsynth_platform.synth.tabular.estimation import Array
from dpsynth_platform.synth.tabular.measurements import NoisyCounts
from dpsynth_platform.synth.tabular.residuals import residual

TURNS = 4
SURE = 3.0
"""Deviations of a pair's squared noise."""
LEAST = 1e-3
"""Of the largest eigenvalue: smaller ones do not matter for a start."""


@dataclass(frozen=True)
class PairShares:
    """Shares of all pairs' cells.

    Attributes:
        shares: of every two states of different columns, of one symmetric matrix over the states of all columns.
        variance: of each one's noise before it was reduced; infinite within a column.
        factors: F with F F^T about the deviations from independence, shape (states, dimensions).
    """

    shares: Array
    variance: Array
    factors: Array


def pair_shares(alone: Sequence[Array], residuals: Sequence[NoisyCounts], total: float) -> PairShares:
    """The shares of all pairs.

    Args:
        alone: each column's shares of states.
        residuals: noisy contrasts of pairs, in records; the deviation of a pair's is a constant times the product of
            `widths` of its columns.
        total: number of records.
    """
    sizes = [item.size for item in alone]
    ends = np.cumsum([0, *sizes])
    parts = [slice(first, last) for first, last in itertools.pairwise(ends)]
    width, single = widths(sizes), np.concatenate([np.zeros(0), *alone])
    noisy, other = np.zeros((ends[-1], ends[-1])), np.ones((ends[-1], ends[-1]))
    for part in parts:
        other[part, part] = 0.0
    if not residuals:
        return PairShares(np.outer(single, single), np.full_like(noisy, np.inf), noisy[:, :0])
    level = 0.0
    for item in residuals:
        a, b = item.clique
        independent = np.outer(alone[a] - 1 / sizes[a], alone[b] - 1 / sizes[b])
        level = item.sigma / (width[a] * width[b] * total)
        noisy[parts[a], parts[b]] = residual(item.counts.astype(np.float64)) / total - independent
        noisy[parts[b], parts[a]] = noisy[parts[a], parts[b]].T
    scale = np.repeat(width, sizes) * math.sqrt(level)
    deviations = _reduced(noisy / np.outer(scale, scale), other, sizes) * np.outer(scale, scale)
    values, vectors = np.linalg.eigh(deviations)
    kept = values > LEAST * max(float(values[-1]), np.finfo(np.float64).tiny)
    with np.errstate(divide="ignore"):
        return PairShares(
            np.maximum(np.outer(single, single) + deviations * other, 0.0),
            np.outer(scale, scale) ** 2 / other,
            vectors[:, kept] * np.sqrt(values[kept]),
        )


def widths(sizes: Sequence[int]) -> Array:
    """The noise of a pair's coordinates is a constant times the product of its columns' widths: m^(-1/3).

    A pair's cells have an absolute noise of sum cells * deviation, which is least at a given sum of precisions for
    deviations in proportion to cells^(-1/3).
    """
    return np.asarray(np.asarray(sizes, dtype=np.float64) ** (-1 / 3))


def _reduced(noisy: Array, other: Array, sizes: Sequence[int]) -> Array:
    """L + A of a matrix with noise of deviation 1 in the coordinates of each pair; L within columns."""
    starts = np.cumsum([0, *sizes[:-1]])
    free = np.asarray(sizes, dtype=np.float64) - 1
    expected = np.outer(free, free)
    most = expected + SURE * np.sqrt(2 * expected)
    edge = 4 * float(free.sum())

    def standing_out(values: Array) -> Array:
        held = np.add.reduceat(np.add.reduceat(values**2, starts, axis=0), starts, axis=1)
        kept = 1 - most / np.maximum(held, np.maximum(most, LEAST))
        return np.asarray(values * np.repeat(np.repeat(kept, sizes, axis=0), sizes, axis=1))

    low, alone = np.zeros_like(noisy), standing_out(noisy)
    for _ in range(TURNS):
        values, vectors = np.linalg.eigh(noisy - alone + low * (1 - other))
        some = (values > 0) & (values**2 > edge)
        low = (vectors[:, some] * np.sqrt(values[some] ** 2 - edge)) @ vectors[:, some].T
        alone = standing_out((noisy - low) * other)
    return np.asarray(low + alone)
