"""What the scores of canaries prove: lower bounds on epsilon, true positive rates and their confidence.

What belongs here: statistics of an audit as pure functions of scores and coins. What does not: computing scores
(`attacks`), and conclusions from a bound (`verdict`).

For one run the bound is that of Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (NeurIPS
2023): m canaries enter by independent fair coins; the attacker guesses r of the coins and abstains on the others. If
the mechanism is (epsilon, delta)-DP for one canary's whole contribution, few more than r·e^epsilon/(1+e^epsilon)
guesses are right, for any attacker. One canary owner is one privacy unit, so the bound and the guarantee have the same
epsilon.

For many runs, each with or without one canary, the bound is that of Jagielski, Ullman and Oprea, "Auditing
Differentially Private Machine Learning" (NeurIPS 2020): both error rates of a test have exact upper bounds, and their
(epsilon, delta)-DP constraint gives epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpsynth_platform.foundation.errors import AccountingError

Scores = npt.NDArray[np.float64]
Coins = npt.NDArray[np.bool_]
Duplicates = npt.NDArray[np.int64]
"""A number for each canary; no attack can distinguish canaries with equal numbers."""

_PRECISION = 1e-4
_LARGEST_EPSILON = 100.0
_ROUNDING = 1e-9
RANKS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
"""False positive rates at which repeated runs are judged; fixed in advance, and paid for by a union bound."""


@dataclass(frozen=True)
class Rate:
    """A rate with its two-sided Clopper-Pearson interval."""

    value: float
    low: float
    high: float


def p_value(*, canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Largest probability that an (epsilon, delta)-DP mechanism allows so many right guesses.

    Steinke et al. 2023, Theorem 5.2: P[W >= v] <= beta + 2·m·delta·alpha, with W' ~ Binomial(r, e^eps/(1+e^eps)),
    beta = P[W' >= v] and alpha = max over i of P[v > W' >= v-i]/i. Here m are all canaries, also those without a guess,
    r the guesses, fixed before the run, and v the right ones. Raises `AccountingError` for inconsistent numbers.
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

    (epsilon, delta)-DP implies the same for a larger epsilon, so refuting one epsilon refutes all below it.
    """
    level = 1 - confidence

    def refuted(epsilon: float) -> bool:
        return p_value(canaries=canaries, guesses=guesses, right=right, epsilon=epsilon, delta=delta) <= level

    return largest(refuted, _LARGEST_EPSILON, _PRECISION) if refuted(0.0) else 0.0


def largest(holds: Callable[[float], bool], most: float, precision: float) -> float:
    """The largest number from 0 to `most` for which a monotone condition holds, by bisection; rounded down."""
    low, high = 0.0, most
    while high - low > precision:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def highest_bound(*, canaries: int, guesses: int, delta: float, confidence: float) -> float:
    """The bound if every guess were right; with equal canaries even less can be shown (`best_right`)."""
    return epsilon_lower_bound(canaries=canaries, guesses=guesses, right=guesses, delta=delta, confidence=confidence)


def best_right(duplicates: Duplicates, included: Coins, *, guess_in: int, guess_out: int) -> int:
    """Expected right guesses, rounded down, of an attacker who knows how many of each set of equal canaries were in.

    A mechanism reads rows, and of equal ones only their number can matter. Given the numbers, the coins of equal
    canaries are exchangeable: if k of n were in, each was in with probability k/n. Guessing the most certain ones
    maximizes the expectation, whatever else the mechanism reveals; only luck gives more. The expectation is over the
    order of equal canaries, with the coins as tossed. Where all canaries differ, every guess is right if there are
    enough of either kind. There are at most m guesses, with `duplicates` and the coins of shape (m,).
    """
    chances = np.sort(known_chances(duplicates, included))
    right = float(chances[chances.size - guess_in :].sum() + (1 - chances[:guess_out]).sum())
    return math.floor(right + _ROUNDING)


def known_chances(duplicates: Duplicates, included: Coins) -> Scores:
    """Share of each canary's set of equal canaries that was in; shape (m,).

    No score reveals more: of equal canaries a mechanism can reveal only their number.
    """
    _, place, sizes = np.unique(duplicates, return_inverse=True, return_counts=True)
    return np.asarray((np.bincount(place, weights=included) / sizes)[place], dtype=np.float64)


