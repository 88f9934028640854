"""Local reports by exact enumeration. Each statistical bound is missed with probability below 1e-7."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from seeded_stream import Counted

from dpsynth_platform.federation import local_reports
from dpsynth_platform.federation.local_reports import (
    KINDS,
    HadamardResponse,
    RandomizedResponse,
    UnaryEncoding,
    choose_reports,
    ratio_of,
)
from dpsynth_platform.foundation.errors import AccountingError


@pytest.fixture
def seeded(monkeypatch):
    stream = Counted()
    monkeypatch.setattr(local_reports, "SecureStream", lambda: stream)


@pytest.fixture
def every_draw(monkeypatch):
    """Runs one report for every combination of what its uniform draws can be, all equally likely."""

    def distribution(kind, value):
        asked = []

        def ask(total, shape, stream):
            asked.append([total] * math.prod(shape))
            return np.zeros(shape, dtype=np.int64)

        monkeypatch.setattr(local_reports, "_below", ask)
        kind.report(np.array([value]))
        totals = [total for call in asked for total in call]
        found = Counter()
        for outcome in itertools.product(*(range(total) for total in totals)):
            left = list(outcome)

            def give(total, shape, stream, left=left):
                taken = [left.pop(0) for _ in range(math.prod(shape))]
                return np.array(taken, dtype=np.int64).reshape(shape)

            monkeypatch.setattr(local_reports, "_below", give)
            found[tuple(np.atleast_1d(kind.report(np.array([value]))[0]).tolist())] += 1
        every = math.prod(totals)
        return {report: Fraction(times, every) for report, times in found.items()}

    return distribution


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("values", "ratio"), [(2, Fraction(3)), (3, Fraction(5, 2)), (4, Fraction(2))])
def test_by_every_draw_reports_are_exactly_as_private_as_said(every_draw, kind, values, ratio):
    reports = kind(values, ratio)
    laws = [every_draw(reports, value) for value in range(values)]
    outcomes = set().union(*laws)
    assert all(sum(law.values()) == 1 for law in laws)
    worst = max(one[y] / other[y] for one in laws for other in laws for y in outcomes)
    assert worst == ratio
    for held, value in itertools.product(range(values), repeat=2):
        shape, kept = ((-1, values), np.bool_) if kind is UnaryEncoding else ((-1,), np.int64)
        supported = sum(
            chance * int(reports.support(np.array(report, dtype=kept).reshape(shape))[value])
            for report, chance in laws[held].items()
        )
        assert supported == (reports.p if held == value else reports.q)


@pytest.mark.parametrize("epsilon", [2.0**-10, 0.1, 1.0, math.log(3), 16.0])
def test_ratios_are_just_below_what_epsilon_allows(epsilon):
    ratio = ratio_of(epsilon)
    with mpmath.workdps(80):
        exact = mpmath.exp(mpmath.mpf(epsilon))
        assert mpmath.mpf(ratio.numerator) / ratio.denominator <= exact
        assert mpmath.mpf(ratio.numerator) / ratio.denominator > exact - mpmath.mpf(2) ** -20


@pytest.mark.parametrize("kind", KINDS)
def test_estimates_are_unbiased_with_the_stated_variance(seeded, kind):
    reports, units, times = kind(5, ratio_of(1.0)), 2000, 400
    held = np.repeat(np.arange(5), [1000, 600, 300, 100, 0])
    errors = np.array([reports.estimate(reports.report(held)) for _ in range(times)]) - [1000, 600, 300, 100, 0]
    deviation = math.sqrt(5 * reports.variance(units))  # bounds that of each cell
    assert np.all(np.abs(errors.mean(axis=0)) < 6 * deviation / math.sqrt(times))
    # Cells of one repetition depend on each other, so that 400 repetitions have at least 400 degrees of freedom.
    assert (errors**2).mean() == pytest.approx(reports.variance(units), rel=6 * math.sqrt(2 / times))


def test_the_kind_with_the_least_variance_is_chosen():
    assert isinstance(choose_reports(2, 1.0), RandomizedResponse)
    assert isinstance(choose_reports(100, 1.0), UnaryEncoding)
    assert isinstance(choose_reports(100, 1.0, most_bits=7), HadamardResponse)
    assert isinstance(choose_reports(8, 6.0), RandomizedResponse)
    with pytest.raises(AccountingError, match="7 bits"):
        choose_reports(100, 1.0, most_bits=6)
    # Wang et al. 2017, equation 10: 4 e^epsilon / (e^epsilon - 1)^2 for rare values
    wide = UnaryEncoding(10**6, ratio_of(1.0)).variance(1)
    assert wide == pytest.approx(4 * math.e / (math.e - 1) ** 2, rel=1e-5)


def test_estimates_are_a_noisy_marginal(seeded):
    reports = choose_reports(6, 2.0)
    held = np.repeat(np.arange(6), 500)
    measured = reports.noisy_counts((0, 2), (2, 3), reports.report(held))
    assert (measured.clique, measured.counts.shape, measured.counts.dtype) == ((0, 2), (2, 3), np.int64)
    assert measured.sigma == math.sqrt(reports.variance(3000))
    assert np.all(np.abs(measured.counts - 500) < 6 * math.sqrt(6) * measured.sigma)


def test_numbers_below_a_total_are_redrawn_beyond_its_last_multiple():
    class Words:
        def __init__(self, *words):
            self.left = list(words)

        def words(self, number):
            taken, self.left = self.left[:number], self.left[number:]
            return np.array(taken, dtype=np.uint64)

    assert local_reports._below(3, (2,), Words(2**64 - 1, 4, 2**64 - 1, 8)).tolist() == [2, 1]
    assert local_reports._below(4, (1,), Words(2**64 - 1)).tolist() == [3]


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 17.0])
def test_impossible_epsilons_are_refused(epsilon):
    with pytest.raises(AccountingError):
        choose_reports(4, epsilon)


@pytest.mark.parametrize("kind", KINDS)
def test_other_values_are_refused(kind):
    for values, ratio in ((1, Fraction(2)), (2**21, Fraction(2)), (4, Fraction(1)), (4, Fraction(1, 2))):
        with pytest.raises(AccountingError):
            kind(values, ratio)
    for held in (np.array([4]), np.array([-1]), np.array([0.0]), np.array([[1]])):
        with pytest.raises(AccountingError):
            kind(4, Fraction(2)).report(held)


@pytest.mark.parametrize("kind", KINDS)
def test_impossible_reports_are_refused(kind):
    wide = np.ones((2, 5), dtype=bool)
    for reports in (np.array([100]), np.array([-1]), np.array([0.0]), np.full((1, 4), 10**6), wide):
        with pytest.raises(AccountingError, match="accepted"):
            kind(4, Fraction(2)).support(reports)


def test_reports_are_fresh():
    reports = choose_reports(1000, 0.1)
    held = np.zeros(100, dtype=np.int64)
    assert not np.array_equal(reports.report(held), reports.report(held))
