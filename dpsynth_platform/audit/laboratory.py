"""The laboratory: attacks on a mechanism with made-up records, before it reads real data.

What belongs here: repeated runs of a mechanism in two neighbouring worlds, an attack whose threshold other runs fixed,
what such trials prove of epsilon, and their power. What does not: mechanisms and their observation (`gradient_canaries`
for training), audits of a release (`verdict`), and real records.

An audit of a release has few canaries and one run. Here a mechanism can run as often as needed, on worlds made to be
distinguished, and can be observed from inside. This detects much smaller faults: noise at four fifths of its planned
scale, for example, which no audit of a single release would detect.

A plan claims a whole curve of pairs (epsilon, delta). Refuting any of them refutes the plan. At a contract's delta,
thousands of runs prove little of a large epsilon; at a large delta a few hundred do. The tested pair, the number of
runs and the attacks are fixed in advance.
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
"""One run of a mechanism, with the person (True) or without; gives each attack's score, higher for with."""

CUTS = 64
"""Thresholds tried for an attack."""


@dataclass(frozen=True)
class Trials:
    """Independent trials in two worlds, with scores of each attack; all of shape (trials,), higher means rather in."""

    scores: Mapping[str, Floats]
    included: Coins

    def __post_init__(self) -> None:
        for name, scores in self.scores.items():
            if scores.shape != self.included.shape or np.isnan(scores).any():
                raise AccountingError(
                    f"laboratory: attack {name!r}: scores of shape {scores.shape} with {int(np.isnan(scores).sum())} "
                    f"missing; accepted: one score that is a number for each of the {self.included.size} trials"
                )


@dataclass(frozen=True)
class Proof:
    """What trials of one attack prove."""

    attack: str
    found: int
    included: int
    false_alarms: int
    held_out: int
    delta: float
    confidence: float

    @property
    def epsilon(self) -> float:
        """A lower bound at `delta`, too high with probability at most 1 - confidence."""
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
    """An attack that guesses "in" above a threshold, fixed before the trials."""

    attack: str
    threshold: float

    def prove(self, trials: Trials, *, delta: float, confidence: float) -> Proof:
        """What this guess proves on trials that did not fix it."""
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
    """`runs` fresh, independent runs of a mechanism in each world."""
    included = np.arange(2 * runs) % 2 == 0
    found = [run(bool(coin)) for coin in included]
    return Trials({name: np.array([one[name] for one in found], dtype=np.float64) for name in found[0]}, included)


def best_guess(trials: Trials, *, delta: float, confidence: float) -> Guess:
    """The attack and the threshold that prove most on these trials; to be used on others.

    Each attack has `CUTS` thresholds, halfway between scores of neighbouring ranks. Where few trials prove nothing at
    this confidence, the bound at a confidence of 0.5 decides.
    """
    guesses = [Guess(name, cut) for name, scores in trials.scores.items() for cut in _cuts(scores)]

    def proven(guess: Guess) -> tuple[float, float]:
        proof = guess.prove(trials, delta=delta, confidence=confidence)
        return proof.epsilon, replace(proof, confidence=0.5).epsilon

    return max(guesses, key=proven)


def audit(run: Run, *, runs: int, trial_runs: int, delta: float, confidence: float) -> Proof:
    """A lower bound on the epsilon of a mechanism at `delta`, from `runs` in each of two worlds.

    As many `trial_runs` as given choose attack and threshold first; they prove nothing.
    """
    guess = best_guess(two_worlds(run, trial_runs), delta=delta, confidence=confidence)
    return guess.prove(two_worlds(run, runs), delta=delta, confidence=confidence)


def epsilon_to_expect(
    *, true_rate: float, false_rate: float, runs: int, delta: float, confidence: float, miss: float
) -> float:
    """Power: what an attack proves by `runs` in each world, with probability at least 1 - 2 `miss`.

    It guesses "in" with probability `true_rate` with the person, and `false_rate` without.
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
    """The median, and thresholds halfway between neighbouring ranks, spread evenly over the ranks."""
    ordered = np.unique(scores)
    if ordered.size < 2:
        return [float(ordered[0])]
    places = np.unique(np.linspace(0, ordered.size - 2, CUTS).astype(int))
    halfway = ordered[places] + (ordered[places + 1] - ordered[places]) / 2
    return [float(np.median(scores)), *map(float, halfway)]
