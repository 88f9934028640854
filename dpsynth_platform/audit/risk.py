"""An attacker's gain, compared with what the claim allows: rates at few false alarms, area under the curve, frontier.

What belongs here: reported measures of one attack, each with its interval, and the largest true positive rate that
(epsilon, delta)-DP allows. What does not: lower bounds on epsilon (`bounds`, `fdp`), verdicts.

Averages say little about privacy: an attack that finds three people in a thousand and is never wrong has an area under
the curve near one half (Carlini et al., "Membership Inference Attacks From First Principles", 2022). So rates are given
at 0.1%, 1% and 10% false alarms. The intervals assume independent scores, which canaries in one model have only
approximately: intervals describe, and only a bound without this assumption refutes a claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
from dpsynth_platform.foundation.figures import upper_bound as rounded_up

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
CONFIDENCE = 0.95
"""Of each interval separately."""
EXACT, NEAR = 1.0, 0.75
"""Similarity from which a continuation counts as reconstructed: to the token, or nearly."""
_CORNER = 1e-9


@dataclass(frozen=True)
class RateAt:
    """The true positive rate at one false positive rate.

    Attributes:
        found: share of the included above the threshold.
        false_alarms: share of the held-out above it: the largest within the requested rate.
        resolved: whether the held-out are enough for such a rate; otherwise none of them is above the threshold.
        allowed: the claim's limit at the upper end of `false_alarms`; None without a claim.
    """

    false_positive_rate: float
    found: Rate
    false_alarms: Rate
    resolved: bool
    allowed: float | None

    @property
    def beyond(self) -> bool:
        """Whether both intervals show more found than the claim allows."""
        return self.allowed is not None and self.found.low > self.allowed


@dataclass(frozen=True)
class Risk:
    """The measures of one attack: area under the curve, and rates at 0.1%, 1% and 10% false alarms."""

    area_under_curve: Rate
    rates: tuple[RateAt, ...]


@dataclass(frozen=True)
class Reconstructed:
    """Texts whose suffix a language model reconstructed, among members and among held-out texts.

    `likeness` is the least similarity that counts, 1 for every token. For held-out texts, the suffix was guessed from
    the prefix alone. `p_value` is by `excess_p_value`.
    """

    likeness: float
    members: int
    of_members: int
    held_out: int
    of_held_out: int
    p_value: float

    @property
    def words(self) -> str:
        """The result as a sentence."""
        kind = "word for word" if self.likeness == EXACT else f"with a similarity of at least {self.likeness:.0%}"
        return (
            f"From the first half of a text, the model continued it {kind} for {self.members} of {self.of_members} "
            f"members and for {self.held_out} of {self.of_held_out} others (one-sided p-value of the difference "
            f"{self.p_value:.2g})."
        )


@dataclass(frozen=True)
class SharedFound:
    """What came out of fictional secrets in the records of `owners` owners each, and of held-out ones.

    No verdict depends on it: the guarantee is for one owner.

    Attributes:
        members, held_out: secrets that joined the data, and that did not.
        traces: how many of each left `attacks.RUN` characters in a row in the synthetic texts.
        wholes: how many of each stand there as a whole, in pieces of so many characters.
        continued: how many of each a trained model continues with a similarity of `NEAR`, given the first half; None:
            no model was trained.
        epsilon, delta: what follows for so many owners together from the claim for one; of delta 1, nothing.
    """

    owners: int
    members: int
    held_out: int
    traces: tuple[int, int]
    wholes: tuple[int, int]
    continued: tuple[int, int] | None
    epsilon: float
    delta: float

    @property
    def words(self) -> str:
        """The result as a sentence."""
        of = "one owner" if self.owners == 1 else f"{self.owners} owners"
        model = "" if self.continued is None else f", the model continued {_both(self.continued)} from the first half"
        promised = (
            "nothing is promised"
            if self.delta >= 1
            else f"epsilon {rounded_up(self.epsilon)} and delta {rounded_up(self.delta)} are promised"
        )
        return (
            f"Of {self.members} fictional secrets in the records of {of} each (and of {self.held_out} that did not "
            f"join), {_both(self.traces)} left a trace in the synthetic texts and {_both(self.wholes)} stand there as "
            f"a whole{model}; to {of}{' together' if self.owners > 1 else ''}, {promised}."
        )


def _both(counts: tuple[int, int]) -> str:
    return f"{counts[0]} ({counts[1]})"


def measure_risk(scores: Scores, included: Coins, *, epsilon: float | None, delta: float) -> Risk:
    """The measures of one attack's scores, shape (m,), higher means rather in; without a claim, epsilon is None.

    Raises `AccountingError` if a score is not a number.
    """
    area = area_interval(area_under_curve(scores, included), int(included.sum()), int((~included).sum()), CONFIDENCE)
    return Risk(area, tuple(rate_at(scores, included, rate, epsilon, delta) for rate in FALSE_POSITIVE_RATES))


def rate_at(scores: Scores, included: Coins, rate: float, epsilon: float | None, delta: float) -> RateAt:
    """The true positive rate at one rate of false alarms, with Clopper-Pearson intervals.

    The threshold is an order statistic of the held-out scores, for which the interval is exact (`bounds.error_bounds`).
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

    The threshold with that rate is unknown: the (k+1)-th largest of n held-out scores has a true rate that is
    Beta(k+1, n-k) distributed (`bounds.error_bounds`). So a threshold with no more false alarms gives the lower bound,
    and one with no fewer the upper bound. Half of the level is for the threshold, half for the share of members
    (Clopper and Pearson). k depends on n alone. The scores must be numbers.
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

    Raises `AccountingError` if rate, epsilon or delta is outside its range.
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
    """False and largest true positive rates from `least` to 1, evenly spaced on a logarithmic scale."""
    rates = np.geomspace(least, 1.0, points)
    return rates, np.array([frontier(min(1.0, float(rate)), epsilon, delta) for rate in rates])


def area_interval(area: float, included: int, held_out: int, confidence: float) -> Rate:
    """Two-sided interval of an area under the curve by inverting its score test.

    Newcombe, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic. Part 2" (Statistics
    in Medicine 2006), method 5: Hanley and McNeil's variance at the hypothesized area, with the mean of both sizes. It
    does not collapse where the attack separates the groups perfectly. With an empty group it is 0 to 1.
    """
    if not included or not held_out:
        return Rate(area, 0.0, 1.0)
    wide = float(norm.isf((1 - confidence) / 2))
    others = (included + held_out) / 2 - 1

    def spread(theta: float) -> float:
        shape = 1 + others * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return wide * math.sqrt(max(0.0, theta * (1 - theta) * shape / (included * held_out)))

    # At 0 and 1 the spread is 0, which solves the equation but is no end of the interval.
    inside = min(max(area, _CORNER), 1 - _CORNER)
    low = 0.0 if area <= 0 else float(brentq(lambda theta: area - theta - spread(theta), 0.0, inside))
    high = 1.0 if area >= 1 else float(brentq(lambda theta: theta - area - spread(theta), inside, 1.0))
    return Rate(area, low, high)
