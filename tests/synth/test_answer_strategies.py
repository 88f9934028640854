"""The matrix of prefixes: what it measures, what it costs, and how near it is to the least possible variance."""

import numpy as np
import pytest

from dpsynth_platform.synth.answers.strategies import UNIT, prefix_answers, prefix_matrix

CELLS = [1, 2, 3, 8, 32, 100, 512]


@pytest.mark.parametrize("cells", CELLS)
def test_no_column_is_longer_than_one_record_and_none_has_a_negative_entry(cells):
    matrix = prefix_matrix(cells)
    assert matrix.min() >= 0
    assert (matrix.astype(object) ** 2).sum(axis=0).max() <= UNIT**2


@pytest.mark.parametrize("cells", CELLS)
def test_what_was_measured_gives_every_prefix_exactly(cells):
    counts = np.random.default_rng(0).integers(0, 1000, cells)
    measured = prefix_matrix(cells) @ counts
    assert prefix_answers(cells) @ (measured / UNIT) == pytest.approx(np.cumsum(counts))


@pytest.mark.parametrize("cells", [32, 100, 512])
def test_the_mean_variance_is_near_the_least_possible(cells):
    """The least is at least (sum of singular values)^2 / cells^2, for any matrix (Li & Miklau 2012, theorem 1)."""
    variance = (prefix_answers(cells) ** 2).sum() / cells
    singular = np.linalg.svd(np.tril(np.ones((cells, cells))), compute_uv=False)
    least = (singular.sum() / cells) ** 2
    assert least < variance < 1.3 * least
    assert variance < cells / 2 / 3  # of noise on each cell
