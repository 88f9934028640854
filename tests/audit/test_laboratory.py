"""The laboratory: trials, what they prove, how much can be expected of them, and trainings watched from inside."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from dpsynth_platform.audit.bounds import clopper_pearson
from dpsynth_platform.audit.gradient_canaries import (
    PARTS,
    Attacker,
    CanaryModel,
    CanaryRecords,
    TrainingAudit,
    by_canary,
)
from dpsynth_platform.audit.laboratory import Guess, Trials, audit, best_guess, epsilon_to_expect, two_worlds
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian
from dpsynth_platform.training.clipping import ClippedSums
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.plan import TrainingPlan

SAFE = 1e-7
REPEATS = 200
PLAN = TrainingPlan(units=2000, batch_size=2000, steps=1, noise_multiplier=0.5, optimizer="sgd", learning_rate=1e-6)


def gaussian(shift: float, trials: int) -> Trials:
    coins = np.arange(trials) % 2 == 0
    return Trials({"sum": shift * coins + np.random.default_rng().normal(size=trials)}, coins)


def test_either_world_is_run_equally_often_and_scores_keep_their_attack() -> None:
    trials = two_worlds(lambda present: {"yes": float(present), "no": float(not present)}, 7)
    assert trials.included.sum() == 7 and trials.included.size == 14
    assert (trials.scores["yes"] == trials.included).all()
    assert (trials.scores["no"] == ~trials.included).all()


def test_a_proof_is_what_the_worst_ends_of_both_intervals_leave() -> None:
    included = np.arange(2000) < 1000
    scores = np.where(included, np.arange(2000) < 800, np.arange(2000) < 1050).astype(float)
    proof = Guess("one", 0.5).prove(Trials({"one": scores}, included), delta=0.1, confidence=0.95)
    assert (proof.found, proof.included, proof.false_alarms, proof.held_out) == (800, 1000, 50, 1000)
    low, high = clopper_pearson(800, 1000, 0.95)[0], clopper_pearson(50, 1000, 0.95)[1]
    assert proof.epsilon == pytest.approx(math.log((low - 0.1) / high))


def test_the_guess_is_the_attack_and_the_threshold_that_tell_most() -> None:
    trials = gaussian(20.0, 2000)
    both = Trials({"dull": np.zeros(2000), **trials.scores}, trials.included)
    guess = best_guess(both, delta=0.1, confidence=0.95)
    # A draw beyond 7 deviations: 5e-9 for all 2,000. Thresholds that tell less than all prove less.
    assert guess.attack == "sum" and 7 < guess.threshold < 13
    few = Trials({name: scores[:8] for name, scores in both.scores.items()}, both.included[:8])
    assert best_guess(few, delta=1e-5, confidence=1 - SAFE).attack == "sum", "few trials decide, too"


def test_scores_that_say_nothing_prove_nothing() -> None:
    for included in (np.arange(50) % 2 == 0, np.ones(50, dtype=bool), np.zeros(50, dtype=bool)):
        trials = Trials({"constant": np.ones(50)}, included)
        guess = best_guess(trials, delta=0.0, confidence=0.95)
        assert guess.prove(trials, delta=0.0, confidence=0.95).epsilon == 0


def test_scores_that_are_no_numbers_or_too_few_are_refused() -> None:
    with pytest.raises(AccountingError, match="laboratory: attack 'broken': scores of shape"):
        Trials({"broken": np.array([1.0, math.nan])}, np.array([True, False]))
    with pytest.raises(AccountingError, match="one score that is a number for each of the"):
        Trials({"short": np.zeros(1)}, np.array([True, False]))


def test_what_is_expected_is_reached_but_for_the_stated_bad_luck() -> None:
    """Of 2,000 trials with rates 0.8 and 0.1, fewer than the expected in at most 2% of audits, judged at 1e-7."""
    rng = np.random.default_rng()
    setting = {"delta": 0.1, "confidence": 0.95}
    expected = epsilon_to_expect(true_rate=0.8, false_rate=0.1, runs=1000, miss=0.01, **setting)
    coins = np.arange(2000) < 1000
    below = 0
    for _ in range(REPEATS):
        scores = rng.random(2000) < np.where(coins, 0.8, 0.1)
        proof = Guess("one", 0.5).prove(Trials({"one": scores.astype(float)}, coins), **setting)
        below += proof.epsilon < expected
    assert below <= stats.binom.isf(SAFE, REPEATS, 0.02)
    assert 0.5 < expected < math.log(0.7 / 0.1)


def test_each_canary_moves_one_coordinate_by_the_clipping_norm() -> None:
    model, plan = CanaryModel(7, 10.0), replace(PLAN, clipping_norm=0.3)
    with ClippedSums(model, plan) as sums:
        sums.add(CanaryRecords([0, 3, 6, 6]).batch([0, 1, 2, 3]), torch.ones(4, 1))
        moved = by_canary(model, 7, sums.totals)
    assert moved == pytest.approx([-0.3, 0, 0, -0.3, 0, 0, -0.6], rel=1e-4)


def test_a_watched_training_shows_planned_noise_and_who_was_in() -> None:
    """At q = 1/2, each canary of three records counts 1.5 a step; deviations of means are below 6.5 of theirs."""
    plan = replace(PLAN, batch_size=1000, steps=4, noise_multiplier=2.0, clipping_norm=0.1)
    watched = TrainingAudit(plan, 2000, records=3).watch()
    inside, outside = watched.sums[:, watched.included], watched.sums[:, ~watched.included]
    assert watched.sums.shape == (4, 2000)
    assert abs(inside.mean() - 1.5) < 6.5 * math.sqrt((4 + 0.75) / inside.size)
    assert abs(outside.mean()) < 6.5 * 2 / math.sqrt(outside.size)
    attacker = Attacker.of(watched, plan)
    assert attacker.scales == pytest.approx([2.0] * PARTS, rel=6.5 / math.sqrt(outside.size))
    assert attacker.sampled == 0.5


def test_the_likelihood_ratio_is_that_of_coins_and_noise() -> None:
    plan = replace(PLAN, batch_size=500, steps=3, noise_multiplier=1.0)
    watched = TrainingAudit(plan, 20).watch()
    found = Attacker.believing(plan).trials(watched).scores["likelihood ratio"]
    density = 0.75 * stats.norm.pdf(watched.sums) + 0.25 * stats.norm.pdf(watched.sums - 1)
    assert found == pytest.approx(np.log(density / stats.norm.pdf(watched.sums)).sum(axis=0))


def test_right_training_fails_no_more_of_200_audits_than_the_confidence_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attacker guesses "in" above 0.7; see below that it is no empty test, and what noise at half does to it."""
    setting = {"delta": 0.4, "confidence": 0.95}
    claimed = epsilon(PLAN.event, 0.4).epsilon
    training = TrainingAudit(replace(PLAN, units=1000, batch_size=1000), 1000)
    attacker, guess = Attacker.believing(PLAN), Guess("correlation", 0.7)

    def proven() -> float:
        return guess.prove(attacker.trials(training.watch()), **setting).epsilon

    bounds = [proven() for _ in range(REPEATS)]
    assert sum(bound > claimed for bound in bounds) <= stats.binom.isf(SAFE, REPEATS, 0.05)
    rates = {"true_rate": stats.norm.sf((0.7 - 1) / 0.5), "false_rate": stats.norm.sf(0.7 / 0.5)}
    # Fewer than 440 of 1,000 are on one side with a chance of 0.0001.
    expected = epsilon_to_expect(**rates, runs=440, miss=0.1, **setting)
    assert expected > 0.4 * claimed
    assert sum(bound < expected for bound in bounds) <= stats.binom.isf(SAFE, REPEATS, 0.21)
    add = GaussianNoise.add_
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: add(self, sums, deviation / 2))
    assert min(proven() for _ in range(20)) > claimed  # each misses below 1e-13 by these rates at deviation 0.25


