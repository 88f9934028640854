"""The named attacks on tables, with what each needs and how many guesses it makes.

What belongs here: one entry an attack. What does not: their arithmetic, running them (`audit.registry`), and what their
scores prove (`audit.bounds`). Attributes (`attributes`) and copies (`copies`) are no attacks on membership alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpsynth_platform.audit.attacks import LIKELIHOOD, MEASUREMENTS, NEAREST, Scored, nearest_scores
from dpsynth_platform.audit.registry import NamedAttack, Need, by_name, even, run_attacks
from dpsynth_platform.audit.tables import density, lira, marginal_aware, meta_classifier, rmia
from dpsynth_platform.audit.tables.evidence import Evidence, log_likelihoods


def attacks(evidence: Evidence, names: Sequence[str] | None = None) -> list[Scored]:
    """Scores of the named attacks on tables, or of all that the evidence allows (`registry.run_attacks`)."""
    return run_attacks(ATTACKS, evidence, names)


_MODEL = frozenset[Need](["model"])
_LIRA = "likelihood beside that of shadow models"

ATTACKS = by_name(
    NamedAttack(MEASUREMENTS, marginal_aware.counts_attack, _MODEL),
    NamedAttack(LIKELIHOOD, log_likelihoods, _MODEL),
    even("lira online", "model", f"{_LIRA} with and without the target", lira.online_attack, "model", "shadows"),
    even("lira offline", "model", f"{_LIRA} without the target", lira.offline_attack, "model", "shadows"),
    even(
        "rmia online",
        "model",
        "likelihood over that of all shadow models, beside other people's",
        rmia.online_attack,
        "model",
        "shadows",
    ),
    even(
        "rmia offline",
        "model",
        "likelihood over that of shadow models without the target, beside other people's",
        rmia.offline_attack,
        "model",
        "shadows",
    ),
    even(
        "marginal shares",
        "data",
        "share of the target's cells in the measured marginals over the population's",
        marginal_aware.shares_attack,
        "model",
        "reference",
    ),
    even(
        "density ratio",
        "data",
        "kernel density among the synthetic rows over that in the population",
        density.density_attack,
        "reference",
    ),
    even(
        "meta-classifier",
        "data",
        "classifier on counts of agreeing rows, trained on shadow models' samples",
        meta_classifier.meta_attack,
        "shadows",
        "samples",
    ),
    NamedAttack(NEAREST, lambda evidence: nearest_scores(evidence.target_codes, evidence.synthetic_codes)),
)
"""By name. Only `audit.attacks.ATTACKS` are part of every audit; the others run on request."""
