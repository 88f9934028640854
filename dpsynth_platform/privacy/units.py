"""Privacy units, adjacency relations and what one unit can change.

What belongs here: the distance that neighbouring datasets can have in a vector of counts, what a record weighs in
them, and the conversion of a guarantee for one unit into one for a group. What does not: noise and its cost (`events`,
`accounting`). An adjacency is turned into a sensitivity here, before any event is made, because accountants do not
agree on how to do it afterwards: `dp_accounting`'s RDP accountant ignores REPLACE_ONE for a Gaussian event, its PLD
accountant does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from dpsynth_platform.foundation.errors import AccountingError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Unit = Literal["example", "user", "group"]
Adjacency = Literal["add-or-remove", "zero-out", "replace-one", "fixed-graph"]
Weighting = Literal["rows", "owners"]
"""What counts are of: rows, which all weigh the same; or owners, whose rows weigh as much as one row together."""

UNITS: tuple[str, ...] = get_args(Unit)
ADJACENCIES: tuple[str, ...] = get_args(Adjacency)
WEIGHTINGS: tuple[str, ...] = get_args(Weighting)
RECORD_PARTS = 2**16
"""Weights, counts of weighted rows and scores are whole numbers of these parts of a record: nothing is rounded."""
_Rows = TypeVar("_Rows", int, "npt.NDArray[np.int64]")
_REPLACING: tuple[Adjacency, ...] = ("replace-one", "fixed-graph")


@dataclass(frozen=True)
class Sensitivity:
    """How far one unit moves a vector of counts, in records. `l2_squared` is an integer, so that it is exact."""

    l1: int
    l2_squared: int

    @property
    def l2(self) -> float:
        return math.sqrt(self.l2_squared)


def check_adjacency(adjacency: str, max_contributions: int) -> None:
    """Raises `AccountingError` for an unknown adjacency, or a b that is not a positive integer."""
    if adjacency not in ADJACENCIES:
        raise AccountingError(f"adjacency {adjacency!r} cannot be accounted for; accepted: {', '.join(ADJACENCIES)}")
    if isinstance(max_contributions, bool) or not isinstance(max_contributions, int) or max_contributions < 1:
        raise AccountingError(f"max_contributions {max_contributions!r}; accepted: a whole number from 1")


def check_epsilon_delta(epsilon: float, delta: float) -> None:
    """Raises `AccountingError` unless epsilon is finite and positive, and delta in (0, 1)."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise AccountingError(f"epsilon {epsilon!r}; accepted: a finite number above 0")
    if not 0 < delta < 1:
        raise AccountingError(f"delta {delta!r}; accepted: a number between 0 and 1")


def replaces(adjacency: str) -> bool:
    """Whether neighbours differ in the content of records, and not only in whether they are present.

    Under `replace-one` a unit's records are replaced by at most b others. Under `fixed-graph` (Ganesh et al. 2025: for
    records with several owners) who owns which record is fixed and known, and the contents of all records that one unit
    owns change, its at most b kept ones among them; records that it does not own stay as they are, whoever owns
    them. That is a replacement of b records by b others, so what covers `replace-one` covers it.
    """
    return adjacency in _REPLACING


def row_weight(rows: _Rows) -> _Rows:
    """The weight of each row of an owner of `rows` rows where owners are counted, in `RECORD_PARTS` of a record.

    1 / k in fixed point, rounded down: k floor(U / k) <= U, so an owner's rows weigh one record together at most. With
    more than U rows each weighs nothing.
    """
    return RECORD_PARTS // rows


def count_sensitivity(adjacency: str, max_contributions: int, weighting: str = "rows") -> Sensitivity:
    """What one unit with at most b records changes in a vector of counts over disjoint cells.

    Under `add-or-remove` and `zero-out` the change is a vector v >= 0 of sum at most b: farthest when all b records
    fall into one cell (L1 = L2 = b). Under `replace-one` and `fixed-graph` it is the difference of two such vectors:
    farthest when all records move from one cell to another (L1 = 2b, L2 = sqrt(2) b).

    Where each owner counts once (`weighting` owners), each of an owner's k rows weighs `row_weight(k)`, k the number of
    its rows among those that are counted. Then the change is as with b = 1. For let D, D' be neighbours in the unit p.
    All other owners have the same rows in both (`bounding`: which of them are kept depends on the owner alone), hence
    the same k and the same weights, and their sums cancel, cell by cell. What is left of D is p's vector v: of k terms
    that are `row_weight(k)` each, so v >= 0 and its sum is k floor(U / k) / U <= 1 record; of D' likewise v', which is
    0 under `add-or-remove` and `zero-out`. So the change has L1 <= 1 and L2 <= L1 <= 1; under `replace-one`,
    L1 <= |v|_1 + |v'|_1 <= 2 and L2^2 = |v|_2^2 + |v'|_2^2 - 2 <v, v'> <= 2. k is used for nothing else, and is not
    shown. A record with several owners would have several k: `fixed-graph` is refused.

    Raises:
        AccountingError: see `check_adjacency`; or an unknown weighting, or owners under `fixed-graph`.
    """
    check_adjacency(adjacency, max_contributions)
    if weighting not in WEIGHTINGS:
        raise AccountingError(f"weighting {weighting!r} cannot be accounted for; accepted: {', '.join(WEIGHTINGS)}")
    if weighting == "owners" and adjacency == "fixed-graph":
        raise AccountingError("weighting owners under fixed-graph: a record has several owners; accepted: rows")
    b = 1 if weighting == "owners" else max_contributions
    if replaces(adjacency):
        return Sensitivity(l1=2 * b, l2_squared=2 * b * b)
    return Sensitivity(l1=b, l2_squared=b * b)


