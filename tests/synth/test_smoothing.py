import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.synth.tabular import smoothing
from dpsynth_platform.synth.tabular.binning import real_edges
from dpsynth_platform.synth.tabular.smoothing import smoothed

COUNTS = st.lists(st.integers(-200, 3000), min_size=1, max_size=40)


@given(COUNTS, st.floats(0.5, 100), st.data())
def test_counts_stay_positive_and_keep_their_sum(counts, sigma, data):
    counts = np.array(counts, dtype=np.float64)
    some = st.just(0.0) | st.floats(0.01, 100)
    widths = np.array(data.draw(st.lists(some, min_size=counts.size, max_size=counts.size)))
    total = data.draw(st.integers(-100, 20_000))
    fitted = smoothed(counts, sigma, widths, total)
    assert (fitted >= 0).all()
    assert fitted.sum() == pytest.approx(max(total, 0), abs=1e-6)


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
        distances.append(
            [np.abs(values - true).sum() for values in (noisy, smoothed(noisy, sigma, np.ones(300), true.sum()))]
        )
    raw, fitted = np.mean(distances, axis=0)
    assert fitted < 0.6 * raw


def test_a_value_that_many_share_is_not_spread():
    true = densities()["spiky"]
    noisy = true + np.random.default_rng(2).normal(0, 40, 300)
    fitted = smoothed(noisy, 40.0, np.ones(300), true.sum())
    np.testing.assert_allclose(fitted[[0, 150, 299]], true[[0, 150, 299]], atol=250)
    assert fitted[1:150].max() < 60


def test_a_point_without_width_keeps_its_own_count():
    fitted = smoothed(np.array([5000.0, 210.0, 390.0, 205.0]), 10.0, np.array([0.0, 1.0, 2.0, 1.0]), 5805.0)
    np.testing.assert_allclose(fitted, [5000, 201, 402, 201], atol=3)
    assert smoothed(np.array([3.0, -1.0]), 10.0, np.array([0.0, 1.0]), 2.0).sum() == pytest.approx(2)


def test_a_slope_inside_of_a_piece_follows_its_neighbours():
    steps = np.repeat([100.0, 300.0, 500.0], 20)
    fitted = smoothed(steps, 10.0, np.ones(60), steps.sum())
    assert (np.diff(fitted[20:40]) > 0).all()
    assert np.ptp(fitted[:20]) < 1e-9


def moments(masses):
    """Mean and deviation of the cells' numbers."""
    places, shares = np.arange(masses.size), masses / masses.sum()
    mean = shares @ places
    return mean, np.sqrt(shares @ (places - mean) ** 2)


@pytest.mark.parametrize("name", ["falling", "narrow"])
def test_noise_in_a_wide_empty_range_does_not_make_the_moments(name, monkeypatch):
    """Twenty draws, always the same: errors of mean and deviation beside those of faint pieces that are plains."""
    true = np.append(densities()[name], np.zeros(300))
    noise = np.random.default_rng(3).normal(0, 40, (20, 600))

    def errors():
        found = [moments(smoothed(true + each, 40.0, np.ones(600), true.sum())) for each in noise]
        return np.abs(np.array(found) - moments(true)).mean(axis=0)

    tails = errors()
    monkeypatch.setattr(smoothing, "_tail", lambda sides, ways: ways)
    assert (tails < 0.4 * errors()).all()


def test_a_faint_tail_falls_off_as_far_as_its_records_reach():
    reaches = []
    for beyond in (5.0, 10.0):
        counts = np.append(np.full(20, 500.0), np.full(180, beyond))
        fitted = smoothed(counts, 60.0, np.ones(200), counts.sum())
        assert (np.diff(fitted[20:]) < 0).all()
        assert fitted[20:].sum() == pytest.approx(180 * beyond, rel=0.1)
        reaches.append(np.cumsum(fitted[20:]).searchsorted(90 * beyond))
    assert 1 <= reaches[0] < reaches[1] < 10


def test_what_is_no_noise_stays_a_plain():
    counts = np.append(np.full(20, 500.0), np.full(180, 100.0))
    np.testing.assert_allclose(smoothed(counts, 10.0, np.ones(200), counts.sum()), counts)


