from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpsynth_platform.audit import bounds, fdp
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.renyi import ORDERS, RenyiCurve

DELTA = 1e-5
SAFE = 1e-7
"""Probability with which a statistical test may fail without a cause."""


def pure(epsilon: float) -> fdp.Curve:
    return fdp.profile_curve([epsilon], [0.0])


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 3.0), st.floats(0.001, 0.999))
def test_curves_are_what_the_mechanisms_allow(mu: float, probability: float) -> None:
    gaussian = fdp.gaussian_curve(mu)(probability)
    assert gaussian == pytest.approx(stats.norm.cdf(stats.norm.ppf(probability) - mu), abs=1e-12)
    epsilons = np.linspace(0.0, 12.0, 400)
    profile = fdp.profile_curve(epsilons, [fdp.gaussian_delta(mu, float(item)) for item in epsilons])(probability)
    # The curve is the envelope of its tangents, one an epsilon; a grid of them comes close from below.
    assert gaussian - 2e-3 <= profile <= gaussian + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.floats(0, 1), st.integers(0, 60), st.floats(0.1, 2.0))
def test_no_randomized_response_exceeds_the_p_value(guesses: int, share: float, abstained: int, epsilon: float) -> None:
    right = int(share * guesses)
    reached = stats.binom.sf(right - 1, guesses, 1 / (1 + math.exp(-epsilon)))
    allowed = fdp.p_value(pure(epsilon), canaries=guesses + abstained, guesses=guesses, right=right)
    assert reached <= allowed * (1 + 1e-5)


def test_the_p_value_is_where_the_refutation_begins() -> None:
    curve = fdp.gaussian_curve(fdp.gaussian_mu(1.0, DELTA))
    counted = {"canaries": 500, "guesses": 100, "right": 80}
    level = fdp.p_value(curve, **counted)
    assert 0 < level < 0.05
    assert fdp.is_refuted(curve, **counted, level=level)
    assert not fdp.is_refuted(curve, **counted, level=level * 0.999)


def test_the_gaussian_claim_is_refuted_where_the_weaker_one_is_not() -> None:
    counted = {"canaries": 500, "guesses": 100, "right": 80, "delta": DELTA, "confidence": 0.95}
    assert bounds.epsilon_lower_bound(**counted) < 1.0
    assert fdp.gaussian_epsilon_bound(**counted) > 1.5


def test_the_curve_that_the_ledger_charges_is_refuted_sooner_than_its_epsilon_and_later_than_a_gaussian_one() -> None:
    mu = fdp.gaussian_mu(1.0, DELTA)
    curve = RenyiCurve.upper([mu**2 / 2 * order for order in ORDERS])
    charged = fdp.renyi_profile(curve, 0.0, epsilon=1.0, delta=DELTA)
    exact = fdp.gaussian_curve(mu)
    assert all(charged(p) <= exact(p) + 1e-9 for p in np.linspace(0.001, 0.999, 200))
    asked = {"canaries": 500, "guesses": 100, "right": 80}
    alone = bounds.p_value(epsilon=1.0, delta=DELTA, **asked)
    assert fdp.p_value(exact, **asked) < fdp.p_value(charged, **asked) < alone / 4
    slack = fdp.renyi_profile(curve, 0.1, epsilon=1.0, delta=DELTA)
    assert all(slack(p) <= charged(p) for p in np.linspace(0.001, 0.999, 200))


def test_nothing_right_proves_nothing() -> None:
    counted = {"canaries": 100, "guesses": 40, "delta": DELTA, "confidence": 0.95}
    assert fdp.gaussian_epsilon_bound(right=0, **counted) == 0.0
    assert fdp.gaussian_epsilon_bound(right=20, **counted) == 0.0
    assert fdp.p_value(pure(1.0), canaries=100, guesses=0, right=0) == 1.0


@pytest.mark.parametrize(("mu", "epsilon"), [(0.2680, 1.0), (1.0, 4.377)])
def test_gaussian_epsilon_and_mu_are_inverse(mu: float, epsilon: float) -> None:
    assert fdp.gaussian_epsilon(mu, DELTA) == pytest.approx(epsilon, abs=2e-3)
    assert fdp.gaussian_mu(epsilon, DELTA) == pytest.approx(mu, abs=2e-4)
    assert fdp.gaussian_epsilon(0.0, DELTA) == 0.0


def guessed_right(mu: float, canaries: int, each: int) -> int:
    """One noisy count a canary, moved by mu: `each` of the highest guessed in, as many of the lowest out."""
    rng = np.random.default_rng()
    included = rng.integers(0, 2, canaries).astype(bool)
    scores = mu * included + rng.normal(size=canaries)
    return bounds.count_right(scores, included, guess_in=each, guess_out=each)


def test_gaussian_noise_as_claimed_is_not_refuted_too_often() -> None:
    mu, runs = fdp.gaussian_mu(1.0, DELTA), 150  # fails below SAFE
    refuted = sum(
        fdp.is_refuted(fdp.gaussian_curve(mu), canaries=500, guesses=50, right=guessed_right(mu, 500, 25), level=0.05)
        for _ in range(runs)
    )
    assert refuted <= stats.binom.isf(SAFE, runs, 0.05)


def test_a_third_of_the_noise_is_seen_in_one_run_by_the_curve() -> None:
    mu = 3 * fdp.gaussian_mu(1.0, DELTA)
    right = guessed_right(mu, 5000, 250)
    # Of 500 guesses 425.6 are right on average, deviation 8.1; 355 prove more than 1: 8.8 deviations, below 1e-17.
    assert fdp.gaussian_epsilon_bound(canaries=5000, guesses=500, right=right, delta=DELTA, confidence=0.95) > 1.0


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(AccountingError, match="5 right of 4"):
        fdp.is_refuted(pure(1.0), canaries=10, guesses=4, right=5, level=0.05)
    with pytest.raises(AccountingError, match="delta"):
        fdp.gaussian_epsilon(1.0, 0.0)


def test_repeated_runs_of_a_gaussian_mechanism_come_close_to_its_epsilon_from_below() -> None:
    mu = fdp.gaussian_mu(4.0, DELTA)
    included = np.arange(40_000) % 2 == 0
    scores = mu * included + np.random.default_rng().normal(size=included.size)
    # A test needs a much smaller false alarm: above 4 the bound is once in ten million. Its mean is 3.45, its deviation
    # 0.07 (that of the rates 1.66 and 0.08): 6.4 of them above 3, 1e-10.
    by_curve = fdp.gaussian_runs_bound(scores, included, delta=DELTA, confidence=1 - SAFE)
    by_rates = bounds.repeated_runs_bound(scores, included, delta=DELTA, confidence=1 - SAFE)
    assert 3.0 < by_curve <= 4.0
    assert 0.5 < by_rates < by_curve
