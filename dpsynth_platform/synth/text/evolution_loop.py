"""Private evolution, whatever is evolved: candidates are made, private records vote, and the best live on.

What belongs here: the rounds of algorithm 6 of the guide (Aug-PE, Xie et al. 2024; Lin et al. 2023 for images), over
samples of any kind. What does not: what a sample is and who makes it (`Foundation`), and the votes, which alone touch
the data (`Ballot`).

    D_0      (L + 1) N samples of the random call
    round t  features, noisy votes, the N best of each group live on;
             D_(t+1) is these and L variations of each

Votes for which no noise was drawn never come here, and everything here follows from noisy ones: who writes samples may
see all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.text.evolution_journal import EvolutionJournal
from dpsynth_platform.synth.text.private_text import Features

Sample = TypeVar("Sample")
Ballot = Callable[[Features, Sequence[int]], Counts]
"""Noisy votes for candidates by their features and groups, one number each. Every call is a mechanism of its own."""

LEAST_ANSWERED = 0.5
"""Share of what was asked for that must come of a round's calls; with less, nobody votes, and the round can be had
again."""
CANDIDATES, VOTES = "candidates", "votes"
"""Stages of progress."""


class Foundation(Protocol[Sample]):
    """Who makes samples, without any data: a foundation model behind two calls, and an encoder of what it makes."""

    def random(self, groups: Sequence[int]) -> list[Sample | None]:
        """A new sample for each group, or None where none came."""

    def vary(self, samples: Sequence[Sample], groups: Sequence[int]) -> list[Sample | None]:
        """A variation of each sample, of the group that it is in, or None where none came."""

    def features(self, samples: Sequence[Sample]) -> Features:
        """Features of each sample, shape (samples, features), each of Euclidean length 1."""

    def to_json(self, sample: Sample) -> Any:
        """A sample as a JSON value."""

    def from_json(self, document: Any) -> Sample:
        """Reads `to_json` back."""


@dataclass(frozen=True)
class Rounds:
    """How candidates are made and voted for. Public; part of the sealed plan.

    Attributes:
        rounds: how often there is a vote.
        variations: L, new variations of every candidate that lives on.
        lookahead: variations of a candidate whose mean features stand for it in a vote; 0: its own do.
    """

    rounds: int
    variations: int
    lookahead: int = 0


@dataclass(frozen=True)
class Survivors(Generic[Sample]):
    """What an evolution leaves: the candidates that lived on, best first within each group.

    Attributes:
        samples: the candidates.
        groups: of each.
        votes: the noisy votes of the last round.
    """

    samples: tuple[Sample, ...]
    groups: tuple[int, ...]
    votes: tuple[int, ...]


def evolve(
    plan: Rounds,
    sizes: Sequence[int],
    foundation: Foundation[Sample],
    ballot: Ballot,
    journal: EvolutionJournal,
    progress: Progress = silent,
) -> Survivors[Sample]:
    """Runs the rounds, or those that an evolution that was cut short has left.

    Args:
        plan: the rounds.
        sizes: N of each group.
        foundation: makes samples.
        ballot: called once for each round that has no votes yet.
        journal: of candidates and votes.
        progress: told of candidates and rounds.

    Raises:
        MechanismFailed: too few samples came. What was voted so far is kept.
    """
    best: Survivors[Sample] = Survivors((), (), ())
    for number in range(plan.rounds):
        samples, groups = _candidates(plan, number, sizes, best, foundation, journal, progress)
        votes = journal.votes(number)
        if votes is None:
            votes = ballot(_looked_ahead(plan.lookahead, samples, groups, foundation), groups)
            journal.count(number, votes)
        progress(VOTES, number + 1, plan.rounds)
        best = chosen(samples, groups, votes, sizes)
    return best


def chosen(samples: Sequence[Sample], groups: Sequence[int], votes: Counts, sizes: Sequence[int]) -> Survivors[Sample]:
    """The candidates of each group with the most votes, as many as live on; of equals, those that came first."""
    order = sorted(range(len(samples)), key=lambda at: (groups[at], -int(votes[at]), at))
    left = list(sizes)
    kept = []
    for at in order:
        if left[groups[at]] > 0:
            left[groups[at]] -= 1
            kept.append(at)
    return Survivors(
        tuple(samples[at] for at in kept), tuple(groups[at] for at in kept), tuple(int(votes[at]) for at in kept)
    )


def weights(votes: Sequence[int], threshold: float) -> list[float]:
    """How much each of a group's survivors weighs: its votes above a threshold; all alike where none has more.

    Args:
        votes: noisy ones, of one group.
        threshold: in the unit of the votes; what noise alone may reach.
    """
    above = [max(vote - threshold, 0.0) for vote in votes]
    return above if any(above) else [1.0] * len(votes)


def _candidates(
    plan: Rounds,
    number: int,
    sizes: Sequence[int],
    best: Survivors[Sample],
    foundation: Foundation[Sample],
    journal: EvolutionJournal,
    progress: Progress,
) -> tuple[list[Sample], list[int]]:
    """A round's candidates: those that were settled before a crash, or new ones."""
    settled = journal.candidates(number)
    if settled is not None:
        return [foundation.from_json(sample) for sample in settled[0]], settled[1]
    progress(CANDIDATES, number, plan.rounds)
    if number == 0:
        asked = [group for group, size in enumerate(sizes) for _ in range((plan.variations + 1) * size)]
        found = foundation.random(asked)
        samples, groups = _distinct(foundation, [], [], enough(found), asked)
    else:
        asked = [group for group in best.groups for _ in range(plan.variations)]
        parents = [sample for sample in best.samples for _ in range(plan.variations)]
        found = foundation.vary(parents, asked) if parents else []
        samples, groups = _distinct(foundation, best.samples, best.groups, enough(found), asked)
    journal.propose(number, [foundation.to_json(sample) for sample in samples], groups)
    return samples, groups


