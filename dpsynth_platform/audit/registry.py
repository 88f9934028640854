"""Named attacks: what each needs, and running those that the evidence allows.

What belongs here: what the registries of attacks on tables (`tables.registry`) and on texts (`texts.registry`) have in
common. What does not: any attack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from dpsynth_platform.audit.attacks import Attack, Floats, Scored
from dpsynth_platform.audit.bounds import Alike
from dpsynth_platform.foundation.errors import AccountingError

Need = Literal["model", "reference", "shadows", "samples"]

_NAMED: Mapping[Need, str] = {
    "model": "a fitted model",
    "reference": "a reference of the same population",
    "shadows": "shadow models",
    "samples": "samples of shadow models (`fit_shadows` with queries)",
}


class Holding(Protocol):
    """Evidence that says what it holds."""

    @property
    def held(self) -> frozenset[Need]:
        """What is there besides targets and release."""

    @property
    def alike(self) -> Alike:
        """Which targets cannot be told apart."""


Known = TypeVar("Known", bound=Holding)


@dataclass(frozen=True)
class NamedAttack(Generic[Known]):
    """An attack that can be run on anybody's evidence.

    Attributes:
        attack: name and number of guesses, fixed in advance.
        score: gives the scores, shape (targets,); higher means rather in.
        needs: what the evidence must hold besides targets and release; `samples` are those of shadow models.
    """

    attack: Attack
    score: Callable[[Known], Floats]
    needs: frozenset[Need] = frozenset()

    def lacks(self, evidence: Known) -> frozenset[Need]:
        """What it needs and the evidence does not hold."""
        return self.needs - evidence.held

    def run(self, evidence: Known) -> Scored:
        """The attack with its scores. Raises `AccountingError` where the evidence lacks something."""
        if lacks := self.lacks(evidence):
            named = ", ".join(_NAMED[need] for need in sorted(lacks))
            raise AccountingError(f"audit: the attack {self.attack.name!r} needs what is not there: {named}")
        return Scored(self.attack, self.score(evidence), evidence.alike)


def by_name(*entries: NamedAttack[Known]) -> Mapping[str, NamedAttack[Known]]:
    """Attacks under their names, in order."""
    return {entry.attack.name: entry for entry in entries}


def even(name: str, target: str, describes: str) -> Attack:
    """An attack that guesses an eighth of the targets in, and an eighth out."""
    return Attack(name, target, describes, 0.125, 0.125)


def run_attacks(
    known: Mapping[str, NamedAttack[Known]], evidence: Known, names: Sequence[str] | None = None
) -> list[Scored]:
    """Scores of the named attacks, or of all that the evidence allows, in the registry's order.

    Whether results may be published is the evidence's to say (its `publishable`).

    Args:
        known: the registry.
        evidence: what the attacker has.
        names: of the attacks; None: all that lack nothing.

    Raises:
        AccountingError: a name is unknown, or a named attack lacks something.
    """
    if names is None:
        return [entry.run(evidence) for entry in known.values() if not entry.lacks(evidence)]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise AccountingError(f"audit: no attack is called {unknown[0]!r}; accepted: {', '.join(known)}")
    return [entry.run(evidence) for name, entry in known.items() if name in names]
