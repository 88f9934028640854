"""What the scores of canaries prove: lower bounds on epsilon, true positive rates and their confidence.

What belongs here: statistics of an audit as pure functions of scores and coins. What does not: how a score comes about
(`attacks`), or what follows from a bound (`verdict`).

The bound is that of Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (NeurIPS 2023): m
canaries enter by independent fair coins, the attacker guesses r of the coins and abstains on the others. If the
mechanism is (epsilon, delta)-DP for one canary's whole contribution, few more than r·e^epsilon/(1+e^epsilon) guesses
are right, whatever the attacker does. One canary owner is one privacy unit, so the bound speaks of the same epsilon as
the guarantee.

Where the mechanism was run many times instead, each run on its own in a world with or without one canary, the bound
is that of Jagielski, Ullman and Oprea, "Auditing Differentially Private Machine Learning" (NeurIPS 2020): both error
rates of a test have exact upper bounds, and what (epsilon, delta)-DP allows of them gives epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpsynth_platform.foundation.errors import AccountingError

Scores = npt.NDArray[np.float64]
Coins = npt.NDArray[np.bool_]
Alike = npt.NDArray[np.int64]
"""Of each canary, a number for what can be seen of it: canaries with equal numbers cannot be told apart."""

_PRECISION = 1e-4
_LARGEST_EPSILON = 100.0
_ROUNDING = 1e-9
RANKS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Shares of false alarms at which repeated runs are judged; fixed beforehand, and paid for by a union bound."""


@dataclass(frozen=True)
class Rate:
    """A rate with its two-sided Clopper-Pearson interval."""

    value: float
    low: float
    high: float


