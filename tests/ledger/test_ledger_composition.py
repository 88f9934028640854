"""Several entries as one guarantee, held against dp_accounting by itself."""

import math

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from ledger_cases import DELTA, request

from dpsynth_platform.ledger.composition import MOST_LEAVES, compose
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.privacy.events import GaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee


def gaussian(sigma, *, b=1, delta=DELTA, epsilon=50.0, unit="user", adjacency="add-or-remove"):
    """A vector of counts with Gaussian noise, of which one unit changes b records (all in one cell at worst)."""
    return CostRequest.of(
        GaussianCountsEvent(sigma, adjacency, b),
        dataset="census",
        period=None,
        guarantee=Guarantee(epsilon, delta, unit, adjacency, b),
        plan_digest="0" * 64,
        runner="runner",
    )


def independent(noise_multipliers, delta):
    event = ComposedDpEvent([GaussianDpEvent(value) for value in noise_multipliers])
    pld = PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon(delta)
    return pld, RdpAccountant().compose(event).get_epsilon(delta)


@pytest.mark.parametrize("sigmas", [(8.0, 8.0), (8.0,) * 12, (5.0, 9.0, 30.0)])
def test_entries_compose_as_dp_accounting_composes_them(sigmas):
    found = compose([gaussian(sigma) for sigma in sigmas])
    delta = len(sigmas) * DELTA
    pld, renyi = independent(sigmas, delta)
    assert found.accounting == "pld"
    assert found.delta == pytest.approx(delta)
    assert found.epsilon == pytest.approx(pld, rel=2e-3)
    assert found.epsilon < renyi
    assert found.mechanisms == len(sigmas)


def test_each_keeps_its_own_contribution_bound():
    found = compose([gaussian(20.0, b=2), gaussian(30.0, b=3)])
    pld, _ = independent((10.0, 10.0), 2 * DELTA)
    assert found.epsilon == pytest.approx(pld, rel=2e-3)


def test_never_worse_than_adding_up():
    """Guide, E0: two (epsilon, delta) guarantees give (2 epsilon, 2 delta) at most."""
    one = request(1e-8)  # claims epsilon 1, which is far more than it costs
    assert compose([one, one]).epsilon < 2
    dear = gaussian(8.0, epsilon=0.55)
    assert compose([dear, dear]).epsilon <= 1.1 * (1 + 1e-9)


def test_without_loss_distributions_the_curves_are_added():
    many = [gaussian(100.0 + place) for place in range(MOST_LEAVES + 1)]
    found = compose(many)
    assert found.accounting == "renyi"
    _, renyi = independent([100.0 + place for place in range(MOST_LEAVES + 1)], found.delta)
    assert found.epsilon == pytest.approx(renyi, rel=5e-3)


@pytest.mark.parametrize("other", [{"unit": "example"}, {"adjacency": "zero-out"}])
def test_different_units_and_adjacencies_have_no_common_guarantee(other):
    assert compose([gaussian(8.0), gaussian(8.0, **other)]) is None


def test_deltas_that_add_up_to_one_promise_nothing():
    assert compose([gaussian(8.0, delta=0.6), gaussian(8.0, delta=0.6)]) is None
    assert math.isfinite(compose([gaussian(8.0, delta=0.4), gaussian(8.0, delta=0.4)]).epsilon)