def test_a_gap_falls_off_from_both_sides():
    counts = np.concatenate([np.full(40, 600.0), np.full(60, 5.0), np.full(40, 400.0)])
    gap = smoothed(counts, 30.0, np.ones(140), counts.sum())[40:100]
    assert gap.sum() == pytest.approx(300, rel=0.1)
    lowest = int(gap.argmin())
    assert 20 < lowest < 45
    assert (np.diff(gap[:lowest]) < 0).all()
    assert (np.diff(gap[lowest:]) > 0).all()
    assert gap[[0, -1]].min() > 5 * gap.min()


def test_a_single_value_that_many_share_has_no_flanks():
    counts = np.append(5000.0, np.full(99, 2.0))
    fitted = smoothed(counts, 10.0, np.ones(100), counts.sum())
    assert np.ptp(fitted[1:]) < 1e-9


def amounts_of_few(values, zeros):
    """Widths and true counts of a grid from zero to a million: a cell of zeros, and amounts that few have."""
    edges = np.array(real_edges(0.0, 1e6, None))
    widths = np.diff(edges)
    widths[[0, -1]] = 0.0  # one number each
    true = np.bincount(np.searchsorted(edges[:-1], values, side="right") - 1, minlength=widths.size).astype(np.float64)
    true[0] = zeros
    return widths, true


@pytest.mark.parametrize("median", [1000, 30_000])
def test_faint_amounts_beside_zeros_are_where_their_counts_say(median):
    """Ten draws, always the same: the distribution functions beside those of amounts that lie all over the range."""
    rng = np.random.default_rng(6)
    widths, true = amounts_of_few(median * rng.lognormal(0, 1.5, 800).clip(0, 50), 29_000)
    plain = np.where(widths > 0, 800 * widths / widths.sum(), true)
    distances, far = [], np.abs(np.cumsum(plain - true)).max()
    for _ in range(10):
        fitted = smoothed(true + rng.normal(0, 40, true.size), 40.0, widths, true.sum())
        distances.append(np.abs(np.cumsum(fitted - true)).max())
    assert np.mean(distances) < 0.5 * far


def test_what_falls_off_from_the_other_end_is_its_mirror_image():
    rng = np.random.default_rng(7)
    widths, true = amounts_of_few(1000 * rng.lognormal(0, 1, 800), 29_000)
    noisy = true + rng.normal(0, 40, true.size)
    fitted = smoothed(noisy, 40.0, widths, true.sum())
    np.testing.assert_allclose(smoothed(noisy[::-1], 40.0, widths[::-1], true.sum())[::-1], fitted, atol=1e-6)


@pytest.mark.parametrize("before, after", [(1.01, 0.0), (3.0, 0.0), (200.0, 0.0), (0.0, 7.0), (2.0, 5.0)])
def test_a_tail_has_the_density_beside_it_at_its_ends(before, after):
    ways = np.linspace(0, 1, 100_001)[1:]
    below = np.append(0, smoothing._tail(np.array([before, after]), ways))
    assert (np.diff(below) >= 0).all()
    assert below[-1] == 1
    slopes = np.diff(below) * 100_000
    # No side has less than what is given; it has that where nothing is left of the other side.
    assert slopes[0] >= before * 0.99
    assert slopes[-1] >= after * 0.99
    if not after:
        assert slopes[0] == pytest.approx(before, rel=0.01)
    if not before:
        assert slopes[-1] == pytest.approx(after, rel=0.01)


def test_the_unit_of_a_column_does_not_matter():
    """Up to the widest cells that double precision holds, whose squares it does not."""
    rng = np.random.default_rng(4)
    widths, counts = rng.uniform(0, 1, 64), rng.normal(50, 30, 64)
    expected = smoothed(counts, 20.0, widths, 3000.0)
    np.testing.assert_allclose(smoothed(counts, 20.0, widths * 1e307, 3000.0), expected)
    np.testing.assert_allclose(smoothed(counts, 20.0, widths * 1e-300, 3000.0), expected)
