import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.synth.tabular.compression import _means, _tree, compress, one_way_measurements
from dpsynth_platform.synth.tabular.domain import ADAPTIVE_STATES, FEW_CELLS, QUANTILES, ColumnDomain, Domain
from dpsynth_platform.synth.tabular.measurements import NoisyCounts


def states_of(column, counts, sigma, most=None):
    (states,) = compress(Domain((column,)), [NoisyCounts((0,), np.array(counts), sigma)], most)
    return states


def numbers(cells, cutting="declared"):
    return ColumnDomain("x", "integer", True, edges=tuple(range(cells + 1)), cutting=cutting)


@given(
    st.lists(st.integers(-100, 2000), min_size=2, max_size=60),
    st.sampled_from(["declared", "adaptive", "quantile", "privtree", "kmeans"]),
    st.floats(1, 200),
    st.none() | st.integers(1, 20),
)
def test_states_of_ordered_columns_are_runs_of_neighbours(counts, cutting, sigma, most):
    states = states_of(numbers(len(counts) - 1, cutting), counts, sigma, most)
    steps = np.diff(states.state_of)
    assert states.state_of[0] == 0
    assert ((steps == 0) | (steps == 1)).all()
    assert steps[-1] == 1  # missing values are a state of their own
    assert (states.share >= 0).all()
    np.testing.assert_allclose(states.merge(states.share), 1)
    assert states.size - 1 <= min(most or 1000, len(counts) - 1)
    assert states.size <= numbers(len(counts) - 1, cutting).most_states
    assert states.merge(states.fitted).sum() == pytest.approx(max(sum(counts), 1, counts[-1]), abs=1e-6)


@given(st.lists(st.integers(-100, 2000), min_size=3, max_size=40), st.floats(1, 100))
def test_states_of_categories_put_rare_ones_together(counts, sigma):
    column = ColumnDomain("x", "categorical", True, values=tuple(f"v{index}" for index in range(len(counts) - 1)))
    states = states_of(column, counts, sigma, 1)
    rare = np.array(counts) < 3 * sigma
    assert states.size == (~rare).sum() + bool(rare.any())
    np.testing.assert_allclose(states.merge(states.share), 1)
    assert states.fitted is None


def test_zeros_and_the_top_code_of_a_spiky_column_stay_states_of_their_own():
    counts = np.zeros(101, dtype=np.int64)
    counts[[0, 99]] = [45_000, 250]
    counts[20:60] = 50
    noisy = counts + np.rint(np.random.default_rng(1).normal(0, 30, 101)).astype(np.int64)
    for cutting in ("declared", "adaptive", "quantile", "kmeans"):
        states = states_of(numbers(100, cutting), noisy, 30.0)
        assert states.state_of[0] != states.state_of[1]
        assert states.share[0] == 1
        if cutting in ("declared", "adaptive"):
            assert states.share[99] > 0.9
            assert states.state_of[99] != states.state_of[59]


def test_what_holds_little_goes_with_the_neighbour_that_holds_less():
    states = states_of(numbers(5), [1000, 20, 500, 10, 900, 0], 10.0)
    assert states.state_of.tolist() == [0, 1, 1, 1, 2, 3]


def test_large_amounts_have_states_of_their_own():
    """Of a density that falls with the square of the value, states of equal contents have nearly all range in one."""
    edges = tuple(range(0, 40_000, 100))
    column = ColumnDomain("x", "integer", True, edges=edges, cutting="adaptive")
    counts = np.rint(3e7 / (np.arange(len(edges) - 1) + 10.0) ** 2)
    states = states_of(column, [*counts.astype(int), 0], 10.0)
    assert states.size == ADAPTIVE_STATES + 1
    widths = states.merge(np.append(column.widths, 0.0))[:-1]
    held = states.merge(states.fitted)[:-1]
    assert widths[-1] < 0.5 * widths.sum()
    assert held[0] < 4 * np.median(held)
    assert held[-1] < 0.25 * np.median(held)


