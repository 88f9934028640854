"""Lower bounds by trade-off functions: what guesses in one run prove against the whole claimed curve.

What belongs here: trade-off functions (f-DP; Dong, Roth & Su 2022), testing one against the guesses of a single run
(Mahloujifar, Melis & Chaudhuri, "Auditing f-Differential Privacy in One Run", ICML 2025), and bounds in the family of
Gaussian mechanisms. What does not: bounds that need only (epsilon, delta) (`bounds`).

A curve allows fewer mechanisms than one pair (epsilon, delta), so the same guesses refute it sooner. The ledger charges
a curve, so testing it needs no further assumptions: 80 right of 100 guesses on 500 canaries have a p-value of 0.07
under epsilon 1 alone, and of 0.01 under the Renyi curve of a plan for it. A bound by Gaussian curves holds only for
mechanisms with the privacy curve of a Gaussian one: added Gaussian noise, or a composition that its curve bounds. The
report shows it; no gate of a release reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

from dpsynth_platform.audit.bounds import Coins, Scores, error_bounds, largest
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.renyi import RenyiCurve

Curve = Callable[[float], float]
"""From an event's probability in one world to its least probability in a neighbouring one: the inverse of 1 - f, where
f is the trade-off function."""

_DELTAS = tuple(np.geomspace(1e-9, 0.5, 60).tolist())
"""At which a Renyi curve is converted into pairs of epsilon and delta."""
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
    """The curve of every (epsilon, delta) that follows from a Renyi curve, and of the claimed one by any accounting.

    The Renyi curve bounds the divergences in both directions, except for a delta of `slack`.
    """
    deltas = [item for item in _DELTAS if item > slack]
    return profile_curve([*(curve.epsilon(item - slack) for item in deltas), epsilon], [*deltas, delta])


def is_refuted(curve: Curve, *, canaries: int, guesses: int, right: int, level: float) -> bool:
    """Whether a mechanism of this curve has so many right guesses with a smaller probability than `level`.

    Suppose it had them with probability `level`. Two events differ in one coin alone: it is guessed right and at least
    i of all are right; it is guessed wrong and at least i-1 are right. The curve bounds the one's probability by the
    other's. Downwards from `right`, this forces probability onto smaller numbers until the total exceeds one
    (Mahloujifar et al., theorem 3.2 and algorithm 3). Canaries are all fair coins, also those without a guess; the
    number of guesses is fixed before the run. Raises `AccountingError` for inconsistent numbers.
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
            break
        hits += number / (guesses - number) * (forced - misses)
        misses = forced
    return hits + misses > guesses / canaries


def p_value(curve: Curve, *, canaries: int, guesses: int, right: int) -> float:
    """Largest probability that a mechanism of this curve allows so many right guesses, rounded up."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        # Small levels differ by orders of magnitude, so the middle is geometric where possible.
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

    Raises `AccountingError` for inconsistent numbers, and for a delta of 0, which no Gaussian mechanism has.
    """

    def refuted(mu: float) -> bool:
        return is_refuted(gaussian_curve(mu), canaries=canaries, guesses=guesses, right=right, level=1 - confidence)

    mu = largest(refuted, _LARGEST_MU, _PRECISION) if refuted(_SMALLEST_MU) else 0.0
    return gaussian_epsilon(mu, delta)


def gaussian_runs_bound(scores: Scores, included: Coins, *, delta: float, confidence: float) -> float:
    """Like `bounds.repeated_runs_bound`, for Gaussian mechanisms (Nasr et al. 2023, section 4.3); delta is above 0."""
    return gaussian_epsilon(mu_of_errors(error_bounds(scores, included, confidence)), delta)


def mu_of_errors(errors: Sequence[tuple[float, float]]) -> float:
    """The least mu that allows tests with these upper bounds on both error rates."""
    return max([0.0, *(float(ndtri(1 - alarms) - ndtri(missed)) for alarms, missed in errors)])


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of mu-GDP at this delta, rounded down (Dong, Roth & Su 2022, corollary 2.13; Balle & Wang 2018)."""
    if not 0 < delta < 1 or mu < 0:
        raise AccountingError(f"audit: mu {mu:g} at delta {delta:g}; accepted: mu >= 0 and a delta in (0, 1)")
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    return largest(lambda epsilon: gaussian_delta(mu, epsilon) > delta, mu * (mu / 2 + 40), _PRECISION)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The delta of mu-GDP at this epsilon."""
    if mu == 0:
        return 0.0
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose mechanism is (epsilon, delta)-DP, rounded down."""
    return largest(lambda mu: gaussian_delta(mu, epsilon) <= delta, _LARGEST_MU, _PRECISION)
