"""The family budget, and the check of contracts against it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, field_validator

from dpsynth_platform.contracts.base import MOST_CAP, FamilyName, Part
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.privacy import AdjacencyName, Normalization, Privacy, UnitName
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.foundation.errors import ContractError


class Cap(Part):
    """The most that the family may ever cost one owner."""

    epsilon: float = Field(gt=0, le=MOST_CAP)
    delta: float = Field(gt=0, lt=1)

    @field_validator("delta", mode="before")
    @classmethod
    def _no_release(cls, value: Any) -> Any:
        if value == "auto":
            raise ValueError(
                "'auto'; accepted: a number, such as 1.0e-5. auto is for the guarantee of one release, in a contract; "
                "a cap covers all releases for life, and nothing says how many these are"
            )
        return value


class FamilyBudget(Part):
    """The budget authority of a family of datasets: one privacy unit, one adjacency, one cap for life."""

    family: FamilyName
    unit: UnitName
    adjacency: AdjacencyName = "add-or-remove"
    namespace: FamilyName
    owner_normalization: list[Normalization] = Field(
        default_factory=list,
        description="How owner ids are normalized in all datasets, so that one person is one owner.",
    )
    mode: Literal["per-owner", "family"]
    cap: Cap


def check_family(contract: DataContract, family: FamilyBudget) -> None:
    """Raises `ContractError` for a unit, adjacency, namespace, normalization or delta that the family does not have."""
    faults = list(family_faults(contract.family, contract.privacy, family, contract.source))
    if faults:
        raise ContractError("\n".join(f"{contract.dataset}: {fault}" for fault in faults))


def leaves_out_in_silence(contract: DataContract, family: FamilyBudget) -> bool:
    """Whether a mechanism may silently exclude owners for earlier participation.

    If so, nobody may see a count of the remaining owners, not even the operator: the number of excluded ones follows.
    """
    return family.mode == "per-owner" or contract.privacy.on_overlap == "exclude"


def family_faults(named: str, privacy: Privacy, family: FamilyBudget, source: Source | None = None) -> Iterator[str]:
    """Why a contract with these parts cannot belong to the family that it names; one line each."""
    if source is not None and source.federation is not None and family.mode != "family":
        yield (
            f"family: {named} has mode {family.mode}, and the owners of source.federation are not known here; "
            "accepted: one of mode family"
        )
    pairs = {
        "family": (named, family.family),
        "privacy.unit": (privacy.unit, family.unit),
        "privacy.adjacency": (privacy.adjacency, family.adjacency),
        "privacy.namespace": (privacy.namespace, family.namespace),
        "privacy.owner_normalization": (privacy.owner_normalization, family.owner_normalization),
    }
    for path, (mine, accounts) in pairs.items():
        if mine != accounts:
            yield f"{path}: {mine!r} differs from the family's {accounts!r}; accepted: {accounts}"
    if privacy.delta > family.cap.delta:
        automatic = "auto, here " if privacy.guarantee.delta == "auto" else ""
        yield (
            f"privacy.guarantee.delta: {automatic}{privacy.delta:.3g} exceeds the delta of family {family.family}'s "
            f"account; accepted: at most {family.cap.delta:g}"
        )
