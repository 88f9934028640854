"""The draws themselves. Each bound below is missed by correct noise with probability under 1e-7."""

import numpy as np
import pytest
from scipy import stats

from dpsynth_platform.synth.tabular.noise import sample_discrete_gaussian, select_by_exponential_mechanism


@pytest.mark.parametrize("sigma", [1.5, 38.25])
def test_noise_has_the_mean_and_deviation_of_its_sigma(sigma):
    draws = 20_000
    noise = sample_discrete_gaussian(np.full(draws, 1000, dtype=np.int64), sigma) - 1000
    assert noise.dtype == np.int64
    assert abs(noise.mean()) < 6 * sigma / np.sqrt(draws)
    # The sample variance is nearly normal with relative deviation sqrt(2/n).
    assert abs(noise.var() / sigma**2 - 1) < 6 * np.sqrt(2 / draws)


def test_noise_follows_the_discrete_gaussian():
    sigma, draws = 1.2, 20_000
    noise = sample_discrete_gaussian(np.zeros(draws, dtype=np.int64), sigma)
    support = np.arange(-4, 5)
    weights = np.exp(-(np.arange(-60, 61) ** 2) / (2 * sigma**2))
    expected = np.exp(-(support**2) / (2 * sigma**2)) / weights.sum()
    observed = np.array([(noise == value).sum() for value in support])
    observed = np.append(observed, draws - observed.sum())
    expected = np.append(expected, 1 - expected.sum()) * draws
    assert stats.chisquare(observed, expected).pvalue > 1e-8


def test_noise_keeps_the_shape_and_is_fresh():
    counts = np.arange(6, dtype=np.int64).reshape(2, 3)
    first, second = (sample_discrete_gaussian(counts, 1e6) for _ in range(2))
    assert first.shape == (2, 3)
    assert (first != second).any()


def test_choices_follow_the_exponential_mechanism():
    scores, epsilon, sensitivity, draws = [0, 30, 60, 60], 0.5, 10, 6000
    chosen = [select_by_exponential_mechanism(scores, epsilon, sensitivity) for _ in range(draws)]
    weights = np.exp(epsilon * np.array(scores) / (2 * sensitivity))
    assert stats.chisquare(np.bincount(chosen, minlength=4), draws * weights / weights.sum()).pvalue > 1e-8


def test_large_scores_do_not_overflow():
    assert select_by_exponential_mechanism([0, 2**60], 1.0, 2**20) == 1
