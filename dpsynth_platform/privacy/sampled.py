"""Renyi divergence of one Poisson-sampled Gaussian step, with one or several records of a unit.

What belongs here: the numbers behind `SampledGaussianEvent`'s curve. What does not: composition, conversion, PLD
(`accounting`).

With the unit, the step is the mixture sum_k p_k N(k, sigma^2), p = Binomial(b, q); without it N(0, sigma^2) (Charles et
al. 2024: this pair dominates whatever the gradients are). Both directions are computed and the larger is the bound.
Every rounding is conservative.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpsynth_platform.privacy.renyi import ORDERS

Array = NDArray[np.float64]

# About how many terms the convolutions for b above 1 may have. Orders beyond use a coarser bound, whether they are
# convolved or not, since ledgers store curves and compute them again.
MAX_TERMS = 4_000_000
# Points of a quadrature instead of the convolutions: it is faster, where the noise is not narrow.
MAX_QUADRATURE = 2**14
# The same for the quadrature of one order.
MAX_POINTS = 500_000
# Records of one unit above which the gain from sampling is not computed.
MAX_RECORDS = 256
# A log-moment is a sum of terms up to j log j in size; this much for each unit of size covers its rounding.
ROUNDING = 1e-14
# Beyond so many deviations from its peak, a strongly log-concave integrand has less than 1e-30 of its mass.
REACH = 12.0
# Steps of the quadrature in one width of the integrand; the trapezoid rule's error at 8 is below 1e-100.
STEPS_IN_WIDTH = 8
# The same in one deviation of a Gaussian bump, where the rule's error is 2 exp(-2 pi^2 steps^2).
STEPS_IN_BUMP = 2
# Precision of a peak's place, in its widths.
PEAK = 2.0**-7


@lru_cache(maxsize=256)
def sampled_gaussian_renyi(sigma: float, probability: float, most: int, replace: bool) -> tuple[float, ...]:
    """Upper bounds on the Renyi divergence of one step at each of `ORDERS`.

    Args:
        sigma: the noise multiplier.
        probability: q.
        most: b, the most clipped gradients of one unit in a sample.
        replace: whether neighbours differ by replacing the unit's records rather than by removing them.

    The bound for replacement is the smaller of two: through the dataset without the unit (a group of two: Mironov 2017,
    proposition 11), and with the number of drawn records revealed (joint convexity).
    """
    if probability == 1 or most > MAX_RECORDS:
        moved = 2 * most if replace else most
        return tuple(order * moved**2 / (2 * sigma**2) for order in ORDERS)
    step = _Step(sigma, probability, most)
    if not replace:
        return tuple(step.divergence(order) for order in ORDERS)
    return tuple(step.replaced(order) for order in ORDERS)


class _Step:
    def __init__(self, sigma: float, probability: float, most: int) -> None:
        from scipy.stats import binom

        self.sigma, self.most = sigma, most
        self.numbers = np.arange(most + 1, dtype=np.float64)
        self.log_p: Array = binom.logpmf(np.arange(most + 1), most, probability)
        self.limit = 2**14 if most == 1 else max(16, math.isqrt(2 * MAX_TERMS) // most)
        places = self._places(self.limit)
        self.quadrature = most > 1 and places <= MAX_QUADRATURE
        self.table = None if most == 1 or self.quadrature else self._convolved()
        self.x = np.arange(places if self.quadrature else 0, dtype=np.float64) * (sigma / STEPS_IN_BUMP) - REACH * sigma
        self.ratio = self._log_ratio(self.x)

    def divergence(self, order: float) -> float:
        """The larger of both directions, at any order above 1."""
        everything = order * self.most**2 / (2 * self.sigma**2)  # as if every record were in every sample
        forward = everything
        if math.ceil(order) <= self.limit:
            low = math.floor(order)
            part = order - low
            moment = (1 - part) * self._log_moment(low) + (part * self._log_moment(low + 1) if part else 0.0)
            forward = min(everything, moment / (order - 1))
        # With one record, removing is the worse direction (Mironov, Talwar & Zhang 2019, theorem 5).
        return forward if self.most == 1 else max(forward, min(everything, self._backward(order)))

    def replaced(self, order: float) -> float:
        from scipy.special import logsumexp

        moment = logsumexp(self.log_p + order * (order - 1) * (2 * self.numbers) ** 2 / (2 * self.sigma**2))
        revealed = float(moment + ROUNDING * (16 + abs(moment))) / (order - 1)
        through = (order - 0.5) / (order - 1) * self.divergence(2 * order) + self.divergence(2 * order - 1)
        return min(revealed, through)

    def _log_moment(self, order: int) -> float:
        """(alpha - 1) D_alpha(mixture || N(0)) at an integer alpha, rounded up."""
        from scipy.special import gammaln, logsumexp

        if order <= 1:
            return 0.0
        if self.quadrature:
            moment = self._integrated(order)
        elif self.table is not None:
            moment = self.table[order]
        else:
            m = np.arange(order + 1, dtype=np.float64)
            chosen = gammaln(order + 1) - gammaln(m + 1) - gammaln(order - m + 1)
            terms = chosen + m * self.log_p[1] + (order - m) * self.log_p[0] + (m * m - m) / (2 * self.sigma**2)
            moment = float(logsumexp(terms))
        return max(0.0, moment) + ROUNDING * (16 + order * math.log(order) + abs(moment))

    def _places(self, order: int) -> int:
        """Points of the quadrature for an integer order: from REACH deviations below 0 to as many above order * b."""
        return math.ceil((order * self.most / self.sigma + 2 * REACH) * STEPS_IN_BUMP) + 1

    def _integrated(self, order: int) -> float:
        """An element of `_convolved`, by quadrature.

        The integrand exp(-x^2 / 2 sigma^2 + alpha r(x)), r the log-ratio of the densities, is a sum of Gaussian bumps
        of deviation sigma around whole numbers from 0 to alpha b: the trapezoid rule errs by less than 1e-33 on each.
        """
        from scipy.special import logsumexp

        x = self.x[: self._places(order)]
        terms = order * self.ratio[: len(x)] - x**2 / (2 * self.sigma**2)
        return float(logsumexp(terms)) - math.log(STEPS_IN_BUMP * math.sqrt(2 * math.pi))

    def _convolved(self) -> list[float]:
        """log sum_m c_m exp(m^2 / 2 sigma^2) for every alpha up to `limit`, c the alpha-fold convolution of
        p_k exp(-k^2 / 2 sigma^2). In logarithms, since the weights that matter at large orders are tiny."""
        from scipy.special import logsumexp

        factor = self.log_p - self.numbers**2 / (2 * self.sigma**2)
        found = [0.0, 0.0]
        coefficients = factor
        for _ in range(2, self.limit + 1):
            size = len(coefficients) + self.most
            terms = np.full((self.most + 1, size), -np.inf)
            for k in range(self.most + 1):
                terms[k, k : k + len(coefficients)] = coefficients + factor[k]
            largest = terms.max(axis=0)
            coefficients = largest + np.log(np.exp(terms - largest).sum(axis=0))
            found.append(float(logsumexp(coefficients + np.arange(size) ** 2.0 / (2 * self.sigma**2))))
        return found

    def _backward(self, order: float) -> float:
        """D_alpha(N(0) || mixture), by quadrature; never above -log p_0, the largest loss in this direction.

        The integrand exp(-x^2 / 2 sigma^2 - (alpha - 1) r(x)), r the log-ratio of the densities, is log-concave, since
        r is convex; its curvature lies between 1 / sigma^2 and (1 + (alpha - 1) b^2 / 4 sigma^2) / sigma^2.
        """
        from scipy.special import logsumexp

        largest = -float(self.log_p[0])
        narrower = math.sqrt(1 + (order - 1) * self.most**2 / (4 * self.sigma**2))
        half = math.ceil((REACH + PEAK) * narrower * STEPS_IN_WIDTH)
        if order > self.limit or half * (self.most + 1) > MAX_POINTS:
            return largest
        width = self.sigma / narrower
        peak = self._backward_peak(order, PEAK * width)
        x: Array = peak + np.arange(-half, half + 1, dtype=np.float64) * (width / STEPS_IN_WIDTH)
        terms = -(x**2) / (2 * self.sigma**2) - (order - 1) * self._log_ratio(x)
        scale = math.log(width / STEPS_IN_WIDTH) - math.log(self.sigma * math.sqrt(2 * math.pi))
        moment = float(logsumexp(terms)) + scale
        return min(largest, (max(0.0, moment) + ROUNDING * (16 + order * (16 + abs(moment)))) / (order - 1))

    def _log_ratio(self, x: Array) -> Array:
        total = np.full(x.shape, -np.inf)
        for k in range(self.most + 1):
            np.logaddexp(total, self.log_p[k] + (k * x - k * k / 2) / self.sigma**2, out=total)
        return total

    def _backward_peak(self, order: float, precision: float) -> float:
        """Where x = -(alpha - 1) E[k | x]: the right side falls in x, so bisection finds it."""
        low, high = -(order - 1) * self.most, 0.0
        while high - low > precision and low < (middle := (low + high) / 2) < high:
            logs = self.log_p + (self.numbers * middle - self.numbers**2 / 2) / self.sigma**2
            weights = np.exp(logs - logs.max())
            mean = float((weights * self.numbers).sum() / weights.sum())
            low, high = (middle, high) if middle < -(order - 1) * mean else (low, middle)
        return (low + high) / 2
