import itertools

import numpy as np
import pytest
from audit_cases import categories, plan_for, run, table_of
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsynth_platform.privacy.units import count_sensitivity
from dpsynth_platform.synth.tabular import privbayes
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.estimation import Measurement
from dpsynth_platform.synth.tabular.marginals import SCORE_SCALE
from dpsynth_platform.synth.tabular.privbayes import SHARES, score, useful_families, whole_shares

# Sensitivity of the score, by brute force.

SIZES = (3, 2, 4)
RECORD = st.tuples(*(st.integers(0, size - 1) for size in SIZES))
MINE = st.lists(RECORD, min_size=1, max_size=3)


def counted(records, clique):
    counts = np.zeros([SIZES[index] for index in clique], dtype=np.int64)
    for record in records:
        counts[tuple(record[index] for index in clique)] += 1
    return counts


def shares_of(size, seed):
    return np.random.default_rng(seed).multinomial(SHARES, np.full(size, 1 / size) ** 2 * size)


@settings(deadline=None)
@given(st.lists(RECORD, max_size=12), MINE, MINE, st.integers(0, 2**32 - 1))
def test_one_user_moves_every_score_by_no_more_than_the_sensitivity(others, mine, instead, seed):
    shares = [shares_of(size, seed) for size in SIZES]
    for adjacency, left, right in (
        ("add-or-remove", others, others + mine),
        ("zero-out", others + mine, others),
        ("replace-one", others + mine, others + instead),
    ):
        most = 2 * SHARES * SCORE_SCALE * count_sensitivity(adjacency, 3).l1
        for ways in (2, 3):
            for clique, axis in itertools.product(itertools.combinations(range(3), ways), range(ways)):
                before, after = (
                    score(counted(rows, clique), axis, shares[clique[axis]], 1.5, 1) for rows in (left, right)
                )
                assert abs(before - after) <= most


def test_the_bound_on_scores_is_approached():
    """By records with a value of which there were none: their share is nothing, so that they move it by 2 W each."""
    shares = np.array([SHARES, 0, 0])
    before, after = (score(counted([(1, 0)] * times, (0, 1)), 0, shares, 0.0, 1) for times in (0, 3))
    assert after - before == 3 * 2 * SHARES * SCORE_SCALE


def test_scores_in_parts_of_a_record_are_the_same():
    counts, shares = np.array([[3, 1], [0, 5], [2, 2]]), np.array([SHARES // 2, SHARES // 4, SHARES // 4])
    assert score(counts, 0, shares, 1.0, 1) == score(counts * SCORE_SCALE, 0, shares, 1.0, SCORE_SCALE)


def test_an_independent_column_scores_nothing_and_a_copy_the_most():
    shares = np.array([SHARES // 2, SHARES // 4, SHARES // 4])
    independent = np.outer([2, 1, 1], [3, 5]).astype(np.int64)
    assert score(independent, 0, shares, 0.0, 1) == 0
    copy = np.diag([8, 4, 4]).astype(np.int64)
    # 2 W n R, with R the total variation between joint and product.
    distance = np.abs(np.diag([8, 4, 4]) / 16 - np.outer([8, 4, 4], [8, 4, 4]) / 256).sum()
    assert score(copy, 0, shares, 0.0, 1) == pytest.approx(SHARES * SCORE_SCALE * 16 * distance)
    assert score(copy, 0, shares, 0.5, 1) == score(copy, 0, shares, 0.0, 1) - SHARES * SCORE_SCALE * 9 // 2


@settings(deadline=None)
@given(st.lists(st.integers(-50, 1000), min_size=1, max_size=40))
def test_whole_shares_sum_up(counts):
    measured = Measurement((0,), np.array(counts, dtype=np.float64), np.full(len(counts), 9.0))
    shares = whole_shares(measured)
    assert shares.sum() == SHARES
    assert (shares >= 0).all()


# The network.


def states_of(*sizes):
    return [ColumnStates(np.arange(size, dtype=np.int32), np.ones(size)) for size in sizes]


def test_only_families_with_few_cells_are_useful():
    assert useful_families(states_of(2, 3, 50), 2, 100) == [(0, 1), (0, 2)]
    assert useful_families(states_of(2, 3, 50), 2, 1000) == [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
    assert useful_families(states_of(2, 3, 50), 1, 1000) == [(0, 1), (0, 2), (1, 2)]
    assert useful_families(states_of(2, 3, 50), 2, 5) == []


def network_of(found):
    return [item.clique for item in found.measured if len(item.clique) > 1]


def test_parents_stand_together_in_an_earlier_family_and_every_column_is_placed_once():
    columns = categories(a=2, b=2, c=2, d=2, e=2)
    rng = np.random.default_rng(8)
    a = rng.integers(0, 2, 4000)
    b = a ^ (rng.random(4000) < 0.1)
    codes = np.stack([a, b, a ^ b, b ^ (rng.random(4000) < 0.2), rng.integers(0, 2, 4000)], axis=1)
    plan = plan_for("privbayes", columns, epsilon=8.0, b=1)
    assert plan.parameters["parents"] == 2
    network = network_of(run(plan, table_of(columns, codes)))
    # a and b determine c together, neither of them alone. Another first choice has a chance of e^-102; after the usual
    # second one, this family is e^156 times as likely as the next.
    assert (0, 1, 2) in network
    placed = set()
    for number, clique in enumerate(network):
        fresh = set(clique) - placed
        assert len(fresh) == (2 if number == 0 else 1)
        assert number == 0 or any(set(clique) - fresh <= set(earlier) for earlier in network[:number])
        placed |= set(clique)
    assert placed == set(range(5))


def test_columns_with_nothing_useful_are_measured_once_more_alone():
    columns = categories(a=40, b=40)
    codes = np.stack([np.arange(4000) % 40, np.arange(4000) // 40 % 40], axis=1)
    found = run(plan_for("privbayes", columns, epsilon=0.5, b=1), table_of(columns, codes))
    assert [draw.kind for draw in found.draws] == ["noise"] * 4
    assert [item.clique for item in found.measured] == [(0,), (1,), (0,), (1,)]


def test_many_columns_have_one_parent():
    few, many = (categories(**{f"c{number}": 2 for number in range(columns)}) for columns in (32, 33))
    parents = [plan_for("privbayes", columns, epsilon=4.0, b=1).parameters["parents"] for columns in (few, many)]
    assert parents == [2, 1]
    assert privbayes.MOST_PARENTS == 2
