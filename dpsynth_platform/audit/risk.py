"""What an attacker gains, beside what the claim allows: rates at few false alarms, area under the curve, the frontier.

What belongs here: the measures of one attack's scores as they are reported, each with its interval, and the largest
true positive rate that (epsilon, delta)-DP allows. What does not: lower bounds on epsilon (`bounds`, `fdp`), verdicts.

Averages say little about privacy: an attack that finds three people in a thousand and is never wrong has an area under
the curve near one half (Carlini et al., "Membership Inference Attacks From First Principles", 2022). So rates are given
at 0.1%, 1% and 10% false alarms. The intervals take scores as independent of each other. Those of canaries in one model
are nearly so at best: intervals describe, and what refutes a claim is a bound that needs no such thing.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, norm

from dpsynth_platform.audit.bounds import (
    Coins,
    Rate,
    Scores,
    area_under_curve,
    clopper_pearson,
    true_positive_rate,
    upper_bound,
)
from dpsynth_platform.foundation.errors import AccountingError

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
CONFIDENCE = 0.95
"""Of each interval by itself."""
_CORNER = 1e-9


@dataclass(frozen=True)
class RateAt:
    """How many of the included are found at one rate of false alarms.

    Attributes:
        false_positive_rate: the rate that was asked for.
        found: share of the included above the threshold, with its interval.
        false_alarms: share of the held-out above it, with its interval: the largest that is no more than asked for.
        resolved: whether there are held-out ones enough to tell such a rate; otherwise none of them lies above.
        allowed: the largest true positive rate that the claim allows at the upper end of the false alarms; None where
            nothing is claimed.
    """

    false_positive_rate: float
    found: Rate
    false_alarms: Rate
    resolved: bool
    allowed: float | None

    @property
    def beyond(self) -> bool:
        """Whether more are found than the claim allows, by both intervals."""
        return self.allowed is not None and self.found.low > self.allowed


@dataclass(frozen=True)
class Risk:
    """What one attack achieved: the area under its curve, and rates at 0.1%, 1% and 10% false alarms."""

    area_under_curve: Rate
    rates: tuple[RateAt, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as `from_json` reads them."""
        return asdict(self) | {"rates": [asdict(rate) for rate in self.rates]}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Risk:
        """Reads `to_json` back."""
        rates = tuple(
            RateAt(**(item | {name: Rate(**item[name]) for name in ("found", "false_alarms")}))
            for item in document["rates"]
        )
        return cls(Rate(**document["area_under_curve"]), rates)


def measure_risk(scores: Scores, included: Coins, *, epsilon: float | None, delta: float) -> Risk:
    """The measures of one attack.

    Args:
        scores: shape (m,), higher means rather in.
        included: shape (m,).
        epsilon: of the claim; None: there is none.
        delta: of the claim.

    Raises:
        AccountingError: a score is not a number.
    """
    area = area_interval(area_under_curve(scores, included), int(included.sum()), int((~included).sum()), CONFIDENCE)
    return Risk(area, tuple(rate_at(scores, included, rate, epsilon, delta) for rate in FALSE_POSITIVE_RATES))


def rate_at(scores: Scores, included: Coins, rate: float, epsilon: float | None, delta: float) -> RateAt:
    """The true positive rate at one rate of false alarms; both intervals by Clopper and Pearson.

    The threshold is an order statistic of the held-out scores; for that the interval is exact (`bounds.error_bounds`).
    """
    held_out = int((~included).sum())
    alarms = math.floor(rate * held_out)
    reached = Rate(alarms / max(1, held_out), *clopper_pearson(alarms, held_out, CONFIDENCE))
    return RateAt(
        false_positive_rate=rate,
        found=true_positive_rate(scores, included, false_positive_rate=rate, confidence=CONFIDENCE),
        false_alarms=reached,
        resolved=alarms > 0,
        allowed=None if epsilon is None else frontier(reached.high, epsilon, delta),
    )


def bounds_at(scores: Scores, included: Coins, rate: float, confidence: float) -> tuple[float, float]:
    """Least and largest true positive rate at exactly this rate of false alarms; each holds at `confidence`.

    Which threshold has that rate is not known: that of the (k+1)-th largest of n held-out scores has a true rate that
    is Beta(k+1, n-k) distributed (`bounds.error_bounds`). So what is found above a threshold that has no more false
    alarms gives the one bound, and what is found from a threshold on that has no fewer the other. Half of the level is
    for the threshold and half for what is found (Clopper and Pearson). k follows from n alone.

    Args:
        scores: shape (m,), higher means rather in; all of them numbers.
        included: shape (m,).
        rate: of false alarms.
        confidence: of either bound by itself.
    """
    level = (1 - confidence) / 2
    members, others = scores[included], np.sort(scores[~included])[::-1]
    above = np.arange(others.size)
    no_more = np.flatnonzero(beta.isf(level, above + 1, others.size - above) <= rate)
    no_fewer = np.flatnonzero(beta.ppf(level, above + 1, others.size - above) >= rate)
    low, high = 0.0, 1.0
    if no_more.size:
        low = 1 - upper_bound(int((members <= others[no_more[-1]]).sum()), members.size, level)
    if no_fewer.size:
        high = upper_bound(int((members >= others[no_fewer[0]]).sum()), members.size, level)
    return low, high


def frontier(false_positive_rate: float, epsilon: float, delta: float) -> float:
    """The largest true positive rate of any attack on an (epsilon, delta)-DP mechanism (Kairouz et al. 2015, thm 2.1).

    Raises:
        AccountingError: the rate is not one, or the claim is none.
    """
    if not 0 <= false_positive_rate <= 1 or epsilon < 0 or not 0 <= delta <= 1:
        raise AccountingError(
            f"audit: false positive rate {false_positive_rate:g} at epsilon {epsilon:g}, delta {delta:g}; accepted: a "
            "rate and a delta from 0 to 1, and epsilon >= 0"
        )
    steep = math.exp(epsilon) * false_positive_rate + delta
    flat = 1 - math.exp(-epsilon) * (1 - delta - false_positive_rate)
    return min(1.0, steep, flat)


def frontier_curve(epsilon: float, delta: float, least: float, points: int = 60) -> tuple[Scores, Scores]:
    """False and largest true positive rates from `least` to 1, evenly on a logarithmic scale."""
    rates = np.geomspace(least, 1.0, points)
    return rates, np.array([frontier(min(1.0, float(rate)), epsilon, delta) for rate in rates])


def area_interval(area: float, included: int, held_out: int, confidence: float) -> Rate:
    """Two-sided interval of an area under the curve by inverting its score test.

    Newcombe, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic. Part 2" (Statistics
    in Medicine 2006), method 5: Hanley and McNeil's variance at the hypothesized area, with the mean of both sizes. It
    does not collapse where the groups are told apart without a fault. Where a group is empty, it says nothing.
    """
    if not included or not held_out:
        return Rate(area, 0.0, 1.0)
    wide = float(norm.isf((1 - confidence) / 2))
    others = (included + held_out) / 2 - 1

    def spread(theta: float) -> float:
        shape = 1 + others * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return wide * math.sqrt(max(0.0, theta * (1 - theta) * shape / (included * held_out)))

    # At 0 and 1 nothing spreads, which is a solution but not an end of the interval.
    inside = min(max(area, _CORNER), 1 - _CORNER)
    low = 0.0 if area <= 0 else float(brentq(lambda theta: area - theta - spread(theta), 0.0, inside))
    high = 1.0 if area >= 1 else float(brentq(lambda theta: theta - area - spread(theta), inside, 1.0))
    return Rate(area, low, high)
