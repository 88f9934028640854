"""The best of a random number of runs: its cost against brute force, and against another implementation."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.special import gammaln
from scipy.stats import norm

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import cost, epsilon, pld_epsilon, renyi_curve
from dpsynth_platform.privacy.events import (
    BestRunEvent,
    GaussianCountsEvent,
    ParallelDpEvent,
    SampledGaussianEvent,
    ThresholdedGaussianCountsEvent,
    adjacency_of,
    best_run_event,
    event_from_json,
    event_to_json,
    histories,
    leaves,
)
from dpsynth_platform.privacy.renyi import ORDERS

SHAPES = [-0.5, 0.0, 0.5, 1.0, 3.0]


def counts(sigma):
    return GaussianCountsEvent(sigma, "add-or-remove", 1)


def chances(shape, gamma):
    """P[K = k] for k from 1, to where nothing is left, from the definition."""
    k = np.arange(1, 4000 if gamma > 0.01 else 200_000)
    logs = k * math.log1p(-gamma) + gammaln(k + shape) - gammaln(k + 1)
    found = np.exp(logs - logs.max())
    return k, found / found.sum()


def best_of(shape, gamma, run):
    """The chances of the best outcome, for a run's chances of outcomes in ascending order of their scores."""
    k, weights = chances(shape, gamma)
    below = np.concatenate([[0.0], np.minimum(np.cumsum(run), 1.0)])
    powers = np.array([(weights * at**k).sum() for at in below])
    return np.diff(powers)


def divergence(first, second, order):
    kept = first > 0
    return np.log((first[kept] ** order * second[kept] ** (1 - order)).sum()) / (order - 1)


def outcomes(sigmas, at):
    """Which mechanism a run takes, and a noisy count in one of 60 bins, from the lowest to the highest bin."""
    edges = np.concatenate([[-np.inf], np.linspace(-3, 4, 59) * min(sigmas), [np.inf]])
    return np.column_stack([np.diff(norm.cdf(edges, at, sigma)) for sigma in sigmas]).ravel() / len(sigmas)


@pytest.mark.parametrize(("shape", "gamma"), itertools.product(SHAPES, [0.5, 0.05]))
@pytest.mark.parametrize("sigmas", [(1.0,), (3.0,), (2.0, 5.0)])
def test_no_divergence_of_the_best_is_above_its_curve(shape, gamma, sigmas):
    """Of one count that a record moves by 1; the score is the noisy count, or its opposite. In both directions."""
    curve = cost(BestRunEvent([counts(sigma) for sigma in sigmas], shape, gamma)).curve
    one = cost(counts(min(sigmas))).curve
    reached, above_one = [], []
    for order in ORDERS[8:60:8]:
        for turned in (1, -1):
            out, inside = (best_of(shape, gamma, outcomes(sigmas, at)[::turned]) for at in (0.0, 1.0))
            for pair in ((out, inside), (inside, out)):
                found = divergence(*pair, order)
                assert found <= curve.at(order)
                reached.append(found / curve.at(order))
                above_one.append(found / one.at(order))
    assert max(reached) > 0.2  # the bound is no empty one,
    if gamma == 0.05 and shape >= 0.5 and len(sigmas) == 1:
        assert max(above_one) > 1.3  # and the cost of a single run would be too little


@pytest.mark.parametrize("shape", SHAPES[1:])
@pytest.mark.parametrize("runs", [1.5, 10, 500])
def test_as_another_implementation_has_it(shape, runs):
    event = best_run_event([counts(4.0)], runs, shape)
    accountant = RdpAccountant(list(ORDERS))
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(4.0), runs, shape))
    assert renyi_curve(event).values == pytest.approx(accountant._rdp, rel=1e-6)
    assert epsilon(event, 1e-6).epsilon == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-3)
    assert pld_epsilon(event, 1e-6) is None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("runs", [1.01, 3, 40])
def test_the_expected_number_of_runs(shape, runs):
    event = best_run_event([counts(1.0)], runs, shape)
    k, weights = chances(event.shape, event.gamma)
    assert event.mean == pytest.approx(runs, rel=1e-6)
    assert (k * weights).sum() == pytest.approx(runs, rel=1e-3)


