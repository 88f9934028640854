import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsynth_platform.synth.tabular.compression import compress
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain
from dpsynth_platform.synth.tabular.measurements import NoisyCounts
from dpsynth_platform.synth.tabular.resolution import COARSE_GROUPS, Sums, View, resolutions, views_of


def groups_for(column, counts):
    domain = Domain((column,))
    states = compress(domain, [NoisyCounts((0,), np.array(counts), 1.0)])
    merged = [states[0].merge(np.array(counts, dtype=np.float64))]
    return states[0], resolutions(domain, states, merged)[0]


def test_few_states_have_one_resolution():
    column = ColumnDomain("x", "categorical", True, values=("a", "b", "c"))
    _, levels = groups_for(column, [500, 400, 300, 200])
    assert [level.tolist() for level in levels] == [[0, 1, 2, 3]]


def test_categories_become_the_largest_and_the_rest():
    values = tuple("abcdefghijkl")
    counts = [90, 100, 110, 1000, 120, 2000, 130, 140, 150, 160, 170, 180, 50]
    states, levels = groups_for(ColumnDomain("x", "categorical", True, values=values), counts)
    assert states.size == 13
    coarse = levels[1]
    rest = np.bincount(coarse).argmax()
    assert coarse.max() + 1 == COARSE_GROUPS
    assert {values[index] for index in np.flatnonzero(coarse[:12] != rest)} == set("dfjklih")


def test_neighbours_come_together_and_missing_values_stay_apart():
    counts = [1000, *[100] * 30, 3000, 40]
    states, levels = groups_for(ColumnDomain("x", "integer", True, edges=tuple(range(33))), counts)
    coarse = levels[1][states.state_of]
    assert len(set(coarse.tolist())) == COARSE_GROUPS
    assert (np.diff(coarse[:-1]) >= 0).all()  # groups of neighbours
    assert (coarse == coarse[0]).sum() == (coarse == coarse[31]).sum() == (coarse == coarse[32]).sum() == 1


SIZES = (4, 3, 2)
GROUPS = [[np.arange(4), np.array([0, 0, 1, 1])], [np.arange(3), np.array([0, 1, 0])], [np.arange(2)]]


def test_views_are_all_combinations_of_resolutions():
    assert [view.levels for view in views_of((0, 1), GROUPS)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [view.levels for view in views_of((1, 2), GROUPS)] == [(0, 0), (1, 0)]


@settings(deadline=None)
@given(st.lists(st.tuples(*(st.integers(0, size - 1) for size in SIZES)), min_size=1, max_size=20))
def test_a_views_cells_count_the_records_in_their_groups(records):
    """By counting records through their groups instead; so a record is in one cell of every view."""
    for ways in (1, 2, 3):
        for clique in itertools.combinations(range(3), ways):
            counts = np.zeros([SIZES[index] for index in clique], dtype=np.int64)
            for record in records:
                counts[tuple(record[index] for index in clique)] += 1
            for view in views_of(clique, GROUPS):
                wanted = np.zeros(view.shape(GROUPS), dtype=np.int64)
                for record in records:
                    place = (GROUPS[i][level][record[i]] for i, level in zip(clique, view.levels, strict=True))
                    wanted[tuple(place)] += 1
                found = view.counts(counts, GROUPS)
                np.testing.assert_array_equal(found, wanted)
                assert found.dtype == np.int64


@pytest.mark.parametrize("clique", [(1,), (0, 1), (1, 2), (0, 1, 2)])
def test_all_views_at_once_are_each_of_them(clique):
    sums, values = Sums(GROUPS), np.arange(float(np.prod([SIZES[index] for index in clique])))
    values = values.reshape([SIZES[index] for index in clique])
    together = sums.side_by_side(values, clique)
    assert together.sum() == values.sum() * len(sums.views(clique))
    totals = sums.by_view(together**2, clique)
    for view, total in zip(sums.views(clique), totals, strict=True):
        assert total == (view.sums(values, GROUPS) ** 2).sum()
        # Where it stands: after what the columns' finer resolutions take.
        starts = [
            sum(int(GROUPS[index][before].max()) + 1 for before in range(level))
            for index, level in zip(clique, view.levels, strict=True)
        ]
        part = tuple(slice(start, start + size) for start, size in zip(starts, view.shape(GROUPS), strict=True))
        np.testing.assert_array_equal(together[part], view.sums(values, GROUPS))


def test_the_finest_view_is_the_clique_itself():
    values = np.arange(12.0).reshape(4, 3)
    assert View.finest((0, 1)).sums(values, GROUPS) is values
    assert View((0, 1), (1, 0)).sums(values, GROUPS).tolist() == [[3, 5, 7], [15, 17, 19]]
    assert View((0, 1), (1, 1)).cells(GROUPS).tolist() == [0, 1, 0, 0, 1, 0, 2, 3, 2, 2, 3, 2]
    with pytest.raises(IndexError):
        View((2,), (1,)).cells(GROUPS)
