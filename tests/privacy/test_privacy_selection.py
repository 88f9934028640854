"""Adaptive selection and measurement: the claim against an adversary that has no part in the accountant.

The adversary knows both neighbours and looks for the strategy with the largest hockey-stick divergence by dynamic
programming: before every step it chooses, by all losses so far, between a measurement of any part of the precision that
is left, a choice of any kind, and an end. Values are kept as functions of the loss that is still to be made up for.
"""

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import EPSILON_STEP, SIGMA_RANGE, SIGMA_STEP, epsilon, renyi_curve
from dpsynth_platform.privacy.events import BoundedRangeSelectionEvent, GaussianCountsEvent, leaves
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.renyi import zcdp_limit
from dpsynth_platform.privacy.selection import (
    PrecisionBudget,
    SelectionBudget,
    calibrate_selection,
    scale_of_distances,
    selection_budget,
    selection_event,
)


def guarantee(eps=1.0, delta=1e-5, adjacency="add-or-remove", b=1):
    return Guarantee(eps, delta, "user", adjacency, b)


def event_for(budget, target):
    return selection_event(budget, target.adjacency, target.max_contributions)


# The adversary

STEP = 2.0**-8
E = np.arange(-8, 10, STEP)  # epsilons at which values are kept; below, delta is 1 - e^epsilon, above it is 0


def at(values, epsilons):
    """Values between those that are kept."""
    return np.where(epsilons < E[0], -np.expm1(np.minimum(epsilons, 0)), np.interp(epsilons, E, values, right=0.0))


def after_measurement(values, ratio):
    """A normal loss of mean ratio^2 / 2 and deviation `ratio`, then the values."""
    reach = np.arange(-9 * ratio, 9 * ratio, STEP)
    masses = norm.pdf(reach, 0, ratio)
    shifted = np.stack([at(values, E - ratio**2 / 2 - loss) for loss in reach])
    return (masses / masses.sum()) @ shifted


def after_choice(values, choice):
    """The best of all choices with losses t and t - choice, then the values."""
    return np.max(
        [
            chance * at(values, E - t) + (1 - chance) * at(values, E - t + choice)
            for t in np.linspace(0, choice, 33)
            for chance in [math.expm1(choice - t) / (math.exp(choice - t) - math.exp(-t))]
        ],
        axis=0,
    )


def adversary(ratio, parts, choice, rounds):
    """The largest delta at each of E, with precision in `parts` equal parts and up to `rounds` choices."""

    @cache
    def value(left, choices):
        end = np.maximum(-np.expm1(np.minimum(E, 0)), 0)
        ways = [end]
        ways += [after_measurement(value(left - n, choices), ratio * math.sqrt(n / parts)) for n in range(1, left + 1)]
        if choices:
            ways.append(after_choice(value(left, choices - 1), choice))
        return np.max(ways, axis=0)

    return value(parts, rounds)


@pytest.mark.parametrize(
    ("sigma", "choice", "rounds", "parts", "share"),
    [(1.5, 0.0, 0, 3, 0.999), (1.5, 0.6, 1, 3, 0.997), (2.0, 0.4, 2, 2, 0.97), (5.0, 0.5, 3, 1, 0.85)],
)
def test_an_adaptive_adversary_never_gains_more_than_is_claimed_and_comes_close(sigma, choice, rounds, parts, share):
    budget = SelectionBudget(sigma, choice, rounds, 0.0)
    found = adversary(1 / sigma, parts, choice, rounds)
    for delta in (1e-1, 1e-2, 1e-3, 1e-4):
        claimed = epsilon(selection_event(budget, "add-or-remove", 1), delta).pld
        gained = float(at(found, np.array([claimed]))[0])
        assert share * delta < gained <= delta * (1 + 1e-4)


def test_the_adversary_gains_from_what_the_claim_forbids():
    """It is no straw man: if it may trade a choice for a measurement of the same cost in the light of results, it
    exceeds what either order fixed beforehand costs."""
    first, choice, delta = 0.4, 1.2, 1e-3
    end = np.maximum(-np.expm1(np.minimum(E, 0)), 0)
    chosen = after_choice(end, choice)
    by_choice = after_measurement(chosen, first)
    target = float(brentq(lambda e: at(by_choice, np.array([e]))[0] - delta, 0.1, 5))

    def with_count(ratio):
        return after_measurement(end, math.hypot(first, ratio))

    ratio = float(brentq(lambda r: at(with_count(r), np.array([target]))[0] - delta, 0.1, 2))
    traded = after_measurement(np.maximum(chosen, after_measurement(end, ratio)), first)
    assert at(traded, np.array([target]))[0] > 1.05 * delta


