"""What privacy events cost: Renyi curves, privacy loss distributions, and the noise that meets a guarantee.

What belongs here: pure functions from an event tree (`events`) to upper bounds on epsilon, and the calibration of a
mechanism's noise to a guarantee. What does not: what was spent so far (`ledger`).

Two bounds are computed and the smaller is claimed, by name:

- **Renyi** composes by adding curves, and is what the ledger adds up.
- **PLD** composes the hockey-stick curves of dominating pairs (Zhu, Dong & Wang 2022) and is tighter. For what
  `dp_accounting` has no curve, ours is the pointwise maximum over everything that a neighbour can be: over t for the
  exponential mechanism (Dong, Durfee & Rogers 2020), over all ways in which one unit's records fall into cells for
  discrete Gaussian counts. Mixtures of Gaussians have theirs from `mixtures`; Gaussians have `dp_accounting`'s. That
  discretizes all of them pessimistically ("connect the dots", Doroshenko et al. 2022) and composes.

A mechanism that may show what only one unit has (`ThresholdedEvent`) has no finite curve. Its cost includes a slack,
which is subtracted from delta before either bound is computed. Every rounding is conservative.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.events import (
    BestRunEvent,
    BoundedRangeSelectionEvent,
    DpEvent,
    GaussianCountsEvent,
    GaussianMeasuresEvent,
    GaussianSumsEvent,
    GaussianVotesEvent,
    LocalReportsEvent,
    SampledGaussianEvent,
    SkellamCountsEvent,
    SkellamSumsEvent,
    ThresholdedCountsEvent,
    ThresholdedEvent,
    histories,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.mixtures import SampledMixture
from dpsynth_platform.privacy.renyi import ORDERS, RenyiCurve, zcdp_limit
from dpsynth_platform.privacy.sampled import sampled_gaussian_renyi
from dpsynth_platform.privacy.skellam import TAIL_BITS, skellam_hockey_stick, skellam_reach, skellam_renyi
from dpsynth_platform.privacy.units import RECORD_PARTS, replaces

Array = NDArray[np.float64]
_GAUSSIAN = (
    GaussianCountsEvent,
    GaussianMeasuresEvent,
    GaussianSumsEvent,
    GaussianVotesEvent,
)

# Shift patterns to try for one vector of counts, and the most cells of one pattern's distribution. Beyond either (b
# above 8, or 4 where records are replaced; sigma in the thousands) the release claims its Renyi bound.
MAX_SHIFTS = 70
MAX_CELLS = 2**18
# Losses beyond this overflow; no useful guarantee has them.
MAX_LOSS = 300.0
# Grid points of one leaf's losses; a grid that would need more is made coarser, which rounds up more.
MAX_LOSSES = 2**20
# The FFT's rounding noise (`fft_error`) is subtracted from delta. Below this multiple of the noise only Renyi is used.
LEAST_FFT_ERROR = 1e-12
FFT_MARGIN = 100
# Tail mass that a composition may move to an infinite loss; and that repetitions may, as in `dp_accounting`.
TAIL_MASS = 1e-17
REPEATED_TAIL_MASS = 1e-15
# Orders of the Chernoff bounds on a repeated loss, divided by the number of its grid points, as in `dp_accounting`.
CHERNOFF_ORDERS = 20
# Records of one unit in a sample up to which mixtures of Gaussians are tabulated.
MAX_MIXTURE = 64
# Choices whose joint curve is found before such curves are composed, and parts of a choice's range in doing so.
CHOICES_AT_ONCE = 64
RANGE_PARTS = 64
# Discrete Gaussian noise is tabulated up to this many sigma; 3e-19 of its mass lies beyond.
TAIL_SIGMAS = 9

# Sigma is a multiple of 2^-10 and epsilon one of 2^-20: exact as binary floats and as decimals, so that plan,
# sampler and accountant mean the same number.
SIGMA_STEP = 2.0**-10
# What is drawn (`synth.tabular.noise`): if wider, double precision decides few draws; if narrower, it is off the grid.
SIGMA_RANGE = (SIGMA_STEP, 2.0**30)
EPSILON_STEP = 2.0**-20
RHO_RANGE = (1e-9, 1e4)
# Relative precision of a calibrated rho, and how often its place is aimed at before it is bisected.
STEP = 2.0**-10
MAX_AIMED = 5


@dataclass(frozen=True)
class EpsilonResult:
    """The smaller of two upper bounds on epsilon at `delta`, which may be claimed.

    Attributes:
        method: the bound that gave `epsilon`.
        pld: the PLD bound, or None where `pld_epsilon` does not apply.
    """

    epsilon: float
    delta: float
    method: Literal["pld", "renyi"]
    pld: float | None
    renyi: float


@dataclass(frozen=True)
class Cost:
    """What an event costs, as the ledger adds it up: a Renyi curve, and a slack on delta that adds up separately."""

    curve: RenyiCurve
    delta_slack: float


def cost(event: DpEvent) -> Cost:
    """Upper bound on the event's Renyi divergence at every order of `ORDERS`, and its slack on delta.

    Discrete and continuous Gaussian counts, and votes: alpha L2^2 / (2 sigma^2) (Canonne, Kamath & Steinke 2020,
    proposition 5, for vectors). Skellam noise: `skellam`. Private reports: `pure_renyi`. Bounded-range selection: alpha
    epsilon^2 / 8 (Cesar & Rogers 2021, lemma 4.2), never above epsilon. Sampled Gaussian: `sampled`. Thresholded
    counts: `threshold_slack`. Parallel branches: the largest, order by order. The best of runs: `_best_run_curve`.

    Raises:
        AccountingError: an event that cannot be accounted for, or whose slack is 1 or more.
    """
    slack = delta_slack(event)
    if not slack < 1:
        raise AccountingError("the thresholds are so low that nothing is promised; accepted: higher thresholds")
    totals = []
    for way in histories(event):
        total = np.zeros(len(ORDERS))
        for leaf, times in way.items():
            total += _leaf_curve(_core(leaf), times) - times * math.log1p(-threshold_slack(leaf))
        totals.append(total)
    return Cost(RenyiCurve.upper(np.max(totals, axis=0).tolist()), slack)


def delta_slack(event: DpEvent) -> float:
    """What thresholds take off delta, in the worst of one unit's ways; 1 or more promises nothing."""
    ways = (sum(times * threshold_slack(leaf) for leaf, times in way.items()) for way in histories(event))
    return max(ways) * (1 + 2.0**-40)


