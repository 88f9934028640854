"""What privacy events cost: Renyi curves, privacy loss distributions, and the noise that meets a guarantee.

What belongs here: pure functions from an event tree (`events`) to upper bounds on epsilon, and the calibration of a
mechanism's noise to a guarantee. What does not: what was spent so far (`ledger`).

Two bounds are computed and the smaller is claimed, by name:

- **Renyi** composes by adding curves, and is what the ledger adds up.
- **PLD** composes the hockey-stick curves of dominating pairs (Zhu, Dong & Wang 2022) and is tighter. Both leaf curves
  are exact here, and the pointwise maximum over everything that a neighbour can be: over t for the exponential
  mechanism (Dong, Durfee & Rogers 2020), over all ways in which one unit's records fall into cells for discrete
  Gaussian counts. `dp_accounting` discretizes pessimistically ("connect the dots", Doroshenko et al. 2022) and
  composes.

Every rounding is to the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpsynth_platform.errors import AccountingError
from dpsynth_platform.privacy.events import (
    BoundedRangeSelectionEvent,
    DiscreteGaussianCountsEvent,
    DpEvent,
    leaves,
    mst_event,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.renyi import ORDERS, RenyiCurve, zcdp_limit
from dpsynth_platform.privacy.units import count_sensitivity

Array = NDArray[np.float64]

# Shift patterns to try for one vector of counts, and the most cells of one pattern's distribution. Beyond either (b
# above 8, or 4 under replace-one; sigma in the thousands) the release claims its Renyi bound.
MAX_SHIFTS = 70
MAX_CELLS = 2**18
# Losses beyond this overflow; no guarantee worth the name has them.
MAX_LOSS = 300.0
# The FFT's rounding noise is far below FFT_ERROR, which is taken off delta; a delta near it is left to Renyi.
FFT_ERROR = 1e-12
MIN_PLD_DELTA = 1e-10
# Tail mass that a composition may move to an infinite loss.
TAIL_MASS = 1e-17
# Discrete Gaussian noise is tabulated up to this many sigma; 3e-19 of its mass lies beyond.
TAIL_SIGMAS = 9

# Sigma is a multiple of 2^-10 and epsilon one of 2^-20: exact as binary floats and as decimals, so that plan,
# sampler and accountant mean the same number.
SIGMA_STEP = 2.0**-10
EPSILON_STEP = 2.0**-20
RHO_RANGE = (1e-9, 1e4)
# Relative precision of a calibrated rho.
STEP = 2.0**-10


@dataclass(frozen=True)
class EpsilonResult:
    """An upper bound on epsilon at `delta`: the smaller of two, and which one it is.

    Attributes:
        epsilon: the bound that may be claimed.
        delta: at which delta.
        method: `pld` or `renyi`, whichever gave `epsilon`.
        pld: the PLD bound, or None where `pld_epsilon` does not reach.
        renyi: the Renyi bound.
    """

    epsilon: float
    delta: float
    method: Literal["pld", "renyi"]
    pld: float | None
    renyi: float


@dataclass(frozen=True)
class MstBudget:
    """Noise of MST. All numbers are exact binary fractions (`SIGMA_STEP`, `EPSILON_STEP`).

    Attributes:
        sigma_one: discrete Gaussian parameter of the one-way marginals, in records.
        epsilon_select: range of each edge's choice by the exponential mechanism; 0 with one column, where there is
            none.
        sigma_two: discrete Gaussian parameter of the two-way marginals, in records.
        rho: the zCDP cost of all together (an upper bound).
    """

    sigma_one: float
    epsilon_select: float
    sigma_two: float
    rho: float


def renyi_curve(event: DpEvent) -> RenyiCurve:
    """Upper bound on the event's Renyi divergence at every order of `ORDERS`.

    Discrete Gaussian counts: alpha L2^2 / (2 sigma^2) (Canonne, Kamath & Steinke 2020, proposition 5, for vectors).
    Bounded-range selection: alpha epsilon^2 / 8 (Cesar & Rogers 2021, lemma 4.2), and never above epsilon.

    Raises:
        AccountingError: an event that cannot be accounted for.
    """
    total = np.zeros(len(ORDERS))
    orders = np.array(ORDERS)
    for leaf, times in leaves(event):
        if isinstance(leaf, DiscreteGaussianCountsEvent):
            squared = count_sensitivity(leaf.adjacency, leaf.max_contributions).l2_squared
            total += times * orders * (squared / (2 * leaf.sigma**2))
        else:
            total += times * np.minimum(orders * leaf.epsilon**2 / 8, leaf.epsilon)
    return RenyiCurve.upper(total.tolist())


def epsilon(event: DpEvent, delta: float) -> EpsilonResult:
    """The smaller of the PLD and the Renyi bound on the event's epsilon at `delta`.

    Raises:
        AccountingError: delta outside (0, 1), or an event that cannot be accounted for.
    """
    by_renyi = renyi_curve(event).epsilon(delta)
    by_pld = pld_epsilon(event, delta)
    if by_pld is not None and by_pld < by_renyi:
        return EpsilonResult(by_pld, delta, "pld", by_pld, by_renyi)
    return EpsilonResult(by_renyi, delta, "renyi", by_pld, by_renyi)


def pld_epsilon(event: DpEvent, delta: float, *, exhaustive: bool = True) -> float | None:
    """Upper bound on epsilon at `delta` by privacy loss distributions, or None where this way does not reach.

    It does not reach where counts can change in too many ways (`counts_shifts`), where the noise is too wide to
    tabulate, and below MIN_PLD_DELTA. `exhaustive=False` looks at the farthest change only: a quick estimate to search
    with, not a bound.

    Both directions are covered: each leaf's neighbours are a family that is its own mirror image (symmetric noise;
    t -> epsilon - t), so the maximum over the family bounds adding and removing alike.
    """
    counted: dict[DpEvent, int] = {}
    for leaf, times in leaves(event):
        counted[leaf] = counted.get(leaf, 0) + times
    if delta < MIN_PLD_DELTA or not all(_reached(leaf) for leaf in counted):
        return None
    interval = min(_interval(leaf) for leaf in counted)
    composed = None
    for leaf, times in counted.items():
        pmf = _leaf_pmf(leaf, interval, exhaustive).self_compose(times)
        composed = pmf if composed is None else composed.compose(pmf, tail_mass_truncation=TAIL_MASS)
    if composed is None:
        return 0.0
    return float(composed.get_epsilon_for_delta(delta - FFT_ERROR))


def bounded_range_hockey_stick(epsilon_range: float, epsilons: Array) -> Array:
    """The largest delta(e) of any epsilon-bounded-range choice, at each e of `epsilons`.

    The worst pair has two outcomes, with log-ratios t and t - epsilon; for one e, delta as a function of t is
    (1 + e^(e-eps) - e^(t-eps) - e^(e-t)) / (1 - e^-eps), largest at t = (e + eps) / 2, which lies in [0, eps]
    (Dong, Durfee & Rogers 2020, section 4). The other outcome counts only for e < -eps, where delta is 1 - e^e.
    """
    inside = np.expm1((np.minimum(epsilons, epsilon_range) - epsilon_range) / 2) ** 2 / -math.expm1(-epsilon_range)
    deltas: Array = np.where(epsilons <= -epsilon_range, -np.expm1(np.minimum(epsilons, 0.0)), inside)
    return deltas


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

    Smaller changes are listed too: that a larger shift dominates a smaller one is plain for the continuous Gaussian,
    and seen but not proved for the discrete one.
    """
    one_side: list[tuple[int, ...]] = []
    for total in range(max_contributions + 1):
        for partition in _partitions(total, total):
            one_side.append(partition)
            if len(one_side) > MAX_SHIFTS:
                return None
    if adjacency == "replace-one":
        pairs = {tuple(sorted(removed + added)) for removed in one_side for added in one_side}
    else:
        pairs = {tuple(sorted(partition)) for partition in one_side}
    shifts = sorted(shift for shift in pairs if shift)
    return shifts if len(shifts) <= MAX_SHIFTS else None


