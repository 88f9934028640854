"""Named attacks: what each needs, and running those that the evidence allows.

What belongs here: the common part of the registries on tables (`tables.registry`) and texts (`texts.registry`). What
does not: any attack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from dpsynth_platform.audit.attacks import Attack, Floats, Scored
from dpsynth_platform.audit.bounds import Duplicates
from dpsynth_platform.foundation.errors import AccountingError

Need = Literal["model", "reference", "shadows", "samples"]

_NAMED: Mapping[Need, str] = {
    "model": "a fitted model",
    "reference": "a reference of the same population",
    "shadows": "shadow models",
    "samples": "samples of shadow models (`fit_shadows` with queries)",
}


class AnyEvidence(Protocol):
    """Evidence on tables or on texts."""

    @property
    def held(self) -> frozenset[Need]:
        """What it has in addition to targets and release."""

    @property
    def duplicates(self) -> Duplicates:
        """Which targets no attack can distinguish."""


EvidenceType = TypeVar("EvidenceType", bound=AnyEvidence)


@dataclass(frozen=True)
class NamedAttack(Generic[EvidenceType]):
    """An attack that runs on any evidence with what it needs.

    Attributes:
        attack: name and number of guesses, fixed in advance.
        score: gives the scores, shape (targets,); higher means rather in.
        needs: what the evidence must have in addition to targets and release.
    """

    attack: Attack
    score: Callable[[EvidenceType], Floats]
    needs: frozenset[Need] = frozenset()

    def run(self, evidence: EvidenceType) -> Scored:
        """The attack with its scores. Raises `AccountingError` where the evidence lacks something."""
        if lacks := self.needs - evidence.held:
            named = ", ".join(_NAMED[need] for need in sorted(lacks))
            raise AccountingError(f"audit: the attack {self.attack.name!r} lacks {named}; accepted: evidence with it")
        return Scored(self.attack, self.score(evidence), evidence.duplicates)


def by_name(*entries: NamedAttack[EvidenceType]) -> Mapping[str, NamedAttack[EvidenceType]]:
    """Attacks by their names, in order."""
    return {entry.attack.name: entry for entry in entries}


def even(
    name: str, target: str, describes: str, score: Callable[[EvidenceType], Floats], *needs: Need
) -> NamedAttack[EvidenceType]:
    """An attack that guesses an eighth of the targets in, and an eighth out."""
    return NamedAttack(Attack(name, target, describes, 0.125, 0.125), score, frozenset(needs))


def run_attacks(
    registry: Mapping[str, NamedAttack[EvidenceType]], evidence: EvidenceType, names: Sequence[str] | None = None
) -> list[Scored]:
    """Scores of the named attacks, or of all that the evidence allows, in the registry's order.

    The evidence's `publishable` says whether results may be published.

    Raises:
        AccountingError: a name is unknown, or a named attack lacks something.
    """
    if names is None:
        return [entry.run(evidence) for entry in registry.values() if entry.needs <= evidence.held]
    unknown = [name for name in names if name not in registry]
    if unknown:
        raise AccountingError(f"audit: no attack is called {unknown[0]!r}; accepted: {', '.join(registry)}")
    return [entry.run(evidence) for name, entry in registry.items() if name in names]
