"""Partition selection by rounded Gaussian counts: what is claimed, against every outcome's exact probability."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import cost, delta_slack, epsilon, threshold_slack
from dpsynth_platform.privacy.events import (
    ThresholdedCountsEvent,
    ThresholdedGaussianCountsEvent,
    event_from_json,
    event_to_json,
    matches_claim,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.mst import calibrate_mst, mst_budget, mst_event
from dpsynth_platform.privacy.partitions import MOST_SHARE, NOTHING_LEARNED, SLACK_SHARE, Partitions
from dpsynth_platform.privacy.selection import calibrate_selection, selection_event
from dpsynth_platform.privacy.units import RECORD_PARTS, row_weight


def partitions_of(total, largest=None):
    """All ways in which so many records fall into cells."""
    if total == 0:
        yield ()
    for first in range(min(total, largest or total), 0, -1):
        for rest in partitions_of(total - first, first):
            yield (first, *rest)


def masses(sigma, reach):
    """The distribution of rounded Gaussian noise on -reach, ..., reach; all beyond goes to the ends."""
    edges = np.arange(-reach, reach) + 0.5
    return np.diff(stats.norm.cdf(edges / sigma), prepend=0.0, append=1.0)


CELL = 20
"""Outcomes of a cell that are told apart, at most."""


def outcome(sigma, count, threshold, reach):
    """Distribution of what is shown of a cell: nothing (first), or one of the noisy counts from the threshold up."""
    shown = np.arange(threshold, count + reach + 1)
    found = np.array([masses(sigma, reach)[value - count + reach] for value in shown])
    padded = np.zeros(CELL)
    padded[1 : 1 + len(found)] = found
    padded[0] = 1 - found.sum()
    return padded


def hockey_stick(p, q, e):
    return float(np.maximum(p - math.exp(e) * q, 0).sum())


# The slack.


@pytest.mark.parametrize("b", range(1, 9))
@pytest.mark.parametrize(("sigma", "above"), [(0.5, 2), (3.0, 9), (20.0, 60)])
def test_slack_is_at_least_the_chance_that_a_cell_of_one_unit_alone_is_shown(b, sigma, above):
    threshold = b + above
    slack = threshold_slack(ThresholdedGaussianCountsEvent(sigma, float(threshold), "add-or-remove", b))
    reach = math.ceil(12 * sigma) + threshold
    noise, mass = np.arange(-reach, reach + 1), masses(sigma, reach)
    chances = [
        1 - math.prod(1 - mass[noise + records >= threshold].sum() for records in cells) for cells in partitions_of(b)
    ]
    assert max(chances) <= slack * (1 + 1e-9)
    assert slack <= 1.2 * max(chances)  # and no more than the union bound and one kind of cells lose


@pytest.mark.parametrize("b", range(1, 9))
@pytest.mark.parametrize(("sigma", "threshold"), [(0.5, 3), (3.0, 12), (20.0, 80)])
def test_slack_where_owners_are_counted(b, sigma, threshold):
    """Noise and threshold are in parts of a record; a person's rows are any number up to b, in any cells."""
    slack = threshold_slack(ThresholdedGaussianCountsEvent(sigma, float(threshold), "add-or-remove", b, "owners"))

    def passes(weight):
        return stats.norm.sf((threshold * RECORD_PARTS - weight - 0.5) / (sigma * RECORD_PARTS))

    chances = [
        1 - math.prod(1 - passes(rows * row_weight(k)) for rows in cells)
        for k in range(1, b + 1)
        for cells in partitions_of(k)
    ]
    assert max(chances) <= slack * (1 + 1e-9)
    assert slack <= 1.1 * b * max(chances)
    with pytest.raises(AccountingError, match="accepted: above that"):
        ThresholdedGaussianCountsEvent(sigma, 1.0, "add-or-remove", b, "owners")


def test_counting_owners_takes_less_noise_and_a_lower_threshold():
    rows, owners = (Guarantee(1.0, 1e-6, "user", "add-or-remove", 8, weighting) for weighting in ("rows", "owners"))
    budgets = [calibrate_selection(asked, 10, 0.1, Partitions(1)) for asked in (rows, owners)]
    of_rows, of_owners = (
        Partitions(1).learning(asked, budget.rho) for asked, budget in zip((rows, owners), budgets, strict=True)
    )
    assert of_owners.sigma < 1.1 * of_rows.sigma / 8
    assert of_owners.threshold < of_rows.threshold / 6
    event = selection_event(budgets[1], "add-or-remove", 8, "owners")
    whole = Partitions(1).beside(event, owners, budgets[1].rho)
    assert matches_claim(whole, owners)
    assert 0.98 < epsilon(whole, 1e-6).epsilon <= 1.0


def test_a_threshold_between_whole_numbers_is_the_next_one():
    between, whole = (ThresholdedGaussianCountsEvent(3.0, value, "add-or-remove", 2) for value in (11.5, 12.0))
    assert threshold_slack(between) == threshold_slack(whole)