@lru_cache(maxsize=64)
def calibrate_mst(columns: int, guarantee: Guarantee) -> MstBudget:
    """The least noise with which MST over `columns` columns meets a guarantee.

    rho goes in thirds to one-way marginals, choices and two-way marginals, as in McKenna, Miklau & Sheldon 2021, and
    is as large as the smaller of PLD and Renyi allows. Rounding is to more noise; the result is checked as it is
    returned, never above the guarantee's epsilon. With one column everything goes to its marginal.

    Raises:
        AccountingError: fewer than one column, or an epsilon so small that no noise in range meets it.
    """
    if columns < 1:
        raise AccountingError(f"MST over {columns} columns; accepted: from 1")

    def fits(rho: float, *, exhaustive: bool) -> bool:
        event = mst_event(columns, mst_budget(columns, rho, guarantee), *neighbours)
        if renyi_curve(event).epsilon(guarantee.delta) <= guarantee.epsilon:
            return True
        by_pld = pld_epsilon(event, guarantee.delta, exhaustive=exhaustive)
        return by_pld is not None and by_pld <= guarantee.epsilon

    neighbours = (guarantee.adjacency, guarantee.max_contributions)
    low = min(zcdp_limit(guarantee.epsilon, guarantee.delta) * (1 - 1e-9), RHO_RANGE[1] / 2)
    if low < RHO_RANGE[0]:
        raise AccountingError(
            f"epsilon {guarantee.epsilon:g} at delta {guarantee.delta:.3g} needs more noise than can be calibrated; "
            "accepted: a larger epsilon"
        )
    high = 2 * low  # PLD gains a few tens of percent on Renyi, never twice
    while high > low * (1 + STEP):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle, exhaustive=False) else (low, middle)
    step = STEP
    while not fits(low, exhaustive=True):
        low, step = low * (1 - step), min(2 * step, 0.5)
    return mst_budget(columns, low, guarantee)


