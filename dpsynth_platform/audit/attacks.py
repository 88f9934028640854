"""Membership attacks on canaries: one score a canary from the model, or from the data sampled from it.

What belongs here: scores (higher means rather in) and the number of guesses of each attack. What does not: the coins.
No function here reads a coin or a real record, so all of it is post-processing of the mechanism's output.

The attacks and their numbers of guesses are fixed in advance; no run changes them. A quarter of the coins is guessed:
enough right guesses to refute epsilon = 2 with 200 canaries, and few enough to leave out canaries without evidence. The
attack on the measurements guesses a fifth, and "out" only: an empty cell proves absence, but other records may fill a
cell.

On noisy marginals of a wide table (adult, epsilon 1, 500 canaries with two records each) the audit detects noise that
is missing or down to a twentieth of the plan's, mostly a tenth, and hardly ever a fifth. On a few coarse columns, where
many canaries share every cell, it detects less.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.audit.bounds import Duplicates
from dpsynth_platform.foundation.errors import AccountingError

Floats = npt.NDArray[np.float64]

NEIGHBOURS = 5
"""Nearest synthetic rows that the attack on the data uses."""
_LEAST_SPREAD = 1e-12
_CHUNK = 64
RUN = 8
"""Characters in a run: two made-up words seldom share so many."""


@dataclass(frozen=True)
class Attack:
    """A way to score canaries; `share_in` and `share_out` are the shares of all canaries that it guesses in and out."""

    name: str
    target: str
    describes: str
    share_in: float
    share_out: float

    def guesses(self, canaries: int) -> tuple[int, int]:
        """Number of highest scores guessed in, and of lowest scores guessed out."""
        return math.floor(self.share_in * canaries), math.floor(self.share_out * canaries)


LIKELIHOOD = Attack("likelihood", "model", "log-likelihood of the canary's record under the fitted model", 0.125, 0.125)
MEASUREMENTS = Attack(
    "measurements",
    "model",
    "odds that the noisy counts of every measured clique give each canary, judged together with all others",
    0.0,
    0.2,
)
ANSWERED = Attack(
    "answers",
    "model",
    "the least noisy number of rows, by its deviation, of all groups that the canary's record belongs to",
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
PICTURE_DISTANCE = Attack(
    "nearest pictures", "data", "distance of the canary's picture to the nearest released one", 0.125, 0.125
)
PICTURE_SUMS = Attack(
    "picture sums",
    "model",
    "the canary's part in its class's noisy sum of pictures, estimated with all others where real pictures are dark",
    0.125,
    0.125,
)
PICTURE_LOSS = Attack(
    "picture loss",
    "model",
    "how well the trained network takes noise from the canary's picture, compared by the same noise",
    0.125,
    0.125,
)
LINK_MEASUREMENTS = Attack(
    "link measurements",
    "model",
    "odds that the noisy counts of parents with their children give each canary, judged together with all others",
    0.0,
    0.2,
)
LINKED_ROWS = Attack(
    "linked rows", "data", "distance of a parent and child together to the nearest released ones", 0.125, 0.125
)
ANSWER_ATTACKS = (ANSWERED,)
"""On answers to queries."""
ATTACKS = (MEASUREMENTS, LIKELIHOOD, NEAREST)
"""On tables."""
LINK_ATTACKS = (LINK_MEASUREMENTS, LINKED_ROWS)
"""Additional ones on linked tables."""
TEXT_ATTACKS = (TEXT_LIKELIHOOD, TEXT_OVERLAP)
"""Additional ones where a language model writes a column."""
PICTURE_ATTACKS = (PICTURE_DISTANCE, PICTURE_SUMS, PICTURE_LOSS)
"""Additional ones where a method makes pictures."""


def nearest_scores(canaries: npt.NDArray[Any], rows: npt.NDArray[Any], neighbours: int = NEIGHBOURS) -> Floats:
    """Minus the mean Hamming distance from each canary to its nearest synthetic rows (all, if there are fewer).

    Both are cell codes of shape (rows, columns). Raises `AccountingError` if there are no synthetic rows, or they have
    other columns.
    """
    if rows.shape[0] == 0 or rows.shape[1:] != canaries.shape[1:]:
        raise AccountingError(
            f"audit: synthetic rows of shape {rows.shape}; accepted: at least one row with the canaries' "
            f"{canaries.shape[1]} columns"
        )
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
    """How much likelier training made each canary's text, beyond the gain of texts that were as unlikely before.

    All made-up texts become likelier, the unlikely ones most, whether they were in or not. A straight line through all
    canaries gives the expected gain; the residual is the score (the difficulty calibration of Watson, Guo, Cormode &
    Sablayrolles, ICLR 2022). On a tiny model that had just begun to remember, the area under the curve rose from 0.65
    to 0.75. `before` and `after` are mean log-likelihoods per token, shape (canaries,), under the initial model and the
    trained one; raises `AccountingError` if the shapes differ.
    """
    if before.shape != after.shape:
        raise AccountingError(
            f"audit: {before.size} likelihoods before training, {after.size} after; accepted: one of each for every "
            "canary"
        )
    gains = after - before
    spread = before - before.mean()
    slope = float(spread @ gains) / max(float(spread @ spread), _LEAST_SPREAD)
    return np.asarray(gains - slope * spread, dtype=np.float64)


def overlap_scores(canaries: Sequence[str], texts: Iterable[str], length: int = RUN) -> Floats:
    """Share of each text's runs of `length` characters that occur in any synthetic text; a shorter text scores 0."""
    runs = [runs_of(text, length) for text in canaries]
    wanted: frozenset[str] = frozenset().union(*runs)
    found: set[str] = set()
    for text in texts:
        found.update(wanted.intersection(runs_of(text, length)))
    return np.array([len(own & found) / max(1, len(own)) for own in runs], dtype=np.float64)


def runs_of(text: str, length: int = RUN) -> set[str]:
    """All runs of `length` characters in a text."""
    return {text[start : start + length] for start in range(len(text) - length + 1)}


@dataclass(frozen=True)
class Scored:
    """An attack with its scores.

    Attributes:
        scores: shape (canaries,), in the order of the canaries' fingerprints.
        duplicates: which canaries have equal inputs to the attack, so that it cannot distinguish them; None: unknown.
    """

    attack: Attack
    scores: Floats
    duplicates: Duplicates | None = None


def equal_cells(codes: npt.NDArray[Any]) -> Duplicates:
    """Which rows have equal cells in all columns; shape (rows,) for codes of shape (rows, columns)."""
    return np.asarray(np.unique(codes, axis=0, return_inverse=True)[1], dtype=np.int64).ravel()


def equal_items(items: Iterable[Hashable]) -> Duplicates:
    """Which items are equal; shape (items,)."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(item, len(numbers)) for item in items], dtype=np.int64)
