"""Membership attacks on canaries: how much does the model, or the data sampled from it, speak of each one?

What belongs here: turning a model's numbers or the synthetic rows into one score a canary (higher means rather in),
and how many guesses each attack makes. What does not: the coins. No function here knows which canary was included,
and none sees a real record, so all of it is post-processing of what the mechanism left.

The three attacks and their numbers of guesses are fixed here, in advance; none is chosen in the light of a run. A
quarter of the coins is guessed: enough right guesses to refute epsilon = 2 with 200 canaries, and few enough to leave
out those that nothing is known of. The attack on the measurements guesses a fifth, and "out" only: an empty cell proves
that whoever would have to be in it is not there, whereas a filled one may be filled by others.

What to expect: on noisy marginals of a wide table (adult, epsilon 1, 500 canaries with two records each) the audit sees
noise that is missing or down to a twentieth of the plan's, mostly a tenth, and hardly ever a fifth. On a few coarse
columns, where many canaries share every cell, it sees less.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.audit.bounds import Alike
from dpsynth_platform.foundation.errors import AccountingError

Floats = npt.NDArray[np.float64]

NEIGHBOURS = 5
"""How many synthetic rows nearest to a canary the attack on the data looks at."""
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
    "odds that the noisy counts of every measured clique give each canary, judged together with all others",
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
    runs = [runs_of(text, length) for text in canaries]
    wanted: frozenset[str] = frozenset().union(*runs)
    found: set[str] = set()
    for text in texts:
        found.update(wanted.intersection(runs_of(text, length)))
    return np.array([len(own & found) / max(1, len(own)) for own in runs], dtype=np.float64)


def runs_of(text: str, length: int = RUN) -> set[str]:
    """All runs of `length` characters in a text; none if it is shorter."""
    return {text[start : start + length] for start in range(len(text) - length + 1)}


@dataclass(frozen=True)
class Scored:
    """An attack with the scores it gave.

    Attributes:
        scores: shape (canaries,), in the order of the canaries' fingerprints.
        alike: which canaries it cannot tell apart, since all that it looks at is equal; None: that is not known.
    """

    attack: Attack
    scores: Floats
    alike: Alike | None = None


def alike_cells(codes: npt.NDArray[Any]) -> Alike:
    """Which rows have the same cells in all columns; shape (rows,) for codes of shape (rows, columns)."""
    return np.asarray(np.unique(codes, axis=0, return_inverse=True)[1], dtype=np.int64).ravel()


def alike_items(items: Iterable[Hashable]) -> Alike:
    """Which items, texts say, are equal; shape (items,)."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(item, len(numbers)) for item in items], dtype=np.int64)
