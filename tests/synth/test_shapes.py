import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpsynth_platform.synth.tabular.shapes import draw, share_below, tilts

MASSES = st.lists(st.floats(0, 1e6), min_size=1, max_size=12)


@given(MASSES, st.lists(st.just(0.0) | st.floats(1e-3, 1e6), min_size=12, max_size=12))
def test_no_density_is_negative_and_no_peak_is_made(masses, widths):
    masses, widths = np.array(masses), np.array(widths[: len(masses)])
    tilt = tilts(masses, widths)
    assert (np.abs(tilt) <= 1).all()
    assert (tilt[widths == 0] == 0).all()
    wide = np.flatnonzero(widths > 0)
    density = masses[wide] / widths[wide]
    for before, here, after in zip(range(len(wide)), range(1, len(wide)), range(2, len(wide)), strict=False):
        if np.sign(density[here] - density[before]) != np.sign(density[after] - density[here]):
            assert tilt[wide[here]] == 0


def test_a_linear_density_is_found_whatever_the_cells():
    edges = np.array([0.0, 0.1, 0.3, 0.35, 0.6, 0.8, 1.0])
    masses = np.diff(edges**2)  # of the density 2x
    widths = np.diff(edges)
    middles = (edges[1:] + edges[:-1]) / 2
    # The slope 2, relative to half the cell's mean density.
    np.testing.assert_allclose(tilts(masses, widths)[1:-1], (widths / (2 * middles))[1:-1], rtol=1e-9)


def test_spikes_do_not_leak():
    """Beside a value that most records share, the density is that of the other side."""
    tilt = tilts(np.array([9000.0, 10.0, 10.0, 9.0]), np.array([1.0, 100.0, 100.0, 100.0]))
    assert np.abs(tilt).max() < 0.1


@pytest.mark.parametrize("tilt", [-1.0, -0.4, 0.0, 1e-9, 0.7, 1.0])
def test_draws_follow_their_density(tilt):
    drawn = draw(np.full(20_000, tilt), np.random.default_rng(1))
    assert ((drawn > 0) & (drawn <= 1)).all()
    assert stats.kstest(drawn, lambda way: share_below(tilt, way)).pvalue > 1e-6
    np.testing.assert_allclose(share_below(tilt, np.array([0.0, 1.0])), [0.0, 1.0], atol=1e-15)
