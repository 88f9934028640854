"""The sealed description of a secure sum, and whole numbers modulo a power of two.

What belongs here: bounds from which no sum can overflow, and the coding of vectors. What does not: the draws (`noise`)
and the masks under which vectors travel. A participant checks a plan by itself: it trusts no server to do so.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event

from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.calibration import noise_for
from dpsynth_platform.privacy.events import DpEvent, SkellamCountsEvent, SkellamSumsEvent
from dpsynth_platform.privacy.skellam import skellam_reach
from dpsynth_platform.privacy.units import count_sensitivity

Whole = npt.NDArray[np.int64]
Coded = npt.NDArray[np.uint64]

# The chance that the noise of any entry is larger than the modulus allows for, in bits. It costs no privacy, for what
# is seen is the sum modulo the modulus, which is post-processing: the entry alone would be wrong.
OVERFLOW_BITS = 60
# A sum is decoded as a signed 64-bit number.
MOST_BITS = 62
# Variances of shares are multiples of this, exact as binary floats.
VARIANCE_STEP = 2.0**-10
MOST_VARIANCE = 2.0**40
MOST_PARTICIPANTS = 2**20
MOST_LENGTH = 2**40
# Units of a record: from here on Skellam noise costs what Gaussian noise of the same deviation costs, within 0.1%, at
# deviations from one record up.
SCALE = 16
_LARGE = 1e150


@dataclass(frozen=True)
class SumPlan:
    """What all parties know of a sum before it is computed.

    Each finishing participant adds a vector of whole numbers and a share of Skellam noise. Nothing but the sum modulo
    2^`modulus_bits` is opened, and only if at least `minimum` participants finish.

    **No overflow.** Let n be `participants`, B `bound` and t `noise_reach`. At most n vectors are added, and
    `check_vector` has each entry in [-B, B]; so their sum is in [-nB, nB]. The noise of an entry is Skellam, of
    variance at most n `share_variance`; P[|noise| >= t] <= 2^-60 / length, so that with probability at least 1 - 2^-60
    it is in [-(t - 1), t - 1] for all entries. Then |sum| <= nB + t - 1 < 2^(modulus_bits - 1), and `decode` is exact.

    **Noise.** Of the at least `minimum` shares in an opened sum, `colluders` may be known to an adversary (or may never
    have been added); `honest` = minimum - colluders others remain. Their sum is Skellam of variance `honest` times
    `share_variance`, as the distribution is closed under addition. More finishing participants only add independent
    noise, which is post-processing.

    **One sum a round.** The event is that of one opened sum. If an adversary had the sums of two sets of participants
    of one round, their difference would hold few vectors and only those participants' noise. So at most one set may
    ever be opened with the same shares of noise; a round that is repeated draws afresh, and costs again. A set is
    opened if `minimum` participants agree to it. Honest ones agree to one set only. Two sets would need minimum -
    colluders honest participants each, of all participants - colluders. So no two are opened if 2 minimum >
    participants + colluders, and other plans are refused.

    **What a unit adds** is sealed too: `adjacency`, `max_contributions`, `silos` and, of vectors, `norm`. So all who
    agree on the digest account for the same event, and participants bound their rows by it.

    **One person in several silos.** Let a person have at most b records in each of at most k participants, which do not
    know of each other. The sum of the participants' counts is the counts of all rows, so it moves as one table does by
    k b records: by v >= 0 of sum at most k b. That is a unit of k b records, not k units: the change is in one vector
    with one noise, and k parallel mechanisms do not describe it. The k vectors of a person add up to one of at most k
    times each norm. Where a person is in one silo alone, or is declared as one unit in each, k is 1.

    **Several tables.** A vector may be `tables` tables of counts in a row, of each of which a record has one cell: then
    the sum costs as much as so many sums of one table, with independent noise.

    Attributes:
        participants: the most that can take part.
        minimum: the fewest finishing ones of an opened sum; `participants - minimum` may drop out.
        colluders: the most participants that an adversary controls, whose shares of noise it therefore knows.
        length: entries of the vector.
        scale: units of a record.
        bound: B, in units.
        share_variance: of each participant's share of an entry's noise, in squared units.
        adjacency: which datasets are neighbours.
        max_contributions: b, the most records of one unit that a participant keeps.
        silos: k, the most participants that one person is in.
        norm: of vectors, the L2 norm to which a unit's one is clipped in each participant's rows (`fixed_point`); None:
            counts of records.
        tables: of counts, in one vector.

    Raises:
        AccountingError: a value is impossible, two sets could be opened, or sums do not fit.
    """

    participants: int
    minimum: int
    colluders: int
    length: int
    scale: int
    bound: int
    share_variance: float
    adjacency: str = "add-or-remove"
    max_contributions: int = 1
    silos: int = 1
    norm: int | None = None
    tables: int = 1

    def __post_init__(self) -> None:
        for name, least, most in (
            ("participants", 2, MOST_PARTICIPANTS),
            ("minimum", self.participants // 2 + 1, self.participants),
            ("colluders", 0, 2 * self.minimum - self.participants - 1),  # which is below `minimum`
            ("length", 1, MOST_LENGTH),
            ("scale", 1, 2**MOST_BITS),
            ("bound", 1, 2**MOST_BITS),
            ("silos", 1, self.participants),
            ("tables", 1, self.length if self.norm is None else 1),
            *([] if self.norm is None else [("norm", 1, 2**MOST_BITS)]),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise AccountingError(f"{name} {value!r} of a sum; accepted: a whole number, {least} to {most}")
        self._check_noise()
        if self.modulus_bits > MOST_BITS:
            raise AccountingError(
                f"sums of {self.participants} entries up to {self.bound} and their noise need {self.modulus_bits} "
                f"bits; accepted: up to {MOST_BITS}; declare a smaller bound, or a coarser scale"
            )

    def _check_noise(self) -> None:
        variance = self.share_variance
        if not (isinstance(variance, float) and VARIANCE_STEP <= variance <= MOST_VARIANCE):
            raise AccountingError(f"share_variance {variance!r}; accepted: {VARIANCE_STEP:g} to {MOST_VARIANCE:g}")
        if not (variance / VARIANCE_STEP).is_integer():
            raise AccountingError(f"share_variance {variance!r}; accepted: a multiple of {VARIANCE_STEP:g}")
        _ = self.event  # refuses impossible neighbours

    @classmethod
    def from_json(cls, document: Any) -> SumPlan:
        """Raises `AccountingError` if a key is missing or unknown, or a value is impossible."""
        try:
            return cls(**document)
        except TypeError:
            raise AccountingError("the document of a sum has missing or unknown keys or values") from None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def digest(self) -> str:
        """SHA-256 of the plan, by which participants agree on it."""
        return canonical_digest(self.to_json())

    @property
    def honest(self) -> int:
        """The fewest shares of noise in an opened sum that an adversary does not know."""
        return self.minimum - self.colluders

    @property
    def protecting_variance(self) -> float:
        """Variance of the noise that an adversary does not know, in squared units."""
        return self.honest * self.share_variance

    @property
    def noise_reach(self) -> int:
        """t: noise of an entry is below it, in any of the entries, but for a chance of 2^-60."""
        return skellam_reach(self.participants * self.share_variance, OVERFLOW_BITS + math.log2(self.length))

    @property
    def modulus_bits(self) -> int:
        return (self.participants * self.bound + self.noise_reach - 1).bit_length() + 1

    @property
    def event(self) -> DpEvent:
        """The event of one sum, against an adversary that knows all but the honest shares."""
        most = self.max_contributions * self.silos
        if self.norm is None:
            table = SkellamCountsEvent(self.protecting_variance, self.scale, self.adjacency, most)
            return table if self.tables == 1 else dp_event.SelfComposedDpEvent(table, self.tables)
        l1, l2_squared = norms(self.length, self.norm, self.scale)
        return SkellamSumsEvent(
            self.protecting_variance, self.silos * l1, self.silos**2 * l2_squared, self.adjacency, most
        )

    def check_vector(self, units: npt.NDArray[Any]) -> None:
        """Raises `AccountingError` unless these are `length` whole numbers in [-bound, bound]. Shows no value."""
        if units.dtype != np.int64 or units.shape != (self.length,):
            raise AccountingError(f"a vector of another type or length; accepted: {self.length} whole numbers")
        if units.size and (units.max() > self.bound or units.min() < -self.bound):
            raise AccountingError("a vector has an entry beyond the plan's bound; accepted: clipped vectors")


@dataclass(frozen=True)
class ExactSumPlan(SumPlan):
    """A sum without noise: masks hide who has counted what, and nothing hides the sum.

    It has no privacy event of its own. It is for who adds noise to what is opened (`central`), and for what is private
    before it is summed (`local`).
    """

    def _check_noise(self) -> None:
        if self.share_variance != 0.0:
            raise AccountingError(f"share_variance {self.share_variance!r} of a sum without noise; accepted: 0.0")
        count_sensitivity(self.adjacency, self.max_contributions)  # refuses impossible neighbours

    @property
    def noise_reach(self) -> int:
        return 1

    @property
    def event(self) -> DpEvent:
        raise AccountingError("a sum without noise has no privacy event; accepted: that of who adds noise, or none")


def plan_of_counts(
    *,
    participants: int,
    minimum: int,
    colluders: int,
    cells: int,
    most_records: int,
    target_epsilon: float,
    delta: float,
    adjacency: str = "add-or-remove",
    max_contributions: int = 1,
    silos: int = 1,
    scale: int = SCALE,
) -> SumPlan:
    """The plan of one sum of counts with the least noise that meets (epsilon, delta), up to a 1000th.

    Args:
        cells: of the table, or of tables in a row if each unit's records are in one of them.
        most_records: the largest count of a participant's cell, public; larger ones are clipped to it, which moves no
            vector further than it moved before.
        max_contributions: b, of one unit in one participant's rows.
        silos: k, participants that one person can be in.

    Raises:
        AccountingError: a value is impossible, or the guarantee cannot be met.
    """

    def plan_with(share_variance: float) -> SumPlan:
        bound, unit = most_records * scale, (adjacency, max_contributions, silos)
        return SumPlan(participants, minimum, colluders, cells, scale, bound, share_variance, *unit)

    honest, most = plan_with(1.0).honest, max_contributions * silos
    found = noise_for(
        lambda sigma: SkellamCountsEvent((sigma * scale) ** 2, scale, adjacency, most), target_epsilon, delta
    )
    share = math.ceil(found.event.variance / honest / VARIANCE_STEP) * VARIANCE_STEP
    plan = plan_with(share)
    spent = epsilon(plan.event, delta).epsilon
    if spent > target_epsilon:
        raise AccountingError(f"calibration to epsilon {target_epsilon:g} failed; accepted: another epsilon")
    return plan


def clip(units: Whole, bound: int) -> Whole:
    """Each entry clipped to [-bound, bound]: two vectors are entry by entry no further from each other than before."""
    clipped: Whole = np.clip(units, -bound, bound)
    return clipped


def encode(units: Whole, bits: int) -> Coded:
    """Signed whole numbers modulo 2^bits."""
    return units.astype(np.uint64) & np.uint64(2**bits - 1)


def decode(coded: Coded, bits: int) -> Whole:
    """The numbers in [-2^(bits - 1), 2^(bits - 1)) that are these modulo 2^bits."""
    half = np.uint64(2 ** (bits - 1))
    low = coded & np.uint64(2**bits - 1)
    return (low ^ half).astype(np.int64) - np.int64(2 ** (bits - 1))


def add(one: Coded, other: Coded, bits: int) -> Coded:
    """The sum modulo 2^bits; 64-bit addition wraps modulo a multiple of that."""
    return (one + other) & np.uint64(2**bits - 1)


def fixed_point(vector: npt.NDArray[np.float64], norm: int, scale: int) -> Whole:
    """A unit's vector in whole units, clipped to the L2 norm `norm`, rounded towards zero.

    Rounding towards zero shortens every entry, so it needs no further sensitivity: the squared L2 norm is at most
    (norm scale)^2, and the L1 norm at most sqrt(length) norm scale (`norms`). Plain rounding would add up to
    sqrt(length) / 2. The bias is below one unit an entry and vector. The norm is checked in whole numbers afterwards:
    nothing rests on floating point. An entry that is not finite counts as 0: a refusal would show that there is one.

    Args:
        vector: of one unit, all its records together. Sensitive.
        norm: in the vector's own unit.
        scale: units of 1.

    Raises:
        AccountingError: norm times scale is 2^53 or more.
    """
    if not 1 <= norm * scale < 2**53:
        raise AccountingError(f"a norm of {norm} in units of 1/{scale}; accepted: below 2^53 units")
    finite = np.where(np.isfinite(vector), vector, 0.0)
    largest = float(np.abs(finite).max(initial=0.0))
    if largest > _LARGE:  # so that the norm does not overflow; clipping shortens the vector further
        finite = finite / largest * _LARGE
    length = math.sqrt(float((finite * finite).sum()))  # BLAS would wake its threads for each unit
    factor = min(1.0, norm / length) if length else 1.0
    while True:
        units: Whole = np.trunc(finite * factor * scale).astype(np.int64)
        if _squares(units) <= (norm * scale) ** 2:
            return units
        factor *= 1 - 2.0**-40


def _squares(units: Whole) -> int:
    """The sum of squares, exactly.

    Of at most 2^40 numbers below 2^53, the sum in double precision is right up to a part of 2^-12: where it is below
    2^62, whole numbers of 64 bits hold the exact one.
    """
    if float((units.astype(np.float64) ** 2).sum()) < 2.0**62:
        return int((units * units).sum())
    return sum(int(entry) ** 2 for entry in units[units != 0])


def norms(length: int, norm: int, scale: int) -> tuple[int, int]:
    """(L1, L2 squared) bounds in units of `fixed_point`: by Cauchy-Schwarz, L1 <= sqrt(length) L2, rounded down."""
    squared = (norm * scale) ** 2
    return math.isqrt(length * squared), squared