def renyi_curve(event: DpEvent) -> RenyiCurve:
    """The curve of an event without slack; see `cost`.

    Raises:
        AccountingError: an event that cannot be accounted for, or one whose curve is only a part of its cost.
    """
    found = cost(event)
    if found.delta_slack:
        raise AccountingError("the event needs a slack on delta beside its Renyi curve; accepted: events without")
    return found.curve


def threshold_slack(event: DpEvent) -> float:
    """The chance that thresholded counts show a cell that only one unit has; 0 for other events.

    Let D' be D with one unit's records added, U the cells that only those records are in, and E the event that a cell
    of U passes; P[E] <= slack. Without E, the output on D' is that of noisy counts of the cells of D alone, moved by
    the unit's other records, since cells have independent noise; call it M'. So for every set S of outputs

        P[M(D') in S] <= P[E] + P[M' in S]    and    P[M' in S] = P[M(D') in S | not E] <= P[M(D') in S] / (1 - slack),

    and M' and M(D) are neighbours of the counts event. Leaving U out changes delta by the slack in one direction and
    epsilon by -log(1 - slack) in the other (which `cost` adds to the curve). Where records are replaced, both datasets
    have such cells, and both changes count for either direction. Both also hold for what depends on the output: replace
    S by what the whole shows.

    The slack: a cell of v records passes with P[noise >= threshold - v]. Noise is whole, so that is P[noise >= c] for
    c the next whole number: at most P[N >= c - 1] of the discrete Gaussian, N the continuous one (Canonne, Kamath &
    Steinke 2020, proposition 23), and P[N >= c - 1/2] of the rounded one, exactly. A unit's b records make cells of
    v_1, v_2, ... records with a sum of at most b, so that the sum of their chances, the union bound, is at most b times
    the largest chance per record.

    Where owners are counted, a unit's records make at most b cells that weigh 1 together, and noise is rounded to a
    U-th of a record: a cell of weight w passes with f(w) = P[N >= threshold - w - 1 / 2U]. f is convex, as the normal
    tail is above 0, so that f(w) <= w f(1) + (1 - w) f(0), and the sum over the cells is at most f(1) + (b - 1) f(0).
    """
    from scipy.stats import norm

    if not isinstance(event, ThresholdedEvent):
        return 0.0
    if getattr(event, "weighting", "rows") == "owners":
        whole, empty = norm.sf((event.threshold - np.array([1.0, 0.0]) - 0.5 / RECORD_PARTS) / event.sigma)
        return float(whole + (event.max_contributions - 1) * empty)
    rounding = 1.0 if isinstance(event, ThresholdedCountsEvent) else 0.5
    records = np.arange(1, event.max_contributions + 1)
    passing = norm.sf((np.ceil(event.threshold - records) - rounding) / event.sigma)
    return float(event.max_contributions * np.max(passing / records))


