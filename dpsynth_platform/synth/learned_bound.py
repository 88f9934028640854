"""Learning the contribution bound *b* from the data, with differential privacy: a quantile of the records per owner.

What belongs here: the choice by the exponential mechanism, and its privacy event. What does not: counting, paying for
the event, and storing the result (the ledger's entry comes first, and the result is stored before it is used).

A candidate b in 1, ..., at_most has the utility u(b) = -|F(b) - q n|: n owners, F(b) of them with at most b records. In
whole numbers, for a quantile q = p / d: -|d F(b) - p n|. An additional owner with c records adds 1 to n and 1 to those
F(b) with b >= c, so that d F(b) - p n grows by d - p or by -p, and the utility moves by at most max(p, d - p).
Replacing an owner's records does not change n and moves each F(b) by at most 1, hence the utility by at most d. The
number of the owner's records does not matter. (Owners without a record are not counted, so `zero-out` removes an owner
as `add-or-remove` does.)

The range 1, ..., at_most is public and independent of the data. If records have several owners, `fixed-graph` is the
only adjacency, and it does not protect numbers of records: there is nothing to pay for.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dpsynth_platform.contracts.privacy import MOST_CONTRIBUTIONS
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.privacy.events import BoundedRangeSelectionEvent, DpEvent
from dpsynth_platform.privacy.units import check_adjacency, replaces
from dpsynth_platform.synth.tabular.noise import select_by_exponential_mechanism

OwnerCounts = npt.NDArray[np.int64]


def quantile_event(epsilon: float, adjacency: str) -> DpEvent:
    """The event of `learned_contributions`: one epsilon-bounded-range choice in which each owner counts once.

    Raises:
        BoundingError: under `fixed-graph`, which protects no number of records.
        AccountingError: epsilon is not in range, or the adjacency is unknown.
    """
    if adjacency == "fixed-graph":
        raise BoundingError(
            "adjacency fixed-graph: owners' numbers of records are not protected, so a bound cannot be learned from "
            "them with a guarantee; declare max_contributions"
        )
    return BoundedRangeSelectionEvent(epsilon, adjacency, 1)


def learned_contributions(
    records_per_owner: OwnerCounts, *, at_most: int, quantile: Fraction, epsilon: float, adjacency: str
) -> int:
    """A bound b under which about a share `quantile` of the owners keep all their records.

    P[b] is proportional to exp(epsilon * u(b) / (2 * sensitivity)), drawn exactly (Smith 2011, with the exponential
    mechanism over a finite range). The utility of the drawn b is below the best by more than
    2 * sensitivity / epsilon * (log(at_most) + t) with probability at most exp(-t).

    Args:
        records_per_owner: number of records of each owner that takes part, each from 1. Sensitive. Shape (owners,).
        at_most: the largest possible result; public.
        quantile: q, such as Fraction(9, 10); public.
        epsilon: the range of the choice, as in `quantile_event`.
        adjacency: which datasets are neighbours, as in `quantile_event`.

    Raises:
        BoundingError: `at_most` or `quantile` is out of range; see also `quantile_event`.
        AccountingError: see `quantile_event`.
    """
    quantile_event(epsilon, adjacency)
    scores = utilities(records_per_owner, at_most, quantile)
    return 1 + select_by_exponential_mechanism(scores, epsilon, sensitivity(quantile, adjacency))


def check_question(at_most: int, quantile: Fraction) -> None:
    """Raises `BoundingError` if the range or the quantile is not accepted."""
    if not 1 <= at_most <= MOST_CONTRIBUTIONS:
        raise BoundingError(f"at_most {at_most}; accepted: 1 to {MOST_CONTRIBUTIONS}")
    if not (0 < quantile <= 1 and quantile.denominator <= 1_000):
        raise BoundingError(f"quantile {quantile}; accepted: above 0, at most 1, in thousandths or coarser")


def utilities(records_per_owner: OwnerCounts, at_most: int, quantile: Fraction) -> list[int]:
    """-|d F(b) - p n| for b = 1, ..., at_most. Sensitive.

    Raises:
        BoundingError: see `learned_contributions`.
    """
    check_question(at_most, quantile)
    counts = np.bincount(np.minimum(records_per_owner, at_most + 1), minlength=at_most + 2)
    with_at_most = np.cumsum(counts)[1 : at_most + 1]
    target = quantile.numerator * len(records_per_owner)
    return [-abs(quantile.denominator * int(number) - target) for number in with_at_most]


def sensitivity(quantile: Fraction, adjacency: str) -> int:
    """The largest change of a utility by one owner. Raises `AccountingError` for an unknown adjacency."""
    check_adjacency(adjacency, 1)
    below, parts = quantile.numerator, quantile.denominator
    return parts if replaces(adjacency) else max(below, parts - below)
