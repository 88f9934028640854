import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsynth_platform.synth.tabular.inference import Forest, Measurement, estimate_total, fit, project, propagate


@st.composite
def forests(draw):
    """Random forests of one to five attributes of one to four states."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    edges = []
    for child in range(1, len(sizes)):
        if draw(st.booleans()):
            edges.append((draw(st.integers(0, child - 1)), child))
    return Forest(sizes, tuple(edges))


def brute_force(forest, potentials):
    """The joint distribution as one array."""
    log_joint = np.zeros(forest.sizes)
    for clique, values in potentials.items():
        shape = [size if index in clique else 1 for index, size in enumerate(forest.sizes)]
        log_joint = log_joint + values.numpy().reshape(shape)
    joint = np.exp(log_joint - log_joint.max())
    return joint / joint.sum()


def marginal(joint, clique):
    return joint.sum(axis=tuple(axis for axis in range(joint.ndim) if axis not in clique))


def random_potentials(forest, seed, scale=3.0):
    rng = np.random.default_rng(seed)
    shapes = {clique: tuple(forest.sizes[index] for index in clique) for clique in forest.cliques}
    return {clique: torch.from_numpy(rng.normal(0, scale, shape)) for clique, shape in shapes.items()}


@settings(deadline=None, max_examples=60)
@given(forests(), st.integers(0, 2**32 - 1))
def test_belief_propagation_equals_brute_force(forest, seed):
    potentials = random_potentials(forest, seed)
    joint = brute_force(forest, potentials)
    beliefs = propagate(forest, potentials)
    assert set(beliefs.marginals) == set(forest.cliques)
    for clique, values in beliefs.marginals.items():
        np.testing.assert_allclose(values.numpy(), marginal(joint, clique), atol=1e-12)
    for (parent, child), values in beliefs.conditionals.items():
        pair = marginal(joint, (parent, child))
        pair = pair if parent < child else pair.T
        np.testing.assert_allclose(values.numpy() * pair.sum(axis=1, keepdims=True), pair, atol=1e-12)


def test_impossible_states_and_extreme_potentials():
    forest = Forest((2, 3), ((0, 1),))
    potentials = {
        (0,): torch.tensor([900.0, -900.0], dtype=torch.float64),
        (1,): torch.tensor([0.0, -torch.inf, 0.0], dtype=torch.float64),
        (0, 1): torch.zeros((2, 3), dtype=torch.float64),
    }
    beliefs = propagate(forest, potentials).marginals
    np.testing.assert_allclose(beliefs[(1,)].numpy(), [0.5, 0, 0.5])
    assert torch.isfinite(beliefs[(0, 1)]).all()


@pytest.mark.parametrize("edges", [((0, 1), (1, 2), (0, 2)), ((0, 1), (0, 1)), ((1, 0),), ((0, 5),)])
def test_what_is_no_forest_is_refused(edges):
    with pytest.raises(ValueError, match="close no cycle"):
        Forest((2, 2, 2), edges)


def test_fit_finds_the_distribution_that_exact_marginals_come_from():
    forest = Forest((3, 4, 2, 3), ((0, 1), (1, 2)))
    joint = brute_force(forest, random_potentials(forest, 7, scale=0.7))
    measurements = [
        Measurement(clique, 5000 * marginal(joint, clique), np.full(marginal(joint, clique).shape, 100.0))
        for clique in ((0, 1), (1, 2), (3,))
    ]
    total = estimate_total(measurements)
    assert total == pytest.approx(5000)
    potentials = fit(forest, measurements, total, iterations=4000)
    np.testing.assert_allclose(brute_force(forest, potentials), joint, atol=1e-6)


def test_fit_weighs_measurements_by_their_precision():
    forest = Forest((2,), ())
    exact = Measurement((0,), np.array([700.0, 300.0]), np.full(2, 1.0))
    vague = Measurement((0,), np.array([300.0, 700.0]), np.full(2, 9.0))
    beliefs = propagate(forest, fit(forest, [exact, vague], 1000, iterations=500)).marginals
    np.testing.assert_allclose(beliefs[(0,)].numpy(), [0.66, 0.34], atol=1e-6)


def test_fit_reports_steps_only():
    seen = []
    forest = Forest((2,), ())
    measurement = Measurement((0,), np.array([10.0, 5.0]), np.ones(2))
    fit(forest, [measurement], 15, iterations=5, progress=lambda *step: seen.append(step))
    assert seen[-1] == ("estimating", 5, 5)


def test_a_measurement_outside_the_forest_is_refused():
    measurement = Measurement((0, 1), np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(ValueError, match="not in the forest"):
        fit(Forest((2, 2), ()), [measurement], 4)


def test_the_total_has_minimum_variance():
    first = Measurement((0,), np.array([60.0, 50.0]), np.full(2, 4.0))  # sum 110, variance 8
    second = Measurement((1,), np.array([40.0, 30.0, 20.0]), np.full(3, 8.0))  # sum 90, variance 24
    assert estimate_total([first, second]) == pytest.approx(0.75 * 110 + 0.25 * 90)
    assert estimate_total([Measurement((0,), np.array([-30.0]), np.ones(1))]) == 1.0


@given(
    st.lists(st.tuples(st.floats(-1000, 1000), st.floats(0.5, 50)), min_size=1, max_size=8),
    st.floats(1, 2000),
)
def test_projection_meets_its_optimality_conditions(cells, total):
    counts, variance = (np.array(part) for part in zip(*cells, strict=True))
    found = project(counts, variance, total)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(total, rel=1e-9)
    # Lagrange: positive cells share one shift, cells at zero would need a larger one.
    shifts = (counts - found) / variance
    used = shifts[found > 0]
    assert np.ptp(used) <= 1e-6 * (1 + np.abs(used).max())
    assert (counts / variance <= used.max() + 1e-6 * (1 + np.abs(used).max()))[found == 0].all()


def test_more_states_in_more_components_than_one():
    forest = Forest((2, 3, 2, 2), ((0, 3),))
    pairs, roots = forest.directed
    assert set(roots) == {0, 1, 2}
    assert pairs == ((0, 3),)
    assert list(itertools.chain(forest.cliques)) == [(0,), (1,), (2,), (3,), (0, 3)]
