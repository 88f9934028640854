"""Hockey-stick curves of one Poisson-sampled Gaussian step with several records of a unit.

What belongs here: delta(e) between a mixture of Gaussians and the Gaussian, in both directions, at many e at once. What
does not: distributions of losses and their composition (`accounting`), and the step's Renyi divergence (`sampled`).
`dp_accounting` has the curve too, but inverts the privacy loss by a recursion of about a hundred Python calls a point.

With the unit, the step is the mixture M = sum_k p_k N(k, sigma^2), p = Binomial(b, q); without it N = N(0, sigma^2)
(Charles et al. 2024: this pair dominates whatever the gradients are). The log-ratio of their densities, r(x), rises
from log p_0 on and is convex.

Every rounding is conservative, which needs care. The maximum over x, at the x where the loss is e, is

    delta_removal(e) = max over x of M[> x] - exp(e) N[> x]
    delta_addition(e) = max over x of N[< x] - exp(e) M[< x]

so that every other x gives too little, on either side of the best one: e can be rounded safely, x cannot.
Let R be more than the error of a computed r. For removal, x is taken so that r(x), as computed, is within R of e - 2 R.
So the true r(x) lies in [e - 4 R, e], and D = M[> x] - exp(e - 4 R) N[> x] is returned. It is safe: as e - 4 R is at
most r(x), D is at least delta(r(x)), which is at least delta(e), since delta falls. It is close: no x gives more than
delta(e - 4 R) there. Addition is the same, with the loss -r(x). What is left is the rounding of probabilities, a few
times 2^-53, which `accounting.fft_error` has room for.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpsynth_platform.foundation.errors import AccountingError

Array = NDArray[np.float64]

# R. r is the logarithm of a sum of positive terms, powers of exp(x / sigma^2) below exp(500): each is off by less than
# 500 * 2^-52 and a few times 2^-53 for each of up to 64 records.
ROUNDING = 2.0**-40
# The most that b / sigma may be: no term that matters is then too small or too large for a float.
MAX_RATIO = 17.0
# Larger losses with less mass than this are left out of the range of a curve, to count as infinite.
TAIL_MASS = 1e-22
# Beyond so many sigma, a Gaussian has less than that.
REACH = 10.0
# Points among which the end of a mixture is looked for.
ENDS = 2**10
# One point in so many is solved first, and the others start from their neighbours.
NEIGHBOURS = 32
# Newton's method ends within ten rounds from a distant start, two from a neighbour.
MAX_ROUNDS = 100


class SampledMixture:
    """The two distributions of a step, and delta between them.

    Args:
        sigma: the noise multiplier.
        probability: q, above 0 and below 1.
        most: b, the most clipped gradients of one unit in a sample; at most MAX_RATIO * sigma.
    """

    def __init__(self, sigma: float, probability: float, most: int) -> None:
        if most > MAX_RATIO * sigma:
            raise AccountingError(f"{most} records at noise {sigma:g}; accepted: noise from b / {MAX_RATIO:g}")
        q = Fraction(probability)
        self.sigma, self.most = sigma, most
        self.p = [float(math.comb(most, k) * q**k * (1 - q) ** (most - k)) for k in range(most + 1)]
        self.least_ratio = most * math.log1p(-probability)
        # r(x) = log(sum_k weights_k z^k) for z = exp(x / sigma^2).
        self.weights = [p * math.exp(-(k**2) / (2 * sigma**2)) for k, p in enumerate(self.p)]

    def removal(self, e: Array) -> Array:
        """At least delta(e) where the unit is removed, at most delta(e - 4 ROUNDING). e ascends; shape (n,)."""
        from scipy.special import ndtr

        x = self._where(e - 2 * ROUNDING)
        deltas: Array = self._above(x) - np.exp(e - 4 * ROUNDING) * ndtr(-x / self.sigma)
        return np.clip(deltas, 0.0, 1.0)

    def addition(self, e: Array) -> Array:
        """As `removal`, where the unit is added; 0 beyond -b log(1 - q), above which there are no losses."""
        from scipy.special import ndtr

        x = self._where((2 * ROUNDING - e)[::-1])[::-1]
        below = sum(p * ndtr((x - k) / self.sigma) for k, p in enumerate(self.p))
        deltas: Array = ndtr(x / self.sigma) - np.exp(e - 4 * ROUNDING) * below
        return np.clip(deltas, 0.0, 1.0)

    def removal_range(self) -> tuple[float, float]:
        """Losses between which all but a tail of TAIL_MASS lies, on either side, where the unit is removed."""
        x = np.linspace(-REACH * self.sigma, self.most + REACH * self.sigma, ENDS)
        last = int(np.argmax(self._above(x) <= TAIL_MASS))
        low, high = self._log_ratio(x[[0, last]])
        return float(low), float(high)

    def addition_range(self) -> tuple[float, float]:
        """As `removal_range`, where the unit is added."""
        high, low = -self._log_ratio(np.array([-REACH, REACH]) * self.sigma)
        return float(low), float(high)

    def _above(self, x: Array) -> Array:
        """M[> x]."""
        from scipy.special import ndtr

        total = np.zeros(x.shape)
        for k, p in enumerate(self.p):
            total += p * ndtr((k - x) / self.sigma)
        return total

    def _log_ratio(self, x: Array) -> Array:
        """r(x)."""
        power, drawn, _ = self._drawn(x)
        ratio: Array = np.log(self.weights[0] + power * drawn)
        return ratio

    def _drawn(self, x: Array) -> tuple[Array, Array, Array]:
        """z, the sum s of weights_k z^(k - 1) over k from 1, and its derivative in z, by Horner's rule."""
        power = np.exp(x / self.sigma**2)
        total, slope = np.full(x.shape, self.weights[-1]), np.zeros(x.shape)
        for weight in self.weights[-2:0:-1]:
            slope *= power
            slope += total
            total *= power
            total += weight
        return power, total, slope

    def _where(self, ratios: Array) -> Array:
        """x with r(x) within ROUNDING of the given ratios, which ascend; -inf for those that r does not reach."""
        x = np.full(ratios.shape, -np.inf)
        reached = ratios > self.least_ratio
        if reached.any():
            targets = ratios[reached]
            some, highest = targets[::NEIGHBOURS], self._highest(targets)
            neighbours = self._solved(some, highest[::NEIGHBOURS], highest[::NEIGHBOURS])
            x[reached] = self._solved(targets, np.interp(targets, some, neighbours), highest)
        return x

    def _highest(self, ratios: Array) -> Array:
        """Close upper bounds on the solutions: where one term alone reaches what all terms together must reach."""
        drawn = self._of_drawn(ratios)
        terms = [(k, p) for k, p in enumerate(self.p) if k and p]
        highest: Array = np.min([(drawn - math.log(p)) * self.sigma**2 / k + k / 2 for k, p in terms], axis=0)
        return highest

    def _of_drawn(self, ratios: Array) -> Array:
        """log(exp(r) - p_0), the contribution of the terms with k from 1 to r, in logarithms."""
        drawn: Array = ratios + np.log(-np.expm1(self.least_ratio - ratios))
        return drawn

    def _solved(self, ratios: Array, x: Array, highest: Array) -> Array:
        """Newton's method for log(z s) = `_of_drawn`, from x and never beyond `highest`, until r is within ROUNDING.

        The left side is convex with a slope of 1 to b over sigma^2, so that from its second round on it falls to the
        solution from above.
        """
        wanted = self._of_drawn(ratios)
        left = np.arange(len(x))
        x = x.copy()
        for _ in range(MAX_ROUNDS):
            power, total, slope = self._drawn(x[left])
            off = np.abs(np.log(self.weights[0] + power * total) - ratios[left])
            far = ~(off <= ROUNDING)  # a NaN has not converged
            if not far.any():
                return x
            left, power, total, slope = left[far], power[far], total[far], slope[far]
            beyond = x[left] / self.sigma**2 + np.log(total) - wanted[left]
            x[left] = np.minimum(x[left] - beyond * self.sigma**2 / (1 + power * slope / total), highest[left])
        raise AccountingError(
            f"losses of {self.most} records at noise {self.sigma:g} are out of reach; accepted: more noise"
        )