def mst_budget(columns: int, rho: float, guarantee: Guarantee) -> MstBudget:
    """MST's noise at a zCDP budget rho for the guarantee's adjacency and b, rounded to more noise.

    Raises:
        AccountingError: rho outside `RHO_RANGE`.
    """
    if not RHO_RANGE[0] <= rho <= RHO_RANGE[1]:
        raise AccountingError(f"rho {rho:g}; accepted: {RHO_RANGE[0]:g} to {RHO_RANGE[1]:g}")
    squared = count_sensitivity(guarantee.adjacency, guarantee.max_contributions).l2_squared
    if columns == 1:
        sigma = _sigma(math.sqrt(squared / (2 * rho)))
        return MstBudget(sigma, 0.0, sigma, squared / (2 * sigma**2))
    edges, third = columns - 1, rho / 3
    one = _sigma(math.sqrt(squared * columns / (2 * third)))
    two = _sigma(math.sqrt(squared * edges / (2 * third)))
    select = max(EPSILON_STEP, math.floor(math.sqrt(8 * third / edges) / EPSILON_STEP) * EPSILON_STEP)
    spent = columns * squared / (2 * one**2) + edges * (select**2 / 8 + squared / (2 * two**2))
    return MstBudget(one, select, two, spent)


def _sigma(least: float) -> float:
    return math.ceil(least / SIGMA_STEP) * SIGMA_STEP


def _reached(leaf: DpEvent) -> bool:
    """Whether the leaf's hockey-stick curve can be computed exactly."""
    if isinstance(leaf, BoundedRangeSelectionEvent):
        return True
    width = 2 * TAIL_SIGMAS * leaf.sigma * count_sensitivity(leaf.adjacency, leaf.max_contributions).l1
    tabulated = width <= MAX_CELLS and _largest_loss(leaf) <= MAX_LOSS
    return tabulated and counts_shifts(leaf.adjacency, leaf.max_contributions) is not None


def _largest_loss(leaf: DiscreteGaussianCountsEvent) -> float:
    """Losses are about normal, of mean D^2 / 2 sigma^2 and deviation D / sigma; what lies beyond counts as infinite."""
    ratio = count_sensitivity(leaf.adjacency, leaf.max_contributions).l2 / leaf.sigma
    return ratio**2 / 2 + (TAIL_SIGMAS + 1) * ratio


def _interval(leaf: DpEvent) -> float:
    """Grid of losses: a power of two, about a thirtieth of the leaf's typical loss."""
    if isinstance(leaf, DiscreteGaussianCountsEvent):
        typical = count_sensitivity(leaf.adjacency, leaf.max_contributions).l2 / leaf.sigma
    else:
        typical = leaf.epsilon / 2
    return float(2.0 ** max(-18, min(-8, math.floor(math.log2(typical / 30)))))


@lru_cache(maxsize=256)
def _leaf_pmf(leaf: DpEvent, interval: float, exhaustive: bool) -> Any:
    """The pessimistic PLD of one leaf: the connected dots of its largest hockey-stick curve."""
    from dp_accounting.pld import pld_pmf

    if isinstance(leaf, BoundedRangeSelectionEvent):
        last = math.ceil(leaf.epsilon / interval)
        grid = interval * np.arange(-last, last + 1, dtype=np.float64)
        deltas = bounded_range_hockey_stick(leaf.epsilon, grid)
    else:
        last = math.ceil(_largest_loss(leaf) / interval)
        grid = interval * np.arange(-last, last + 1, dtype=np.float64)
        shifts = counts_shifts(leaf.adjacency, leaf.max_contributions) or []
        if not exhaustive:
            shifts = [max(shifts, key=lambda shift: sum(cell * cell for cell in shift))]
        deltas = np.max([shift_hockey_stick(leaf.sigma, shift, grid) for shift in shifts], axis=0)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -last, last, np.minimum.accumulate(deltas)
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