def epsilon(event: DpEvent, delta: float) -> EpsilonResult:
    """The smaller of the PLD and the Renyi bound on the event's epsilon at `delta`.

    Raises:
        AccountingError: delta outside (0, 1) or not above the event's slack, or an event that cannot be accounted for.
    """
    found = cost(event)
    if 0 < delta <= found.delta_slack:
        raise AccountingError(
            f"delta {delta:g}, of which the thresholds alone take {found.delta_slack:.3g}; accepted: higher "
            "thresholds, or a delta above that"
        )
    by_renyi = found.curve.epsilon(delta - found.delta_slack)
    by_pld = pld_epsilon(event, delta)
    if by_pld is not None and by_pld < by_renyi:
        return EpsilonResult(by_pld, delta, "pld", by_pld, by_renyi)
    return EpsilonResult(by_renyi, delta, "renyi", by_pld, by_renyi)


def group_epsilon(event: DpEvent, delta: float, size: int) -> float:
    """Epsilon at `delta` for `size` units together, from the guarantee for one. Valid for every event, and loose.

    Where the event can state the group as its unit (b = size), that is tighter: by 1% for ten records at epsilon 2, by
    a fifth at 15, by a third at 35 (one Gaussian count). The delta for one that the group rule allows is found by
    bisection.

    Raises:
        AccountingError: size below 1, or no delta for one (above 1e-300 and the event's slack) is small enough for the
            group.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise AccountingError(f"group of {size!r}; accepted: a whole number from 1")
    if size == 1:
        return epsilon(event, delta).epsilon
    low, high, best = math.log(max(1e-300, delta_slack(event) * (1 + 1e-9))), math.log(delta), None
    for _ in range(30):
        middle = (low + high) / 2
        one = max(epsilon(event, math.exp(middle)).epsilon, EPSILON_STEP)
        # In logarithms, for (e^(k epsilon) - 1) / (e^epsilon - 1) may overflow.
        factor = (size - 1) * one + math.log(-math.expm1(-size * one)) - math.log(-math.expm1(-one))
        if middle + factor <= math.log(delta):
            low, best = middle, one
        else:
            high = middle
    if best is None:
        raise AccountingError(f"no guarantee for a group of {size} at delta {delta:g}; accepted: a smaller group")
    return size * best


def pld_epsilon(event: DpEvent, delta: float) -> float | None:
    """Upper bound on epsilon at `delta` by privacy loss distributions, or None where they do not apply.

    They do not apply where counts can change in too many ways (`counts_shifts`), where the noise is too wide to
    tabulate, for sampling where records are replaced (`units.replaces`), and at a delta near `fft_error`.

    Both directions are covered. The neighbours of counts and choices are a family that is its own mirror image
    (symmetric noise; t -> epsilon - t), so the maximum over the family bounds adding and removing alike; sampled
    Gaussians have a distribution for each. Of parallel branches, the largest epsilon counts.
    """
    found = [_way_epsilon(tuple(way.items()), delta) for way in histories(event)]
    reached = [value for value in found if value is not None]
    return max(reached) if len(reached) == len(found) else None


def fft_error(times: int) -> float:
    """A bound on what the FFT's rounding noise changes in delta when `times` distributions are composed.

    A distribution's transform is 1 at most, and carries rounding errors of a few times u = 2^-53; composing multiplies
    transforms, whose errors add up to a few times `times` u, in as few frequencies as a bell curve has. Against
    composition in long double, delta was off by at most 2 `times` u (1 to 100,000 repetitions of every kind of leaf);
    8 are taken.
    """
    return max(LEAST_FFT_ERROR, times * 2.0**-50)


@lru_cache(maxsize=1024)
def _way_epsilon(way: tuple[tuple[DpEvent, int], ...], delta: float) -> float | None:
    counted: Counter[DpEvent] = Counter()
    pure = 0.0
    for leaf, times in way:
        slack = threshold_slack(leaf)
        delta -= times * slack
        pure -= times * math.log1p(-slack)
        counted[_core(leaf)] += times
    error = fft_error(counted.total())
    # What is pure adds up (basic composition), also beyond what grids and a small delta allow.
    most = sum(leaf.epsilon * times if isinstance(leaf, LocalReportsEvent) else math.inf for leaf, times in way)
    if way and delta < FFT_MARGIN * error and most < math.inf:
        return most
    if delta < FFT_MARGIN * error or not all(_reached(leaf) for leaf in counted):
        return None
    widest = max(_largest_loss(leaf, times) for leaf, times in counted.items()) / MAX_LOSSES
    interval = max(min(_interval(leaf) for leaf in counted), 2.0 ** math.ceil(math.log2(widest)))
    composed = None
    for leaf, times in counted.items():
        for at_once, repeats in _at_once(leaf, times):
            distribution = _repeated(_leaf_pld(leaf, at_once, interval), repeats)
            composed = distribution if composed is None else composed.compose(distribution, TAIL_MASS)
    if composed is None:
        return 0.0
    return min(float(composed.get_epsilon_for_delta(delta - error)) + pure, most)


def _repeated(distribution: Any, times: int) -> Any:
    """`distribution.self_compose(times)`, whose bounds on what is kept take most of its time."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    remove = _repeated_pmf(distribution._pmf_remove, times)
    add = None if distribution._symmetric else _repeated_pmf(distribution._pmf_add, times)
    return pld.PrivacyLossDistribution(remove, add)


