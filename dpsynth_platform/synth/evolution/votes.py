"""The noisy histogram of private votes for public candidates, from each record's choice.

What belongs here: the voting records as features, scaling one owner's votes, their sum, and its noise. What does not:
what a record chooses (`text.evolution_votes`, `images.evolution_votes`), and the cost of a histogram
(`privacy.events.GaussianVotesEvent`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.tabular.noise import Counts, sample_rounded_gaussian

NOBODY = -1
"""The group of records without a vote, and their choice."""


@dataclass(frozen=True)
class VotingRecords(ABC):
    """The voting records, as features. Sensitive, including their number.

    Attributes:
        features: shape (records, features).
        groups: the group of candidates that each record votes for, or `NOBODY`; shape (records,).
        owners: each record's owner, as any number; None where records have several, and each vote counts in full.
    """

    features: npt.NDArray[Any] = field(repr=False)
    groups: npt.NDArray[np.int64] = field(repr=False)
    owners: npt.NDArray[np.int64] | None = field(repr=False)

    def votes(self, candidates: npt.NDArray[Any], groups: Sequence[int], parts: int = RECORD_PARTS) -> Counts:
        """Exact votes for each candidate, in `parts` of one vote; the caller must add noise.

        A record votes for one candidate of its group, or shares its vote among several; of equal ones, the first
        count. If its group has none, it does not vote.

        Args:
            candidates: shape (candidates, features).
            groups: of each candidate.
        """
        chosen = self.chosen(candidates, np.asarray(groups, dtype=np.int64))
        return histogram(chosen, self.owners, len(candidates), parts)

    @abstractmethod
    def chosen(self, candidates: npt.NDArray[Any], groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The candidate of each record, or `NOBODY`: a function of that record only, given the candidates.

        Shape (records,); or (records, nearest), where a record shares its vote among distinct candidates.
        """


def noisy_votes(voters: VotingRecords, candidates: npt.NDArray[Any], groups: Sequence[int], sigma: float) -> Counts:
    """The noisy histogram, in `RECORD_PARTS` of one vote: the mechanism of `GaussianVotesEvent`.

    Args:
        candidates: see `VotingRecords.votes`.
        sigma: the noise's deviation, in votes.
    """
    return with_noise(voters.votes(candidates, groups), sigma)


def histogram(
    chosen: npt.NDArray[np.int64], owners: npt.NDArray[np.int64] | None, candidates: int, parts: int = RECORD_PARTS
) -> Counts:
    """Exact votes for each candidate, in `parts` of one vote; the caller must add noise.

    Args:
        chosen: the candidate or candidates of each record, or `NOBODY`; see `VotingRecords.chosen`.
        owners: each record's owner, whose votes are `scaled` together; None where records have several, and each vote
            counts in full.
        candidates: their number.
    """
    of = range(len(chosen)) if owners is None else owners.tolist()
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    for owner, candidates_of in zip(of, (chosen if chosen.ndim == 2 else chosen[:, None]).tolist(), strict=True):
        votes[owner].update(candidate for candidate in candidates_of if candidate != NOBODY)
    total = np.zeros(candidates, dtype=np.int64)
    for own in votes.values():
        for candidate, units in scaled(own, parts).items():
            total[candidate] += units
    return total


def scaled(votes: Mapping[int, int], parts: int = RECORD_PARTS) -> dict[int, int]:
    """One owner's votes as a vector of L2 norm 1 at most, in `parts` of one vote.

    A record that shares its vote among k candidates counts once for each; alone it gives each 1 / sqrt(k).

    floor(U c / |c|) for each number of votes c, with U = `parts` and |c| their norm: integers, never rounded up, so
    that the sum of their squares is U^2 at most.
    """
    squares = sum(count * count for count in votes.values())
    return {cell: math.isqrt(parts**2 * count * count // squares) for cell, count in votes.items()}


def with_noise(votes: Counts, sigma: float) -> Counts:
    """The noisy histogram, in `RECORD_PARTS` of one vote: the mechanism of `GaussianVotesEvent`.

    Args:
        votes: of `histogram`.
        sigma: the noise's deviation, in votes.
    """
    return sample_rounded_gaussian(votes, sigma * RECORD_PARTS)