def vote_sensitivity(adjacency: str, max_contributions: int) -> Sensitivity:
    """What one unit with at most b records changes in a histogram of votes that are scaled to a norm of 1.

    Each record votes for one cell, and an owner's vector of votes is scaled down until its L2 norm is 1 at most. It is
    made of that owner's records alone, so under `add-or-remove` and `zero-out` the histogram moves by it: L2 <= 1,
    whatever b is. Under `replace-one` by the difference of two such vectors v, v' >= 0: L2^2 = |v|^2 + |v'|^2 -
    2 <v, v'> <= 2. L1 is sqrt(b) at most, for each vector (Cauchy-Schwarz over at most b cells); b bounds it.

    Where a record's vote is shared by k cells, it counts once in each before the owner's vector is scaled: nothing
    above depends on how the vector came about, so L2 stays. (L1 is sqrt(b k) at most for each vector; Gaussian noise,
    the only one of votes, does not depend on it.) A record alone gives each cell 1 / sqrt(k), not 1 / k: with the same
    noise, that is the same mechanism as parts of 1 / k with noise smaller by sqrt(k).

    Where a record has several owners (`fixed-graph`), no owner's votes can be scaled by themselves: each record's vote
    counts in full, and the change is that of counts of rows (`count_sensitivity`). With k cells a record it is at most
    that: the vectors of b records have norm 1 each, so their sums v, v' >= 0 have norms of at most b, and L2^2 =
    |v|^2 + |v'|^2 - 2 <v, v'> <= 2 b^2.

    Raises:
        AccountingError: see `check_adjacency`.
    """
    if adjacency == "fixed-graph":
        return count_sensitivity(adjacency, max_contributions)
    check_adjacency(adjacency, max_contributions)
    vectors = 2 if replaces(adjacency) else 1
    return Sensitivity(l1=vectors * max_contributions, l2_squared=vectors)


def vector_sensitivity(adjacency: str, max_contributions: int) -> Sensitivity:
    """What one unit with at most b records changes in a sum of vectors that are clipped to a norm of 1.

    The sum of an owner's vectors is clipped as one vector v. It is made of that owner's records alone, so under
    `add-or-remove` and `zero-out` the total moves by v: L2 <= 1, whatever b is. Under `replace-one` it moves by v - v',
    and vectors, unlike votes, may point in opposite directions: L2 <= |v| + |v'| <= 2.

    Where a record has several owners (`fixed-graph`), each record's vector is clipped by itself, and the contents of at
    most b records change: the total moves by b differences of such vectors, L2 <= 2b. `l1` is that of a single entry,
    which moves no further; that of a whole vector depends on the number of its entries.

    Raises:
        AccountingError: see `check_adjacency`.
    """
    check_adjacency(adjacency, max_contributions)
    clipped = max_contributions if adjacency == "fixed-graph" else 1
    moved = (2 if replaces(adjacency) else 1) * clipped
    return Sensitivity(l1=moved, l2_squared=moved * moved)


def group_guarantee(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """The (epsilon, delta) that a group of `size` units has from a guarantee for one.

    (k epsilon, delta (e^(k epsilon) - 1) / (e^epsilon - 1)): lemma 2.2 of Vadhan 2017 with its geometric sum kept.
    Delta is 1 at most, which promises nothing.

    Raises:
        AccountingError: epsilon is not positive and finite, delta not in [0, 1), or size below 1.
    """
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 <= delta < 1 and size >= 1):
        raise AccountingError(
            f"group of {size} at epsilon {epsilon:g}, delta {delta:g}; accepted: finite epsilon above 0, delta in "
            "[0, 1), size from 1"
        )
    if delta == 0 or size == 1:
        return size * epsilon, delta
    # In logarithms, for e^(k epsilon) may overflow.
    sum_of_powers = (size - 1) * epsilon + math.log(-math.expm1(-size * epsilon)) - math.log(-math.expm1(-epsilon))
    return size * epsilon, math.exp(min(0.0, math.log(delta) + sum_of_powers))