def _repeated_pmf(pmf: Any, times: int) -> Any:
    from dp_accounting.pld import pld_pmf
    from scipy import fft

    if isinstance(pmf, pld_pmf.SparsePLDPmf):
        if times == 1 or pmf.size**times <= pld_pmf._MAX_PMF_SPARSE_SIZE:
            return pmf.self_compose(times)
        pmf = pmf.to_dense_pmf()
    first, last = kept_range(pmf._probs, times)
    number = last - first + 1
    size = fft.next_fast_len(max(number, pmf.size))
    masses = np.real(fft.ifft(fft.fft(pmf._probs, size) ** times))  # wraps around
    return pld_pmf.DensePLDPmf(
        pmf._discretization,
        times * pmf._lower_loss + first,
        np.roll(masses, -first)[:number],
        REPEATED_TAIL_MASS - math.expm1(times * math.log1p(-pmf._infinity_mass)),
        pmf._pessimistic_estimate,
    )


def kept_range(masses: Array, times: int) -> tuple[int, int]:
    """First and last grid point of a sum of `times` draws outside of which at most REPEATED_TAIL_MASS lies.

    The Chernoff bounds of `dp_accounting.pld.common.compute_self_convolve_bounds`, at the same orders. Its 40 sums of
    exponentials are each a power of one exponential, which reaches e^20 and cannot overflow.

    Args:
        masses: of the grid points 0, 1, ...; shape (grid points,).
    """
    size = len(masses)
    first, last = 0, (size - 1) * times
    growth = np.exp(np.arange(size) / size)
    rising, falling = np.ones(size), np.ones(size)
    for order in range(1, CHERNOFF_ORDERS + 1):
        rising *= growth
        falling /= growth
        allowed = math.log(2 / REPEATED_TAIL_MASS)
        last = min(last, math.ceil((times * math.log(masses @ rising) + allowed) * size / order))
        first = max(first, math.floor(-(times * math.log(masses @ falling) + allowed) * size / order))
    return first, last


def pure_renyi(epsilon: float, orders: Array) -> Array:
    """The largest Renyi divergence of any epsilon-DP mechanism, at each order.

    Every such mechanism is post-processing of a coin that says which of two neighbours it is, and lies with probability
    q = 1 / (1 + e^epsilon) (Kairouz, Oh & Viswanath 2015, theorem 2.1). So its divergence is at most the coin's,
    log(p^a q^(1-a) + q^a p^(1-a)) / (a - 1) with p = 1 - q; that is at most a epsilon^2 / 2 (Bun & Steinke 2016,
    proposition 3.3), and epsilon.
    """
    sums = np.logaddexp(epsilon * orders, epsilon * (1 - orders)) - np.logaddexp(0.0, epsilon)
    found = (sums + 1e-14 * (1 + epsilon * orders)) / (orders - 1)  # beyond what the difference is rounded by
    least: Array = np.minimum(found, np.minimum(orders * epsilon**2 / 2, epsilon))
    return least


def pure_hockey_stick(epsilon: float, epsilons: Array) -> Array:
    """The largest delta(e) of any epsilon-DP mechanism, at each e from 0 up: that of the coin in `pure_renyi`."""
    deltas: Array = np.maximum(np.exp(-epsilon) - np.exp(epsilons - 2 * epsilon), 0.0) / (
        np.exp(-2 * epsilon) + np.exp(-epsilon)
    )
    return deltas


def bounded_range_hockey_stick(epsilon_range: float, epsilons: Array) -> Array:
    """The largest delta(e) of any epsilon-bounded-range choice, at each e of `epsilons`.

    The worst pair has two outcomes, with log-ratios t and t - epsilon; for one e, delta as a function of t is
    (1 + e^(e-eps) - e^(t-eps) - e^(e-t)) / (1 - e^-eps), largest at t = (e + eps) / 2, which lies in [0, eps]
    (Dong, Durfee & Rogers 2020, section 4). The other outcome counts only for e < -eps, where delta is 1 - e^e.
    """
    inside = np.expm1((np.minimum(epsilons, epsilon_range) - epsilon_range) / 2) ** 2 / -math.expm1(-epsilon_range)
    deltas: Array = np.where(epsilons <= -epsilon_range, -np.expm1(np.minimum(epsilons, 0.0)), inside)
    return deltas