def enough(found: Sequence[Sample | None]) -> Sequence[Sample | None]:
    """What came of some calls. Raises `MechanismFailed` where that is less than `LEAST_ANSWERED` of them."""
    came = sum(sample is not None for sample in found)
    if came < LEAST_ANSWERED * len(found):
        raise MechanismFailed(
            f"of {len(found)} samples that were asked for, {came} came; mend what writes them and materialize the step "
            "again: it goes on with the votes that there are, at no further cost"
        )
    return found


def _distinct(
    foundation: Foundation[Sample],
    kept: Sequence[Sample],
    kept_groups: Sequence[int],
    found: Sequence[Sample | None],
    asked: Sequence[int],
) -> tuple[list[Sample], list[int]]:
    """All of them, each once within its group: equal ones would share the votes of the records near to them."""
    samples, groups = list(kept), list(kept_groups)
    seen = {(group, repr(foundation.to_json(sample))) for sample, group in zip(samples, groups, strict=True)}
    for sample, group in zip(found, asked, strict=True):
        if sample is None:
            continue
        key = (group, repr(foundation.to_json(sample)))
        if key not in seen:
            seen.add(key)
            samples.append(sample)
            groups.append(group)
    return samples, groups


def _looked_ahead(
    degree: int, samples: Sequence[Sample], groups: Sequence[int], foundation: Foundation[Sample]
) -> Features:
    """What stands for each candidate in a vote: its features, or the mean of those of its variations."""
    own = foundation.features(samples)
    if degree == 0 or not len(samples):
        return own
    parents = [sample for sample in samples for _ in range(degree)]
    varied = foundation.vary(parents, [group for group in groups for _ in range(degree)])
    features = foundation.features([sample for sample in varied if sample is not None])
    sums = np.zeros_like(own)
    of = [at // degree for at, sample in enumerate(varied) if sample is not None]
    np.add.at(sums, of, features)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    looked: Features = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), own).astype(np.float32)
    return looked
