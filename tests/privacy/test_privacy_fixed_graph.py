"""Records with several owners: the ownership graph stays, the contents of one unit's records change.

Everything against the numbers for replacement, and against counting what can change on graphs that are written out.
"""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy.special import logsumexp
from scipy.stats import norm

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import (
    bounded_range_hockey_stick,
    cost,
    epsilon,
    group_epsilon,
    pld_epsilon,
)
from dpsynth_platform.privacy.calibration import noise_for, steps_for
from dpsynth_platform.privacy.events import (
    BoundedRangeSelectionEvent,
    GaussianCountsEvent,
    ParallelDpEvent,
    SampledGaussianEvent,
    ThresholdedCountsEvent,
    dp_sgd_event,
    event_from_json,
    event_to_json,
    histogram_event,
    token_selection_event,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.mst import calibrate_mst, mst_event
from dpsynth_platform.privacy.renyi import ORDERS
from dpsynth_platform.privacy.sampled import sampled_gaussian_renyi
from dpsynth_platform.privacy.units import count_sensitivity

FIXED = "fixed-graph"

# Who owns which of five papers: Ada has three, Bo three, Cy two.
GRAPH = ({"Ada"}, {"Ada", "Bo"}, {"Ada", "Bo", "Cy"}, {"Bo"}, {"Cy"})
CELLS = 3


def changes(unit):
    """Every change of the counts over CELLS that other contents of one unit's papers make; nobody else's change."""
    mine = [number for number, owners in enumerate(GRAPH) if unit in owners]
    for before, after in itertools.product(itertools.product(range(CELLS), repeat=len(mine)), repeat=2):
        moved = np.bincount(after, minlength=CELLS) - np.bincount(before, minlength=CELLS)
        yield tuple(int(change) for change in moved)


@pytest.mark.parametrize(("unit", "b"), [("Ada", 3), ("Bo", 3), ("Cy", 2)])
def test_sensitivity_is_what_the_contents_of_ones_records_can_change(unit, b):
    found = list(changes(unit))
    sensitivity = count_sensitivity(FIXED, b)
    assert max(sum(map(abs, moved)) for moved in found) == sensitivity.l1 == 2 * b
    assert max(sum(change**2 for change in moved) for moved in found) == sensitivity.l2_squared == 2 * b * b


@pytest.mark.parametrize("sigma", [2.0, 5.0])
def test_claimed_epsilon_holds_for_every_change_on_the_graph(sigma):
    """Discrete Gaussian noise on three cells, the hockey-stick divergence summed point by point."""
    delta, side = 1e-3, np.arange(-math.ceil(7 * sigma), math.ceil(7 * sigma) + 1)
    weights = np.exp(-(side.astype(float) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    claimed = pld_epsilon(histogram_event(sigma, FIXED, 2), delta)

    total = np.exp(-(side.astype(float) ** 2) / (2 * sigma**2)).sum()

    def shifted(by):
        return np.exp(-((side - by) ** 2.0) / (2 * sigma**2)) / total

    worst = 0.0
    for moved in {tuple(sorted(moved)) for moved in changes("Cy")}:
        p = weights[:, None, None] * weights[None, :, None] * weights[None, None, :]
        first, second, third = (shifted(by) for by in moved)
        q = first[:, None, None] * second[None, :, None] * third[None, None, :]
        worst = max(worst, float(np.maximum(q - math.exp(claimed) * p, 0).sum()))
    assert 0.97 * delta < worst <= delta


def made(adjacency):
    """One event of each kind, for units with three records."""
    return [
        histogram_event(20.0, adjacency, 3),
        GaussianCountsEvent(20.0, adjacency, 3),
        ThresholdedCountsEvent(10.0, 90.0, adjacency, 3),
        BoundedRangeSelectionEvent(0.3, adjacency, 3),
        SampledGaussianEvent(20.0, 1.0, "record", adjacency, 3),
        dp_sgd_event(
            records=1000, batch_size=20, noise_multiplier=4.0, steps=50, adjacency=adjacency, max_contributions=3
        ),
        token_selection_event(
            tokens=20, clipping_norm=1.0, temperature=1.0, batch_size=50, adjacency=adjacency, max_contributions=3
        ),
    ]


@pytest.mark.parametrize(("fixed", "replaced"), zip(made(FIXED), made("replace-one"), strict=True))
def test_every_mechanism_costs_as_much_as_replacement(fixed, replaced):
    assert cost(fixed) == cost(replaced)
    assert epsilon(fixed, 1e-6) == epsilon(replaced, 1e-6)
    assert group_epsilon(fixed, 1e-6, 2) == group_epsilon(replaced, 1e-6, 2)
    assert event_from_json(event_to_json(fixed)) == fixed != replaced


def test_closed_forms():
    """Counts sqrt(2) b, clipped sums 2 b, choices twice b."""
    assert cost(GaussianCountsEvent(10.0, FIXED, 3)).curve.at(2.0) == pytest.approx(2 * (2 * 9) / 200, rel=1e-9)
    full = SampledGaussianEvent(10.0, 1.0, "record", FIXED, 3)
    assert cost(full).curve.at(2.0) == pytest.approx(2 * 36 / 200, rel=1e-9)
    choice = token_selection_event(
        tokens=1, clipping_norm=1.0, temperature=1.0, batch_size=10, adjacency=FIXED, max_contributions=3
    )
    assert choice.event == BoundedRangeSelectionEvent(1.2, FIXED, 3)


@pytest.mark.parametrize(("sigma", "q"), [(1.5, 0.1), (4.0, 0.3)])
def test_sampled_steps_are_bounded_whatever_the_contents_were_and_become(sigma, q):
    """Two records, each with a gradient of -1, 0 or 1 before and after; the same coins decide who is in the sample."""
    curve = sampled_gaussian_renyi(sigma, q, 2, True)
    x = np.arange(-30 * sigma, 30 * sigma, sigma / 32)

    def log_density(gradients):
        parts = []
        for sample in itertools.product((0, 1), repeat=2):
            chance = math.prod(q if drawn else 1 - q for drawn in sample)
            at = sum(drawn * gradient for drawn, gradient in zip(sample, gradients, strict=True))
            parts.append(math.log(chance) + norm.logpdf(x, at, sigma))
        return logsumexp(parts, axis=0)

    densities = {gradients: log_density(gradients) for gradients in itertools.product((-1, 0, 1), repeat=2)}
    worst = 0.0
    for before, after in itertools.permutations(densities, 2):
        for order in (1.5, 2.0, 3.0, 5.0):
            logs = order * densities[before] + (1 - order) * densities[after]
            found = float(logsumexp(logs) + math.log(x[1] - x[0])) / (order - 1)
            share = found / curve[ORDERS.index(order)]
            worst = max(worst, share)
    assert 0.2 < worst <= 1


def test_users_are_not_drawn_where_records_have_several_owners():
    """A paper of Ada, Bo and Cy is in the gradients of all three: other contents move three clipped means, not one."""
    assert sum("Ada" in owners for owners in GRAPH) == 3
    touched = {owner for owners in GRAPH if "Ada" in owners for owner in owners}
    assert touched == {"Ada", "Bo", "Cy"}
    with pytest.raises(AccountingError, match="several owners"):
        dp_sgd_event(records=10, batch_size=1, noise_multiplier=1.0, steps=1, adjacency=FIXED, sampled="user")
    SampledGaussianEvent(1.0, 0.1, "user", "replace-one", 3)


def test_parallel_branches_are_refused_and_why():
    """A unit with a record in each of two branches takes part in both: the dearest branch alone is too little.

    Each branch is a choice between two outcomes whose range one unit moves by 1, however many records it has there.
    """
    branch = BoundedRangeSelectionEvent(1.0, FIXED, 2)
    with pytest.raises(AccountingError, match="or be in several"):
        ParallelDpEvent([branch, branch])
    with pytest.raises(AccountingError):
        event_from_json({"kind": "parallel", "events": [event_to_json(branch)] * 2})
    delta = 1e-3
    alone, both = epsilon(branch, delta).epsilon, epsilon(dp_event.SelfComposedDpEvent(branch, 2), delta).epsilon
    first = math.expm1(-0.5) / math.expm1(-1.0)  # P of the outcome whose log-ratio is 1/2; the other's is -1/2
    spent = first**2 * max(0.0, 1 - math.exp(alone - 1.0))
    assert spent > 10 * delta
    assert first**2 * max(0.0, 1 - math.exp(both - 1.0)) <= delta
    assert bounded_range_hockey_stick(1.0, np.array([alone]))[0] <= delta


def test_calibration_and_guarantees_accept_it():
    fixed, replaced = (Guarantee(1.0, 1e-6, "user", adjacency, 2) for adjacency in (FIXED, "replace-one"))
    assert calibrate_mst(5, fixed) == calibrate_mst(5, replaced)
    assert Guarantee.from_json(fixed.to_json()) == fixed
    event = mst_event(5, calibrate_mst(5, fixed), FIXED, 2)
    assert epsilon(event, 1e-6).epsilon <= 1.0

    def training(noise, steps=100):
        return dp_sgd_event(records=10_000, batch_size=100, noise_multiplier=noise, steps=steps, adjacency=FIXED)

    noise = noise_for(training, 2.0, 1e-6)
    assert 1.99 < noise.result.epsilon <= 2.0
    assert 100 <= steps_for(lambda steps: training(noise.value, steps), 2.0, 1e-6).value <= 101