@lru_cache(maxsize=256)
def bounded_range_curve(epsilon_range: float, times: int) -> tuple[Array, Array]:
    """The largest delta(e) of several epsilon-bounded-range choices, each made in the light of those before.

    A choice's log-ratios lie in some [t - epsilon, t], and spread no wider than the pair that takes only these two
    values: that pair dominates it. So let B_0 show nothing, and B_r be a pair with the curve max over t of (two-point
    pair of t, then B_{r-1}), at every e (Dong, Durfee & Rogers 2020, section 5, the adaptive case). It dominates r
    adaptive choices, by induction, also where other mechanisms run between them: whatever else follows a choice
    composes with B_{r-1}, and the two-point pair with that is within B_r. Likewise B_r and B_s together dominate
    B_{r+s}. (Composing B_1 with itself instead lets each e have its own t all along: a variance of epsilon^2 / 3 for a
    choice, where it is at most epsilon^2 / 4.)

    t is taken from a grid of RANGE_PARTS steps, for a range that is one step longer: for every t there is then a
    two-point pair on the grid whose losses lie further out. B_r is its own mirror image, delta(-e) =
    1 - exp(-e) (1 - delta(e)); beyond the last e the last delta is assumed.

    Returns:
        e from 0 up in equal steps, and delta at each; in between, straight lines over exp(e) are upper bounds. Shapes
        (number of points,).
    """
    step = epsilon_range / RANGE_PARTS
    reach = RANGE_PARTS + 1
    number = max(reach, math.ceil(_choices_reach(step * reach, times) / step))
    epsilons = step * np.arange(number + 1, dtype=np.float64)
    # P[loss is t] for t = step, 2 step, ...; at both ends of the range nothing happens.
    chances = np.expm1(step * (np.arange(1, reach) - reach)) / math.expm1(-step * reach)
    deltas = bounded_range_hockey_stick(epsilon_range, epsilons)
    for _ in range(times - 1):
        below = _mirrored(epsilons, deltas)[reach:0:-1]
        around = np.concatenate([below, deltas, np.full(reach, deltas[-1])])  # e_i is at i + reach
        best = deltas
        for t, chance in enumerate(chances, start=1):
            up, down = around[reach - t :][: number + 1], around[2 * reach - t :][: number + 1]
            best = np.maximum(best, chance * up + (1 - chance) * down)
        deltas = best
    return epsilons, deltas


def _mirrored(epsilons: Array, deltas: Array) -> Array:
    """delta at -e of a pair that is its own mirror image."""
    mirrored: Array = -np.expm1(-epsilons) + np.exp(-epsilons) * deltas
    return mirrored


def _choices_reach(epsilon_range: float, times: int) -> float:
    """Losses of adaptive choices beyond this have less than 1e-17 of the mass (by rho = times epsilon^2 / 8), or
    count as infinite."""
    rho = times * epsilon_range**2 / 8
    return min(times * epsilon_range, rho + 2 * math.sqrt(42 * rho), MAX_LOSS)


def shift_hockey_stick(sigma: float, shift: tuple[int, ...], epsilons: Array) -> Array:
    """delta(e) between discrete Gaussian noise of parameter sigma on some cells and the same moved by `shift`.

    Exact up to TAIL_MASS: the loss at noise x is (|v|^2 - 2 <x, v>) / (2 sigma^2), so only the distribution of the
    integer <x, v> matters, a convolution of the cells' own. Signs do not matter, by symmetry.
    """
    values, masses = _inner_product(sigma, tuple(sorted(abs(cell) for cell in shift if cell)))
    losses = (sum(cell * cell for cell in shift) - 2 * values[::-1]) / (2 * sigma**2)  # ascending
    upper = np.append(np.cumsum(masses)[::-1], 0.0)  # P[loss >= losses[i]]; masses[::-1] belong to `losses`
    lower = np.append(np.cumsum((masses[::-1] * np.exp(-losses))[::-1])[::-1], 0.0)
    above = np.searchsorted(losses, epsilons, side="right")
    deltas: Array = np.clip(upper[above] - np.exp(epsilons) * lower[above], 0.0, 1.0)
    return deltas


def counts_shifts(adjacency: str, max_contributions: int) -> list[tuple[int, ...]] | None:
    """Every way, up to order and signs, in which one unit changes counts; None if there are more than MAX_SHIFTS.

    Smaller changes are listed too: that a larger shift dominates a smaller one is clear for the continuous Gaussian,
    and observed but not proved for the discrete one.
    """
    one_side: list[tuple[int, ...]] = []
    for total in range(max_contributions + 1):
        for partition in _partitions(total, total):
            one_side.append(partition)
            if len(one_side) > MAX_SHIFTS:
                return None
    if replaces(adjacency):
        pairs = {tuple(sorted(removed + added)) for removed in one_side for added in one_side}
    else:
        pairs = {tuple(sorted(partition)) for partition in one_side}
    shifts = sorted(shift for shift in pairs if shift)
    return shifts if len(shifts) <= MAX_SHIFTS else None


