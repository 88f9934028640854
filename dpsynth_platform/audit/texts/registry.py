"""The named attacks on texts, with what each needs and how many guesses it makes.

What belongs here: one entry an attack, and running those that the evidence allows. What does not: their arithmetic, and
what their scores prove (`audit.bounds`). The attacks that every audit of a language model makes are
`audit.attacks.TEXT_ATTACKS`; these are for whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dpsynth_platform.audit.attacks import TEXT_OVERLAP, Attack, Floats, Scored, overlap_scores
from dpsynth_platform.audit.texts import ngrams, similarity
from dpsynth_platform.audit.texts.evidence import TextEvidence
from dpsynth_platform.errors import AccountingError


@dataclass(frozen=True)
class TextAttack:
    """An attack that can be run on any texts.

    Attributes:
        attack: name and number of guesses, fixed in advance.
        needs_reference: whether the evidence must hold a reference.
        score: gives the scores, shape (targets,); higher means rather in.
    """

    attack: Attack
    needs_reference: bool
    score: Callable[[TextEvidence], Floats]

    def possible(self, evidence: TextEvidence) -> bool:
        """Whether the evidence holds what it needs."""
        return evidence.reference is not None or not self.needs_reference

    def run(self, evidence: TextEvidence) -> Scored:
        """The attack with its scores. Raises `AccountingError` where the evidence lacks the reference."""
        if not self.possible(evidence):
            raise AccountingError(
                f"audit: the attack {self.attack.name!r} needs what is not there: a reference of other texts"
            )
        return Scored(self.attack, self.score(evidence))


def attacks(evidence: TextEvidence, names: Sequence[str] | None = None) -> list[Scored]:
    """Scores of the named attacks, or of all that the evidence allows, in the registry's order.

    Args:
        evidence: what the attacker has.
        names: of the attacks; None: all that are possible.

    Raises:
        AccountingError: a name is unknown, or a named attack lacks something.
    """
    if names is None:
        return [attack.run(evidence) for attack in TEXT_ONLY_ATTACKS.values() if attack.possible(evidence)]
    unknown = [name for name in names if name not in TEXT_ONLY_ATTACKS]
    if unknown:
        raise AccountingError(
            f"audit: no attack on texts is called {unknown[0]!r}; accepted: {', '.join(TEXT_ONLY_ATTACKS)}"
        )
    return [attack.run(evidence) for name, attack in TEXT_ONLY_ATTACKS.items() if name in names]


def _even(name: str, describes: str) -> Attack:
    """An attack on data that guesses an eighth of the targets in, and an eighth out."""
    return Attack(name, "data", describes, 0.125, 0.125)


def _registry(*entries: TextAttack) -> Mapping[str, TextAttack]:
    return {entry.attack.name: entry for entry in entries}


TEXT_ONLY_ATTACKS = _registry(
    TextAttack(
        _even("n-gram model", "probability under an n-gram model of the release over that under one of other texts"),
        True,
        ngrams.reference_attack,
    ),
    TextAttack(
        _even("n-gram model alone", "probability under an n-gram model of the release over that of the words alone"),
        False,
        ngrams.alone_attack,
    ),
    TextAttack(
        _even("n-gram similarity", "shared n-grams with the most similar texts of the release, less those elsewhere"),
        False,
        similarity.similarity_attack,
    ),
    TextAttack(TEXT_OVERLAP, False, lambda evidence: overlap_scores(evidence.targets, evidence.synthetic)),
)
"""By name."""
