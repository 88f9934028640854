import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.synth.tabular.binning import GRID, real_edges, whole_edges

WHOLE = st.integers(-(2**63), 2**64 - 1)
REAL = st.floats(-1e300, 1e300)


@st.composite
def whole_ranges(draw):
    low, high = sorted(draw(st.lists(WHOLE | st.integers(-500, 500), min_size=2, max_size=2, unique=True)))
    bins = draw(st.none() | st.integers(1, 40))
    points = draw(st.lists(st.integers(low, high), max_size=3, unique=True))
    return low, high, bins, points


@given(whole_ranges(), st.booleans(), st.booleans())
def test_whole_cells_cover_the_range_and_points_are_alone(declared, amounts, coarse):
    low, high, bins, points = declared
    edges = whole_edges(low, high, bins, points, amounts=amounts, coarse=coarse)
    assert (edges[0], edges[-1]) == (low, high + 1)
    assert all(a < b for a, b in itertools.pairwise(edges))
    cells = set(itertools.pairwise(edges))
    alone = [*points, *([low, high] if bins is None else [])]
    assert {(point, point + 1) for point in alone} <= cells
    assert len(edges) < 1200


@given(st.lists(REAL, min_size=2, max_size=2, unique=True), st.none() | st.integers(1, 40), st.data())
def test_real_cells_cover_the_range_and_points_are_alone(ends, bins, data):
    low, high = sorted(ends)
    points = data.draw(st.lists(st.floats(low, high), max_size=3))
    edges = real_edges(low, high, bins, points)
    assert (edges[0], edges[-1]) == (low, high)
    assert all(a < b for a, b in itertools.pairwise(edges[:-1]))
    cells = set(itertools.pairwise(edges))
    for point in points:
        assert point == 0 or (point, math.nextafter(point, math.inf)) in cells or (point, point) in cells


def test_short_ranges_have_a_cell_a_value():
    assert whole_edges(-3, 2 * GRID - 4, None, amounts=True) == tuple(range(-3, 2 * GRID - 2))
    assert whole_edges(5, 90, None, coarse=True) == tuple(range(5, 92))


def test_declared_edges_are_kept():
    assert whole_edges(0, 99, [1, 50]) == (0, 1, 50, 100)
    assert whole_edges(0, 99, [1, 50], [50]) == (0, 1, 50, 51, 100)
    assert whole_edges(0, 9, 3) == (0, 3, 6, 10)
    assert real_edges(0.0, 64.0, 4) == (0.0, 16.0, 32.0, 48.0, 64.0)
    assert real_edges(0.0, 1.0, [0.5, 1.0]) == (0.0, 0.5, 1.0, 1.0)


@pytest.mark.parametrize("edges", [whole_edges(0, 10**9, None, amounts=True), real_edges(0.0, 1e9, None)])
def test_amounts_are_told_apart_in_proportion_over_six_decades(edges):
    cells = [(low, high) for low, high in itertools.pairwise(edges) if low >= 1e4]
    assert max(high / low for low, high in cells) < 1.2
    assert len(edges) < 400


def test_a_grid_without_zero_in_reach_is_even():
    edges = whole_edges(10**6, 10**6 + 10**5, None, amounts=True)
    assert len(edges) <= GRID + 3
    assert whole_edges(-5 * 10**4, 5 * 10**4, None) == whole_edges(-5 * 10**4, 5 * 10**4, None, amounts=False)
    assert 0 not in whole_edges(-(10**6), 999_999, 3)


def test_the_ends_and_zero_are_points_of_a_grid():
    edges = real_edges(-10.0, 1e6, None)
    cells = list(itertools.pairwise(edges))
    assert cells[0] == (-10.0, math.nextafter(-10.0, 0))
    assert (0.0, 5e-324) in cells
    assert cells[-1] == (1e6, 1e6)
