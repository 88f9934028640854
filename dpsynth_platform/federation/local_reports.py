"""Reports that are private before they leave their unit: pure local differential privacy for one categorical value.

What belongs here: the reports, their unbiased estimates of counts, and the choice between kinds. What does not: which
value a unit reports, and the model that is fitted to estimates. Shuffling is not assumed.

All probabilities are ratios of whole numbers, and draws are whole numbers below a total, so that the ratio of any
report's probabilities under two values is at most `ratio`, exactly; `ratio` is at most e^epsilon, rounded down.

Each kind has sets of reports S_x that support a value x: a report of a unit with x is in S_x with probability p, one
of another with q < p. So with c reports of n in S_x, (c - n q) / (p - q) is an unbiased estimate of the units with x
(Wang, Blocki, Li & Jha 2017, theorems 1 and 2).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.federation.sums import Whole
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.measurements import NoisyCounts
from dpsynth_platform.training.stream import SecureStream

RATIO_STEP = Fraction(1, 2**20)
EPSILON_RANGE = (2.0**-10, 16.0)
MOST_VALUES = 2**20


def ratio_of(epsilon: float) -> Fraction:
    """The largest multiple of `RATIO_STEP` that is at most e^epsilon.

    Raises:
        AccountingError: epsilon outside `EPSILON_RANGE`.
    """
    import mpmath

    low, high = EPSILON_RANGE
    if not low <= epsilon <= high:
        raise AccountingError(f"epsilon {epsilon!r} of a report; accepted: {low:g} to {high:g}")
    with mpmath.workdps(60):  # e^epsilon is irrational, so that 60 digits decide
        return int(mpmath.floor(mpmath.exp(mpmath.mpf(epsilon)) * RATIO_STEP.denominator)) * RATIO_STEP


@dataclass(frozen=True)
class LocalReports(ABC):
    """One kind of report on a value out of 0, 1, ..., `values` - 1, epsilon-DP for epsilon = log(`ratio`).

    Raises:
        AccountingError: fewer than two values or too many, or a ratio that is not above 1.
    """

    values: int
    ratio: Fraction

    def __post_init__(self) -> None:
        if isinstance(self.values, bool) or not 2 <= self.values <= MOST_VALUES:
            raise AccountingError(f"reports on {self.values!r} values; accepted: 2 to {MOST_VALUES}")
        if not 1 < self.ratio <= 2**24:
            raise AccountingError("a ratio of probabilities that is not above 1; accepted: `ratio_of` an epsilon")

    @property
    @abstractmethod
    def p(self) -> Fraction:
        """The chance that a report supports its unit's own value."""

    @property
    @abstractmethod
    def q(self) -> Fraction:
        """The chance that a report supports a certain other value."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Length of a report."""

    @abstractmethod
    def report(self, held: Whole) -> npt.NDArray[Any]:
        """Reports on the values that units hold; first axis: units. Sensitive input."""

    @abstractmethod
    def support(self, reports: npt.NDArray[Any]) -> Whole:
        """How many reports support each value; shape (values,). Raises `AccountingError` for impossible reports."""

    def estimate(self, reports: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Unbiased estimates of how many units hold each value; shape (values,). Some may be negative."""
        p, q = float(self.p), float(self.q)
        found: npt.NDArray[np.float64] = (self.support(reports).astype(np.float64) - len(reports) * q) / (p - q)
        return found

    def variance(self, units: int) -> float:
        """The mean over all values of the variance of an estimate from so many units' reports.

        n_x reports are Bernoulli(p), the others Bernoulli(q); the n_x add up to n, so that the mean does not depend on
        which values the units hold.
        """
        p, q = self.p, self.q
        one = q * (1 - q) + (p * (1 - p) - q * (1 - q)) / self.values
        return float(units * one / (p - q) ** 2)

    def noisy_counts(self, clique: Clique, shape: tuple[int, ...], reports: npt.NDArray[Any]) -> NoisyCounts:
        """The estimates as a noisy marginal: rounded to whole units, `sigma` the root of `variance`.

        Errors of different cells are not independent (in randomized response they add up to 0), which models that take
        them as independent do not know.
        """
        counts = np.rint(self.estimate(reports)).astype(np.int64).reshape(shape)
        return NoisyCounts(clique, counts, math.sqrt(self.variance(len(reports))))


class RandomizedResponse(LocalReports):
    """The own value with probability in proportion to `ratio`, each other value with 1 (k-ary randomized response)."""

    @property
    def p(self) -> Fraction:
        return self.ratio / (self.ratio + self.values - 1)

    @property
    def q(self) -> Fraction:
        return 1 / (self.ratio + self.values - 1)

    @property
    def bits(self) -> int:
        return (self.values - 1).bit_length()

    def report(self, held: Whole) -> Whole:
        _check(held, self.values)
        own, other = self.ratio.numerator, self.ratio.denominator
        drawn = _below(own + (self.values - 1) * other, held.shape, SecureStream())
        others = (drawn - own) // other
        return np.where(drawn < own, held, others + (others >= held))

    def support(self, reports: npt.NDArray[Any]) -> Whole:
        _check(reports, self.values)
        return np.bincount(reports, minlength=self.values)


class UnaryEncoding(LocalReports):
    """A bit for each value: that of the own value is a fair coin, each other is 1 with probability 1 / (ratio + 1).

    Optimized unary encoding (Wang et al. 2017, section 4.3). Between two values the chances of two bits differ. A
    fair coin's are 1/2 either way, so that a report's chances have a quotient of at most (1 - q) / q = ratio.
    """

    @property
    def p(self) -> Fraction:
        return Fraction(1, 2)

    @property
    def q(self) -> Fraction:
        return 1 / (self.ratio + 1)

    @property
    def bits(self) -> int:
        return self.values

    def report(self, held: Whole) -> npt.NDArray[np.bool_]:
        _check(held, self.values)
        stream = SecureStream()
        total = self.ratio.numerator + self.ratio.denominator
        bits = _below(total, (len(held), self.values), stream) < self.ratio.denominator
        bits[np.arange(len(held)), held] = _below(2, held.shape, stream) == 1
        return bits

    def support(self, reports: npt.NDArray[Any]) -> Whole:
        if reports.dtype != np.bool_ or reports.ndim != 2 or reports.shape[1] != self.values:
            raise AccountingError(f"reports of another type or length; accepted: {self.values} bits each")
        found: Whole = reports.sum(axis=0, dtype=np.int64)
        return found


class HadamardResponse(LocalReports):
    """A number y below K, the next power of two above `values`: in S_x with probability ratio / (ratio + 1).

    S_x holds the y for which y and x + 1 have an even number of common bits: half of all K, and S_x and S_z share a
    quarter of K (rows of a Hadamard matrix are orthogonal), so that q is 1/2 (Acharya, Sun & Zhang 2019, the version
    for high privacy). Within S_x and outside of it y is uniform.
    """

    @property
    def p(self) -> Fraction:
        return self.ratio / (self.ratio + 1)

    @property
    def q(self) -> Fraction:
        return Fraction(1, 2)

    @property
    def bits(self) -> int:
        return self.values.bit_length()

    def report(self, held: Whole) -> Whole:
        _check(held, self.values)
        stream = SecureStream()
        inside = _below(self.ratio.numerator + self.ratio.denominator, held.shape, stream) < self.ratio.numerator
        drawn = _below(2**self.bits, held.shape, stream)
        rows = held + 1
        even = np.bitwise_count(drawn & rows) % 2 == 0
        # Changing the lowest common-row bit maps S_x onto its complement, one to one.
        reports: Whole = np.where(even == inside, drawn, drawn ^ (rows & -rows))
        return reports

    def support(self, reports: npt.NDArray[Any]) -> Whole:
        _check(reports, 2**self.bits)
        sums = np.bincount(reports, minlength=2**self.bits)
        half = 1
        while half < len(sums):  # the fast Walsh-Hadamard transform, in whole numbers
            pairs = sums.reshape(-1, 2, half)
            sums = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).ravel()
            half *= 2
        found: Whole = (len(reports) + sums[1 : self.values + 1]) // 2
        return found


KINDS: tuple[type[LocalReports], ...] = (RandomizedResponse, UnaryEncoding, HadamardResponse)


def choose_reports(values: int, epsilon: float, most_bits: int | None = None) -> LocalReports:
    """The kind whose estimates have the least variance, of those whose reports have at most `most_bits` bits.

    Raises:
        AccountingError: an impossible number or epsilon, or no kind with so short reports.
    """
    ratio = ratio_of(epsilon)
    found = [kind(values, ratio) for kind in KINDS]
    short = [reports for reports in found if most_bits is None or reports.bits <= most_bits]
    if not short:
        least = min(reports.bits for reports in found)
        raise AccountingError(f"reports of {most_bits} bits on {values} values; accepted: {least} bits or more")
    return min(short, key=lambda reports: reports.variance(1))


def draw_below(total: int, number: int) -> Whole:
    """Independent, uniform whole numbers in [0, total), exactly; shape (number,). By a fresh cryptographic stream."""
    return _below(total, (number,), SecureStream())


def _check(held: Whole, values: int) -> None:
    if held.ndim != 1 or held.dtype != np.int64 or (held.size and not 0 <= held.min() <= held.max() < values):
        raise AccountingError(f"values or reports that are not codes; accepted: whole numbers, 0 to {values - 1}")


def _below(total: int, shape: tuple[int, ...], stream: SecureStream) -> Whole:
    """Uniform whole numbers in [0, total), exactly: words from the last whole multiple of the total on are redrawn."""
    number = math.prod(shape)
    limit = 2**64 - 2**64 % total
    words = stream.words(number)
    while limit < 2**64 and (redrawn := np.flatnonzero(words >= np.uint64(limit))).size:
        words[redrawn] = stream.words(redrawn.size)
    return (words % np.uint64(total)).astype(np.int64).reshape(shape)