def right_needed(*, canaries: int, guesses: int, epsilon: float, delta: float, confidence: float) -> int | None:
    """Number of right guesses that refute `epsilon`; None where even all of them do not."""
    # A p-value is at least the one at delta 0, so the search starts at the number that refutes there.
    least = int(stats.binom.isf(1 - confidence, guesses, 1 / (1 + math.exp(-epsilon)))) if guesses else 0
    for right in range(max(0, least), guesses + 1):
        if p_value(canaries=canaries, guesses=guesses, right=right, epsilon=epsilon, delta=delta) <= 1 - confidence:
            return right
    return None


def visible_from(guesses: int, right_needed: int, probability: float) -> float:
    """Least epsilon whose randomized response gives so many right guesses with this probability, rounded up.

    No attack on a pure epsilon-DP mechanism beats the one on randomized response, so the audit detects a mechanism of
    a smaller epsilon less often, with any attack.
    """
    share = float(stats.beta.ppf(probability, right_needed, guesses - right_needed + 1)) if right_needed else 0.0
    return max(0.0, math.log(share / (1 - share))) if 0 < share < 1 else 0.0


def clopper_pearson_epsilon(
    *, found: int, included: int, false_alarms: int, held_out: int, delta: float, confidence: float
) -> float:
    """Epsilon that the error rates of one test over repeated, independent runs prove; 0 where they prove none.

    The test's threshold must not depend on these runs: it found the canary in `found` of the `included` runs with it,
    and in `false_alarms` of the `held_out` ones. Each error rate gets an upper bound at half of the level
    (Clopper-Pearson), for both directions of the test. Raises `AccountingError` for inconsistent numbers.
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
    """Epsilon that the scores of repeated, independent runs prove, over all thresholds of `error_bounds` together."""
    return epsilon_of_errors(error_bounds(scores, included, confidence), delta)


def epsilon_of_errors(errors: Sequence[tuple[float, float]], delta: float) -> float:
    """The least epsilon that allows tests with these upper bounds on both error rates (Kairouz et al. 2015)."""
    ratios = [
        (1 - other - delta) / one for alarms, missed in errors for one, other in ((alarms, missed), (missed, alarms))
    ]
    return max(0.0, math.log(max(1.0, *ratios))) if ratios else 0.0


def error_bounds(scores: Scores, included: Coins, confidence: float) -> list[tuple[float, float]]:
    """Upper bounds on false positive and false negative rate of tests at fixed ranks; all hold together.

    A threshold that is the (k+1)-th largest of n independent held-out scores has k/n false alarms in the sample, and a
    true rate that is at most Beta(k+1, n-k) distributed: the Clopper-Pearson bound of k among n is exact for it,
    although the threshold comes from the same scores. The same holds with included and held-out scores exchanged. The
    level is split equally among the ranks, both directions and both errors.

    Args:
        scores: shape (runs,), independent of each other.
        included: shape (runs,), whether the run had the canary.
        confidence: of all bounds together.

    Raises:
        AccountingError: a score is not a number.
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
    """Right guesses when the highest scores, shape (m,), are guessed in and the lowest out.

    Position breaks ties, so it must not depend on the coins. Raises `AccountingError` if a score is not a number, or
    there are more guesses than canaries.
    """
    _check(scores, included)
    if guess_in + guess_out > scores.size:
        raise AccountingError(f"audit: {guess_in + guess_out} guesses on {scores.size} canaries; accepted: fewer")
    order = np.argsort(scores, kind="stable")
    guessed_in = included[order[scores.size - guess_in :]]
    guessed_out = included[order[:guess_out]]
    return int(guessed_in.sum() + (~guessed_out).sum())


def true_positive_rate(
    scores: Scores, included: Coins, *, false_positive_rate: float = 0.01, confidence: float = 0.95
) -> Rate:
    """Share of the included canaries above the lowest threshold that at most this share of the others exceed.

    The interval is exact for this threshold. The threshold's own false positive rate is an estimate from the held-out
    canaries, and coarse with fewer than a few hundred. Where one of the groups is empty, the rate is 0.
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
    """Bounds on the shares of `reference` above the threshold at its rank `share`, and of `others` not above it."""
    allowed = math.floor(share * reference.size)
    threshold = np.sort(reference)[::-1][allowed]
    missed = int((others <= threshold).sum())
    return upper_bound(allowed, reference.size, level), upper_bound(missed, others.size, level)


def _check(scores: Scores, included: Coins) -> None:
    if scores.shape != included.shape or scores.ndim != 1 or np.isnan(scores).any():
        raise AccountingError(
            f"audit: scores of shape {scores.shape} with {int(np.isnan(scores).sum())} missing, coins of shape "
            f"{included.shape}; accepted: one score that is a number and one coin for every canary"
        )
