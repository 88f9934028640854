"""Residuals of marginals: what a set of columns' counts say beyond the counts of its subsets (Xiao et al. 2023).

What belongs here: residuals in whole numbers, how far one unit moves them, the best spread of a budget over them, and
marginals from them with their variances. What does not: drawing noise (`drawing`), and which marginals are wanted.

A marginal over columns of m_1, m_2, ... cells is a sum of mutually orthogonal parts, one for every subset A of its
columns: P_A x, which P_A projects the counts x of A's cells to, with P_A the Kronecker product of I - J / m_i (J all
ones), spread evenly over the cells of the other columns. Marginals share these parts. So each part is measured once,
as exactly as all marginals together need it (ResidualPlanner).

**Whole numbers.** P_A x is measured in the basis of Helmert's contrasts: along each axis, the sum of the first k cells
less k times the next one, k from 1 to m - 1. They are orthogonal, of the squared length k (k + 1) each. Noise in
proportion to a contrast's length is then independent Gaussian noise on orthonormal coordinates of P_A x, while all
that is measured stays exact, and is rounded after the noise only.

**Sensitivity.** Coordinates in an orthonormal basis move by the length of P_A v, if a unit changes counts by v. The
squared length is convex in v, or in the two vectors of a replacement. So its maximum is at a corner, where the unit's
records are all in one cell, or all move from one cell to another: b^2 times a diagonal entry of P_A, the product of
1 - 1 / m_i, or b^2 times 2 (P_A[a, a] - P_A[a, a']), whichever is larger. `stretch_squared` is that, relative to counts
(`units.count_sensitivity`). With add-or-remove all parts are farthest at once, and nothing is lost; replacements that
move one part farthest do not move the others so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from dpsynth_platform.privacy.units import replaces
from dpsynth_platform.synth.tabular.estimation import Array
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.noise import Counts


def subsets(clique: Clique, least: int = 0) -> Iterator[Clique]:
    """All subsets of at least so many columns, the smallest first."""
    for ways in range(least, len(clique) + 1):
        yield from itertools.combinations(clique, ways)


def contrasts(counts: Counts) -> Counts:
    """The exact contrasts along every axis of counts, shape (m_1 - 1, m_2 - 1, ...)."""
    for axis in range(counts.ndim):
        last = np.moveaxis(counts, axis, -1)
        steps = np.arange(1, last.shape[-1], dtype=np.int64)
        counts = np.moveaxis(np.cumsum(last, axis=-1)[..., :-1] - steps * last[..., 1:], -1, axis)
    return counts


def squared_lengths(shape: Sequence[int]) -> Counts:
    """The squared length of each contrast of counts of that shape, as of `contrasts`."""
    found = np.ones((), dtype=np.int64)
    for size in shape:
        steps = np.arange(1, size, dtype=np.int64)
        found = np.multiply.outer(found, steps * (steps + 1))
    return found


def residual(found: Array) -> Array:
    """P_A x of the contrasts of x, shape (m_1, m_2, ...)."""
    for axis in range(found.ndim):
        last = np.moveaxis(found, axis, -1)
        steps = np.arange(1, last.shape[-1] + 1)
        parts = last / (steps * (steps + 1))
        whole = np.zeros((*last.shape[:-1], last.shape[-1] + 1))
        whole[..., :-1] = np.cumsum(parts[..., ::-1], axis=-1)[..., ::-1]
        whole[..., 1:] -= steps * parts
        found = np.moveaxis(whole, -1, axis)
    return found


def stretch_squared(shape: Sequence[int], adjacency: str) -> Fraction:
    """The most that one unit moves P_A x, relative to counts of A's cells: of squared L2 distances."""
    own = [1 - Fraction(1, size) for size in shape]
    same = math.prod(own, start=Fraction(1))
    if not replaces(adjacency) or not same:
        return same
    farthest = same
    for moved in itertools.product((False, True), repeat=len(own)):
        if any(moved):
            other = math.prod((part - 1 if away else part for part, away in zip(own, moved, strict=True)), start=1)
            farthest = max(farthest, 2 * (same - other))
    return farthest / 2


def weights_of(workload: Mapping[Clique, float], sizes: Sequence[int], least: int = 0) -> dict[Clique, float]:
    """How much the variance of each residual's coordinates matters for the sum of all cells' variances.

    Args:
        workload: weights of marginals.
        sizes: cells of every column.
        least: columns of the smallest residual.
    """
    found: dict[Clique, float] = {}
    for clique, weight in workload.items():
        for part in subsets(clique, least):
            coordinates = math.prod(sizes[index] - 1 for index in part)
            spread = math.prod(sizes[index] for index in clique if index not in part)
            if coordinates:
                found[part] = found.get(part, 0.0) + weight * coordinates / spread
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


def best_shares(weights: Mapping[Clique, float], stretches: Mapping[Clique, float]) -> dict[Clique, float]:
    """The shares of the precision, in all 1, that minimize the weighted sum of variances.

    A residual with the share q has coordinates of variance s / q, with s its squared stretch: sum of v s / q is least
    for q in proportion to sqrt(v s), and then the square of the sum of these.
    """
    roots = {clique: math.sqrt(weight * stretches[clique]) for clique, weight in weights.items()}
    whole = math.fsum(roots.values())
    return {clique: root / whole for clique, root in roots.items()}


def cell_variance(clique: Clique, sizes: Sequence[int], variances: Mapping[Clique, float]) -> float:
    """The variance of each cell of a marginal, by the variances of its residuals' coordinates."""
    found = 0.0
    for part in subsets(clique):
        own = math.prod(1 - 1 / sizes[index] for index in part)
        spread = math.prod(sizes[index] for index in clique if index not in part)
        found += variances.get(part, 0.0) * own / spread**2
    return found


def marginal(clique: Clique, sizes: Sequence[int], residuals: Mapping[Clique, Array]) -> Array:
    """The counts of a marginal whose residuals are known; a missing one, as of one cell, is zero."""
    found = np.zeros([sizes[index] for index in clique])
    for part in subsets(clique):
        if part in residuals:
            spread = math.prod(sizes[index] for index in clique if index not in part)
            found += residuals[part].reshape([sizes[index] if index in part else 1 for index in clique]) / spread
    return found
