"""The named attacks on tables, with what each needs and how many guesses it makes.

What belongs here: one entry an attack, and running those that the evidence allows. What does not: their arithmetic, and
what their scores prove (`audit.bounds`). Attributes (`attributes.infer_attribute`) and copies (`copies.count_copies`)
are no attacks on membership alone, and are called by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dpsynth_platform.audit.attacks import LIKELIHOOD, MEASUREMENTS, NEAREST, Attack, Floats, Scored, nearest_scores
from dpsynth_platform.audit.tables import density, lira, marginal_aware, meta_classifier, rmia
from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.audit.tables.signals import log_likelihoods
from dpsynth_platform.errors import AccountingError

Need = Literal["model", "reference", "shadows", "samples"]


@dataclass(frozen=True)
class TableAttack:
    """An attack that can be run on any table.

    Attributes:
        attack: name and number of guesses, fixed in advance.
        needs: what the evidence must hold besides targets and release; `samples` are those of shadow models.
        score: gives the scores, shape (targets,); higher means rather in.
    """

    attack: Attack
    needs: frozenset[Need]
    score: Callable[[Evidence], Floats]

    def lacks(self, evidence: Evidence) -> frozenset[Need]:
        """What it needs and the evidence does not hold."""
        held: dict[Need, bool] = {
            "model": evidence.model is not None,
            "reference": evidence.reference is not None,
            "shadows": evidence.shadows is not None,
            "samples": evidence.shadows is not None and bool(evidence.shadows.queries),
        }
        return frozenset(need for need in self.needs if not held[need])

    def run(self, evidence: Evidence) -> Scored:
        """The attack with its scores. Raises `AccountingError` where the evidence lacks something."""
        if lacks := self.lacks(evidence):
            raise AccountingError(f"audit: the attack {self.attack.name!r} needs what is not there: {_named(lacks)}")
        return Scored(self.attack, self.score(evidence))


def attacks(evidence: Evidence, names: Sequence[str] | None = None) -> list[Scored]:
    """Scores of the named attacks, or of all that the evidence allows, in the registry's order.

    Whether results may be published is the evidence's to say (`Evidence.publishable`).

    Args:
        evidence: what the attacker has.
        names: of the attacks; None: all that lack nothing.

    Raises:
        AccountingError: a name is unknown, or a named attack lacks something.
    """
    if names is None:
        chosen = [attack for attack in ATTACKS.values() if not attack.lacks(evidence)]
    else:
        unknown = [name for name in names if name not in ATTACKS]
        if unknown:
            raise AccountingError(f"audit: no attack is called {unknown[0]!r}; accepted: {', '.join(ATTACKS)}")
        chosen = [attack for name, attack in ATTACKS.items() if name in names]
    return [attack.run(evidence) for attack in chosen]


def _even(name: str, target: str, describes: str) -> Attack:
    """An attack that guesses an eighth of the targets in, and an eighth out."""
    return Attack(name, target, describes, 0.125, 0.125)


def _registry(*entries: TableAttack) -> Mapping[str, TableAttack]:
    return {entry.attack.name: entry for entry in entries}


def _named(needs: frozenset[Need]) -> str:
    words = {
        "model": "a fitted model",
        "reference": "a reference table",
        "shadows": "shadow models",
        "samples": "samples of shadow models (`fit_shadows` with queries)",
    }
    return ", ".join(words[need] for need in sorted(needs))


_OF_MODEL, _OF_SHADOWS = frozenset[Need](["model"]), frozenset[Need](["model", "shadows"])

ATTACKS = _registry(
    TableAttack(MEASUREMENTS, _OF_MODEL, marginal_aware.counts_attack),
    TableAttack(LIKELIHOOD, _OF_MODEL, log_likelihoods),
    TableAttack(
        _even("lira online", "model", "likelihood beside that of shadow models with and without the target"),
        _OF_SHADOWS,
        lira.online_attack,
    ),
    TableAttack(
        _even("lira offline", "model", "likelihood beside that of shadow models without the target"),
        _OF_SHADOWS,
        lira.offline_attack,
    ),
    TableAttack(
        _even("rmia online", "model", "likelihood over that of all shadow models, beside other people's"),
        _OF_SHADOWS,
        rmia.online_attack,
    ),
    TableAttack(
        _even(
            "rmia offline", "model", "likelihood over that of shadow models without the target, beside other people's"
        ),
        _OF_SHADOWS,
        rmia.offline_attack,
    ),
    TableAttack(
        _even("marginal shares", "data", "share of the target's cells in the measured marginals over the population's"),
        frozenset(["model", "reference"]),
        marginal_aware.shares_attack,
    ),
    TableAttack(
        _even("density ratio", "data", "kernel density among the synthetic rows over that in the population"),
        frozenset(["reference"]),
        density.density_attack,
    ),
    TableAttack(
        _even("meta-classifier", "data", "classifier on counts of agreeing rows, trained on shadow models' samples"),
        frozenset(["shadows", "samples"]),
        meta_classifier.meta_attack,
    ),
    TableAttack(NEAREST, frozenset(), lambda evidence: nearest_scores(evidence.target_codes, evidence.synthetic_codes)),
)
"""By name. Only `audit.attacks.ATTACKS` are part of every audit; the others are for whoever asks."""