def p_value(*, canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Largest probability that an (epsilon, delta)-DP mechanism allows so many right guesses.

    Steinke et al. 2023, Theorem 5.2: P[W >= v] <= beta + 2·m·delta·alpha, with W' ~ Binomial(r, e^eps/(1+e^eps)),
    beta = P[W' >= v] and alpha = max over i of P[v > W' >= v-i]/i.

    Args:
        canaries: m, how many had a coin, those without a guess included.
        guesses: r, how many coins were guessed; fixed before the run.
        right: v, how many of the guesses were right.
        epsilon: the claim to be tested.
        delta: the claim's delta.

    Raises:
        AccountingError: the numbers do not fit together.
    """
    if not 0 <= right <= guesses <= canaries or epsilon < 0 or not 0 <= delta < 1:
        raise AccountingError(
            f"audit: {right} right of {guesses} guesses on {canaries} canaries at epsilon {epsilon:g}, delta "
            f"{delta:g}; accepted: right <= guesses <= canaries, epsilon >= 0 and delta in [0, 1)"
        )
    probability = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(right - 1, guesses, probability))
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, probability))
    alpha = float(np.max(below / np.arange(1, right + 1), initial=0.0))
    return min(1.0, beta + 2 * canaries * delta * alpha)


def epsilon_lower_bound(*, canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Largest epsilon that the guesses refute at this confidence, rounded down; 0 where they refute none.

    A mechanism that is (epsilon, delta)-DP for a smaller epsilon is so for a larger one too, hence whatever epsilon
    is refuted refutes all below it.
    """
    level = 1 - confidence

    def refuted(epsilon: float) -> bool:
        return p_value(canaries=canaries, guesses=guesses, right=right, epsilon=epsilon, delta=delta) <= level

    low, high = 0.0, _LARGEST_EPSILON
    if not refuted(low):
        return 0.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def highest_bound(*, canaries: int, guesses: int, delta: float, confidence: float) -> float:
    """The bound if every guess were right: nothing above it can be shown.

    Where canaries are alike, so many right guesses are not to be had: see `best_right`.
    """
    return epsilon_lower_bound(canaries=canaries, guesses=guesses, right=guesses, delta=delta, confidence=confidence)


def best_right(alike: Alike, included: Coins, *, guess_in: int, guess_out: int) -> int:
    """Right guesses, in the mean and rounded down, of whoever knows how many of each set of equal canaries were in.

    A mechanism reads rows, and of equal ones only their number can matter. Given the numbers, the coins of equal
    canaries are exchangeable, so that each of n is in with probability k/n, where k of them are; who guesses the
    surest ones has most right guesses in the mean, whatever else the mechanism gives away. More can be right by luck
    alone. The mean over the order of equal canaries is taken with the coins as they fell; where all canaries differ,
    every guess is right as long as there are enough of either kind.

    Args:
        alike: shape (m,).
        included: shape (m,), the coins.
        guess_in: how many are guessed to be in.
        guess_out: how many are guessed to be out; together no more than there are canaries.
    """
    chances = np.sort(known_chances(alike, included))
    right = float(chances[chances.size - guess_in :].sum() + (1 - chances[:guess_out]).sum())
    return math.floor(right + _ROUNDING)


def known_chances(alike: Alike, included: Coins) -> Scores:
    """Of each canary the share of those equal to it, itself among them, that were in; shape (m,).

    No score tells more: whatever a mechanism gives away of equal canaries is their number.
    """
    _, place, sizes = np.unique(alike, return_inverse=True, return_counts=True)
    return np.asarray((np.bincount(place, weights=included) / sizes)[place], dtype=np.float64)


def right_needed(*, canaries: int, guesses: int, epsilon: float, delta: float, confidence: float) -> int | None:
    """How many of the guesses must be right to refute `epsilon`; None where even all of them would not do."""
    # No p-value is below that at delta 0, so that fewer right guesses than refute there need not be tried.
    least = int(stats.binom.isf(1 - confidence, guesses, 1 / (1 + math.exp(-epsilon)))) if guesses else 0
    for right in range(max(0, least), guesses + 1):
        if p_value(canaries=canaries, guesses=guesses, right=right, epsilon=epsilon, delta=delta) <= 1 - confidence:
            return right
    return None


def visible_from(guesses: int, right_needed: int, probability: float) -> float:
    """Least epsilon whose randomized response gives so many right guesses with this probability, rounded up.

    No attack on a mechanism of pure epsilon does better than on randomized response, so of a mechanism with less the
    audit sees nothing as often, whatever the attack.
    """
    share = float(stats.beta.ppf(probability, right_needed, guesses - right_needed + 1)) if right_needed else 0.0
    return max(0.0, math.log(share / (1 - share))) if 0 < share < 1 else 0.0


def clopper_pearson_epsilon(
    *, found: int, included: int, false_alarms: int, held_out: int, delta: float, confidence: float
) -> float:
    """Epsilon that the error rates of one test over repeated, independent runs prove; 0 where they prove none.

    The test's threshold must not depend on these runs. Both error rates are bounded from above at half of the level
    each (Clopper-Pearson), which both ways of reading the test share.

    Args:
        found: runs with the canary that the test says "in" of.
        included: runs with the canary.
        false_alarms: runs without it that the test says "in" of.
        held_out: runs without it.
        delta: the claim's delta.
        confidence: of the bound.

    Raises:
        AccountingError: the numbers do not fit together.
    """
    if not (0 <= found <= included and 0 <= false_alarms <= held_out and 0 <= delta < 1):
        raise AccountingError(
            f"audit: {found} of {included} found, {false_alarms} of {held_out} false alarms at delta {delta:g}; "
            "accepted: no more than there are runs, and delta in [0, 1)"
        )
    missed = upper_bound(included - found, included, (1 - confidence) / 2)
    alarms = upper_bound(false_alarms, held_out, (1 - confidence) / 2)
    return epsilon_of_errors([(alarms, missed)], delta)


def repeated_runs_bound(scores: Scores, included: Coins, *, delta: float, confidence: float) -> float:
    """Epsilon that the scores of repeated, independent runs prove, over fixed shares of false alarms and of misses.

    Args:
        scores: shape (runs,), one score a run.
        included: shape (runs,), whether the run had the canary.
        delta: the claim's delta.
        confidence: of the bound, over all thresholds together.

    Raises:
        AccountingError: a score is not a number.
    """
    return epsilon_of_errors(error_bounds(scores, included, confidence), delta)


def epsilon_of_errors(errors: Sequence[tuple[float, float]], delta: float) -> float:
    """The least epsilon that allows tests with all these errors; 0 where none is needed (Kairouz et al. 2015).

    Args:
        errors: upper bounds on false positive and false negative rate of each test.
        delta: of the claim.
    """
    ratios = [
        (1 - other - delta) / one for alarms, missed in errors for one, other in ((alarms, missed), (missed, alarms))
    ]
    return max(0.0, math.log(max(1.0, *ratios))) if ratios else 0.0


def error_bounds(scores: Scores, included: Coins, confidence: float) -> list[tuple[float, float]]:
    """Upper bounds on false positive and false negative rate of tests at fixed ranks; all hold together.

    A threshold that is the (k+1)-th largest of n independent held-out scores has k/n false alarms in the sample, and a
    true rate that is Beta(k+1, n-k) distributed at most: the Clopper-Pearson bound of k among n is exact for it,
    although the threshold was read from the same scores. Likewise with included and held-out scores exchanged.

    Args:
        scores: shape (runs,), independent of each other.
        included: shape (runs,).
        confidence: of all bounds together; shared out alike among the ranks, both directions and both errors.
    """
    _check(scores, included)
    level = (1 - confidence) / (4 * len(RANKS))
    inside, outside = scores[included], scores[~included]
    if not inside.size or not outside.size:
        return []
    ahead = [_errors_at(outside, inside, share, level) for share in RANKS]
    behind = [_errors_at(-inside, -outside, share, level) for share in RANKS]
    return ahead + [(alarms, missed) for missed, alarms in behind]


def upper_bound(successes: int, trials: int, level: float) -> float:
    """One-sided upper bound of a binomial rate, exceeded with probability `level` at most (Clopper-Pearson)."""
    return 1.0 if successes == trials else float(stats.beta.isf(level, successes + 1, trials - successes))


def each_confidence(confidence: float, tests: int) -> float:
    """Confidence that each of several tests needs so that all hold together at `confidence` (Bonferroni)."""
    return 1 - (1 - confidence) / tests


def count_right(scores: Scores, included: Coins, *, guess_in: int, guess_out: int) -> int:
    """Right guesses when the highest scores are guessed to be in and the lowest out.

    Ties go by position, which must not depend on the coins.

    Args:
        scores: shape (m,), higher means rather in.
        included: shape (m,), the coins.
        guess_in: how many of the highest scores are guessed in.
        guess_out: how many of the lowest scores are guessed out.

    Raises:
        AccountingError: a score is not a number, or there are more guesses than canaries.
    """
    _check(scores, included)
    if guess_in + guess_out > scores.size:
        raise AccountingError(f"audit: {guess_in + guess_out} guesses on {scores.size} canaries; accepted: fewer")
    order = np.argsort(scores, kind="stable")
    said_in = included[order[scores.size - guess_in :]]
    said_out = included[order[:guess_out]]
    return int(said_in.sum() + (~said_out).sum())


def true_positive_rate(
    scores: Scores, included: Coins, *, false_positive_rate: float = 0.01, confidence: float = 0.95
) -> Rate:
    """Share of the included canaries above the lowest threshold that at most this share of the others exceed.

    The interval is exact for the threshold that was used; that threshold's own false positive rate is an estimate
    from the held-out canaries, and coarse where they are fewer than a few hundred. Where all canaries fell on one
    side, the rate is 0 and its interval says what little that means.

    Raises:
        AccountingError: a score is not a number.
    """
    _check(scores, included)
    members, others = scores[included], np.sort(scores[~included])[::-1]
    threshold = others[math.floor(false_positive_rate * others.size)] if others.size else math.inf
    hits = int((members > threshold).sum())
    low, high = clopper_pearson(hits, members.size, confidence)
    return Rate(hits / max(1, members.size), low, high)


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Exact two-sided interval of a binomial rate (Clopper and Pearson 1934)."""
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, trials - successes + 1))
    high = 1.0 if successes == trials else float(stats.beta.ppf(1 - tail, successes + 1, trials - successes))
    return low, high


def area_under_curve(scores: Scores, included: Coins) -> float:
    """Probability that an included canary scores above a held-out one, ties counting half (Mann-Whitney)."""
    _check(scores, included)
    members, others = int(included.sum()), int((~included).sum())
    if not members or not others:
        return 0.5
    ranks = stats.rankdata(scores)[included].sum()
    return float((ranks - members * (members + 1) / 2) / (members * others))


def roc_curve(scores: Scores, included: Coins) -> tuple[Scores, Scores]:
    """False and true positive rates at every distinct threshold, from (0, 0) to (1, 1)."""
    _check(scores, included)
    order = np.argsort(-scores, kind="stable")
    last_of_tie = np.append(np.diff(scores[order]) != 0, True)
    hits = np.cumsum(included[order])[last_of_tie]
    alarms = np.cumsum(~included[order])[last_of_tie]
    return (
        np.concatenate([[0.0], alarms / max(1, (~included).sum())]),
        np.concatenate([[0.0], hits / max(1, included.sum())]),
    )


def _errors_at(reference: Scores, others: Scores, share: float, level: float) -> tuple[float, float]:
    """Bounds on the shares of `reference` above a threshold at a rank of its own, and of `others` not above it."""
    allowed = math.floor(share * reference.size)
    threshold = np.sort(reference)[::-1][allowed]
    missed = int((others <= threshold).sum())
    return upper_bound(allowed, reference.size, level), upper_bound(missed, others.size, level)


def _check(scores: Scores, included: Coins) -> None:
    if scores.shape != included.shape or scores.ndim != 1 or np.isnan(scores).any():
        raise AccountingError("audit: accepted are one score that is a number and one coin for every canary")
