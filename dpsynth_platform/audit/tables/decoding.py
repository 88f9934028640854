"""Decoding: which targets were in, inferred jointly from the noisy counts of all measured marginals.

What belongs here: the search for the set of targets that explains the counts, and the assumptions on other people and
on the noise. What does not: the counts (`synth.tabular.model`), or other distributions of other people's counts
(`marginal_aware`).

Counts are linear in the targets' coins, so the coins can be solved for, as in reconstruction attacks on counts (Dinur &
Nissim, PODS 2003). A canary that is alone in an empty cell is found at once; one that shares its cells with other
canaries is found after them. Beliefs pass between targets and cells. In each cell the other targets' contribution is
approximated as normal, with the mean and the variance by their beliefs (Guo & Wang, "Asymptotic mean-square optimality
of belief propagation for sparse linear systems", ITW 2006). With one step, no beliefs and no other targets it is the
likelihood ratio of a single target.

On adult with 500 canaries of two records each, MST's and AIM's marginals without noise reveal 80% of the canaries at 1%
false alarms, and 40% where each is judged alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_ndtr

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.tabular.measurements import NoisyCounts

Cells = npt.NDArray[np.int64]
LogDensity = Callable[[Floats, Floats], Floats]
"""Of noisy counts without targets, given the deviation of the noise; both of shape (targets, marginals). Terms that are
equal with and without the target may be omitted."""

STEPS = 20
_KEPT = 0.5
"""Share of the last step's beliefs that is kept, for convergence."""
_LARGEST_LOG_ODDS = 30.0
"""Of one cell: beliefs in a wrong model stay finite."""
_LEAST_SIGMA = 0.25
"""Counts are whole numbers: smaller noise counts as none."""
_LEAST_NEGATIVE = 5
"""Least number of counts up to 0 for an estimate of a marginal's noise."""


def decoded_scores(
    counts: Floats, cells: Cells, noise: Floats, density: LogDensity, b: int, *, steps: int = STEPS
) -> Floats:
    """Log-odds that each target was in, shape (targets,).

    Marginals are treated as independent given the coins, although they share other people: the scores order targets,
    and are no probabilities.

    Args:
        counts: noisy count in each target's cell, shape (targets, marginals).
        cells: that cell in the marginal, same shape.
        noise: standard deviation, shape (marginals,); raises `AccountingError` if it is not above 0.
        density: of the counts without targets.
        b: contribution of a target to its cells.
        steps: of belief propagation.
    """
    if counts.shape != cells.shape or noise.shape != counts.shape[1:] or not (noise > 0).all():
        raise AccountingError(
            f"audit: counts {counts.shape}, cells {cells.shape}, noise {noise.shape}; accepted: one cell for every "
            "count, and one deviation above 0 for every marginal"
        )
    marginals = np.arange(cells.shape[1])
    entries = Entries(
        targets=np.repeat(np.arange(len(cells)), marginals.size),
        cells=np.unique(
            np.stack([np.broadcast_to(marginals, cells.shape), cells], axis=-1).reshape(-1, 2),
            axis=0,
            return_inverse=True,
        )[1].ravel(),
        weights=np.full(cells.size, float(b)),
        counts=counts.ravel(),
        noise=np.broadcast_to(noise, counts.shape).ravel(),
    )

    def flat(found: Floats, deviation: Floats) -> Floats:
        return density(found.reshape(counts.shape), deviation.reshape(counts.shape)).ravel()

    return decoded_entries(entries, len(cells), flat, steps=steps)


@dataclass(frozen=True)
class Entries:
    """What targets add to noisy counts, in the form of a sparse matrix; all of shape (entries,).

    Attributes:
        targets: numbers from 0.
        cells: numbers of cells from 0; those of different marginals differ.
        weights: what the target adds to the cell.
        counts: the noisy count of the cell.
        noise: its standard deviation.
    """

    targets: npt.NDArray[np.int64]
    cells: Cells
    weights: Floats
    counts: Floats
    noise: Floats


def decoded_entries(entries: Entries, targets: int, density: LogDensity, *, steps: int = STEPS) -> Floats:
    """`decoded_scores` of targets that may be in several cells of a marginal, with weights; shape (targets,).

    Args:
        density: of counts without targets, of shape (entries,).
    """
    mine, weights = entries.targets, entries.weights
    beliefs = np.zeros(entries.counts.shape)
    for step in range(steps):
        chance = expit(np.bincount(mine, beliefs, targets)[mine] - beliefs)
        others = entries.counts - _of_others(weights * chance, entries.cells)
        scale = np.sqrt(entries.noise**2 + _of_others(weights**2 * chance * (1 - chance), entries.cells))
        ratio = density(others - weights, scale) - density(others, scale)
        ratio = np.clip(ratio, -_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS)
        beliefs = ratio if step == 0 else _KEPT * beliefs + (1 - _KEPT) * ratio
    return np.asarray(np.bincount(mine, beliefs, targets), dtype=np.float64)


def exponential_people(expected: Floats) -> LogDensity:
    """Log-density of exponentially distributed counts of other people, with normal noise.

    Of all distributions of this mean on positive numbers, the exponential one has the largest entropy. It decreases
    steeply below zero: a cell with too few records for the target proves absence, but anyone may fill a full cell.
    `expected` are means above 0, shape (targets, marginals).
    """
    rate = 1 / expected

    def density(counts: Floats, scale: Floats) -> Floats:
        return np.asarray(log_ndtr(counts / scale - rate * scale) - rate * counts, dtype=np.float64)

    return density


def shown_noise(measurements: Sequence[NoisyCounts]) -> Floats:
    """Standard deviation of each marginal's noise by its counts, at most the planned one; shape (marginals,).

    A true count is never negative, so values below zero are noise: noise below the plan makes the attack sharper. A
    marginal with too few such counts gets the share of its planned noise that all marginals together have.
    """
    planned = np.array([measured.sigma for measured in measurements])
    below = [measured.counts[measured.counts <= 0].astype(np.float64) for measured in measurements]
    together = np.concatenate([counts / sigma for counts, sigma in zip(below, planned, strict=True)])
    usual = planned * min(1.0, _spread(together, 1.0))
    seen = np.array([_spread(counts, float(instead)) for counts, instead in zip(below, usual, strict=True)])
    return np.asarray(np.clip(seen, _LEAST_SIGMA, np.maximum(planned, _LEAST_SIGMA)), dtype=np.float64)


def _of_others(values: Floats, cells: Cells) -> Floats:
    """Sum of the other targets' values in each entry's cell, shape (entries,)."""
    return np.asarray(np.maximum(np.bincount(cells, values)[cells] - values, 0.0), dtype=np.float64)


def _spread(counts: Floats, instead: float) -> float:
    """Root mean square, or `instead` if there are too few counts."""
    return float(np.sqrt(np.square(counts).mean())) if counts.size >= _LEAST_NEGATIVE else instead
