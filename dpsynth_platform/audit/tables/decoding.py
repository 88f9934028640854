"""Decoding: which targets were in, judged together from the noisy counts of all measured marginals.

What belongs here: the search for the set of targets that explains the counts, and what is assumed of other people and
of the noise. What does not: finding the counts (`synth.tabular.model`), or other laws of other people's counts
(`marginal_aware`).

Counts of many cells are linear in the targets' coins, so that the coins can be solved for, as in reconstruction attacks
on counts (Dinur & Nissim, PODS 2003). A canary that is alone in an empty cell is told at once; one that shares its
cells with other canaries only once they are told. Beliefs are passed between targets and cells, and in each cell the
other targets' contribution is taken as normal, with the mean and the variance that the beliefs of them give it (Guo &
Wang, "Asymptotic mean-square optimality of belief propagation for sparse linear systems", ITW 2006). With one step, no
beliefs and no other targets it would be the likelihood ratio of a single target.

On adult with 500 canaries of two records each, MST's and AIM's marginals without noise give away 80% of the canaries at
1% false alarms, and 40% where each is judged alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_ndtr

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.tabular.measurements import NoisyCounts

Cells = npt.NDArray[np.int64]
LogDensity = Callable[[Floats, Floats], Floats]
"""Of noisy counts without any target, given the deviation of the noise; both of shape (targets, marginals). What is the
same with the target and without it may be left out."""

STEPS = 20
_KEPT = 0.5
"""Share of the last step's beliefs that is kept, so that they settle."""
_SUREST = 30.0
"""Log-odds that one cell may give: beliefs in a wrong model stay finite."""
_LEAST_SIGMA = 0.25
"""Counts are whole numbers: below this scale, noise is as good as none."""
_LEAST_NEGATIVE = 5
"""Fewer counts than this that are not positive say too little about a marginal's noise."""


def decoded_scores(
    counts: Floats, cells: Cells, noise: Floats, density: LogDensity, b: int, *, steps: int = STEPS
) -> Floats:
    """Log-odds of each target's being in.

    Marginals are taken as independent given the coins, which they are not where the same other people are in them: the
    scores order targets, and are no probabilities.

    Args:
        counts: noisy count in each target's cell, shape (targets, marginals).
        cells: which cell of the marginal that is, same shape; targets with equal numbers share it.
        noise: standard deviation of the noise, shape (marginals,), above 0.
        density: of the counts without targets.
        b: what a target counts for.
        steps: how often beliefs are passed.

    Returns:
        Shape (targets,).

    Raises:
        AccountingError: shapes that do not fit, or noise that is not above 0.
    """
    if counts.shape != cells.shape or noise.shape != counts.shape[1:] or not (noise > 0).all():
        raise AccountingError(
            f"audit: counts {counts.shape}, cells {cells.shape}, noise {noise.shape}; accepted: one cell for every "
            "count, and one deviation above 0 for every marginal"
        )
    places = [np.unique(column, return_inverse=True)[1] for column in cells.T]
    beliefs = np.zeros(counts.shape)
    for step in range(steps):
        chance = expit(beliefs.sum(axis=1, keepdims=True) - beliefs)
        others = counts - b * _of_others(chance, places)
        scale = np.sqrt(noise**2 + b**2 * _of_others(chance * (1 - chance), places))
        ratio = np.clip(density(others - b, scale) - density(others, scale), -_SUREST, _SUREST)
        beliefs = ratio if step == 0 else _KEPT * beliefs + (1 - _KEPT) * ratio
    return np.asarray(beliefs.sum(axis=1), dtype=np.float64)


def exponential_people(expected: Floats) -> LogDensity:
    """Log-density of exponentially distributed counts of other people, with normal noise.

    Of all laws of this mean on positive numbers, the exponential one assumes least. It falls steeply below zero: a cell
    with too few records for the target to be in it proves absence, whereas a full one may be filled by anybody.

    Args:
        expected: means, shape (targets, marginals), above 0.
    """
    rate = 1 / expected

    def density(counts: Floats, scale: Floats) -> Floats:
        return np.asarray(log_ndtr(counts / scale - rate * scale) - rate * counts, dtype=np.float64)

    return density


def shown_noise(measurements: Sequence[NoisyCounts]) -> Floats:
    """Standard deviation of each marginal's noise as its counts show it, at most as planned; shape (marginals,).

    A count of records is never negative, so what lies below zero is noise: noise that is smaller than the plan says
    makes the attack sharper. A marginal with too few such counts has the share of its planned noise that all of them
    together have.
    """
    planned = np.array([measured.sigma for measured in measurements])
    below = [measured.counts[measured.counts <= 0].astype(np.float64) for measured in measurements]
    together = np.concatenate([counts / sigma for counts, sigma in zip(below, planned, strict=True)])
    usual = planned * min(1.0, _spread(together, 1.0))
    seen = np.array([_spread(counts, float(instead)) for counts, instead in zip(below, usual, strict=True)])
    return np.asarray(np.clip(seen, _LEAST_SIGMA, np.maximum(planned, _LEAST_SIGMA)), dtype=np.float64)


def _of_others(values: Floats, places: Sequence[npt.NDArray[np.intp]]) -> Floats:
    """Of each target and marginal, the sum of the values of the other targets in its cell."""
    sums = [np.bincount(place, column)[place] for place, column in zip(places, values.T, strict=True)]
    return np.asarray(np.maximum(np.stack(sums, axis=1) - values, 0.0), dtype=np.float64)


def _spread(counts: Floats, instead: float) -> float:
    """Root mean square, where there are enough counts."""
    return float(np.sqrt(np.square(counts).mean())) if counts.size >= _LEAST_NEGATIVE else instead