def largest_rho(event_of: Callable[[float], DpEvent], guarantee: Guarantee) -> float:
    """The largest zCDP budget rho, up to a 1000th, whose event meets a guarantee by PLD or by Renyi.

    The event of the returned rho was checked; only that it is the largest rests on cost being monotone in rho.

    Args:
        event_of: the event for a rho, with the guarantee's adjacency and b.

    Raises:
        AccountingError: no rho that meets the guarantee is in range.
    """

    costs: dict[float, float] = {}

    def fits(rho: float) -> bool:
        if rho not in costs:
            costs[rho] = epsilon(event_of(rho), guarantee.delta).epsilon
        return costs[rho] <= guarantee.epsilon

    low = min(zcdp_limit(guarantee.epsilon, guarantee.delta) * (1 - 1e-9), RHO_RANGE[1] / 2)
    if low < RHO_RANGE[0]:
        raise AccountingError(
            f"epsilon {guarantee.epsilon:g} at delta {guarantee.delta:.3g} needs more noise than can be calibrated; "
            "accepted: a larger epsilon"
        )
    # Renyi allows low, except for what rounding adds; PLD gains a few tens of percent on it.
    high = 2 * low
    while high <= RHO_RANGE[1] / 2 and fits(high):
        low, high = high, 2 * high
    found = _aimed(fits, costs, guarantee.epsilon, low, high) or _bisected(fits, low, high)[0]
    step = STEP
    while not fits(found):
        found, step = found * (1 - step), min(2 * step, 0.5)
    return found


