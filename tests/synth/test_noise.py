"""The draws themselves. Each statistical bound below is missed by correct draws with probability under 1e-7."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.tabular import noise
from dpsynth_platform.synth.tabular.noise import (
    LEAST_WORD,
    ROUNDING,
    rounded_gaussian_variance,
    sample_rounded_gaussian,
    select_by_exponential_mechanism,
)

ONE = 2**64


@pytest.fixture
def feed(monkeypatch):
    """The operating system's bytes replaced by given words, each used once, in order."""

    def given(words):
        stream = b"".join(int(word).to_bytes(8, "little") for word in words)
        left = {"at": 0}

        def read(size):
            start = left["at"]
            left["at"] += size
            assert left["at"] <= len(stream), "more bytes asked for than given"
            return stream[start : left["at"]]

        monkeypatch.setattr(noise, "random_bytes", read)
        return lambda: len(stream) - left["at"]

    return given


def zeros(number):
    return np.zeros(number, dtype=np.int64)


def magnitude(uniform):
    """-(inverse normal CDF), in forty digits."""
    with mpmath.workdps(60):
        return mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * uniform)


def spread(least, most, number, seed):
    """Whole numbers evenly spread over the magnitudes from least up to most, both ends included."""
    rng = np.random.default_rng(seed)
    bits = rng.uniform(math.log2(least), math.log2(most), number)
    return [least, most - 1, *(min(max(int(2.0**b) + int(rng.integers(1000)), least), most - 1) for b in bits)]


# What double precision is trusted with.


def test_normal_deviates_in_double_precision_are_far_within_the_margin():
    """Around the breaks of the approximation (0.5, exp(-2), exp(-32)) too."""
    halves = spread(LEAST_WORD, 2**63, 250, 1)
    for uniform in (math.exp(-2), 0.25, 0.4999, 2.0**-19):
        halves += [int(uniform * 2.0**64) + step for step in range(-3, 4)]
    mine = noise._normal_magnitude(np.array(halves, dtype=np.int64))
    worst_rounding = worst = 0
    for half, computed in zip(halves, mine, strict=True):
        with mpmath.workdps(60):
            ends = [magnitude((half + mpmath.mpf(part)) / ONE) for part in (0, 0.5, 1)]
            worst = max(worst, abs(ends[0] - computed), abs(ends[2] - computed))
            worst_rounding = max(worst_rounding, abs(ends[1] - computed))
    assert worst_rounding < 2.0**-49
    assert worst < ROUNDING / 20


def test_gumbel_noise_in_double_precision_is_far_within_the_margin():
    low = spread(1, 2**63, 500, 2)
    words = low + [ONE - 1 - word for word in low] + [2**63 + step for step in range(-3, 3)]
    mine, error = noise._gumbel(np.array(words, dtype=np.uint64))
    for word, computed, claimed in zip(words, mine, error, strict=True):
        with mpmath.workdps(60):
            ends = [-mpmath.log(-mpmath.log1p(-(word + mpmath.mpf(part)) / ONE)) for part in (0, 0.5, 1)]
            assert abs(ends[1] - computed) < 2.0**-47
            assert max(abs(ends[0] - computed), abs(ends[2] - computed)) < claimed


def test_a_uniform_without_a_bit_known_is_doubted():
    noisy, error = noise._gumbel(np.array([0, ONE - 1], dtype=np.uint64))
    assert np.isfinite(noisy).all() and np.isinf(error).all()


# Gaussian noise.


@pytest.mark.parametrize("sigma", [0.35, 1.2, 7.0])
def test_every_cell_has_its_probability(sigma):
    draws, reach = 1_000_000, math.floor(4 * sigma)  # nine draws are expected beyond it, or more
    drawn = sample_rounded_gaussian(np.full(draws, -1000, dtype=np.int64), sigma) + 1000
    edges = (np.arange(-reach, reach + 2) - 0.5) / sigma
    expected = np.array([stats.norm.cdf(edges[0]), *np.diff(stats.norm.cdf(edges)), stats.norm.sf(edges[-1])])
    observed = np.bincount(np.clip(drawn, -reach - 1, reach + 1) + reach + 1, minlength=len(expected))
    assert stats.chisquare(observed, expected * draws).pvalue > 1e-8
    assert drawn.dtype == np.int64


@pytest.mark.parametrize("sigma", [1000.0, 2.0**30])
def test_wide_noise_is_gaussian(sigma):
    """At the widest noise a thousandth of the draws is settled in high precision; a cell is 1e-3 sigma or less."""
    drawn = sample_rounded_gaussian(zeros(200_000), sigma)
    assert stats.kstest((drawn + np.random.default_rng(3).uniform(-0.5, 0.5, drawn.size)) / sigma, "norm").pvalue > 1e-8
    assert abs(drawn.var() / rounded_gaussian_variance(sigma) - 1) < 6 * math.sqrt(2 / drawn.size)


