"""The noise of MST that meets a guarantee, and its event.

What belongs here: how MST's budget is spread over its steps, its event, and its calibration. What does not: what the
event costs (`accounting`), and the mechanism (`synth.tabular.mst`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from dp_accounting import dp_event

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import check_rho, choice_epsilon, largest_rho, sigma_from
from dpsynth_platform.privacy.events import BoundedRangeSelectionEvent, DpEvent, GaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.partitions import NOTHING_LEARNED, Partitions


@dataclass(frozen=True)
class MstBudget:
    """Noise of MST. All numbers are exact binary fractions (`SIGMA_STEP`, `EPSILON_STEP`).

    Attributes:
        sigma_one: noise of the one-way marginals, in records.
        epsilon_select: range of each edge's choice by the exponential mechanism; 0 with one column, where there is
            none.
        sigma_two: noise of the two-way marginals, in records.
        rho: the zCDP cost of all together (an upper bound).
    """

    sigma_one: float
    epsilon_select: float
    sigma_two: float
    rho: float


def mst_event(
    columns: int, budget: MstBudget, adjacency: str, max_contributions: int, weighting: str = "rows"
) -> DpEvent:
    """The event of MST (McKenna, Miklau & Sheldon 2021) over a number of columns d.

    d one-way marginals, d - 1 choices of a tree's edge, d - 1 two-way marginals on the chosen edges; with one column
    nothing is chosen.

    Raises:
        AccountingError: d is below 1, or a parameter is not finite and positive.
    """
    if columns < 1:
        raise AccountingError(f"MST over {columns} columns; accepted: from 1")
    neighbours = (adjacency, max_contributions, weighting)
    one_way = GaussianCountsEvent(budget.sigma_one, *neighbours)
    parts = [dp_event.SelfComposedDpEvent(one_way, columns)]
    if columns > 1:
        select = BoundedRangeSelectionEvent(budget.epsilon_select, *neighbours)
        two_way = GaussianCountsEvent(budget.sigma_two, *neighbours)
        parts += [dp_event.SelfComposedDpEvent(select, columns - 1), dp_event.SelfComposedDpEvent(two_way, columns - 1)]
    return dp_event.ComposedDpEvent(parts)


@lru_cache(maxsize=64)
def calibrate_mst(columns: int, guarantee: Guarantee, partitions: Partitions = NOTHING_LEARNED) -> MstBudget:
    """The least noise with which MST over `columns` columns meets a guarantee, beside learning some columns' values.

    rho goes in thirds to one-way marginals, choices and two-way marginals, as in McKenna, Miklau & Sheldon 2021, and
    is as large as the smaller of PLD and Renyi allows (`largest_rho`). Rounding is to more noise. With one column
    everything goes to its marginal.

    Raises:
        AccountingError: fewer than one column, or an epsilon so small that no noise in range meets it.
    """
    if columns < 1:
        raise AccountingError(f"MST over {columns} columns; accepted: from 1")
    share = 1 - partitions.share

    def event_of(rho: float) -> DpEvent:
        budget = mst_budget(columns, share * rho, guarantee)
        event = mst_event(columns, budget, guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)
        return partitions.beside(event, guarantee, budget.rho)

    return mst_budget(columns, share * largest_rho(event_of, guarantee), guarantee)


def mst_budget(columns: int, rho: float, guarantee: Guarantee) -> MstBudget:
    """MST's noise at a zCDP budget rho for the guarantee's adjacency and b, rounded to more noise.

    Raises:
        AccountingError: rho outside `RHO_RANGE`, or noise outside `SIGMA_RANGE`.
    """
    squared = guarantee.sensitivity.l2_squared
    if columns == 1:
        sigma = sigma_from(math.sqrt(squared / (2 * check_rho(rho))))
        return MstBudget(sigma, 0.0, sigma, squared / (2 * sigma**2))
    edges, third = columns - 1, check_rho(rho) / 3
    one = sigma_from(math.sqrt(squared * columns / (2 * third)))
    two = sigma_from(math.sqrt(squared * edges / (2 * third)))
    select = choice_epsilon(third / edges)
    spent = columns * squared / (2 * one**2) + edges * (select**2 / 8 + squared / (2 * two**2))
    return MstBudget(one, select, two, spent)
