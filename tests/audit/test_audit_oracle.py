"""Bounds against `jax_privacy.auditing`, where it is installed (requirements/oracle.lock)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpsynth_platform.audit import bounds, fdp, risk

DELTA = 1e-5
GUESSED = [(1000, 20, 20), (1000, 100, 80), (500, 100, 80), (500, 125, 70), (200, 200, 150), (50, 10, 10), (50, 9, 0)]


@pytest.fixture(scope="module")
def oracle() -> Any:
    return pytest.importorskip("jax_privacy.auditing")


@pytest.mark.parametrize(("canaries", "guesses", "right"), GUESSED)
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_one_run_bounds_are_the_oracles(
    oracle: Any, canaries: int, guesses: int, right: int, confidence: float
) -> None:
    shared = (0.0, canaries, guesses, right, 1 - confidence, DELTA)
    counted = {"canaries": canaries, "guesses": guesses, "right": right, "delta": DELTA, "confidence": confidence}
    assert bounds.epsilon_lower_bound(**counted) == pytest.approx(oracle._epsilon_one_run(*shared), abs=2e-4)
    assert fdp.gaussian_epsilon_bound(**counted) == pytest.approx(oracle._epsilon_one_run_fdp(*shared), abs=2e-4)


def drawn(gap: float, runs: int = 400) -> tuple[bounds.Scores, bounds.Coins]:
    included = np.arange(2 * runs) % 2 == 0
    return np.random.default_rng(6).normal(size=2 * runs) + gap * included, included  # the same draw for both


@pytest.mark.parametrize("gap", [0.0, 1.0, 3.0])
def test_repeated_runs_at_one_threshold_are_the_oracles(oracle: Any, gap: float) -> None:
    scores, included = drawn(gap)
    auditor = oracle.CanaryScoreAuditor(scores[included], scores[~included])
    for threshold in (-0.5, 0.5, 2.0):
        theirs = auditor.epsilon_clopper_pearson(0.05, DELTA, False, threshold_strategy=oracle.Explicit(threshold))
        mine = bounds.clopper_pearson_epsilon(
            found=int((scores[included] >= threshold).sum()),
            included=int(included.sum()),
            false_alarms=int((scores[~included] >= threshold).sum()),
            held_out=int((~included).sum()),
            delta=DELTA,
            confidence=0.95,
        )
        assert mine == pytest.approx(float(theirs), abs=1e-9)


def test_gaussian_bounds_of_repeated_runs_are_the_oracles(oracle: Any) -> None:
    included = np.arange(400) % 2 == 0
    scores = np.where(included, np.arange(400) % 10 < 6, np.arange(400) % 50 < 1).astype(float)
    auditor = oracle.CanaryScoreAuditor(scores[included], scores[~included])
    thresholds = len(auditor._fn_counts)
    alarms = bounds.upper_bound(int(scores[~included].sum()), 200, 0.05 / (2 * thresholds))
    missed = bounds.upper_bound(200 - int(scores[included].sum()), 200, 0.05 / (2 * thresholds))
    mine = fdp.gaussian_epsilon(fdp.mu_of_errors([(alarms, missed)]), DELTA)
    assert mine == pytest.approx(float(auditor.epsilon_from_gdp(0.05, DELTA)), abs=1e-5)


def test_area_and_rates_are_the_oracles(oracle: Any) -> None:
    scores, included = drawn(1.0)
    auditor = oracle.CanaryScoreAuditor(scores[included], scores[~included])
    measured = risk.measure_risk(scores, included, epsilon=1.0, delta=DELTA)
    # The oracle's curve is the concave hull (an attacker may toss a coin between thresholds), so it lies above.
    assert measured.area_under_curve.value <= auditor.attack_auroc() + 1e-12
    for rate in measured.rates:
        assert rate.found.value <= auditor.tpr_at_given_fpr(rate.false_positive_rate) + 1e-12
        assert rate.found.value >= auditor.tpr_at_given_fpr(rate.false_positive_rate) - 0.15