def test_directions_that_depend_on_results_change_nothing():
    """Two measurements of two cells; the second moves the cell that the first result points to, by simulation.

    The exact loss of each is normal and independent of where the other went, so the hockey-stick divergence is that of
    one measurement of half the variance.
    """
    rng, draws, sigma = np.random.default_rng(11), 1_000_000, 2.0
    first = rng.normal(0, sigma, draws) + 1  # one unit is in the first cell
    cell = (first > 1.3).astype(int)
    second = rng.normal(0, sigma, (draws, 2))
    second[np.arange(draws), cell] += 1
    moved = second[np.arange(draws), cell]
    loss = (first - 0.5) / sigma**2 + (moved - 0.5) / sigma**2
    ratio = math.sqrt(2) / sigma
    for e in (0.0, 0.5, 1.0):
        exact = norm.cdf(ratio / 2 - e / ratio) - math.exp(e) * norm.cdf(-ratio / 2 - e / ratio)
        gains = np.maximum(-np.expm1(e - loss), 0)
        assert abs(gains.mean() - exact) < 6 * gains.std() / math.sqrt(draws)


# The event


def test_the_event_is_one_table_and_the_choices():
    budget = SelectionBudget(3.0, 0.25, 7, 0.1)
    assert list(leaves(selection_event(budget, "replace-one", 4))) == [
        (GaussianCountsEvent(3.0, "replace-one", 4), 1),
        (BoundedRangeSelectionEvent(0.25, "replace-one", 4), 7),
    ]
    alone = SelectionBudget(3.0, 0.0, 0, 0.1)
    assert list(leaves(selection_event(alone, "zero-out", 1))) == [(GaussianCountsEvent(3.0, "zero-out", 1), 1)]


def test_any_measurements_within_the_budget_cost_no_more():
    sigmas = (4.0, 9.0, 5.5, 30.0)
    budget = PrecisionBudget.of(3.0)
    for sigma in sigmas:
        budget = budget.spend(sigma)
    apart = dp_event.ComposedDpEvent([GaussianCountsEvent(sigma, "add-or-remove", 2) for sigma in sigmas])
    together = selection_event(SelectionBudget(3.0, 0.0, 0, 0.0), "add-or-remove", 2)
    assert epsilon(apart, 1e-6).epsilon < epsilon(together, 1e-6).epsilon
    assert all(a <= b for a, b in zip(renyi_curve(apart).values, renyi_curve(together).values, strict=True))


# Calibration


@pytest.mark.parametrize(
    ("rounds", "share", "target"),
    [
        (0, 0, guarantee()),
        (1, 0.5, guarantee(delta=1e-9)),
        (30, 0.1, guarantee(adjacency="replace-one", b=40)),
        (1000, 0.1, guarantee(eps=3.0)),
        (12, 0.3, guarantee(eps=0.05, delta=1e-6, adjacency="fixed-graph", b=3)),
    ],
)
def test_calibration_is_safe_and_close(rounds, share, target):
    budget = calibrate_selection(target, rounds, share)
    result = epsilon(event_for(budget, target), target.delta)
    assert 0.998 * target.epsilon < result.epsilon <= target.epsilon
    assert (budget.rounds, budget.sigma_total % SIGMA_STEP, budget.epsilon_select % EPSILON_STEP) == (rounds, 0, 0)
    on_choices = rounds * budget.epsilon_select**2 / 8
    assert on_choices == pytest.approx(share * budget.rho, rel=0.01)


@pytest.mark.parametrize(("delta", "gain"), [(1e-5, 1.16), (1e-9, 1.09)])
def test_the_budget_is_larger_than_by_zcdp(delta, gain):
    target = guarantee(delta=delta)
    assert calibrate_selection(target, 30, 0.1).rho > gain * zcdp_limit(1.0, delta)


def test_budgets_are_rounded_to_more_noise():
    budget = selection_budget(guarantee(b=3), 0.2, 10, 0.25)
    parts = 9 / (2 * budget.sigma_total**2), 10 * budget.epsilon_select**2 / 8
    assert parts == pytest.approx((0.15, 0.05), rel=1e-3)
    assert parts[0] <= 0.15 and parts[1] <= 0.05
    assert budget.rho == pytest.approx(sum(parts), rel=1e-12)


@pytest.mark.parametrize(
    ("rounds", "share"), [(-1, 0.1), (1.5, 0.1), (True, 0.1), (10**6, 0.1), (3, 0.0), (3, 1.0), (3, math.nan), (0, 0.1)]
)
def test_impossible_plans_are_refused(rounds, share):
    with pytest.raises(AccountingError, match="accepted"):
        calibrate_selection(guarantee(), rounds, share)


