import itertools
import math

import numpy as np
import pytest
from audit_cases import categories, plan_for, run, table_of
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import minimize

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS, count_sensitivity
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.marginals import expected_error
from dpsynth_platform.synth.tabular.measurements import NoisyCounts
from dpsynth_platform.synth.tabular.mst import pair_scores
from dpsynth_platform.synth.tabular.privsyn import chosen_pairs, shares_of

COLUMNS = categories(a=3, b=3, c=2, d=2, e=4)

# Sensitivity, by brute force: three columns of two states, and all that b = 2 records of a person can be.

CELLS = list(itertools.product(range(2), repeat=3))
STATES = [ColumnStates(np.arange(2, dtype=np.int32), np.ones(2))] * 3
PEOPLE = [mine for number in range(3) for mine in itertools.combinations_with_replacement(CELLS, number)]


def distances_of(others, one_way):
    """All pairs' distances, for each person who may join the others; shape (people, pairs)."""
    found = []
    for mine in PEOPLE:
        counts = np.zeros((2, 2, 2), dtype=np.int64)
        for record in (*others, *mine):
            counts[record] += 1
        pairs = {(i, j): counts.sum(axis=3 - i - j) for i, j in itertools.combinations(range(3), 2)}
        found.append(list(pair_scores(pairs, one_way, STATES, 1).values()))
    return np.array(found)


def test_over_all_neighbours_distances_move_by_the_claimed_lengths_and_no_more():
    rng = np.random.default_rng(6)
    farthest = dict.fromkeys(("add-or-remove", "replace-one"), 0.0)
    for _ in range(40):
        others = [tuple(record) for record in rng.integers(0, 2, (rng.integers(0, 9), 3))]
        one_way = [NoisyCounts((index,), rng.integers(0, 9, 2), 2.0) for index in range(3)]
        found = distances_of(others, one_way)
        for adjacency, moved in (
            ("add-or-remove", found - found[0]),
            ("replace-one", (found[:, None] - found).reshape(-1, 3)),
        ):
            most = count_sensitivity(adjacency, 2).l1 * RECORD_PARTS
            assert np.abs(moved).max() <= most
            farthest[adjacency] = max(farthest[adjacency], float(np.linalg.norm(moved, axis=1).max()) / most)
    assert farthest["add-or-remove"] == pytest.approx(
        math.sqrt(3), abs=1e-9
    )  # that much, and so no less can be claimed
    assert 1.2 < farthest["replace-one"] <= math.sqrt(3)


# The cost of a whole run.


@pytest.mark.parametrize(("adjacency", "b"), [("add-or-remove", 2), ("replace-one", 1)])
def test_all_draws_of_a_run_together_meet_the_guarantee(adjacency, b):
    """By dp_accounting alone, from the noise of each draw and what one person can move it by."""
    plan = plan_for("privsyn", COLUMNS, epsilon=2.0, b=b, adjacency=adjacency)
    found = run(plan, table())
    counts = math.sqrt(2) * b if adjacency == "replace-one" else b
    multipliers = [draw.scale / counts for draw in found.of("noise")]
    (distances,) = found.of("distances")
    each = 2 * b if adjacency == "replace-one" else b
    multipliers.append(distances.scale / (math.sqrt(distances.exact.size) * each * 2**16))
    assert distances.exact.size == math.comb(len(COLUMNS), 2)
    events = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(multiplier) for multiplier in multipliers])
    exact = PLDAccountant(value_discretization_interval=1e-3).compose(events).get_epsilon(1e-5)
    assert 1.97 < exact <= 2.005  # rounded up by some intervals
    assert exact < RdpAccountant().compose(events).get_epsilon(1e-5) < 2.2


def test_a_plan_whose_distances_need_more_noise_than_there_is_is_refused():
    with pytest.raises(AccountingError, match="accepted: a larger epsilon"):
        plan_for("privsyn", COLUMNS, epsilon=1e-9, b=1)


# The choice of pairs, and the spread of precision.


def table(rows=3000):
    """b follows a, d follows c, e is alone."""
    rng = np.random.default_rng(2)
    a, c, e = (rng.integers(0, size, rows) for size in (3, 2, 4))
    return table_of(COLUMNS, np.stack([a, a, c, c, e], axis=1))


def test_pairs_that_go_together_are_measured_and_other_columns_once_more_alone():
    found = run(plan_for("privsyn", COLUMNS, epsilon=1.0, b=1), table(), noise=lambda counts, sigma: counts)
    assert [item.clique for item in found.measured[: len(COLUMNS)]] == [(index,) for index in range(len(COLUMNS))]
    joint = [item.clique for item in found.measured[len(COLUMNS) :]]
    assert joint[:2] == [(0, 1), (2, 3)]
    assert set(itertools.chain(*joint)) == set(range(len(COLUMNS)))


def test_the_noise_left_to_a_pair_is_the_least_in_all():
    cells = [12, 400, 90, 3]
    left, precisions = 1.0, []
    for share in shares_of(cells):
        precisions.append(left * share)
        left -= left * share
    assert left == pytest.approx(0, abs=1e-12)
    by_hand = minimize(
        lambda logs: sum(np.array(cells) / np.sqrt(np.exp(logs) / np.exp(logs).sum())), np.zeros(4), tol=1e-12
    )
    errors = sum(number / math.sqrt(precision) for number, precision in zip(cells, precisions, strict=True))
    assert errors == pytest.approx(by_hand.fun, rel=1e-6)
    assert errors == pytest.approx(sum(number ** (2 / 3) for number in cells) ** 1.5)


def test_pairs_are_chosen_one_by_one_for_the_least_error():
    cells = {(0, 1): 100, (0, 2): 10, (1, 2): 100, (2, 3): 9}
    distances = {(0, 1): 900.0, (0, 2): 200.0, (1, 2): 150.0, (2, 3): -40.0}

    def error(chosen):
        noise = expected_error(1.0) * sum(cells[pair] ** (2 / 3) for pair in chosen) ** 1.5
        return noise + sum(distance for pair, distance in distances.items() if pair not in chosen)

    chosen = chosen_pairs(distances, cells, 1.0, 4)
    assert chosen == [(0, 1), (0, 2)]
    subsets = [subset for number in range(5) for subset in itertools.combinations(cells, number)]
    assert error(chosen) == min(map(error, subsets))
    assert chosen_pairs(distances, cells, 1.0, 1) == [(0, 1)]
    assert chosen_pairs(distances, cells, 1000.0, 4) == []


def test_the_table_shrinks_where_columns_have_many_values():
    few, many = (
        plan_for("privsyn", categories(**dict.fromkeys("abc", size)), epsilon=1.0, b=1).parameters["table_rows"]
        for size in (10, 4000)
    )
    assert few == 2**15
    assert many == 2**24 // (3 * 4001)


def test_the_plan_says_what_is_measured():
    plan = plan_for("privsyn", COLUMNS, epsilon=1.0, b=1)
    described = generator("privsyn").describe(plan)
    assert "the distances of all 10 pairs of columns from independence" in described["event"]
    assert Guarantee.from_json(plan.guarantee).epsilon == 1.0
