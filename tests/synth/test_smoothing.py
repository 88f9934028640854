import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.synth.tabular.smoothing import smoothed

COUNTS = st.lists(st.integers(-200, 3000), min_size=1, max_size=40)


@given(COUNTS, st.floats(0.5, 100), st.data())
def test_counts_stay_positive_and_keep_their_sum(counts, sigma, data):
    counts = np.array(counts, dtype=np.float64)
    some = st.just(0.0) | st.floats(0.01, 100)
    widths = np.array(data.draw(st.lists(some, min_size=counts.size, max_size=counts.size)))
    fitted = smoothed(counts, sigma, widths)
    assert (fitted >= 0).all()
    assert fitted.sum() == pytest.approx(max(counts.sum(), 0), abs=1e-6)


def densities():
    way = np.linspace(0, 1, 300, endpoint=False)
    spiky = np.full(300, 2.0)
    spiky[[0, 150, 299]] = [40_000, 3000, 700]
    narrow = np.zeros(300)
    narrow[140:150] = 5000
    return {
        "flat": np.full(300, 160.0),
        "bell": 48_000 * np.diff(np.append(0, np.cumsum(np.exp(-((way - 0.5) ** 2) / 0.02)))) / 42.0,
        "spiky": spiky,
        "narrow": narrow,
        "falling": 2000 * np.exp(-way * 20),
    }


@pytest.mark.parametrize("name", densities())
def test_the_estimate_is_nearer_than_the_noisy_counts(name):
    """Of ten draws each: the noise's own distance is known to a part in a hundred."""
    true, sigma = densities()[name], 40.0
    rng = np.random.default_rng(1)
    distances = []
    for _ in range(10):
        noisy = np.rint(true + rng.normal(0, sigma, 300))
        distances.append([np.abs(values - true).sum() for values in (noisy, smoothed(noisy, sigma, np.ones(300)))])
    raw, fitted = np.mean(distances, axis=0)
    assert fitted < 0.6 * raw


def test_a_value_that_many_share_is_not_spread():
    true = densities()["spiky"]
    noisy = true + np.random.default_rng(2).normal(0, 40, 300)
    fitted = smoothed(noisy, 40.0, np.ones(300))
    np.testing.assert_allclose(fitted[[0, 150, 299]], true[[0, 150, 299]], atol=250)
    assert fitted[1:150].max() < 60


def test_a_point_without_width_keeps_its_own_count():
    fitted = smoothed(np.array([5000.0, 210.0, 390.0, 205.0]), 10.0, np.array([0.0, 1.0, 2.0, 1.0]))
    np.testing.assert_allclose(fitted, [5000, 201, 402, 201], atol=3)
    assert smoothed(np.array([3.0, -1.0]), 10.0, np.array([0.0, 1.0])).sum() == pytest.approx(2)


def test_a_slope_inside_of_a_piece_follows_its_neighbours():
    steps = np.repeat([100.0, 300.0, 500.0], 20)
    fitted = smoothed(steps, 10.0, np.ones(60))
    assert (np.diff(fitted[20:40]) > 0).all()
    assert np.ptp(fitted[:20]) < 1e-9
