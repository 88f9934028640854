"""The contract's `privacy`: the privacy unit, the contribution bound, and the budget of one release."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpsynth_platform.contracts.base import COLUMN_NAME, MOST_UNITS, ColumnName, FamilyName, Part, refuse, text_like
from dpsynth_platform.contracts.tiers import WEAK_EPSILON
from dpsynth_platform.foundation.figures import lower_bound

UnitName = Literal["example", "user", "group"]
AdjacencyName = Literal["add-or-remove", "zero-out", "replace-one", "fixed-graph"]
WeightingName = Literal["rows", "owners"]
Normalization = Literal["trim", "casefold"]
RecordOrder = Annotated[
    str, text_like(f"^(random|fewest-owners-first|weight:{COLUMN_NAME})$", "random, fewest-owners-first, weight:COLUMN")
]

MOST_CONTRIBUTIONS = 10_000


class GuaranteeTarget(Part):
    """The budget of one release. `delta: auto` is 1/n^1.1 with n = expected_units."""

    epsilon: float = Field(gt=0, le=1000)
    delta: Literal["auto"] | Annotated[float, Field(gt=0, lt=1)] = "auto"


class Privacy(Part):
    """Privacy unit, contribution bound and budget of a release."""

    unit: UnitName
    owner_columns: list[ColumnName] = Field(min_length=1)
    owner_normalization: list[Normalization] = Field(
        default_factory=list,
        description="Applied to owner ids before they are fingerprinted, in this order; the family's, word for word.",
    )
    namespace: FamilyName
    adjacency: AdjacencyName = "add-or-remove"
    max_contributions: int = Field(ge=1, le=MOST_CONTRIBUTIONS)
    weighting: WeightingName = Field(
        default="rows",
        description=(
            "What is counted: rows, or owners. With owners, each of an owner's k rows weighs 1/k, the noise is that of "
            "one row however large the bound, and the released rows describe the average owner."
        ),
    )
    record_order: RecordOrder = Field(
        default="random",
        description=(
            "Which records are kept first where an owner has more than the bound: random (a keyed hash), "
            "fewest-owners-first, or weight:COLUMN, the highest first. With fixed-graph, the weight is part of the "
            "ownership graph: it is neither protected nor modelled."
        ),
    )
    guarantee: GuaranteeTarget
    expected_units: int = Field(
        ge=100, le=MOST_UNITS, description="Public estimate of the number of owners; never a count."
    )
    on_overlap: Literal["compose", "exclude", "block"] = "compose"
    accept_weak_guarantee: str | None = Field(default=None, min_length=10)

    @property
    def delta(self) -> float:
        """The declared delta, or 1/n^1.1 over the expected privacy units (guide, section 7.1)."""
        if self.guarantee.delta == "auto":
            return float(self.expected_units**-1.1)
        return self.guarantee.delta

    @property
    def weight(self) -> str | None:
        """The column that orders records, or None."""
        return self.record_order.partition(":")[2] or None

    @property
    def multi_owner(self) -> bool:
        """Whether a record may have several owners, in several columns or in a list column."""
        return self.adjacency == "fixed-graph"

    @model_validator(mode="after")
    def _consistent(self) -> Privacy:
        refuse(self._contradictions())
        return self

    def _contradictions(self) -> Iterator[str]:
        if len(set(self.owner_columns)) < len(self.owner_columns):
            yield "owner_columns: the list contains duplicates; accepted: distinct columns"
        elif len(self.owner_columns) > 1 and not self.multi_owner:
            yield (
                f"adjacency: {self.adjacency!r} with {len(self.owner_columns)} owner columns; accepted where records "
                "have several owners: fixed-graph, which protects the content of records, not who owns them together"
            )
        if self.multi_owner and self.unit == "example":
            yield "unit: 'example' with fixed-graph, where records have several owners; accepted: user, group"
        if self.record_order == "fewest-owners-first" and not self.multi_owner:
            yield "record_order: 'fewest-owners-first' with one owner a record; accepted with fixed-graph only"
        if self.unit == "example" and self.max_contributions != 1:
            yield "max_contributions: with unit 'example' each record is a unit; accepted: 1"
        if self.weighting == "owners" and self.multi_owner:
            yield "weighting: 'owners' where records have several owners (fixed-graph); accepted: rows"
        elif self.weighting == "owners" and (self.unit == "example" or self.max_contributions == 1):
            yield (
                "weighting: 'owners' has no effect where each unit has one record; accepted: rows, or unit user with "
                "max_contributions above 1"
            )
        if self.guarantee.epsilon > WEAK_EPSILON and not self.accept_weak_guarantee:
            yield (
                f"guarantee.epsilon: {self.guarantee.epsilon:g} is a weak guarantee (above {WEAK_EPSILON:g}); lower "
                "it, or give the reason in accept_weak_guarantee: <reason> (printed in the dossier)"
            )
        if self.delta > 1 / self.expected_units:
            most, automatic = 1 / self.expected_units, self.expected_units**-1.1
            yield (
                f"guarantee.delta: {self.delta:g} exceeds 1/expected_units = {most:.6g} (expected_units: "
                f"{self.expected_units}); accepted: auto, which is {automatic:.3g}, or up to {lower_bound(most)}"
            )
