"""Private evolution of images (Lin et al. 2023 and 2025; algorithm 4 of the guide): plan, rounds and draws.

What belongs here: the plan and its event, one evolution, and pictures drawn by its noisy votes. What does not: votes
(`evolution_votes`), rounds and their journal (`synth.evolution`), and what makes candidates (`foundations`).

    planned   public numbers only: noise, rounds and candidates
    evolve    rounds of noisy votes; resumes from its journal at no further cost
    draw      variations of the survivors in proportion to their noisy votes: post-processing, any number of pictures
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.calibration import NOISE_STEP, noise_for
from dpsynth_platform.privacy.events import DpEvent, GaussianVotesEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.evolution import loop
from dpsynth_platform.synth.evolution.journal import EvolutionJournal
from dpsynth_platform.synth.evolution.loop import Ballot, Features, Rounds, Survivors, enough
from dpsynth_platform.synth.images.encoders import LENGTH, Encoder
from dpsynth_platform.synth.images.foundations import ImageFoundation
from dpsynth_platform.synth.tabular.noise import Counts

Sample = TypeVar("Sample")

VOTES_OVER_NOISE = 1.25
"""The plan chooses at most as many candidates as each get so many times the noise of their votes, on average. Votes are
uneven: most go to few candidates."""
POPULATION = (2, 300)
"""The fewest and the most survivors of a label, if the plan chooses how many."""
ROUNDS = (2, 6)
"""The fewest and the most rounds, if the plan chooses how many: as many as leave the noise for the largest population,
since more candidates are worth more than more rounds."""
VARIATIONS = 2
STRENGTHS = (0.5, 0.3)
DRAWN = 0.3
PEERS = 512
"""Candidates, drawn by their votes, that say how samples of a label differ: as many for one picture as for many."""
LEAST_WEIGHT = 1e-6
"""Of any candidate, in deviations of the noise: far below what counts, and above the rounding of `expected_votes`."""


@dataclass(frozen=True)
class EvolutionPlan:
    """The parameters of an evolution. Public; part of a sealed plan.

    Attributes:
        labels: the labels; a record votes for candidates of its own.
        rounds: the number of votes, and how many candidates.
        population: survivors of each label.
        sigma: the noise of each round's votes, in votes.
        strengths: of the variations of the first and of the last round; geometric between them.
        drawn: the strength of variations that are drawn in the end.
        foundation, encoder: digests of public material.
    """

    labels: tuple[str, ...]
    rounds: Rounds
    population: int
    sigma: float
    strengths: tuple[float, float]
    drawn: float
    foundation: str
    encoder: str

    @property
    def candidates(self) -> int:
        """How many candidates a round votes on, of all labels together."""
        return len(self.labels) * self.population * (self.rounds.variations + 1)

    def strength(self, number: int) -> float:
        """Of the variations after the vote of a round."""
        first, last = self.strengths
        steps = max(1, self.rounds.rounds - 2)
        return float(first * (last / first) ** (min(number, steps) / steps))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> EvolutionPlan:
        read: dict[str, Callable[[Any], Any]] = {
            "labels": tuple,
            "rounds": lambda part: Rounds(**part),
            "strengths": tuple,
        }
        return cls(**{name: read.get(name, lambda part: part)(part) for name, part in document.items()})


def planned(
    guarantee: Guarantee,
    labels: Sequence[str],
    expected_units: int,
    foundation: str,
    encoder: str,
    *,
    rounds: Rounds | None = None,
    population: int | None = None,
    already: DpEvent | None = None,
    share: float = 1.0,
) -> EvolutionPlan:
    """The plan with the least noise of the votes.

    Args:
        guarantee: of all parts together.
        labels: at least one; of the groups of candidates.
        expected_units: public knowledge.
        foundation, encoder: digests.
        rounds, population: None: a choice by `ROUNDS`, and as many survivors of each label as get votes well above the
            noise.
        already: what the other parts cost; their noise is fixed.
        share: of the precision that these parts leave.

    Raises:
        ContractError: no label, or an impossible number of rounds or survivors.
        AccountingError: no noise meets the guarantee.
    """
    if not labels or not _possible(rounds, population):
        raise ContractError(
            f"an evolution of {len(labels)} labels with {rounds} and a population of {population}; accepted: at least "
            "one label, round, variation and survivor"
        )

    def noise(number: int) -> float:
        whole = noise_for(
            lambda sigma: _with(already, _votes(sigma, number, guarantee)), guarantee.epsilon, guarantee.delta
        ).value
        return math.ceil(whole / math.sqrt(share) / NOISE_STEP) * NOISE_STEP

    def affordable(sigma: float, variations: int) -> float:
        """Survivors of a label that get votes well above the noise."""
        return expected_units / (len(labels) * (variations + 1) * VOTES_OVER_NOISE * sigma)

    if rounds is None:
        number = int((affordable(noise(1), VARIATIONS) / POPULATION[1]) ** 2)  # noise grows as its square root
        rounds = Rounds(max(ROUNDS[0], min(ROUNDS[1], number)), VARIATIONS)
    sigma = noise(rounds.rounds)
    if population is None:
        population = max(POPULATION[0], min(POPULATION[1], int(affordable(sigma, rounds.variations))))
    return EvolutionPlan(
        labels=tuple(labels),
        rounds=rounds,
        population=population,
        sigma=sigma,
        strengths=STRENGTHS,
        drawn=DRAWN,
        foundation=foundation,
        encoder=encoder,
    )


def event(plan: EvolutionPlan, guarantee: Guarantee) -> DpEvent:
    """What all rounds of votes cost together."""
    return _votes(plan.sigma, plan.rounds.rounds, guarantee)


def _possible(rounds: Rounds | None, population: int | None) -> bool:
    if rounds is not None and (min(rounds.rounds, rounds.variations) < 1 or rounds.lookahead < 0):
        return False
    return population is None or population >= 1


def _votes(sigma: float, rounds: int, guarantee: Guarantee) -> DpEvent:
    votes = GaussianVotesEvent(sigma, guarantee.adjacency, guarantee.max_contributions)
    return dp_event.SelfComposedDpEvent(votes, rounds)


def _with(already: DpEvent | None, votes: DpEvent) -> DpEvent:
    return votes if already is None else dp_event.ComposedDpEvent([already, votes])


def describe(plan: EvolutionPlan, guarantee: Guarantee) -> str:
    """What the mechanism does, for readers who are no experts."""
    rounds = plan.rounds
    together = (
        "each record has one vote in full, independent of its owners"
        if guarantee.adjacency == "fixed-graph"
        else "all votes of one owner have the length (L2 norm) of one vote together"
    )
    ahead = f", by the mean of {rounds.lookahead} variations" if rounds.lookahead else ""
    each_round = "In the one round" if rounds.rounds == 1 else f"In each of {rounds.rounds} rounds"
    return (
        f"Pictures are made from public material and changed at random. {each_round} every record votes for the one of "
        f"at most {plan.candidates} pictures that, among those of its label, is nearest to its own{ahead}; {together}, "
        f"and noise of {plan.sigma:.3g} votes is added for every picture. Pictures with many votes are varied for the "
        "next round, and those of the last one for the result, as often as their noisy votes say"
    )


def evolve(
    plan: EvolutionPlan,
    ballot: Ballot,
    foundation: ImageFoundation[Sample],
    encoder: Encoder,
    journal: EvolutionJournal,
    progress: Progress = silent,
) -> Survivors[Sample]:
    """Runs all rounds, or the remaining ones of an interrupted evolution, at no further cost.

    Args:
        ballot: noisy votes of private pictures; see `loop.evolve`.

    Returns:
        All candidates of the last vote, best first within each label, with their noisy votes.

    Raises:
        MechanismFailed: there were too few samples. The votes so far are kept.
    """
    candidates = _Candidates(plan, foundation, encoder)
    return loop.evolve(
        plan.rounds,
        [plan.population] * len(plan.labels),
        candidates,
        ballot,
        journal,
        progress,
        candidates.select,
    )


class _Candidates(Generic[Sample]):
    """A foundation of images as one of `synth.evolution.loop`, and who survives."""

    def __init__(self, plan: EvolutionPlan, foundation: ImageFoundation[Sample], encoder: Encoder) -> None:
        self._plan, self._foundation, self._encoder = plan, foundation, encoder
        self._generator = np.random.default_rng()
        self._round = 0
        self.to_json, self.from_json = foundation.to_json, foundation.from_json

    def random(self, groups: Sequence[int]) -> list[Sample | None]:
        return self._by_label(
            groups, lambda label, places: self._foundation.random(label, len(places), self._generator)
        )

    def vary(self, samples: Sequence[Sample], groups: Sequence[int]) -> list[Sample | None]:
        strength = self._plan.strength(max(0, self._round - 1))
        return self._by_label(
            groups,
            lambda label, places: self._foundation.variation(
                [samples[at] for at in places], label, strength, self._generator
            ),
        )

    def features(self, samples: Sequence[Sample]) -> Features:
        pixels = self._foundation.pixels(samples)
        return self._encoder.features(pixels).astype(np.float32) / np.float32(LENGTH)

    def select(
        self, samples: Sequence[Sample], groups: Sequence[int], votes: Counts, sizes: Sequence[int]
    ) -> Survivors[Sample]:
        """Parents, drawn with replacement by their noisy votes; in the end, all candidates."""
        self._round += 1
        if self._round == self._plan.rounds.rounds:
            return loop.chosen(samples, groups, votes, [len(samples)] * len(sizes))
        kept: list[int] = []
        for group, size in enumerate(sizes):
            own = [at for at in range(len(samples)) if groups[at] == group]
            if own:
                shares = _shares(votes[own], self._plan)
                kept += [own[at] for at in self._generator.choice(len(own), size, p=shares)]
        return Survivors(
            tuple(samples[at] for at in kept), tuple(groups[at] for at in kept), tuple(int(votes[at]) for at in kept)
        )

    def _by_label(
        self, groups: Sequence[int], make: Callable[[str, list[int]], list[Sample | None]]
    ) -> list[Sample | None]:
        found: list[Sample | None] = [None] * len(groups)
        for group in sorted(set(groups)):
            places = [at for at in range(len(groups)) if groups[at] == group]
            for at, sample in zip(places, make(self._plan.labels[group], places), strict=True):
                found[at] = sample
        return found


def expected_votes(votes: npt.NDArray[np.float64], sigma: float) -> npt.NDArray[np.float64]:
    """The expected exact votes of candidates, given their noisy votes; all above 0.

    A candidate's votes are taken to be exponentially distributed with the mean of all noisy votes, or a quarter of the
    noise where that is more. Given a noisy vote v, they are normal around v - sigma^2 / mean, of deviation sigma and
    above 0. This takes the place of a threshold: votes that noise explains weigh little.

    Args:
        votes: of the candidates of one label; in the unit of sigma.
    """
    from scipy.special import log_ndtr

    mean = max(float(votes.mean()), sigma / 4)
    centre = votes / sigma - sigma / mean
    found: npt.NDArray[np.float64] = np.exp(-centre * centre / 2 - math.log(2 * math.pi) / 2 - log_ndtr(centre))
    return np.maximum(sigma * (centre + found), sigma * LEAST_WEIGHT)


def _shares(votes: npt.NDArray[np.int64], plan: EvolutionPlan) -> npt.NDArray[np.float64]:
    """The share of each candidate of a label, by its noisy votes."""
    expected = expected_votes(votes / RECORD_PARTS, plan.sigma)
    found: npt.NDArray[np.float64] = expected / expected.sum()
    return found


def draw(
    plan: EvolutionPlan,
    survivors: Survivors[Sample],
    label: str,
    number: int,
    foundation: ImageFoundation[Sample],
    generator: np.random.Generator,
) -> Pixels:
    """Pictures of a label: variations of candidates that are drawn by their noisy votes. Post-processing.

    Raises:
        MechanismFailed: the foundation made too few.
    """
    group = plan.labels.index(label)
    own = [at for at in range(len(survivors.samples)) if survivors.groups[at] == group]
    shares = _shares(np.array([survivors.votes[at] for at in own], dtype=np.int64), plan)
    parents = [survivors.samples[own[at]] for at in generator.choice(len(own), number, p=shares)]
    peers = [survivors.samples[own[at]] for at in generator.choice(len(own), PEERS, p=shares)]
    varied = enough(foundation.variation(parents, label, plan.drawn, generator, peers))
    samples = [parent if sample is None else sample for parent, sample in zip(parents, varied, strict=True)]
    return foundation.pixels(samples)
