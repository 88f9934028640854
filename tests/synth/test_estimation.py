import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.synth.tabular import estimation
from dpsynth_platform.synth.tabular.estimation import Estimator, Measurement, estimate_total, project
from dpsynth_platform.synth.tabular.propagation import marginal


def states(*sizes):
    """Attributes with one resolution each."""
    return [[np.arange(size)] for size in sizes]


def exact(joint, clique, scale=5000, variance=1.0):
    values = scale * joint.sum(axis=tuple(axis for axis in range(joint.ndim) if axis not in clique))
    return Measurement(clique, values, np.full(values.shape, variance))


def random_joint(sizes, seed=7):
    """A distribution with dependences between neighbours only."""
    rng = np.random.default_rng(seed)
    log_joint = np.zeros(sizes)
    for index in range(len(sizes) - 1):
        shape = [sizes[axis] if axis in (index, index + 1) else 1 for axis in range(len(sizes))]
        log_joint = log_joint + rng.normal(0, 0.7, shape)
    return np.exp(log_joint) / np.exp(log_joint).sum()


def test_precise_measurements_are_met():
    joint = random_joint((3, 4, 2, 3))
    estimator = Estimator(states(3, 4, 2, 3), [exact(joint, (index,)) for index in range(4)])
    estimator.add([exact(joint, clique) for clique in ((0, 1), (1, 2), (2, 3))])
    assert estimator.total == pytest.approx(5000)
    estimator.fit(3000)
    for clique in ((0, 1), (1, 2), (2, 3), (0, 3)):
        wanted = exact(joint, clique).counts / 5000
        np.testing.assert_allclose(marginal(estimator.beliefs, clique).numpy(), wanted, atol=2e-3)


def test_single_columns_alone_need_no_steps():
    joint = random_joint((3, 4))
    estimator = Estimator(states(3, 4), [exact(joint, (0,)), exact(joint, (1,))])
    product = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    np.testing.assert_allclose(marginal(estimator.beliefs, (0, 1)).numpy(), product, atol=1e-12)
    np.testing.assert_allclose(estimator.expected((0, 1)).numpy(), 5000 * product, atol=1e-6)


def test_repeated_measurements_count_by_their_precision():
    precise = Measurement((0,), np.array([700.0, 300.0]), np.full(2, 1.0))
    vague = Measurement((0,), np.array([300.0, 700.0]), np.full(2, 9.0))
    np.testing.assert_allclose(
        marginal(Estimator(states(2), [precise, vague]).beliefs, (0,)).numpy(), [0.66, 0.34], atol=1e-6
    )


def test_cells_where_nothing_is_expected_do_not_follow_the_noise():
    """A column with one common and many rare states: noise in the rare pairs of cells is not believed."""
    sizes, sigma = (20, 20), 30.0
    shares = np.array([0.981] + [0.001] * 19)
    product = 10_000 * np.outer(shares, shares)
    noise = np.random.default_rng(3).normal(0, sigma, sizes)
    one_way = [Measurement((axis,), 10_000 * shares, np.ones(20)) for axis in range(2)]
    estimator = Estimator(states(*sizes), one_way)
    estimator.add([Measurement((0, 1), product + noise, np.full(sizes, sigma**2))])
    estimator.fit(500)
    off = np.abs(estimator.expected((0, 1)).numpy() - product).sum()
    assert off < 0.1 * np.abs(noise).sum()


def test_steps_are_reported_and_more_of_them_change_little():
    joint = random_joint((3, 4, 2))
    estimator = Estimator(states(3, 4, 2), [exact(joint, (index,), variance=400.0) for index in range(3)])
    estimator.add([exact(joint, (0, 1), variance=400.0), exact(joint, (1, 2), variance=400.0)])
    seen = []
    estimator.fit(5, lambda *step: seen.append(step))
    assert seen[-1] == ("estimating", 5, 5)
    estimator.fit(2000)
    before = marginal(estimator.beliefs, (0, 2)).clone()
    estimator.fit(2000)
    np.testing.assert_allclose(marginal(estimator.beliefs, (0, 2)).numpy(), before.numpy(), atol=1e-4)


@pytest.mark.parametrize("misled", [lambda slope: -slope, lambda slope: 1e-9 * slope])
def test_a_history_that_misleads_does_not_end_the_fit(monkeypatch, misled):
    """Steps by the history lead up, or next to nowhere; those without it still lead to the minimum."""
    joint = random_joint((3, 4, 2))
    measured = [exact(joint, clique, variance=400.0) for clique in ((0, 1), (1, 2))]

    def fitted():
        estimator = Estimator(states(3, 4, 2), [exact(joint, (index,), variance=400.0) for index in range(3)])
        estimator.add(measured)
        estimator.fit(2000)
        return marginal(estimator.beliefs, (0, 1)).numpy()

    wanted = fitted()
    without = estimation._direction
    monkeypatch.setattr(
        estimation, "_direction", lambda now, history: misled(now.slope) if history else without(now, [])
    )
    np.testing.assert_allclose(fitted(), wanted, atol=2e-3)


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
