"""Skellam noise against computations that share nothing with it: Bessel functions, scipy, dp_accounting."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import skellam

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import epsilon, pld_epsilon, renyi_curve
from dpsynth_platform.privacy.events import (
    GaussianCountsEvent,
    SkellamCountsEvent,
    SkellamSumsEvent,
    event_from_json,
    event_to_json,
)
from dpsynth_platform.privacy.renyi import ORDERS
from dpsynth_platform.privacy.skellam import skellam_hockey_stick, skellam_masses, skellam_reach, skellam_renyi


def masses(variance, reach):
    """P[X = k] for k from -reach to reach, in 40 digits."""
    half = [mpmath.exp(-variance) * mpmath.besseli(k, variance) for k in range(reach + 1)]
    return half[:0:-1] + half


def exact_renyi(variance, shift, order):
    """By direct summation over every x with more than 1e-60 of the sum."""
    with mpmath.workdps(40):
        reach = skellam_reach(variance, 200) + shift * math.ceil(order) + 50
        p, a = masses(variance, reach + shift), mpmath.mpf(order)
        terms = (p[x + shift + reach] ** a * p[x + reach] ** (1 - a) for x in range(-reach, reach + 1))
        return float(mpmath.log(mpmath.fsum(terms)) / (a - 1))


@pytest.mark.parametrize("variance", [0.3, 2.0, 100.0, 3e4, 1e6])
def test_masses_are_those_of_scipy(variance):
    found, ratios = skellam_masses(variance)
    expected = skellam.pmf(np.arange(len(found)), variance / 2, variance / 2)
    assert np.abs(found - expected).max() < 1e-13
    assert 2 * found.sum() - found[0] == pytest.approx(1, abs=1e-14)
    assert np.all(np.diff(ratios) < 0)  # log-concave


@pytest.mark.parametrize(("variance", "bits"), [(0.5, 30), (10.0, 60), (1000.0, 64)])
def test_the_tail_bound_holds_and_is_near(variance, bits):
    reach = skellam_reach(variance, bits)
    with mpmath.workdps(40):
        upper = [mpmath.exp(-variance) * mpmath.besseli(k, variance) for k in range(2 * reach)]
        assert 2 * mpmath.fsum(upper[reach:]) <= 2.0**-bits
        assert 2 * mpmath.fsum(upper[int(0.9 * reach) - 1 :]) > 2.0**-bits


@pytest.mark.parametrize(
    ("variance", "shift"), [(0.25, 1), (1.0, 1), (1.0, 3), (4.0, 2), (9.0, 1), (30.0, 12), (100.0, 1), (400.0, 16)]
)
def test_the_renyi_bound_is_above_direct_summation(variance, shift):
    bounds = dict(zip(ORDERS, skellam_renyi(variance, shift, shift**2), strict=True))
    for order in (ORDERS[0], ORDERS[5], 2.0, 3.0, ORDERS[30], 9.0, 17.0):
        exact = exact_renyi(variance, shift, order)
        assert exact <= bounds[order]
    if variance >= 100:
        assert bounds[9.0] <= 1.05 * exact_renyi(variance, shift, 9.0)


def test_at_wide_noise_the_curve_is_that_of_the_gaussian():
    curve = skellam_renyi(1e9, 30, 900)
    for order, value in zip(ORDERS, curve, strict=True):
        if order.is_integer():
            assert value == pytest.approx(order * 900 / 2e9, rel=1e-5)


@pytest.mark.parametrize(("variance", "shift"), [(0.5, 1), (4.0, 1), (4.0, 5), (200.0, 16)])
def test_the_hockey_stick_curve_is_the_sum_of_what_is_above(variance, shift):
    reach = skellam_reach(variance, 150) + shift
    with mpmath.workdps(40):
        p = masses(variance, reach + shift)
        for e in (-1.0, 0.0, 0.3, 2.0, 5.0):
            pairs = ((p[x + reach + shift], p[x + reach]) for x in range(-reach, reach + 1))
            exact = mpmath.fsum(max(one - mpmath.exp(e) * other, 0) for one, other in pairs)
            assert float(skellam_hockey_stick(variance, shift, np.array([e]))[0]) == pytest.approx(
                float(exact), abs=1e-14
            )


@pytest.mark.parametrize(("variance", "scale", "b"), [(60.0, 1, 1), (900.0, 8, 1), (50.0, 1, 3), (300.0, 4, 2)])
def test_epsilon_by_pld_is_just_above_a_distribution_of_given_masses(variance, scale, b):
    """`dp_accounting` discretizes the masses of scipy; all records in one cell is the worst of what was tried."""
    mine = pld_epsilon(SkellamCountsEvent(variance, scale, "add-or-remove", b), 1e-6)
    reach = skellam_reach(variance, 80) + scale * b
    law = skellam(variance / 2, variance / 2)
    noise = {x: law.logpmf(x) for x in range(-reach, reach + 1) if law.pmf(x) > 0}
    moved = {x + scale * b: value for x, value in noise.items()}
    theirs = privacy_loss_distribution.from_two_probability_mass_functions(
        moved, noise, value_discretization_interval=1e-5, symmetric=False
    ).get_epsilon_for_delta(1e-6)
    assert theirs - 1e-4 <= mine <= theirs * 1.002 + 1e-3
    assert mine < epsilon(SkellamCountsEvent(variance, scale, "add-or-remove", b), 1e-6).renyi


def test_fine_units_cost_what_gaussian_noise_costs():
    for adjacency, b in (("add-or-remove", 1), ("replace-one", 2)):
        fine = epsilon(SkellamCountsEvent(25600.0, 16, adjacency, b), 1e-6)
        gaussian = epsilon(GaussianCountsEvent(10.0, adjacency, b), 1e-6)
        assert fine.epsilon == pytest.approx(gaussian.epsilon, rel=1e-3)
        assert fine.renyi == pytest.approx(gaussian.renyi, rel=1e-3)


def test_repetition_composes():
    leaf = SkellamCountsEvent(900.0, 1, "add-or-remove", 1)
    nine = epsilon(dp_event.SelfComposedDpEvent(leaf, 9), 1e-6)
    gaussian = epsilon(GaussianCountsEvent(10.0, "add-or-remove", 1), 1e-6)
    assert nine.method == "pld"
    assert nine.epsilon == pytest.approx(gaussian.epsilon, rel=5e-3)


def test_sums_of_vectors_claim_their_renyi_bound():
    one = SkellamSumsEvent(1e6, 3000, 90_000, "add-or-remove", 1)
    result = epsilon(one, 1e-6)
    assert (result.method, result.pld) == ("renyi", None)
    replaced = SkellamSumsEvent(1e6, 3000, 90_000, "replace-one", 1)
    assert (replaced.sensitivity.l1, replaced.sensitivity.l2_squared) == (6000, 360_000)
    assert renyi_curve(replaced).at(3.0) >= 4 * renyi_curve(one).at(3.0) * 0.99


@given(
    variance=st.floats(0.1, 1e9),
    moved=st.integers(1, 1000),
    adjacency=st.sampled_from(["add-or-remove", "zero-out", "replace-one"]),
)
def test_json_gives_the_same_events(variance, moved, adjacency):
    for event in (
        SkellamCountsEvent(variance, moved, adjacency, 2),
        SkellamSumsEvent(variance, moved, moved, adjacency, 2),
    ):
        assert event_from_json(event_to_json(event)) == event


@pytest.mark.parametrize(
    "arguments",
    [
        (0.0, 1, "add-or-remove", 1),
        (math.inf, 1, "add-or-remove", 1),
        (1.0, 0, "add-or-remove", 1),
        (1.0, 1.5, "add-or-remove", 1),
        (1.0, True, "add-or-remove", 1),
        (1.0, 1, "node", 1),
        (1.0, 1, "zero-out", 0),
    ],
)
def test_impossible_parameters_are_refused(arguments):
    with pytest.raises(AccountingError):
        SkellamCountsEvent(*arguments)
    variance, scale, *rest = arguments
    with pytest.raises(AccountingError):
        SkellamSumsEvent(variance, scale, scale, *rest)


def test_vectors_of_several_owners_are_refused():
    with pytest.raises(AccountingError, match="fixed-graph"):
        SkellamSumsEvent(1.0, 1, 1, "fixed-graph", 1)
