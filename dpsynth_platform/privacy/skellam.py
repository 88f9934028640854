"""The Skellam distribution: its tail, its Renyi divergence and its exact hockey-stick curve.

What belongs here: pure functions of the variance and of what one unit changes. What does not: events (`events`), their
composition (`accounting`), draws (`federation.noise`).

A Skellam variable of variance V is the difference of two independent Poisson variables of mean V / 2 each:
P[X = k] = e^-V I_k(V), I the modified Bessel function of the first kind. It is closed under addition, which the rounded
and the discrete Gaussian are not: a sum of n independent Skellam shares is Skellam, of the sum of their variances. So
what participants add together inside a secure sum has exactly the distribution that is accounted for (Agarwal, Kairouz
& Liu 2021).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpsynth_platform.privacy.renyi import ORDERS

Array = NDArray[np.float64]

# Masses are tabulated up to a tail of this, in bits: below what any delta is computed with.
TAIL_BITS = 64


def skellam_reach(variance: float, bits: float) -> int:
    """A whole number t with P[|X| >= t] <= 2^-bits, for Skellam noise X of this variance.

    Chernoff: E[e^(sX)] = e^(V (cosh s - 1)), so that P[X >= t] <= exp(V (cosh s - 1) - s t), least at s =
    asinh(t / V), where it is exp(V g(t / V)) with g(u) = sqrt(1 + u^2) - 1 - u asinh(u). Both tails: twice that.
    The exponent falls as t rises, so the first t that passes is found by bisection.
    """
    allowed = (bits + 1) * math.log(2)

    def passes(t: int) -> bool:
        u = t / variance
        # sqrt(1 + u^2) - 1, without the cancellation where u is small
        return variance * (u * math.asinh(u) - u * u / (math.sqrt(1 + u * u) + 1)) >= allowed * (1 + 1e-9)

    high = 1
    while not passes(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


@lru_cache(maxsize=256)
def skellam_renyi(variance: float, l1: int, l2_squared: int) -> tuple[float, ...]:
    """Upper bounds on the Renyi divergence at each of `ORDERS`, for a vector of independent Skellam noise.

    At whole orders a >= 2, where the vector moves by whole numbers with these norms (Agarwal, Kairouz & Liu 2021,
    theorem 3.1, summed over the entries):

        D_a <= a L2^2 / 2V + min(((2a - 1) L2^2 + 6 L1) / 4V^2, 3 L1 / 2V)

    Between them (a - 1) D_a is convex in a (it is a cumulant generating function of the loss) and 0 at a = 1, so the
    chord between two bounds is a bound.

    Args:
        variance: of the noise of an entry, in squared units.
        l1, l2_squared: the most that one unit moves the vector, in units.
    """

    def moment(order: int) -> float:
        if order == 1:
            return 0.0
        main = order * l2_squared / (2 * variance)
        further = ((2 * order - 1) * l2_squared + 6 * l1) / (4 * variance**2)
        return (order - 1) * (main + min(further, 3 * l1 / (2 * variance)))

    bounds = []
    for order in ORDERS:
        low = math.floor(order)
        part = order - low
        chord = (1 - part) * moment(low) + (part * moment(low + 1) if part else 0.0)
        bounds.append(chord / (order - 1))
    return tuple(bounds)


@lru_cache(maxsize=64)
def skellam_masses(variance: float, further: int = 0) -> tuple[Array, Array]:
    """P[X = k], and log(P[X = k + 1] / P[X = k]), for k from 0 up to the reach of TAIL_BITS and `further`.

    The ratios r_k of I_(k+1)(V) to I_k(V) follow from I_(k-1) - I_(k+1) = (2k / V) I_k as r_(k-1) = 1 / (2k / V + r_k),
    from above down: all terms are positive, and an error in r_k is multiplied by r_(k-1)^2 < 1, so that each ratio is
    precise to a few units of its last bit. A start at 0 is wrong by the ratio's own size, which has faded where
    the table begins. Masses are products of ratios, divided by their sum.

    Returns:
        arrays of shape (reach + further + 1,).
    """
    reach = skellam_reach(variance, TAIL_BITS) + further
    ratio, ratios = 0.0, np.empty(reach + 1)
    for k in range(2 * reach + 64, 0, -1):
        ratio = 1 / (2 * k / variance + ratio)
        if k <= reach + 1:
            ratios[k - 1] = ratio
    logs = np.log(ratios)
    masses = np.exp(np.concatenate([[0.0], np.cumsum(logs[:-1])]))
    return masses / (2 * masses.sum() - masses[0]), logs


def skellam_hockey_stick(variance: float, shift: int, epsilons: Array) -> Array:
    """delta(e) between Skellam noise and the same moved by `shift`, exact up to the tail and to rounding.

    The loss at x is log(P[x] / P[x - shift]). Ratios of neighbouring masses fall as k rises (the distribution is
    log-concave), so that losses are monotone, and delta is a difference of two tails.

    Args:
        variance: in squared units.
        shift: in units, from 1.
        epsilons: at which delta is computed, of either sign.
    """
    half, logs = skellam_masses(variance, shift)
    reach = len(half) - 1
    masses = np.concatenate([half[:0:-1], half])  # of x from -reach to reach
    steps = np.concatenate([-logs[reach - 1 :: -1], logs[:reach]])  # log(P[x + 1] / P[x]), x from -reach
    level = np.concatenate([[0.0], np.cumsum(steps)])  # log P[x], up to a constant
    # Noise X against X + shift: at X = x the loss is log(P[x] / P[x - shift]), finite where both are in the table.
    losses = level[shift:] - level[:-shift]
    beyond = masses[:shift].sum()  # below the table of the moved noise, and beyond the reach: a loss without limit
    losses, weights = losses[::-1], masses[shift:][::-1]  # ascending
    upper = np.append(np.cumsum(weights[::-1])[::-1], 0.0)
    lower = np.append(np.cumsum((weights * np.exp(-losses))[::-1])[::-1], 0.0)
    above = np.searchsorted(losses, epsilons, side="right")
    deltas: Array = np.clip(beyond + upper[above] - np.exp(epsilons) * lower[above], 0.0, 1.0)
    return deltas