def test_noise_that_cannot_be_drawn_is_refused_before_anything_runs():
    with pytest.raises(AccountingError, match="noise of sigma"):
        calibrate_selection(guarantee(eps=0.01, b=10**7), 5, 0.9)
    with pytest.raises(AccountingError, match="larger epsilon"):
        calibrate_selection(guarantee(eps=1e-7), 5, 0.1)


# The account of precision


@pytest.mark.parametrize(("adjacency", "b"), [("add-or-remove", 1), ("zero-out", 7), ("replace-one", 3)])
@pytest.mark.parametrize("number", [1, 2, 91, 4950])
def test_distances_cost_what_a_table_of_counts_costs(adjacency, b, number):
    """By dp_accounting's curves of what one unit can move: each distance by L1, so that all move by sqrt(number) L1."""
    sigma, target = 3.5 * b, guarantee(adjacency=adjacency, b=b)
    scale = scale_of_distances(number, sigma, target.sensitivity)
    multiplier = scale / (math.sqrt(number) * (2 * b if adjacency == "replace-one" else b) * 2**16)
    claimed = GaussianCountsEvent(sigma, adjacency, b)
    privately = PLDAccountant(value_discretization_interval=1e-4).compose(dp_event.GaussianDpEvent(multiplier))
    assert multiplier >= sigma / (math.sqrt(2) * b if adjacency == "replace-one" else b) * (1 - 1e-12)
    assert privately.get_epsilon(1e-6) == pytest.approx(epsilon(claimed, 1e-6).epsilon, rel=1e-3)
    curve = renyi_curve(claimed)
    for order in (2.0, 17.0):
        assert order / (2 * multiplier**2) <= curve.at(order)
        assert order / (2 * multiplier**2) == pytest.approx(curve.at(order), rel=1e-4)


def test_noise_of_distances_that_cannot_be_drawn_is_refused():
    with pytest.raises(AccountingError, match="fewer columns"):
        scale_of_distances(2, SIGMA_RANGE[1], guarantee().sensitivity)
    with pytest.raises(AccountingError, match="at least one"):
        scale_of_distances(0, 1.0, guarantee().sensitivity)


def test_a_budget_is_spent_exactly():
    """Four measurements of twice the noise are all of it, to the last bit."""
    budget = PrecisionBudget.of(2.0)
    assert budget.left == Fraction(1, 4)
    assert budget.spend(4.0).spend(4.0).spend(4.0).spend(4.0).left == 0
    assert budget.spend(4.0).spend(4.0).spend(4.0).sigma() == 4.0
    for _ in range(4):
        budget = budget.spend(4.0)
    assert budget.sigma() is None
    with pytest.raises(AccountingError, match="nothing is left"):
        budget.spend(SIGMA_RANGE[1])


def test_overspending_is_refused_and_says_what_is_left():
    budget = SelectionBudget(2.0, 0.0, 0, 0.125).precision.spend(3.0)
    with pytest.raises(AccountingError, match=r"only the precision of sigma 2\.68"):
        budget.spend(2.5)
    assert budget == PrecisionBudget(Fraction(1, 4) - Fraction(1, 9))


@settings(deadline=None)
@given(total=st.integers(1, 2**22), parts=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12))
def test_the_noise_for_a_share_is_the_least_that_fits(total, parts):
    budget = PrecisionBudget.of(total * SIGMA_STEP)
    for share in parts:
        sigma = budget.sigma(share)
        if sigma is None:
            assert budget.left * Fraction(share) < 1 / Fraction(SIGMA_RANGE[1]) ** 2
            break
        after = budget.spend(sigma)
        assert budget.left - after.left <= budget.left * Fraction(share)
        if sigma > SIGMA_STEP:
            assert 1 / Fraction(sigma - SIGMA_STEP) ** 2 > budget.left * Fraction(share)
        budget = after


@pytest.mark.parametrize("sigma", [0.0, -1.0, 2.0**-11, 1.00001, 2.0**31, math.nan, math.inf])
def test_noise_off_the_grid_is_refused(sigma):
    with pytest.raises(AccountingError, match="multiples of"):
        PrecisionBudget.of(1.0).spend(sigma)
    with pytest.raises(AccountingError, match="multiples of"):
        PrecisionBudget.of(sigma)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, math.nan])
def test_impossible_shares_are_refused(share):
    with pytest.raises(AccountingError, match="share"):
        PrecisionBudget.of(1.0).sigma(share)