def test_significant_declared_cells_are_told_apart_however_many():
    counts = [100 + (index * 37) % 61 for index in range(300)] + [0]
    assert states_of(numbers(300), counts, 10.0).size == 301
    assert states_of(numbers(300, "adaptive"), counts, 10.0).size == ADAPTIVE_STATES + 1
    assert states_of(numbers(300), counts, 10.0, 12).size == 13
    few = [*counts[:FEW_CELLS], 0]
    assert states_of(numbers(FEW_CELLS, "adaptive"), few, 10.0).size == FEW_CELLS + 1


def test_quantiles_hold_about_the_same():
    density = np.exp(-np.arange(400) / 50)
    counts = np.rint(50_000 * density / density.sum()).astype(np.int64)
    noisy = np.append(counts + np.rint(np.random.default_rng(1).normal(0, 20, 400)), 0).astype(np.int64)
    states = states_of(numbers(400, "quantile"), noisy, 20.0)
    held = np.bincount(states.state_of[:-1], weights=counts)
    assert states.size == QUANTILES + 1
    # The widest cell there holds a third of what a state should.
    np.testing.assert_allclose(held, counts.sum() / QUANTILES, rtol=0.35)


def test_empty_cells_at_the_end_make_no_further_quantile():
    assert states_of(numbers(2, "quantile"), [50, -2, 0], 1.0, 1).size == 2


def test_means_are_the_best_that_there_are():
    """Beside all ways to cut nine cells into four runs."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        masses, widths = rng.integers(100, 900, 9).astype(float), rng.integers(1, 20, 9).astype(float)
        centres = np.cumsum(widths) - widths / 2

        def squares(states, masses=masses, centres=centres):
            means = np.bincount(states, masses * centres) / np.bincount(states, masses)
            return float((masses * (centres - means[states]) ** 2).sum())

        every = [np.searchsorted(cuts, np.arange(9), side="right") for cuts in itertools.combinations(range(1, 9), 3)]
        found = _means(masses, widths, 0.0, 4)
        assert squares(found) == pytest.approx(min(map(squares, every)))
        assert found.max() == 3


def test_a_tree_halves_what_holds_most():
    widths = np.full(8, 1.0)
    assert _tree(np.array([9.0, 5, 1, 1, 1, 1, 1, 1]), widths, 0.0, 4).tolist() == [0, 1, 2, 2, 3, 3, 3, 3]
    # Halves of the range, not of the cells; what holds less than the threshold stays whole.
    assert _tree(np.array([5.0, 5, 5, 5]), np.array([1.0, 1, 1, 5]), 0.0, 2).tolist() == [0, 0, 0, 1]
    assert _tree(np.array([9.0, 5, 1, 1, 1, 1, 1, 1]), widths, 15.0, 8).tolist() == [0, 0, 1, 1, 2, 2, 2, 2]
    assert _tree(np.ones(3), np.ones(3), 0.0, 9).tolist() == [0, 1, 2]


def test_nothing_but_noise_makes_one_state():
    noise = np.random.default_rng(1).normal(0, 50, 301)
    noise -= noise.mean() + 1
    states = states_of(numbers(300, "adaptive"), np.rint(noise).astype(np.int64), 50.0)
    assert states.size == 2
    np.testing.assert_allclose(states.share[:-1], 1 / 300)


def test_measurements_over_states_are_of_the_smoothed_counts():
    column = numbers(40, "adaptive")
    counts = np.append(np.full(40, 100) + np.arange(40) % 3, 7)
    measured = NoisyCounts((0,), counts, 20.0)
    (states,) = compress(Domain((column,)), [measured])
    (merged,) = one_way_measurements([measured], [states])
    assert merged.counts.sum() == pytest.approx(counts.sum())
    np.testing.assert_allclose(merged.variance, states.merge(np.full(41, measured.variance)))
    np.testing.assert_allclose(merged.counts, states.merge(states.fitted))
    (plain,) = one_way_measurements([measured], [dataclasses.replace(states, fitted=None)])
    np.testing.assert_allclose(plain.counts, states.merge(counts.astype(float)))
