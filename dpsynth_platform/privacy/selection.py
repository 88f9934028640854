"""Select, measure, estimate: the cost of mechanisms that choose adaptively what to measure, and how exactly (AIM).

What belongs here: the event of such a mechanism, the noise that meets a guarantee, and the precision that its
measurements have used. What does not: which marginal to measure with which share of the budget (the mechanism), and
drawing noise (`synth.tabular.noise`).

**The mechanism.** Fixed in advance: a total precision M = 1 / sigma_total^2 for all measurements together, and a number
R of choices, each epsilon_select-bounded-range. Then, in any order and number, each step chosen by all results so far:

- a *measurement*: a table of counts, each cell with independent noise N(0, sigma_t^2), which one unit moves by at most
  Delta (L2); or any other vector of numbers, scaled until that holds (`scale_of_distances`). The sum of all 1 /
  sigma_t^2 stays within M. Which counts, over which cells, and sigma_t may depend on earlier results; which cells one
  unit moves, and where to, may therefore, too.
- a *choice*: an epsilon_select-bounded-range one, at most R times. What is scored may depend on earlier results.
- an end, before everything is used.

**The claim.** The interaction costs at most as much as the event `selection_event`: one Gaussian table of noise
sigma_total and R choices, fixed beforehand. More precisely, let H_g(P, Q) = sum of max(P - g Q, 0), for g >= 0, be the
hockey-stick divergence (delta at epsilon = log g). For all neighbours, in both directions, and at every g, H_g of what
the interaction shows is at most W(g; M, R) = H_g(G_M x B_R). G_m is the pair of normal distributions N(0, 1) and
N(Delta sqrt(m), 1). B_r is a pair whose curve is the largest that r choices can have, each in the light of those before
(`accounting.bounded_range_curve`): B_0 shows nothing, and H_g(B_r) is the maximum of H_g(T x B_{r-1}) over the pairs T
of two outcomes with losses t and t - epsilon_select. There are such pairs: a maximum of hockey-stick curves is convex,
falls, lies between max(1 - g, 0) and 1, and is 1 at g = 0, which is all that it takes to be a pair's (Zhu, Dong & Wang
2022, section 3).

**Proof**, by backward induction over the steps, of which there are finitely many, as every measurement uses at least
the precision of the widest noise there is. Fix the neighbours and how steps are chosen; tossing coins over that is an
average. Suppose that the claim holds after the first step, whatever it showed, for what remains (m, r).

1. *The end.* Then nothing more is shown, and H_g = max(1 - g, 0) <= W(g; m, r), for all m and r.
2. *The first step.* It shows y with densities p and q for the two neighbours. What remains does not depend on y: it is
   (m', r') = (M - 1 / sigma_t^2, R) or (M, R - 1), since the step and its noise were chosen before. Given y, what
   follows is an interaction within that. So H_g of the whole is the sum over y of p H_{g q / p}(what follows y), where
   p is not 0, and at most the sum of p W(g q / p; m', r'). Only here is the induction used: g q / p takes all values,
   which is why the claim must be made of the whole curve and not of one epsilon.
3. *The step's worst case.* That sum is H_g of the independent product of the step's pair (p, q) with G_{m'} x B_{r'}. A
   product's curve does not fall when a factor is exchanged for one that dominates it, that is, whose own curve is
   nowhere lower (the same, theorem 10). Noise of sigma_t on a vector that the neighbours move by at most Delta is
   dominated by G of precision 1 / sigma_t^2: rotated, the change lies along one axis, wherever it points, and the curve
   grows with its length. A choice is dominated by a T: its likelihood ratios lie between those of T's two outcomes.
4. *The sum.* G_{1 / sigma_t^2} x G_{m'} has the curve of G_M: the loss of each is normal with a variance of twice its
   mean, and variances add to Delta^2 M. So which sigma_t was chosen does not matter. And T x B_{R-1} is dominated by
   B_R, whichever T it is, hence so is its product with G_M by that of B_R.

Both directions: normal pairs are their own mirror image, and so is the family of all T (t becomes epsilon_select - t),
so the same G and B_r dominate both. What remains never depends on results: that is why precision must be one number
that adds up, and why a choice may not be traded for a measurement, nor its epsilon be raised, in the light of results.
A choice with less than epsilon_select, and fewer choices, are within the claim. Rounding, estimation and whatever else
is done with the results are post-processing. By theorem 10 again, the claim is also good for composing with other
mechanisms, and the same induction, with moments in place of H_g, gives the Renyi curve that the ledger adds.

Adaptive Gaussian noise within a fixed sum of precisions is known as a fully adaptive filter: Smith & Thakurta 2022;
Koskela, Tobaben & Honkela 2023. That fixed choices may stand in between is step 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from dp_accounting import dp_event

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import (
    SIGMA_RANGE,
    SIGMA_STEP,
    choice_epsilon,
    largest_rho,
    sigma_from,
)
from dpsynth_platform.privacy.events import MAX_LEAVES, BoundedRangeSelectionEvent, DpEvent, GaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.partitions import NOTHING_LEARNED, Partitions
from dpsynth_platform.privacy.units import RECORD_PARTS, Sensitivity


@dataclass(frozen=True)
class SelectionBudget:
    """What a mechanism may use. All noise is in exact binary fractions (`SIGMA_STEP`, `EPSILON_STEP`).

    Attributes:
        sigma_total: noise of all measurements together, in records: 1 / sigma_total^2 is their total precision.
        epsilon_select: range of each choice; 0 where there is none.
        rounds: R, the most choices.
        rho: the zCDP cost of all together (an upper bound).
    """

    sigma_total: float
    epsilon_select: float
    rounds: int
    rho: float

    @property
    def precision(self) -> PrecisionBudget:
        """The unused precision of all measurements."""
        return PrecisionBudget.of(self.sigma_total)


@dataclass(frozen=True)
class PrecisionBudget:
    """The unused precision for measurements, exactly; a measurement with noise sigma uses 1 / sigma^2 (records^-2)."""

    left: Fraction

    @classmethod
    def of(cls, sigma_total: float) -> PrecisionBudget:
        """A budget for one measurement with noise `sigma_total`, or for several that are as precise together.

        Raises:
            AccountingError: a sigma that is out of range or no multiple of `SIGMA_STEP`.
        """
        return cls(_precision(sigma_total))

    def spend(self, sigma: float) -> PrecisionBudget:
        """The budget after one more measurement.

        Raises:
            AccountingError: the measurement needs more than is left, or its sigma is out of range or no multiple of
                `SIGMA_STEP`.
        """
        left = self.left - _precision(sigma)
        if left < 0:
            raise AccountingError(
                f"a measurement with sigma {sigma:g}, where {self._in_words()} is left; accepted: more noise"
            )
        return PrecisionBudget(left)

    def sigma(self, share: float = 1.0) -> float | None:
        """The least noise, a multiple of `SIGMA_STEP`, that uses at most a share of what is left.

        None if noise would have to be wider than can be drawn.

        Raises:
            AccountingError: a share outside (0, 1].
        """
        if not 0 < share <= 1:
            raise AccountingError(f"a share of {share!r} of the precision; accepted: above 0, at most 1")
        part = self.left * Fraction(share)
        if part == 0:
            return None
        # The least whole k with 1 / (k SIGMA_STEP)^2 <= part.
        squared = math.ceil(1 / (part * Fraction(SIGMA_STEP) ** 2))
        sigma = (math.isqrt(squared - 1) + 1) * SIGMA_STEP
        return max(sigma, SIGMA_RANGE[0]) if sigma <= SIGMA_RANGE[1] else None

    def _in_words(self) -> str:
        sigma = self.sigma()
        return "nothing" if sigma is None else f"only the precision of sigma {sigma:g}"


def selection_event(
    budget: SelectionBudget, adjacency: str, max_contributions: int, weighting: str = "rows"
) -> DpEvent:
    """The event that dominates every mechanism within the budget; see the module's claim.

    Raises:
        AccountingError: a parameter is out of range.
    """
    neighbours = (adjacency, max_contributions, weighting)
    parts: list[DpEvent] = [GaussianCountsEvent(budget.sigma_total, *neighbours)]
    if budget.rounds:
        choice = BoundedRangeSelectionEvent(budget.epsilon_select, *neighbours)
        parts.append(dp_event.SelfComposedDpEvent(choice, budget.rounds))
    return dp_event.ComposedDpEvent(parts)


@lru_cache(maxsize=64)
def calibrate_selection(
    guarantee: Guarantee, rounds: int, selection_share: float, partitions: Partitions = NOTHING_LEARNED
) -> SelectionBudget:
    """The largest budget with which a mechanism of up to `rounds` choices meets a guarantee.

    A share of the zCDP budget rho goes to the choices, in equal parts, the rest to measurements; rho is as large as the
    smaller of PLD and Renyi allows. Rounding is to more noise.

    Args:
        guarantee: with its adjacency, b and weighting, which give Delta (`units.count_sensitivity`).
        rounds: R; 0 for a mechanism that only measures.
        selection_share: of rho, above 0 and below 1; 0 without choices.
        partitions: the columns whose values are learned first, with a part of the same guarantee.

    Raises:
        AccountingError: impossible arguments, or an epsilon so small that no noise in range meets it.
    """
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 0 <= rounds <= MAX_LEAVES:
        raise AccountingError(f"{rounds!r} rounds; accepted: 0 to {MAX_LEAVES}")
    if not (0 < selection_share < 1 if rounds else selection_share == 0):
        raise AccountingError(
            f"a share of {selection_share!r} for {rounds} choices; accepted: above 0 and below 1, or 0 for no choices"
        )
    share = 1 - partitions.share

    def event_of(rho: float) -> DpEvent:
        budget = selection_budget(guarantee, share * rho, rounds, selection_share)
        event = selection_event(budget, guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)
        return partitions.beside(event, guarantee, budget.rho)

    return selection_budget(guarantee, share * largest_rho(event_of, guarantee), rounds, selection_share)


def selection_budget(guarantee: Guarantee, rho: float, rounds: int, selection_share: float) -> SelectionBudget:
    """The budget at a zCDP cost rho, rounded to more noise."""
    squared = guarantee.sensitivity.l2_squared
    sigma = sigma_from(math.sqrt(squared / (2 * (1 - selection_share) * rho)))
    select = choice_epsilon(selection_share * rho / rounds) if rounds else 0.0
    return SelectionBudget(sigma, select, rounds, squared / (2 * sigma**2) + rounds * select**2 / 8)


def scale_of_distances(number: int, sigma: float, sensitivity: Sensitivity) -> int:
    """Noise of `number` L1 distances together that cost what one table of counts with noise `sigma` costs.

    Of each of m tables of counts n_j (the same records by other cells), the distance d_j = sum over cells of
    |n_j - e_j| from an e_j that was fixed before, by public facts and earlier results alone. One unit moves every n_j
    by at most L1 = `sensitivity.l1` records in the L1 norm (`units.count_sensitivity`, which holds for disjoint cells,
    of whichever columns). Then |d_j(D) - d_j(D')| <= sum |n_j(D) - n_j(D')| <= L1, by the triangle inequality in each
    cell. So the vector d moves by at most sqrt(m) L1 in the L2 norm, and no less can be promised: a unit whose records
    are all in cells with n_j > e_j, in every table, moves each distance by L1. The vector d Delta / (sqrt(m) L1)
    moves by at most Delta, as a table of counts does. With noise sigma it is a measurement of precision 1 / sigma^2.
    Multiplied back, that is d with noise sigma sqrt(m) L1 / Delta on each number, independently. A larger scale is
    the same with more noise.

    In 1/RECORD_PARTS record, a whole number, rounded up. Weights need no other proof: where owners are counted, counts
    are whole numbers of these parts, and L1 is one record. Distances are exact if the e_j are whole numbers of parts.

    Raises:
        AccountingError: no distance; or more noise than can be drawn.
    """
    if number < 1:
        raise AccountingError(f"{number} distances with noise; accepted: at least one")
    squared = Fraction(sigma) ** 2 * RECORD_PARTS**2 * number * sensitivity.l1**2 / sensitivity.l2_squared
    scale = math.isqrt(math.ceil(squared) - 1) + 1
    if scale > SIGMA_RANGE[1] * RECORD_PARTS:
        raise AccountingError(
            f"{number} distances need more noise than can be drawn; accepted: a larger epsilon, or fewer columns"
        )
    return scale


def _precision(sigma: float) -> Fraction:
    low, high = SIGMA_RANGE
    if not (low <= sigma <= high and (sigma / SIGMA_STEP).is_integer()):
        raise AccountingError(f"sigma {sigma!r}; accepted: multiples of {SIGMA_STEP!r}, from {low:g} to {high:g}")
    return 1 / Fraction(sigma) ** 2
