"""The named attacks on texts, with what each needs and how many guesses it makes.

What belongs here: one entry an attack. What does not: their arithmetic, running them (`audit.registry`), and what their
scores prove (`audit.bounds`). Every audit of a language model runs `audit.attacks.TEXT_ATTACKS`; these run on request.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpsynth_platform.audit.attacks import TEXT_OVERLAP, Scored, overlap_scores
from dpsynth_platform.audit.registry import NamedAttack, by_name, even, run_attacks
from dpsynth_platform.audit.texts import ngrams, similarity
from dpsynth_platform.audit.texts.evidence import TextEvidence


def attacks(evidence: TextEvidence, names: Sequence[str] | None = None) -> list[Scored]:
    """Scores of the named attacks on texts, or of all that the evidence allows (`registry.run_attacks`)."""
    return run_attacks(TEXT_ONLY_ATTACKS, evidence, names)


TEXT_ONLY_ATTACKS = by_name(
    even(
        "n-gram model",
        "data",
        "probability under an n-gram model of the release over that under one of other texts",
        ngrams.reference_attack,
        "reference",
    ),
    even(
        "n-gram similarity",
        "data",
        "shared n-grams with the most similar texts of the release, less those elsewhere",
        similarity.similarity_attack,
    ),
    NamedAttack(TEXT_OVERLAP, lambda evidence: overlap_scores(evidence.targets, evidence.synthetic)),
)
"""By name."""
