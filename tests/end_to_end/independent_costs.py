"""What mechanisms cost together, computed from their published noise by `dp_accounting` and formulas of the tests' own.

What belongs here: arithmetic that shares nothing with the platform's accounting. What does not: assertions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from dp_accounting import rdp
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from scipy.stats import norm

_STEP = 1e-4


def squared_distance(plan: Mapping[str, Any], columns: int, records: int) -> float:
    """(shift / deviation)^2 of all Gaussian counts of a run together, for one unit with so many records.

    Args:
        plan: the sealed plan in words, as the asset page shows it; of one-way marginals, and of one pair under `mst`.
    """
    one_way = columns * (records / plan["sigma_one"]) ** 2
    return one_way + ((records / plan["sigma_two"]) ** 2 if "sigma_two" in plan else 0.0)


def gaussian_epsilon(squared: float, delta: float) -> float:
    """Epsilon of one Gaussian mechanism at `delta`, exactly (Balle & Wang 2018, theorem 8), by bisection."""
    distance = math.sqrt(squared)

    def delta_at(epsilon: float) -> float:
        far = norm.logcdf(-distance / 2 - epsilon / distance)
        return float(norm.cdf(distance / 2 - epsilon / distance) - math.exp(epsilon + far))

    low, high = 0.0, 100.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


def epsilon_together(
    squared: float, choices: Iterable[float], delta: float, *, steps: Iterable[tuple[float, float, int]] = ()
) -> float:
    """Epsilon at `delta` of Gaussian counts and choices by the exponential mechanism, all on the same people.

    Args:
        squared: sum of squared distances of the counts.
        choices: the range of each choice.
        steps: of each training on one record a person, noise multiplier, sampling probability and number of steps.
    """
    composed = privacy_loss_distribution.from_gaussian_mechanism(
        1 / math.sqrt(squared), value_discretization_interval=_STEP
    )
    for width in choices:
        composed = composed.compose(_choice(width))
    for multiplier, probability, number in steps:
        step = privacy_loss_distribution.from_gaussian_mechanism(
            multiplier, value_discretization_interval=_STEP, sampling_prob=probability
        )
        composed = composed.compose(step.self_compose(number))
    return float(composed.get_epsilon_for_delta(delta))


def _choice(width: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    """A choice of which the log-ratios of any two outcomes lie `width` apart at most (Dong, Durfee & Rogers 2020).

    At each epsilon the worst of all pairs of outcomes, with log-ratios t and t - width.
    """
    reach = math.ceil(width / _STEP)
    epsilons = np.arange(-reach, reach + 1) * _STEP
    ratio = np.linspace(0, width, 2001)[1:-1, None]
    before = -np.expm1(ratio - width) / (np.exp(ratio) * -np.expm1(-width))
    after = np.exp(ratio) * before
    first = np.maximum(after - np.exp(epsilons) * before, 0)
    second = np.maximum((1 - after) - np.exp(epsilons) * (1 - before), 0)
    deltas = np.maximum((first + second).max(axis=0), np.maximum(-np.expm1(epsilons), 0))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(_STEP, np.arange(-reach, reach + 1), deltas)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def rounds_under_cap(squared: float, *, epsilon: float, delta: float, orders: Mapping[float, float]) -> int:
    """How many equal Gaussian mechanisms a Rényi filter lets through that fixed its orders' weights beforehand."""

    def fits(rounds: int) -> bool:
        spent = rounds * squared / 2
        return any(
            rdp.compute_epsilon([order], [order * spent], delta * weight)[0] <= epsilon
            for order, weight in orders.items()
        )

    return next(rounds for rounds in range(1000) if not fits(rounds + 1))
