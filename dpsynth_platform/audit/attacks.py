"""Membership attacks on canaries: how much does the model, or the data sampled from it, speak of each one?

What belongs here: turning a model's numbers or the synthetic rows into one score a canary (higher means rather in),
and how many guesses each attack makes. What does not: the coins. No function here knows which canary was included,
and none sees a real record, so all of it is post-processing of what the mechanism left.

The three attacks and their numbers of guesses are fixed here, in advance; none is chosen in the light of a run. A
quarter of the coins is guessed: enough right guesses to refute epsilon = 2 with 200 canaries, and few enough to leave
out those that nothing is known of. The attack on the measurements guesses a fifth, and "out" only: an empty cell proves
that whoever would have to be in it is not there, whereas a filled one may be filled by others.

What to expect: on noisy marginals of a wide table (sixteen columns, 500 canaries with two records each) the audit sees
noise that is missing or down to two hundredths of the plan's; a twentieth it does not see. On a few coarse columns,
where many canaries share every cell, it sees less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from dpsynth_platform.errors import AccountingError

Floats = npt.NDArray[np.float64]

NEIGHBOURS = 5
"""How many synthetic rows nearest to a canary the attack on the data looks at."""
_LEAST_SIGMA = 0.25
"""Counts are whole numbers: below this scale, noise is as good as none."""
_LEAST_NEGATIVE = 5
"""Fewer counts than this that are not positive say too little about a clique's noise."""
_LEAST_SPREAD = 1e-12
_CHUNK = 64
RUN = 8
"""Characters: two made-up words seldom share so many."""


@dataclass(frozen=True)
class Attack:
    """One way of scoring canaries, with the shares of all canaries that it guesses to be in and to be out."""

    name: str
    target: str
    describes: str
    share_in: float
    share_out: float

    def guesses(self, canaries: int) -> tuple[int, int]:
        """How many of the highest scores are guessed in, and of the lowest out."""
        return math.floor(self.share_in * canaries), math.floor(self.share_out * canaries)


LIKELIHOOD = Attack("likelihood", "model", "log-likelihood of the canary's record under the fitted model", 0.125, 0.125)
MEASUREMENTS = Attack(
    "measurements",
    "model",
    "likelihood ratio of the noisy counts in the canary's cells of every measured clique",
    0.0,
    0.2,
)
NEAREST = Attack("nearest rows", "data", "mean distance to the nearest synthetic rows", 0.125, 0.125)
TEXT_LIKELIHOOD = Attack(
    "text likelihood",
    "model",
    "how much likelier training made the canary's text than others that the language model found as unlikely before",
    0.125,
    0.125,
)
TEXT_OVERLAP = Attack(
    "text overlap", "data", "how much of the canary's text stands in synthetic texts, in runs of letters", 0.125, 0.125
)
ATTACKS = (MEASUREMENTS, LIKELIHOOD, NEAREST)
"""On tables."""
TEXT_ATTACKS = (TEXT_LIKELIHOOD, TEXT_OVERLAP)
"""Besides, where a language model writes a column."""


def measurement_scores(counts: Floats, expected: Floats, sigmas: Floats, b: int) -> Floats:
    """Log-likelihood ratio of in against out, summed over the measured cliques.

    A cell's noisy count is the canary's b records (or none), plus other people's records, plus noise. The others are
    taken as exponentially distributed with the mean that independent columns would give, the noise as Gaussian; their
    sum has a closed form, and so has the ratio. It falls steeply where a count is too low for the canary to be in it:
    an empty cell proves absence. The scale of the noise is not believed but read from the measurements: a count of
    records is never negative, so what lies below zero is noise. Noise that is smaller than the plan says thus makes
    the attack sharper.

    Args:
        counts: shape (canaries, cliques), noisy count in each canary's cell of each clique.
        expected: same shape, count that independence of the columns would lead one to expect there.
        sigmas: shape (cliques,), standard deviations of the noise as the plan states them; the most that is assumed.
        b: what each canary owner counts for: its records, or one where owners are counted.
    """
    if counts.shape != expected.shape or sigmas.shape != counts.shape[1:]:
        raise AccountingError("audit: accepted is one expected count for every measured count, one sigma a clique")
    scale = _noise_scales(counts, sigmas)
    rate = 1 / (np.maximum(expected, 0) + b)
    ratio = rate * b + log_ndtr((counts - b) / scale - rate * scale) - log_ndtr(counts / scale - rate * scale)
    return np.asarray(ratio.sum(axis=1), dtype=np.float64)


