"""The laboratory: a mechanism under attack, before anybody's data are given to it.

What belongs here: running a mechanism again and again in two neighbouring worlds, an attack whose threshold was fixed
on runs of its own, what such trials prove of epsilon, and how much they can be expected to prove. What does not: the
mechanisms and what is looked at in them (`gradient_canaries` for training), audits of a release (`verdict`), and any
record of anybody: the worlds are made up.

An audit of a release asks whether this model leaks more than it claims, with few canaries and one run. Here a mechanism
can be run as often as one likes, on worlds made to be told apart, and may be watched from inside. So much smaller
mistakes show: noise at four fifths of what it should be, which no audit of a single release would see.

A plan claims a whole curve of pairs (epsilon, delta). Any of them may be tried: whatever is refuted, the plan is not
kept. At the delta of a contract thousands of runs prove little of a large epsilon; at a large delta a few hundred do.
Which pair is tried, with how many runs and which attacks, is fixed before they are run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpsynth_platform.audit.bounds import Coins, clopper_pearson_epsilon
from dpsynth_platform.foundation.errors import AccountingError

Floats = npt.NDArray[np.float64]
Run = Callable[[bool], Mapping[str, float]]
"""Runs a mechanism in the world with the person (True) or without; gives the score of each attack, higher for with."""

CUTS = 64
"""How many thresholds are tried for an attack."""


@dataclass(frozen=True)
class Trials:
    """Independent trials of telling two worlds apart.

    Attributes:
        scores: of each attack, shape (trials,), higher means rather in.
        included: shape (trials,), in which world each took place.
    """

    scores: Mapping[str, Floats]
    included: Coins

    def __post_init__(self) -> None:
        for name, scores in self.scores.items():
            if scores.shape != self.included.shape or np.isnan(scores).any():
                raise AccountingError(f"laboratory: {name}; accepted: one score that is a number for every trial")


@dataclass(frozen=True)
class Proof:
    """What trials prove.

    Attributes:
        attack: the one that was used.
        epsilon: a lower bound at `delta`, which is too high with a probability of at most 1 - confidence.
    """

    attack: str
    found: int
    included: int
    false_alarms: int
    held_out: int
    delta: float
    confidence: float

    @property
    def epsilon(self) -> float:
        """By Clopper and Pearson's bounds on both error rates."""
        return clopper_pearson_epsilon(
            found=self.found,
            included=self.included,
            false_alarms=self.false_alarms,
            held_out=self.held_out,
            delta=self.delta,
            confidence=self.confidence,
        )


@dataclass(frozen=True)
class Guess:
    """An attack that guesses "in" above a threshold, fixed before the trials that it is used on."""

    attack: str
    threshold: float

    def prove(self, trials: Trials, *, delta: float, confidence: float) -> Proof:
        """What this guess proves of trials that it was not made from."""
        above, included = trials.scores[self.attack] > self.threshold, trials.included
        return Proof(
            attack=self.attack,
            found=int(above[included].sum()),
            included=int(included.sum()),
            false_alarms=int(above[~included].sum()),
            held_out=int((~included).sum()),
            delta=delta,
            confidence=confidence,
        )


def two_worlds(run: Run, runs: int) -> Trials:
    """Runs a mechanism equally often in either world.

    Args:
        run: a fresh, independent run in the world that it is told.
        runs: how many in each world.
    """
    included = np.arange(2 * runs) % 2 == 0
    found = [run(bool(coin)) for coin in included]
    return Trials({name: np.array([one[name] for one in found], dtype=np.float64) for name in found[0]}, included)


def best_guess(trials: Trials, *, delta: float, confidence: float) -> Guess:
    """The attack and the threshold that would prove most of these trials; to be used on others.

    Thresholds lie halfway between scores of neighbouring ranks, `CUTS` of them for each attack. Where few trials prove
    nothing at this confidence, an even chance decides.
    """
    guesses = [Guess(name, cut) for name, scores in trials.scores.items() for cut in _cuts(scores)]

    def proven(guess: Guess) -> tuple[float, float]:
        proof = guess.prove(trials, delta=delta, confidence=confidence)
        return proof.epsilon, replace(proof, confidence=0.5).epsilon

    return max(guesses, key=proven)


def audit(run: Run, *, runs: int, trial_runs: int, delta: float, confidence: float) -> Proof:
    """A lower bound on the epsilon, at `delta`, of a mechanism that is run in two worlds.

    Args:
        run: see `Run`.
        runs: how many in each world, after the threshold was fixed.
        trial_runs: how many in each world to choose attack and threshold by; they prove nothing.
        delta: of the pair (epsilon, delta) that is tried.
        confidence: of the bound.
    """
    guess = best_guess(two_worlds(run, trial_runs), delta=delta, confidence=confidence)
    return guess.prove(two_worlds(run, runs), delta=delta, confidence=confidence)


def epsilon_to_expect(
    *, true_rate: float, false_rate: float, runs: int, delta: float, confidence: float, miss: float
) -> float:
    """What an attack of these rates proves, but for bad luck of a probability of 2 `miss`: its power.

    Args:
        true_rate: probability that the attack says "in" in the world with the person.
        false_rate: probability that it does without.
        runs: how many in each world.
        delta: of the pair that is tried.
        confidence: of the bound.
        miss: probability that either rate turns out worse than reckoned with.
    """
    return clopper_pearson_epsilon(
        found=int(stats.binom.ppf(miss, runs, true_rate)),
        included=runs,
        false_alarms=int(stats.binom.isf(miss, runs, false_rate)),
        held_out=runs,
        delta=delta,
        confidence=confidence,
    )


def _cuts(scores: Floats) -> list[float]:
    """Thresholds halfway between neighbouring ranks, spread evenly over the ranks; the median first."""
    ordered = np.unique(scores)
    if ordered.size < 2:
        return [float(ordered[0])]
    places = np.unique(np.linspace(0, ordered.size - 2, CUTS).astype(int))
    halfway = ordered[places] + (ordered[places + 1] - ordered[places]) / 2
    return [float(np.median(scores)), *map(float, halfway)]
