import math

import numpy as np
import pytest

from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.privacy.renyi import ORDERS, RenyiCurve, renyi_limit, zcdp_curve, zcdp_limit

CAPS = [(4.0, 1e-5), (6.0, 1e-3), (0.5, 1e-6), (20.0, 1e-9)]


@pytest.mark.parametrize(("epsilon", "delta"), CAPS)
def test_shares_of_delta_add_up(epsilon, delta):
    sealed = RenyiFilter.seal(epsilon, delta)
    assert len(sealed.orders) <= 8
    assert sum(sealed.weights) + sealed.slack_share <= 1 + 1e-12
    assert min(sealed.weights) > 0
    assert set(sealed.orders) <= set(ORDERS)
    assert RenyiFilter.from_json(sealed.to_json(), epsilon, delta) == sealed


@pytest.mark.parametrize(("epsilon", "delta"), CAPS)
def test_sealing_costs_a_gaussian_little_and_never_gives_more_than_the_cap(epsilon, delta):
    sealed = RenyiFilter.seal(epsilon, delta)
    capacity = max(limit / order for limit, order in zip(sealed.limits, sealed.orders, strict=False))
    best = zcdp_limit(epsilon, delta)
    assert 0.95 * best <= capacity < best
    assert sealed.fits([(zcdp_curve(capacity * (1 - 1e-9)), 0.0)])
    assert not sealed.fits([(zcdp_curve(capacity * (1 + 1e-9)), 0.0)])


def test_many_small_mechanisms_fit_like_one_large_one():
    sealed = RenyiFilter.seal(4.0, 1e-5)
    capacity = max(limit / order for limit, order in zip(sealed.limits, sealed.orders, strict=False))
    part = zcdp_curve(capacity / 1000)
    assert sealed.fits([(part, 0.0)] * 999)
    assert not sealed.fits([(part, 0.0)] * 1001)


def test_what_is_left_still_fits_and_no_more():
    sealed = RenyiFilter.seal(4.0, 1e-5)
    spent = [(zcdp_curve(0.1), 0.0)]
    left = sealed.left(spent, 1e-6)
    assert 0 < left < 4
    assert sealed.fits([*spent, (zcdp_curve(zcdp_limit(left, 1e-6) * 0.999), 0.0)])
    assert not sealed.fits([*spent, (zcdp_curve(zcdp_limit(left, 1e-6) * 1.001), 0.0)])
    assert sealed.left([], 1e-12) <= 4.0
    assert sealed.left([(zcdp_curve(10.0), 0.0)], 1e-6) == 0.0


def test_slack_is_charged_against_its_own_share():
    sealed = RenyiFilter.seal(4.0, 1e-5)
    curve = zcdp_curve(0.001)
    assert sealed.fits([(curve, 4e-7), (curve, 5e-7)])
    assert not sealed.fits([(curve, 6e-7), (curve, 5e-7)])


# An adversary that picks the second mechanism by the first one's outcome. A two-point mechanism has one outcome of
# probability `mass` with a privacy loss of `loss`; everything else has a loss just below zero.


def rest_loss(mass, loss):
    return math.log((1 - mass) / (1 - mass * math.exp(-loss)))


def two_point_curve(mass, loss):
    orders = np.array(ORDERS)
    tail, rest = math.log(mass) + (orders - 1) * loss, math.log1p(-mass) + (orders - 1) * rest_loss(mass, loss)
    return RenyiCurve.upper(np.maximum(np.logaddexp(tail, rest) / (orders - 1), 0.0).tolist())


def overall_delta(epsilon, first, in_branch, otherwise):
    """Exact hockey-stick divergence of: `first`, then `in_branch` on its rare outcome and `otherwise` on the other."""
    mass, loss = first
    total = 0.0
    for probability, so_far, (small, large) in [
        (mass, loss, in_branch),
        (1 - mass, rest_loss(mass, loss), otherwise),
    ]:
        for share, more in [(small, large), (1 - small, rest_loss(small, large))]:
            total += probability * share * max(0.0, -math.expm1(epsilon - so_far - more))
    return total


def largest_mass(loss, granted):
    """The largest mass of a two-point mechanism of this loss that a rule grants."""
    low, high = 1e-30, 0.5
    if not granted(two_point_curve(low, loss)):
        return low
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if granted(two_point_curve(middle, loss)) else (low, middle)
    return low


def attack(epsilon, low_order, high_order, granted):
    """Two branches, each tight at an order of its own."""
    step = 6 / (high_order - low_order)
    first = (math.exp(-((low_order + high_order) / 2 - 1) * step), step)
    spent = two_point_curve(*first)
    branches = []
    for order, so_far in [(high_order, first[1]), (low_order, rest_loss(*first))]:
        loss = epsilon + math.log(order / (order - 1)) - so_far
        branches.append((largest_mass(loss, lambda curve: granted([spent, curve])), loss))
    return overall_delta(epsilon, first, *branches)


def test_adaptive_choice_beats_some_order_fits_but_not_the_sealed_filter():
    epsilon, delta = 4.0, 1e-3
    sealed = RenyiFilter.seal(epsilon, delta)
    assert all(limit > 0 for limit in sealed.limits[3:])

    def some_order_fits(curves):
        return any(sum(curve.at(order) for curve in curves) <= renyi_limit(order, epsilon, delta) for order in ORDERS)

    def sealed_fits(curves):
        return sealed.fits([(curve, 0.0) for curve in curves])

    worst = {"naive": 0.0, "sealed": 0.0}
    for low_order in sealed.orders[2:-1]:
        for high_order in sealed.orders:
            if high_order > low_order:
                worst["naive"] = max(worst["naive"], attack(epsilon, low_order, high_order, some_order_fits))
                worst["sealed"] = max(worst["sealed"], attack(epsilon, low_order, high_order, sealed_fits))
    assert worst["naive"] > 1.5 * delta
    assert 0.5 * delta < worst["sealed"] <= delta