def nearest_scores(canaries: npt.NDArray[Any], rows: npt.NDArray[Any], neighbours: int = NEIGHBOURS) -> Floats:
    """Minus the mean Hamming distance from each canary to its nearest synthetic rows.

    Args:
        canaries: shape (canaries, columns), cell codes.
        rows: shape (rows, columns), cell codes of the synthetic rows; at least one.
        neighbours: how many of the nearest rows count (all, if there are fewer).

    Raises:
        AccountingError: there are no synthetic rows, or of other columns.
    """
    if rows.shape[0] == 0 or rows.shape[1:] != canaries.shape[1:]:
        raise AccountingError("audit: accepted are synthetic rows of the canaries' columns, at least one")
    nearest = min(neighbours, rows.shape[0])
    scores = np.empty(canaries.shape[0])
    by_column = np.ascontiguousarray(rows.T)
    for start in range(0, canaries.shape[0], _CHUNK):
        part = canaries[start : start + _CHUNK]
        distance = np.zeros((part.shape[0], rows.shape[0]), dtype=np.int16)
        for column, values in enumerate(by_column):
            distance += part[:, column, None] != values
        closest = np.partition(distance, nearest - 1, axis=1)[:, :nearest]
        scores[start : start + _CHUNK] = -closest.mean(axis=1)
    return scores


def likelihood_scores(before: Floats, after: Floats) -> Floats:
    """How much likelier training made each canary's text, beyond what it did for texts that were as unlikely before.

    All made-up texts become likelier, the unlikely ones most, whether they were in or not. A straight line through all
    canaries, in and out alike, says how much to expect; what is left is a canary's own (the difficulty calibration of
    Watson, Guo, Cormode & Sablayrolles, ICLR 2022). On a tiny model that had just begun to remember, this brought the
    area under the curve from 0.65 to 0.75.

    Args:
        before: shape (canaries,), mean log-likelihood per token under the model that training started from.
        after: same shape, under the trained one.
    """
    if before.shape != after.shape:
        raise AccountingError("audit: accepted is one likelihood before and one after training for every canary")
    gains = after - before
    spread = before - before.mean()
    slope = float(spread @ gains) / max(float(spread @ spread), _LEAST_SPREAD)
    return np.asarray(gains - slope * spread, dtype=np.float64)


def overlap_scores(canaries: Sequence[str], texts: Iterable[str], length: int = RUN) -> Floats:
    """Of each canary's text, the share of its runs of `length` characters that stand in any of the synthetic texts.

    Args:
        canaries: texts, one a canary.
        texts: the synthetic ones.
        length: of a run, in characters; a text that is shorter scores 0.
    """
    runs = [{text[start : start + length] for start in range(len(text) - length + 1)} for text in canaries]
    wanted: frozenset[str] = frozenset().union(*runs)
    found: set[str] = set()
    for text in texts:
        found.update(wanted.intersection(text[start : start + length] for start in range(len(text) - length + 1)))
    return np.array([len(own & found) / max(1, len(own)) for own in runs], dtype=np.float64)


def _noise_scales(counts: Floats, sigmas: Floats) -> Floats:
    """Standard deviation of each clique's noise from its counts that are not positive; at most the stated one."""
    negative = counts <= 0
    number = negative.sum(axis=0)
    spread = np.sqrt(np.square(np.where(negative, counts, 0.0)).sum(axis=0) / np.maximum(number, 1))
    seen = np.where(number >= _LEAST_NEGATIVE, np.minimum(spread, sigmas), sigmas)
    return np.asarray(np.maximum(seen, _LEAST_SIGMA), dtype=np.float64)


@dataclass(frozen=True)
class Scored:
    """An attack with the scores it gave, shape (canaries,), in the order of the canaries' fingerprints."""

    attack: Attack
    scores: Floats