def test_right_training_passes_200_audits_of_one_run() -> None:
    """At a delta of 1e-3: the bound of one run is far from tight, and above the claim at random only."""
    plan = replace(PLAN, units=200, batch_size=200, noise_multiplier=1.0)
    claimed = epsilon(plan.event, 1e-3).epsilon
    bounds = [TrainingAudit(plan, 200).one_run(share=0.1, delta=1e-3, confidence=0.95) for _ in range(REPEATS)]
    assert sum(bound > claimed for bound in bounds) <= stats.binom.isf(SAFE, REPEATS, 0.05)
    assert max(bounds) > 0.2 * claimed  # five of six are, so that none is with a chance below 1e-100


def test_right_counts_fail_no_more_of_200_audits_than_the_confidence_allows() -> None:
    """Two worlds of one noisy count, 100 runs in each, thresholds fixed by as many."""

    def once(present: bool) -> dict[str, float]:
        return {"count": float(sample_rounded_gaussian(np.array([present], dtype=np.int64), 1.0)[0])}

    guess = best_guess(two_worlds(once, 500), delta=0.1, confidence=0.5)
    # Delta of one count at deviation 1 and epsilon 1.16; rounded noise gives away no more.
    claimed = 1.16
    wrong = sum(
        guess.prove(two_worlds(once, 100), delta=0.1, confidence=0.95).epsilon > claimed for _ in range(REPEATS)
    )
    assert wrong <= stats.binom.isf(SAFE, REPEATS, 0.05)


def test_an_audit_fixes_its_threshold_on_runs_of_their_own() -> None:
    calls: list[bool] = []

    def once(present: bool) -> dict[str, float]:
        calls.append(present)
        return {"sum": float(np.random.default_rng().normal() + 20 * present)}

    proof = audit(once, runs=40, trial_runs=5, delta=0.0, confidence=0.95)
    assert len(calls) == 90
    assert (proof.included, proof.held_out) == (40, 40)
    assert proof.epsilon == pytest.approx(math.log(0.025 ** (1 / 40) / (1 - 0.025 ** (1 / 40))))