def test_rounded_noise_needs_half_a_record_less_than_the_discrete_gaussians_bound():
    rounded, discrete = (
        threshold_slack(kind(3.0, threshold, "add-or-remove", 1))
        for kind, threshold in ((ThresholdedGaussianCountsEvent, 12.0), (ThresholdedCountsEvent, 12.0))
    )
    assert rounded == pytest.approx(stats.norm.sf(10.5 / 3))
    assert discrete == pytest.approx(stats.norm.sf(10.0 / 3))


# The curve, cell by cell. One cell that others are in, and up to two that only one person is in.


@pytest.mark.parametrize(("adjacency", "b"), [("add-or-remove", 1), ("add-or-remove", 2), ("replace-one", 1)])
def test_what_is_claimed_holds_for_every_way_to_spread_records(adjacency, b):
    sigma, threshold, reach = 2.0, 10, 16
    event = ThresholdedGaussianCountsEvent(sigma, float(threshold), adjacency, b)
    delta = 3 * threshold_slack(event)
    claimed = epsilon(event, delta).epsilon
    ways = [places for number in range(b + 1) for places in itertools.product(range(3), repeat=number)]

    def shown(places):
        joint = np.ones(1)
        for cell, others in enumerate((8, 0, 0)):
            count = others + places.count(cell)
            one = outcome(sigma, count, threshold, reach) if count else np.eye(1, CELL)[0]
            joint = np.outer(joint, one).ravel()
        return joint

    found = {places: shown(places) for places in ways}
    replaced = adjacency == "replace-one"
    pairs = [(one, two) for one in ways for two in ways if one != two and (replaced or not (one and two))]
    worst = max(hockey_stick(found[one], found[two], claimed) for one, two in pairs)
    assert worst <= delta
    # The claim is not empty: at half of epsilon it would not hold.
    assert max(hockey_stick(found[one], found[two], claimed / 2) for one, two in pairs) > delta


def test_the_slack_is_taken_off_delta_and_raises_epsilon():
    event = ThresholdedGaussianCountsEvent(10.0, 60.0, "add-or-remove", 1)
    slack = threshold_slack(event)
    assert cost(event).delta_slack == pytest.approx(slack)
    with pytest.raises(AccountingError, match="thresholds alone take"):
        epsilon(event, slack / 2)
    assert event_from_json(event_to_json(event)) == event
    assert event_to_json(event)["kind"] == "thresholded-gaussian-counts"
    with pytest.raises(AccountingError, match="accepted: above that"):
        ThresholdedGaussianCountsEvent(10.0, 2.0, "add-or-remove", 2)


# Its part of a plan.


def guarantee(adjacency="add-or-remove", b=1, target=1.0, delta=1e-6):
    return Guarantee(target, delta, "user", adjacency, b)


@pytest.mark.parametrize("columns", [1, 12])
@pytest.mark.parametrize(
    ("adjacency", "b"), [("add-or-remove", 1), ("zero-out", 4), ("replace-one", 3), ("fixed-graph", 2)]
)
def test_learning_and_mechanism_together_meet_the_guarantee_and_use_it(columns, adjacency, b):
    asked, partitions = guarantee(adjacency, b), Partitions(columns)
    budget = calibrate_selection(asked, 10, 0.1, partitions)
    whole = partitions.beside(selection_event(budget, adjacency, b), asked, budget.rho)
    assert 0.98 < epsilon(whole, asked.delta).epsilon <= 1.0
    assert 0 < delta_slack(whole) <= SLACK_SHARE * asked.delta * (1 + 1e-9)
    tree = calibrate_mst(5, asked, partitions)
    whole = partitions.beside(mst_event(5, tree, adjacency, b), asked, tree.rho)
    assert 0.98 < epsilon(whole, asked.delta).epsilon <= 1.0


def test_nothing_learned_costs_nothing():
    asked = guarantee()
    assert calibrate_selection(asked, 10, 0.1, NOTHING_LEARNED) == calibrate_selection(asked, 10, 0.1)
    assert calibrate_mst(5, asked, Partitions(0)) == calibrate_mst(5, asked)
    event = mst_event(5, mst_budget(5, 0.02, asked), "add-or-remove", 1)
    assert NOTHING_LEARNED.beside(event, asked, 0.02) is event
    with pytest.raises(AccountingError, match="no column"):
        NOTHING_LEARNED.learning(asked, 0.02)


def test_many_columns_take_a_bounded_part():
    assert Partitions(1).share < Partitions(2).share <= Partitions(100).share == MOST_SHARE


@pytest.mark.parametrize("b", [1, 5])
def test_the_threshold_is_the_least_that_the_slack_allows(b):
    asked = guarantee(b=b)
    learning = Partitions(2).learning(asked, 0.02)
    slack = SLACK_SHARE * asked.delta / 2

    def slack_of(threshold):
        return threshold_slack(ThresholdedGaussianCountsEvent(learning.sigma, float(threshold), "add-or-remove", b))

    assert slack_of(learning.threshold) <= slack < slack_of(learning.threshold - 1)