def test_of_several_mechanisms_the_worst_counts_at_each_order():
    trained = dp_event.SelfComposedDpEvent(SampledGaussianEvent(0.8, 0.01, "record", "add-or-remove", 1), 50)
    parts = [counts(2.0), trained]
    both = renyi_curve(BestRunEvent(parts, 1.0, 0.2))
    alone = [renyi_curve(BestRunEvent([part], 1.0, 0.2)) for part in parts]
    assert all(value >= max(pair) for value, *pair in zip(both.values, *(item.values for item in alone), strict=True))
    assert both.values != alone[0].values and both.values != alone[1].values


def test_many_runs_cost_less_than_their_composition_and_more_than_one():
    one = epsilon(counts(5.0), 1e-6).epsilon
    best = epsilon(best_run_event([counts(5.0)], 50), 1e-6).epsilon
    assert one < best < 4 * one < epsilon(dp_event.SelfComposedDpEvent(counts(5.0), 50), 1e-6).epsilon


def test_it_composes_as_one_part_and_keeps_its_json():
    best = BestRunEvent([counts(2.0), dp_event.ComposedDpEvent([counts(4.0), counts(8.0)])], 0.5, 0.1)
    event = dp_event.ComposedDpEvent([counts(3.0), dp_event.SelfComposedDpEvent(best, 3)])
    assert event_from_json(event_to_json(event)) == event and hash(best) == hash(event_from_json(event_to_json(best)))
    assert histories(event) == ({counts(3.0): 1, best: 3},)
    assert [(leaf.sigma, times) for leaf, times in leaves(event)] == [(3.0, 1), (2.0, 3), (4.0, 3), (8.0, 3)]
    assert adjacency_of(event) == ("add-or-remove", 1)
    parts = [renyi_curve(counts(3.0)).values, renyi_curve(best).values]
    assert renyi_curve(event).values == pytest.approx([a + 3 * b for a, b in zip(*parts, strict=True)])
    branches = ParallelDpEvent([counts(2.0), counts(1.0)])
    assert renyi_curve(BestRunEvent([branches], 1.0, 0.1)).values == pytest.approx(
        renyi_curve(BestRunEvent([counts(1.0)], 1.0, 0.1)).values
    )


@pytest.mark.parametrize(
    ("events", "shape", "gamma", "said"),
    [
        ([], 1.0, 0.5, "of 0 mechanisms; accepted: shape above -1"),
        ([counts(1.0)], -1.0, 0.5, "shape -1.0"),
        ([counts(1.0)], True, 0.5, "shape True"),
        ([counts(1.0)], math.nan, 0.5, "shape nan"),
        ([counts(1.0)], 5e-324, 0.5, "shape 5e-324"),
        ([counts(1.0)], 1.0, 1.0, "gamma 1.0"),
        ([counts(1.0)], 1.0, 0.0, "gamma: 0.0"),
        ([ThresholdedGaussianCountsEvent(1.0, 9.0, "add-or-remove", 1)], 1.0, 0.5, "from a threshold up"),
    ],
)
def test_what_has_no_cost_is_refused(events, shape, gamma, said):
    with pytest.raises(AccountingError, match=said):
        BestRunEvent(events, shape, gamma)


@pytest.mark.parametrize("runs", [1, 0.5, True, math.inf, "3"])
def test_an_impossible_number_of_runs_is_refused(runs):
    with pytest.raises(AccountingError, match="accepted: above 1, at most 10,000"):
        best_run_event([counts(1.0)], runs)


@pytest.mark.parametrize(("runs", "shape"), [(5, -0.99), (500, -0.9), (10_000, -0.8)])
def test_more_runs_than_a_shape_can_have_are_refused(runs, shape):
    """Else an event of fewer runs would stand for them."""
    with pytest.raises(AccountingError, match=f"the best of {runs} runs with shape {shape}, which has at most"):
        best_run_event([counts(1.0)], runs, shape)
