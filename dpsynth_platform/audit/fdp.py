"""Lower bounds by trade-off functions: what guesses in one run prove against the whole curve that was claimed.

What belongs here: trade-off functions (f-DP; Dong, Roth & Su 2022), the test of one against the guesses of a single run
(Mahloujifar, Melis & Chaudhuri, "Auditing f-Differential Privacy in One Run", ICML 2025), and bounds in the family of
Gaussian mechanisms. What does not: bounds that need no more than (epsilon, delta) (`bounds`).

A claim of (epsilon, delta) alone allows any mechanism that keeps it; a claim of a curve allows fewer, so that the same
guesses refute it sooner. What the ledger charges is a curve, so that may be tested without further assumptions: 80
right of 100 guesses on 500 canaries have a p-value of 0.07 under epsilon 1 alone, and of 0.01 under the Renyi curve of
a plan for it. A bound by Gaussian curves says something of mechanisms that are as private as a Gaussian one and no
less: of added Gaussian noise, or of a composition that its curve bounds. It is reported beside the other bound, and no
gate of a release reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

from dpsynth_platform.audit.bounds import Coins, Scores, error_bounds
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.renyi import RenyiCurve

Curve = Callable[[float], float]
"""Of what has this probability in one world: the least probability that it has in a neighbouring one. Where f is the
trade-off function, the inverse of 1 - f."""

_DELTAS = tuple(np.geomspace(1e-9, 0.5, 60).tolist())
"""At which a Renyi curve is turned into pairs of epsilon and delta."""
_PRECISION = 1e-6
_LARGEST_MU = 50.0
_SMALLEST_MU = 1e-6
_HALVINGS = 60


def gaussian_curve(mu: float) -> Curve:
    """The curve of mu-GDP: noise of one standard deviation on a sum that one unit moves by mu (Dong et al., 2.4)."""

    def least(probability: float) -> float:
        return float(ndtr(ndtri(probability) - mu))

    return least


def profile_curve(epsilons: Sequence[float], deltas: Sequence[float]) -> Curve:
    """The curve of all these (epsilon, delta) at once; of one pair, that of approximate DP (Dong et al., prop. 2.5)."""
    pairs: npt.NDArray[np.float64] = np.array([epsilons, deltas], dtype=np.float64)

    def least(probability: float) -> float:
        epsilon, delta = pairs
        below = np.exp(-epsilon) * (probability - delta)
        above = 1 - delta - np.exp(epsilon) * (1 - probability)
        return float(max(0.0, below.max(), above.max()))

    return least


def renyi_profile(curve: RenyiCurve, slack: float, *, epsilon: float, delta: float) -> Curve:
    """What a mechanism of this Renyi curve may do: every (epsilon, delta) that follows from it, and the claimed one.

    Args:
        curve: upper bound on the mechanism's Renyi divergences, both ways.
        slack: delta that the curve does not cover.
        epsilon: that is claimed besides, by whatever accounting.
        delta: of that claim.
    """
    deltas = [item for item in _DELTAS if item > slack]
    return profile_curve([*(curve.epsilon(item - slack) for item in deltas), epsilon], [*deltas, delta])


def is_refuted(curve: Curve, *, canaries: int, guesses: int, right: int, level: float) -> bool:
    """Whether a mechanism of this curve has so many right guesses with a smaller probability than `level`.

    Suppose it had them with probability `level`. The chance that one coin is guessed right, and at least i of all, is
    bounded by the curve from the chance that it is guessed wrong, and at least i-1 are right: its coin alone differs.
    Going down from `right`, that forces so much probability onto smaller numbers that all together exceed one
    (Mahloujifar et al., theorem 3.2 and algorithm 3).

    Args:
        curve: the claim.
        canaries: m, how many had a fair coin, those without a guess included.
        guesses: how many coins were guessed; fixed before the run.
        right: how many of the guesses were right.
        level: one minus the confidence.

    Raises:
        AccountingError: the numbers do not fit together.
    """
    if not 0 <= right <= guesses <= canaries or not 0 < level <= 1:
        raise AccountingError(
            f"audit: {right} right of {guesses} guesses on {canaries} canaries at level {level:g}; accepted: right <= "
            "guesses <= canaries, and a level in (0, 1]"
        )
    hits, misses = level * right / canaries, level * (guesses - right) / canaries
    for number in range(right - 1, -1, -1):
        forced = curve(min(1.0, hits))
        if forced <= misses:
            break  # nothing moves any more
        hits += number / (guesses - number) * (forced - misses)
        misses = forced
    return hits + misses > guesses / canaries


def p_value(curve: Curve, *, canaries: int, guesses: int, right: int) -> float:
    """Largest probability that a mechanism of this curve allows so many right guesses, rounded up."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        # Small levels are told apart by their size, so the middle is a geometric one where there is any.
        middle = high / 4 if low == 0 else math.sqrt(low * high)
        if is_refuted(curve, canaries=canaries, guesses=guesses, right=right, level=middle):
            high = middle
        else:
            low = middle
        if low and high / low < 1 + _PRECISION:
            break
    return high


def gaussian_epsilon_bound(*, canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Epsilon, at delta, of the largest mu whose curve the guesses of one run refute; 0 where they refute none.

    Raises:
        AccountingError: the numbers do not fit together, or delta is 0: no Gaussian mechanism has that.
    """

    def refuted(mu: float) -> bool:
        return is_refuted(gaussian_curve(mu), canaries=canaries, guesses=guesses, right=right, level=1 - confidence)

    low, high = 0.0, _LARGEST_MU
    if not refuted(_SMALLEST_MU):
        return gaussian_epsilon(0.0, delta)
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return gaussian_epsilon(low, delta)


def gaussian_runs_bound(scores: Scores, included: Coins, *, delta: float, confidence: float) -> float:
    """Epsilon, at delta, of the least mu that allows what repeated runs showed (Nasr et al. 2023, section 4.3).

    Args:
        scores: shape (runs,), one score a run, independent of each other.
        included: shape (runs,), whether the run had the canary.
        delta: of the claim.
        confidence: of the bound, over all thresholds together.

    Raises:
        AccountingError: a score is not a number, or delta is 0.
    """
    return gaussian_epsilon(mu_of_errors(error_bounds(scores, included, confidence)), delta)


def mu_of_errors(errors: Sequence[tuple[float, float]]) -> float:
    """The least mu that allows tests with these upper bounds on both error rates; 0 where none is needed."""
    return max([0.0, *(float(ndtri(1 - alarms) - ndtri(missed)) for alarms, missed in errors)])


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of mu-GDP at this delta, rounded down (Dong, Roth & Su 2022, corollary 2.13; Balle & Wang 2018).

    Raises:
        AccountingError: delta is not in (0, 1), or mu is negative.
    """
    if not 0 < delta < 1 or mu < 0:
        raise AccountingError(f"audit: mu {mu:g} at delta {delta:g}; accepted: mu >= 0 and a delta in (0, 1)")
    low, high = 0.0, mu * (mu / 2 + 40)
    if gaussian_delta(mu, low) <= delta:
        return 0.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return low


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The delta of mu-GDP at this epsilon."""
    if mu == 0:
        return 0.0
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose mechanism is (epsilon, delta)-DP, rounded down: the claim as one of a Gaussian mechanism."""
    low, high = 0.0, _LARGEST_MU
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, epsilon) <= delta else (low, middle)
    return low