def test_narrow_noise_leaves_counts_as_they_are():
    assert (sample_rounded_gaussian(zeros(100_000), 2.0**-10) == 0).all()


def test_draws_are_independent_of_their_neighbours():
    draws = 1_000_000
    drawn = sample_rounded_gaussian(zeros(draws), 3.0).astype(float)
    for view in (drawn, np.abs(drawn) - np.abs(drawn).mean(), np.sign(drawn)):
        for lag in (1, 2, noise.CHUNK):
            assert abs((view[lag:] * view[:-lag]).mean() / view.var()) < 6 / math.sqrt(draws - lag)


@pytest.mark.parametrize("shape", [(), (0,), (7, 3), (noise.CHUNK + 1, 2)])
def test_shapes_are_kept_and_noise_is_fresh(shape):
    counts = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    first, second = (sample_rounded_gaussian(counts, 1e9) for _ in range(2))
    assert first.shape == shape
    assert counts.size == 0 or (first != second).any()
    # Equal bytes for two chunks would show here; two of a million draws hardly ever coincide at random.
    assert len(np.unique(first - counts)) >= 0.99 * counts.size


@pytest.mark.parametrize("sigma", [0.0, -1.0, 1e-4, 2e14, math.nan, math.inf])
def test_impossible_noise_is_refused(sigma):
    with pytest.raises(AccountingError, match="accepted"):
        sample_rounded_gaussian(zeros(1), sigma)


@pytest.mark.parametrize("sigma", [1.0, 3.3])
def test_the_variance_is_that_of_rounded_noise(sigma):
    cells = np.arange(-60, 61)
    masses = stats.norm.cdf((cells + 0.5) / sigma) - stats.norm.cdf((cells - 0.5) / sigma)
    assert rounded_gaussian_variance(sigma) == pytest.approx((masses * cells**2.0).sum(), rel=2e-8)


@pytest.mark.parametrize("sigma", [0.02, 0.9, 40.0, 1e7])
def test_high_precision_says_what_double_precision_says(sigma, monkeypatch, feed):
    words = np.random.default_rng(4).integers(0, 2**64, 1500, dtype=np.uint64)
    words |= np.uint64(2**55)  # nothing so small that it is doubted anyway
    feed(words)
    fast = sample_rounded_gaussian(zeros(words.size), sigma)
    monkeypatch.setattr(noise, "ROUNDING", 1e3)
    settled = []
    settle = noise._exact_magnitude
    monkeypatch.setattr(noise, "_exact_magnitude", lambda *how: settled.append(how) or settle(*how))
    feed([*words, *words])
    assert (sample_rounded_gaussian(zeros(words.size), sigma) == fast).all()
    assert len(settled) == words.size


@pytest.mark.parametrize("guess", [0, 3, 900])
def test_high_precision_finds_the_number_from_any_guess(guess):
    for bits in (1, 2**20, 2**50, 2**62, 2**63 - 1):
        found = noise._exact_magnitude(noise._Uniform(bits << 64 | 12345, 128), 20.0, guess)
        exact = 20 * magnitude(mpmath.mpf(bits) / ONE)
        assert abs(found - exact) <= 0.5 + 1e-15


@pytest.mark.parametrize("sigma", [0.6, 12.5, 2.0**30, 1.23 * 2.0**39])
@pytest.mark.parametrize("words_alike", [0, 1, 2])
def test_a_draw_on_a_boundary_is_decided_by_further_bits(sigma, words_alike, feed):
    """The uniform's first words are those of the boundary's tail probability; the next word is below or above."""
    whole = math.ceil(0.7 * sigma)  # the boundary between whole - 1 and whole
    length = 64 * (words_alike + 1)
    with mpmath.workprec(length + 200):
        tail = mpmath.erfc((whole - mpmath.mpf(0.5)) / sigma / mpmath.sqrt(2)) / 2
        first = int(mpmath.floor(mpmath.ldexp(tail, length)))
        rest = mpmath.ldexp(tail, length) - first
        following = int(mpmath.floor(mpmath.ldexp(rest, 64)))
    words = [(first >> (length - 64 * (n + 1))) % ONE for n in range(words_alike + 1)]
    for sign, (last, expected) in itertools.product((0, 1), [(following - 1, whole), (following + 1, whole - 1)]):
        left = feed([words[0] << 1 | sign, *words[1:], last])
        assert sample_rounded_gaussian(zeros(1), sigma).tolist() == [-expected if sign else expected]
        assert left() == 0


def test_the_far_tail_is_reached(feed):
    """63 bits of zero: the deviate is beyond 9.08 sigma, and further bits say where."""
    for following in (ONE - 1, 2**63, 1):
        feed([0, following, 2**63, 2**63])
        (drawn,) = sample_rounded_gaussian(zeros(1), 1000.0)
        with mpmath.workdps(60):
            exact = 1000 * magnitude((following + mpmath.mpf(0.5)) / ONE**2)
        assert abs(drawn - exact) <= 0.5
        assert drawn > 9000


