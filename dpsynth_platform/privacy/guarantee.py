"""The guarantee: (epsilon, delta) with the unit, adjacency and bound that it needs to have a meaning.

What belongs here: the frozen value that plans, ledger entries and dossiers share, and its tier. What does not: how it
is computed (`accounting`) or explained (`statement`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from dpsynth_platform.contracts.tiers import STRONG_EPSILON, WEAK_EPSILON
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.privacy.units import UNITS, Sensitivity, check_epsilon_delta, count_sensitivity

if TYPE_CHECKING:
    from dpsynth_platform.contracts.contract import DataContract

Tier = Literal["strong", "reasonable", "weak"]

# From here on delta promises little, whatever epsilon is: it is not small against 1 / number of people.
WEAK_DELTA = 1e-3


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy at (epsilon, delta) for one privacy unit of at most `max_contributions` records.

    Attributes:
        max_contributions: b, the most records of one unit that are used.
        weighting: whether all rows count alike, or all of an owner's rows together as one (`units.count_sensitivity`).

    Raises:
        AccountingError: a value is impossible (not finite, not positive, delta outside (0, 1), unknown unit, adjacency
            or weighting).
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    max_contributions: int
    weighting: str = "rows"

    def __post_init__(self) -> None:
        check_epsilon_delta(self.epsilon, self.delta)
        if self.unit not in UNITS:
            raise AccountingError(f"privacy unit {self.unit!r}; accepted: {', '.join(UNITS)}")
        count_sensitivity(self.adjacency, self.max_contributions, self.weighting)

    @classmethod
    def target(cls, contract: DataContract) -> Guarantee:
        """The guarantee that a contract asks of one release; of a federated one, for a person's rows in all silos."""
        privacy = contract.privacy
        return cls(
            epsilon=privacy.guarantee.epsilon,
            delta=privacy.delta,
            unit=privacy.unit,
            adjacency=privacy.adjacency,
            max_contributions=contract.unit_records,
            weighting=privacy.weighting,
        )

    @classmethod
    def from_json(cls, document: Any) -> Guarantee:
        """Raises `AccountingError` if a key is missing or unknown, or a value is of another type."""
        try:
            return cls(**document)
        except TypeError:
            raise AccountingError("the guarantee's document has missing or unknown keys or values") from None

    @property
    def tier(self) -> Tier:
        return tier(self.epsilon)

    @property
    def sensitivity(self) -> Sensitivity:
        return count_sensitivity(self.adjacency, self.max_contributions, self.weighting)

    def to_json(self) -> dict[str, Any]:
        """Leaves out a weighting of rows."""
        document = asdict(self)
        if self.weighting == "rows":
            del document["weighting"]
        return document

    def __str__(self) -> str:
        together = ", counted as one together" if self.weighting == "owners" else ""
        return (
            f"({upper_bound(self.epsilon, 6)}, {upper_bound(self.delta)})-DP for one {self.unit} ({self.adjacency}, at "
            f"most {number_of(self.max_contributions, 'record')}{together})"
        )


DeltaRule = Literal["power", "logarithm"]


def recommended_delta(units: int, rule: DeltaRule = "power") -> float:
    """Delta for n privacy units, well below 1/n: a mechanism that shows one unit in full has delta 1/n.

    `power` is 1/n^1.1 (Ponomareva et al. 2026, section 7.1: what contracts mean by auto), `logarithm` 1/(n ln n) (Yue
    et al. 2023), which is the larger from 36 units to some 3e15 of them.

    Raises:
        AccountingError: fewer than three units, or an unknown rule.
    """
    if isinstance(units, bool) or not isinstance(units, int) or units < 3:
        raise AccountingError(f"delta for {units!r} privacy units; accepted: a whole number from 3")
    if rule not in ("power", "logarithm"):
        raise AccountingError(f"rule {rule!r} for delta; accepted: power, logarithm")
    return float(units**-1.1) if rule == "power" else 1 / (units * math.log(units))


def tier(epsilon: float) -> Tier:
    """Tier of a guarantee (Ponomareva et al. 2026, section 7.1): up to 1 strong, up to 10 reasonable, else weak."""
    if epsilon <= STRONG_EPSILON:
        return "strong"
    return "reasonable" if epsilon <= WEAK_EPSILON else "weak"