def _bisected(fits: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Where the bisection of a calibrated rho ends: the last that fits, and the first that does not."""
    while high > low * (1 + STEP):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high


def _aimed(
    fits: Callable[[float], bool], costs: dict[float, float], target: float, low: float, high: float
) -> float | None:
    """What `_bisected` ends with, as cost is monotone, from fewer costs; None where cost is no smooth curve.

    A line through two costs, in logarithms, says where the bisection would end. It does if one end fits and the other
    does not.
    """
    far, slope = costs.get(high, math.inf), 0.5  # the slope of one Gaussian
    if not 0 < far < math.inf:
        return None
    for _ in range(MAX_AIMED):
        near = min((rho for rho in costs if costs[rho] > 0), key=lambda rho: abs(math.log(costs[rho] / target)))
        if near != high:
            slope = math.log(far / costs[near]) / math.log(high / near)
        if slope <= 0:
            return None
        limit = near * (target / costs[near]) ** (1 / slope)
        below, above = _bisected(lambda rho, limit=limit: rho <= limit, low, high)  # type: ignore[misc]
        if (fits(below) or below == low) and near != high and (above == high or not fits(above)):
            return below
    return None


def check_rho(rho: float) -> float:
    """Returns a zCDP budget unchanged. Raises `AccountingError` outside `RHO_RANGE`."""
    if not RHO_RANGE[0] <= rho <= RHO_RANGE[1]:
        raise AccountingError(f"rho {rho:g}; accepted: {RHO_RANGE[0]:g} to {RHO_RANGE[1]:g}")
    return rho


def sigma_from(least: float) -> float:
    """The next multiple of `SIGMA_STEP`. Raises `AccountingError` above `SIGMA_RANGE`."""
    sigma = math.ceil(least / SIGMA_STEP) * SIGMA_STEP
    if sigma > SIGMA_RANGE[1]:
        raise AccountingError(
            f"noise of sigma {sigma:g}; accepted: up to {SIGMA_RANGE[1]:g}; declare a larger epsilon, or a smaller "
            "contribution bound"
        )
    return sigma


def choice_epsilon(rho: float) -> float:
    """The range of a choice at a zCDP cost rho: epsilon^2 / 8 (Cesar & Rogers 2021), rounded down to `EPSILON_STEP`."""
    return max(1, math.floor(math.sqrt(8 * rho) / EPSILON_STEP)) * EPSILON_STEP


def _core(leaf: DpEvent) -> DpEvent:
    """The part of a leaf that has a finite curve."""
    return leaf.counts if isinstance(leaf, ThresholdedEvent) else leaf


def _leaf_curve(leaf: DpEvent, times: int) -> Array:
    """The curve of a leaf that runs `times` times. Ledgers compare stored curves: the order of operations is fixed."""
    orders = np.array(ORDERS)
    if isinstance(leaf, BestRunEvent):
        return times * _best_run_curve(leaf)
    if isinstance(leaf, BoundedRangeSelectionEvent):
        return times * np.minimum(orders * leaf.epsilon**2 / 8, leaf.epsilon)
    if isinstance(leaf, LocalReportsEvent):
        return times * pure_renyi(leaf.epsilon, orders)
    if isinstance(leaf, SampledGaussianEvent):
        sampled = (leaf.noise_multiplier, leaf.sampling_probability, leaf.most_in_sample, replaces(leaf.adjacency))
        return times * np.array(sampled_gaussian_renyi(*sampled))
    if isinstance(leaf, (SkellamCountsEvent, SkellamSumsEvent)):
        moved = leaf.sensitivity
        return times * np.array(skellam_renyi(leaf.variance, moved.l1, moved.l2_squared))
    squared = leaf.sensitivity.l2_squared
    curve: Array = times * orders * (squared / (2 * leaf.sigma**2))
    return curve


def _best_run_curve(leaf: BestRunEvent) -> Array:
    """The curve of the best of runs (Papernot & Steinke 2022, theorem 2), for any two orders l and m:

        curve(l) = run(l) + (1 + shape) ((1 - 1 / m) run(m) + log(1 / gamma) / m) + log(mean) / (l - 1)

    A run takes one of its mechanisms by chance that no data decide, so that its divergence is at most the largest of
    theirs: E[e^((l - 1) loss)] of a mixture with the same weights is at most the mixture of such means. Divergences
    do not fall as the order rises, so that what bounds one at an order bounds those at lower orders.
    """
    orders = np.array(ORDERS)
    run = np.max([cost(part).curve.values for part in leaf.events], axis=0)
    beside = np.min((1 - 1 / orders) * run - math.log(leaf.gamma) / orders)
    curve: Array = run + (1 + leaf.shape) * beside + math.log(max(leaf.mean, 1.0)) / (orders - 1)
    return np.minimum.accumulate(curve[::-1])[::-1]


def _reached(leaf: DpEvent) -> bool:
    """Whether the leaf's privacy loss distribution can be computed."""
    if isinstance(leaf, BestRunEvent):
        return False
    if _largest_loss(leaf) > MAX_LOSS:
        return False
    if isinstance(leaf, BoundedRangeSelectionEvent | LocalReportsEvent):
        return True
    if isinstance(leaf, SampledGaussianEvent):
        sampled = leaf.sampling_probability < 1
        return not sampled or (not replaces(leaf.adjacency) and leaf.most_in_sample <= MAX_MIXTURE)
    if isinstance(leaf, _GAUSSIAN):
        return True
    if isinstance(leaf, SkellamSumsEvent):
        return False
    if isinstance(leaf, SkellamCountsEvent):
        width: float = 2 * skellam_reach(leaf.variance, TAIL_BITS)
    else:
        width = 2 * TAIL_SIGMAS * leaf.sigma * leaf.sensitivity.l1
    return width <= MAX_CELLS and counts_shifts(leaf.adjacency, leaf.max_contributions) is not None


def _ratio(leaf: DpEvent) -> float:
    """L2 sensitivity over the noise's deviation, as if everything were sampled. Clipped sums move 2b when replaced."""
    if isinstance(leaf, SampledGaussianEvent):
        moved = leaf.most_in_sample * (2 if replaces(leaf.adjacency) else 1)
        return float(moved / leaf.noise_multiplier)
    return float(leaf.sensitivity.l2 / leaf.sigma)


def _largest_loss(leaf: DpEvent, times: int = 1) -> float:
    """The largest loss that is tabulated at once, where the leaf runs so often; larger ones count as infinite.

    Losses of noise are about normal, of mean D^2 / 2 sigma^2 and deviation D / sigma.
    """
    if isinstance(leaf, BoundedRangeSelectionEvent):
        return _choices_reach(leaf.epsilon, min(times, CHOICES_AT_ONCE))
    if isinstance(leaf, LocalReportsEvent):
        return leaf.epsilon
    ratio = _ratio(leaf)
    return ratio**2 / 2 + (TAIL_SIGMAS + 1) * ratio


def _interval(leaf: DpEvent) -> float:
    """Grid of losses: a power of two, about a thirtieth of the leaf's typical loss."""
    if isinstance(leaf, BoundedRangeSelectionEvent | LocalReportsEvent):
        typical, finest = leaf.epsilon / 2, -18
    elif isinstance(leaf, SampledGaussianEvent):
        # Samples with the unit have losses far above the typical one: the grid must be wide, so it cannot be as fine.
        typical, finest = leaf.sampling_probability * _ratio(leaf), -14
    else:
        typical, finest = _ratio(leaf), -18
    return float(2.0 ** max(finest, min(-8, math.floor(math.log2(typical / 30)))))


def _at_once(leaf: DpEvent, times: int) -> Iterator[tuple[int, int]]:
    """How often a leaf runs: (runs in one distribution, number of these distributions)."""
    if not isinstance(leaf, BoundedRangeSelectionEvent):
        yield 1, times
        return
    many, rest = divmod(times, CHOICES_AT_ONCE)
    if many:
        yield CHOICES_AT_ONCE, many
    if rest:
        yield rest, 1


@lru_cache(maxsize=256)
def _leaf_pld(leaf: DpEvent, at_once: int, interval: float) -> Any:
    """The pessimistic PLD of a leaf: the connected dots of its largest hockey-stick curve, in both directions.

    Of `at_once` runs together, for choices; else of one.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    if isinstance(leaf, SampledGaussianEvent) and leaf.sampling_probability < 1 and leaf.most_in_sample > 1:
        step = SampledMixture(leaf.noise_multiplier, leaf.sampling_probability, leaf.most_in_sample)
        return pld.PrivacyLossDistribution(
            _curve_pmf(step.removal, step.removal_range(), interval),
            _curve_pmf(step.addition, step.addition_range(), interval),
        )
    if isinstance(leaf, (SampledGaussianEvent, *_GAUSSIAN)):
        probability = leaf.sampling_probability if isinstance(leaf, SampledGaussianEvent) else 1.0
        return pld.from_gaussian_mechanism(
            1 / _ratio(leaf), value_discretization_interval=interval, sampling_prob=probability
        )
    return pld.PrivacyLossDistribution(_tabulated_pmf(leaf, at_once, interval))


def _tabulated_pmf(leaf: DpEvent, at_once: int, interval: float) -> Any:
    if isinstance(leaf, BoundedRangeSelectionEvent):
        last = math.ceil(_largest_loss(leaf, at_once) / interval)
        half = interval * np.arange(last + 1, dtype=np.float64)
        if at_once == 1:
            above = bounded_range_hockey_stick(leaf.epsilon, half)
        else:
            epsilons, found = bounded_range_curve(leaf.epsilon, at_once)
            above = np.interp(np.exp(half), np.exp(epsilons), found)
        deltas = np.concatenate([_mirrored(half, above)[:0:-1], above])
    elif isinstance(leaf, LocalReportsEvent):
        last = math.ceil(leaf.epsilon / interval)
        half = interval * np.arange(last + 1, dtype=np.float64)
        above = pure_hockey_stick(leaf.epsilon, half)
        deltas = np.concatenate([_mirrored(half, above)[:0:-1], above])
    else:
        last = math.ceil(_largest_loss(leaf) / interval)
        grid = interval * np.arange(-last, last + 1, dtype=np.float64)
        shifts = counts_shifts(leaf.adjacency, leaf.max_contributions) or []
        curve = _skellam_curve if isinstance(leaf, SkellamCountsEvent) else _discrete_gaussian_curve
        deltas = np.max([curve(leaf, shift, grid, interval) for shift in shifts], axis=0)
    return _connected_dots(-last, deltas, interval)


def _discrete_gaussian_curve(leaf: DpEvent, shift: tuple[int, ...], grid: Array, interval: float) -> Array:
    return shift_hockey_stick(leaf.sigma, shift, grid)


def _skellam_curve(leaf: SkellamCountsEvent, shift: tuple[int, ...], grid: Array, interval: float) -> Array:
    """delta(e) on the grid, where counts move by `shift` records; of several cells by composing those of one."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    curves = [skellam_hockey_stick(leaf.variance, leaf.scale * abs(cell), grid) for cell in shift]
    if len(curves) == 1:
        return curves[0]
    first = round(grid[0] / interval)
    cells = [pld.PrivacyLossDistribution(_connected_dots(first, curve, interval)) for curve in curves]
    composed = cells[0]
    for cell in cells[1:]:
        composed = composed.compose(cell, TAIL_MASS)
    deltas: Array = np.asarray(composed.get_delta_for_epsilon(grid.tolist()))
    return np.minimum(deltas + fft_error(len(cells)), 1.0)


def _curve_pmf(curve: Callable[[Array], Array], reach: tuple[float, float], interval: float) -> Any:
    """The pessimistic losses of a curve delta(e), tabulated between the two ends of `reach`."""
    first, last = math.floor(reach[0] / interval), math.ceil(reach[1] / interval)
    return _connected_dots(first, curve(interval * np.arange(first, last + 1, dtype=np.float64)), interval)


def _connected_dots(first: int, deltas: Array, interval: float) -> Any:
    """The pessimistic losses of a curve that is `deltas` at interval * first, interval * (first + 1), ..."""
    from dp_accounting.pld import pld_pmf

    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, first, first + len(deltas) - 1, np.minimum.accumulate(deltas)
    ).to_dense_pmf()


@lru_cache(maxsize=256)
def _inner_product(sigma: float, shift: tuple[int, ...]) -> tuple[Array, Array]:
    """Distribution of <x, shift> for independent discrete Gaussian x: ascending values and their masses."""
    from scipy.signal import convolve

    half = math.ceil(TAIL_SIGMAS * sigma) + 1
    cells = np.arange(-half, half + 1)
    weights = np.exp(-(cells.astype(float) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    masses = np.ones(1)
    for factor in shift:
        spread = np.zeros(factor * (len(weights) - 1) + 1)
        spread[::factor] = weights
        masses = np.maximum(convolve(masses, spread), 0.0)
    reach = (len(masses) - 1) // 2
    return np.arange(-reach, reach + 1).astype(float), masses


def _partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as a sum of positive integers up to `largest`, in descending order."""
    if total == 0:
        yield ()
    for first in range(min(total, largest), 0, -1):
        for rest in _partitions(total - first, first):
            yield (first, *rest)
