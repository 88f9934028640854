"""Private evolution of samples of any kind: candidates are made, private records vote, and the best survive.

What belongs here: the rounds of algorithm 6 of the guide (Aug-PE, Xie et al. 2024; Lin et al. 2023 for images). What
does not: what a sample is and how it is made (`Foundation`), and the votes, which alone touch the data (`Ballot`).

    D_0      (L + 1) N samples of the random call
    round t  features, noisy votes, the N best of each group survive;
             D_(t+1) is these and L variations of each

Only noisy votes come here, and everything here follows from them: a writer of samples may see all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.evolution.journal import EvolutionJournal
from dpsynth_platform.synth.tabular.noise import Counts

Sample = TypeVar("Sample")
Features = npt.NDArray[np.float32]
Ballot = Callable[[Features, Sequence[int]], Counts]
"""Noisy votes for candidates by their features and groups, one number each. Every call is a separate mechanism."""

LEAST_ANSWERED = 0.5
"""The least share of a round's requested samples; with fewer, there is no vote, and the round can be repeated."""
CANDIDATES, VOTES = "candidates", "votes"
"""Stages of progress."""


class Foundation(Protocol[Sample]):
    """A foundation model with two calls that make samples without any data, and an encoder of samples."""

    def random(self, groups: Sequence[int]) -> list[Sample | None]:
        """A new sample for each group; None where the call failed."""

    def vary(self, samples: Sequence[Sample], groups: Sequence[int]) -> list[Sample | None]:
        """A variation of each sample, of its group; None where the call failed."""

    def features(self, samples: Sequence[Sample]) -> Features:
        """Features of each sample, shape (samples, features), each of Euclidean length 1."""

    def to_json(self, sample: Sample) -> Any: ...

    def from_json(self, document: Any) -> Sample: ...


@dataclass(frozen=True)
class Rounds:
    """How candidates are made and voted for. Public; part of the sealed plan.

    Attributes:
        rounds: the number of votes.
        variations: L, new variations of every survivor.
        lookahead: variations of a candidate whose mean features represent it in a vote; 0: its own features do.
    """

    rounds: int
    variations: int
    lookahead: int = 0


@dataclass(frozen=True)
class Survivors(Generic[Sample]):
    """The candidates that survived the last round, best first within each group, with their groups and noisy votes."""

    samples: tuple[Sample, ...]
    groups: tuple[int, ...]
    votes: tuple[int, ...]


Selection = Callable[[Sequence[Sample], Sequence[int], Counts, Sequence[int]], Survivors[Sample]]
"""Survivors of candidates with groups and noisy votes, `sizes` of each group. A survivor may occur several times."""


def evolve(
    plan: Rounds,
    sizes: Sequence[int],
    foundation: Foundation[Sample],
    ballot: Ballot,
    journal: EvolutionJournal,
    progress: Progress = silent,
    select: Selection[Sample] | None = None,
) -> Survivors[Sample]:
    """Runs all rounds, or the remaining ones of an interrupted evolution.

    Args:
        select: who survives a round, called once for each round in order; None: `chosen`.
        sizes: N of each group.
        ballot: called once for each round without votes.

    Raises:
        MechanismFailed: there were too few samples. The votes so far are kept.
    """
    best: Survivors[Sample] = Survivors((), (), ())
    for number in range(plan.rounds):
        samples, groups = _candidates(plan, number, sizes, best, foundation, journal, progress)
        votes = journal.votes(number)
        if votes is None:
            votes = ballot(_looked_ahead(plan.lookahead, samples, groups, foundation), groups)
            journal.count(number, votes)
        progress(VOTES, number + 1, plan.rounds)
        best = (select or chosen)(samples, groups, votes, sizes)
    return best


def chosen(samples: Sequence[Sample], groups: Sequence[int], votes: Counts, sizes: Sequence[int]) -> Survivors[Sample]:
    """The candidates of each group with the most votes, `sizes` of them; of equals, the first ones."""
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
    """The weight of each survivor of a group: its noisy votes above a threshold; equal weights if all are below it.

    Args:
        threshold: in the unit of the votes: what noise alone may reach.
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
    """A round's candidates: those in the journal, or new ones."""
    settled = journal.candidates(number)
    if settled is not None:
        return [foundation.from_json(sample) for sample in settled[0]], settled[1]
    progress(CANDIDATES, number, plan.rounds)
    if number == 0:
        requested = [group for group, size in enumerate(sizes) for _ in range((plan.variations + 1) * size)]
        found = foundation.random(requested)
    else:
        requested = [group for group in best.groups for _ in range(plan.variations)]
        parents = [sample for sample in best.samples for _ in range(plan.variations)]
        found = foundation.vary(parents, requested) if parents else []
    samples, groups = _distinct(foundation, best, enough(found), requested)
    journal.propose(number, [foundation.to_json(sample) for sample in samples], groups)
    return samples, groups


def enough(found: Sequence[Sample | None]) -> Sequence[Sample | None]:
    """The results of some calls. Raises `MechanismFailed` if fewer than `LEAST_ANSWERED` of them succeeded."""
    came = sum(sample is not None for sample in found)
    if came < LEAST_ANSWERED * len(found):
        raise MechanismFailed(
            f"of {len(found)} requested samples, {came} came; repair the model or the endpoint and materialize the "
            "step again: it continues with the existing votes, at no further cost"
        )
    return found


def _distinct(
    foundation: Foundation[Sample], best: Survivors[Sample], found: Sequence[Sample | None], requested: Sequence[int]
) -> tuple[list[Sample], list[int]]:
    """The survivors and, each once within its group, new samples: equal ones would split the votes for them."""
    samples: list[Sample] = []
    groups: list[int] = []
    known: set[tuple[int, str]] = set()
    for sample, group in zip([*best.samples, *found], [*best.groups, *requested], strict=True):
        if sample is not None and (key := (group, repr(foundation.to_json(sample)))) not in known:
            known.add(key)
            samples.append(sample)
            groups.append(group)
    return samples, groups


def _looked_ahead(
    degree: int, samples: Sequence[Sample], groups: Sequence[int], foundation: Foundation[Sample]
) -> Features:
    """What represents each candidate in a vote: its features, or the mean of its variations' features."""
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