def test_tails_have_their_mass():
    draws, sigma = 4_000_000, 50.0
    drawn = np.abs(sample_rounded_gaussian(zeros(draws), sigma))
    for deviations in (2, 3, 4):
        expected = 2 * stats.norm.sf((deviations * sigma - 0.5) / sigma)
        found = (drawn >= deviations * sigma).sum()
        assert stats.binomtest(int(found), draws, expected).pvalue > 1e-8


# Choices.


def test_choices_follow_the_exponential_mechanism():
    scores, epsilon, sensitivity, draws = [0, 30, 60, 60], 0.5, 10, 20_000
    chosen = [select_by_exponential_mechanism(scores, epsilon, sensitivity) for _ in range(draws)]
    weights = np.exp(epsilon * np.array(scores) / (2 * sensitivity))
    assert stats.chisquare(np.bincount(chosen, minlength=4), draws * weights / weights.sum()).pvalue > 1e-8


def test_choices_settled_in_high_precision_follow_it_too(monkeypatch):
    monkeypatch.setattr(noise, "ROUNDING", 1e3)
    scores, epsilon, sensitivity, draws = np.array([5, -3, 2]), 1.0, 4, 2000
    chosen = [select_by_exponential_mechanism(scores, epsilon, sensitivity) for _ in range(draws)]
    weights = np.exp(epsilon * scores / (2 * sensitivity))
    assert stats.chisquare(np.bincount(chosen, minlength=3), draws * weights / weights.sum()).pvalue > 1e-8


def test_high_precision_chooses_what_double_precision_chooses(monkeypatch, feed):
    rng = np.random.default_rng(5)
    for _ in range(100):
        words, scores = rng.integers(2**20, 2**64, 20, dtype=np.uint64), rng.integers(-40, 40, 20)
        feed(words)
        fast = select_by_exponential_mechanism(scores, 0.3, 2)
        with monkeypatch.context() as patched:
            patched.setattr(noise, "ROUNDING", 1e3)
            feed([*words, *words])
            assert select_by_exponential_mechanism(scores, 0.3, 2) == fast


def test_a_tie_is_decided_by_further_bits(feed):
    """Two candidates of one score and the same word: whose next bits are fewer has the larger noise."""
    for following, expected in (((7, 9), 0), ((9, 7), 1)):
        left = feed([2**60, 2**60, *following])
        assert select_by_exponential_mechanism([4, 4], 1.0, 1) == expected
        assert left() == 0
    feed([2**60, 2**60, 11, 11, 2**63, 2**62])
    assert select_by_exponential_mechanism([4, 4], 1.0, 1) == 1


def test_a_difference_in_scores_is_exact(feed):
    """Noise that differs by as much as the scores do, in the other direction, up to the words' last bit."""
    epsilon, behind, first = 2.0**-30, 3, 2**61
    with mpmath.workdps(60):
        # The second is `behind` worse: its noise must be larger by epsilon * behind / 2.
        exponential = -mpmath.log1p(-mpmath.mpf(first) / ONE) * mpmath.exp(-mpmath.mpf(epsilon) * behind / 2)
        equal = -mpmath.expm1(-exponential) * ONE
    for second, expected in ((int(equal) - 1, 1), (int(equal) + 2, 0)):
        feed([first, second, *range(2)])
        assert select_by_exponential_mechanism([behind, 0], epsilon, 1) == expected


def test_scores_may_fill_64_bits():
    assert select_by_exponential_mechanism([0, 2**60], 1.0, 2**20) == 1
    assert select_by_exponential_mechanism([-(2**63), 2**63 - 1], 1.0, 2**20) == 1
    assert select_by_exponential_mechanism([-5], 1.0, 1) == 0


def test_among_a_million_candidates_each_has_its_chance():
    """Half of them score a little more; which half wins is a coin of known bias, which one of it is uniform."""
    scores = np.tile(np.array([0, 1], dtype=np.int64), 500_000)
    chosen = np.array([select_by_exponential_mechanism(scores, 1.0, 1) for _ in range(40)])
    bias = math.exp(0.5) / (1 + math.exp(0.5))
    assert stats.binomtest(int((chosen % 2).sum()), chosen.size, bias).pvalue > 1e-8
    assert stats.kstest(chosen / scores.size, "uniform").pvalue > 1e-8


@pytest.mark.parametrize(
    ("scores", "epsilon", "sensitivity"),
    [([], 1.0, 1), ([1], 0.0, 1), ([1], math.nan, 1), ([1], math.inf, 1), ([1], 1.0, 0)],
)
def test_impossible_choices_are_refused(scores, epsilon, sensitivity):
    with pytest.raises(AccountingError, match="accepted"):
        select_by_exponential_mechanism(scores, epsilon, sensitivity)
