"""Running every attack on one model and the rows sampled from it.

What belongs here: asking the fitted model and the synthetic rows about the canaries, and handing the answers to the
attacks. What does not: the attacks' arithmetic (`attacks`), the coins, real records: the only inputs are the canaries'
values and what the mechanism left.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dpsynth_platform.audit.attacks import (
    LIKELIHOOD,
    MEASUREMENTS,
    NEAREST,
    Scored,
    nearest_scores,
)
from dpsynth_platform.audit.canaries import CanarySet
from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.audit.tables.marginal_aware import counts_attack
from dpsynth_platform.synth.tabular.model import Model, load_model, log_likelihood


def score_canaries(canaries: CanarySet, model_directory: Path, synthetic: pa.Table) -> list[Scored]:
    """Scores of every attack in `attacks.ATTACKS`, each in the order of `CanarySet.owners`.

    Args:
        canaries: included and held-out ones.
        model_directory: of a complete model.
        synthetic: rows sampled from it; at least one.

    Raises:
        MechanismFailed: the directory holds no complete model.
        AccountingError: there are no synthetic rows.
    """
    model = load_model(model_directory)
    evidence = canary_evidence(canaries, model, synthetic)
    alike = evidence.alike
    return [
        Scored(MEASUREMENTS, counts_attack(evidence), alike),
        Scored(LIKELIHOOD, log_likelihood(model, evidence.targets), alike),
        Scored(NEAREST, nearest_scores(evidence.target_codes, evidence.synthetic_codes), alike),
    ]


def canary_evidence(canaries: CanarySet, model: Model, synthetic: pa.Table) -> Evidence:
    """All that may be looked at: the canaries' values, a model that was fitted with them, and rows drawn from it.

    Raises:
        AccountingError: there are no synthetic rows, or they lack a modelled column.
    """
    return Evidence(
        domain=model.domain,
        targets=canaries.values.combine_chunks(),
        synthetic=synthetic,
        canaries=True,
        records_per_target=canaries.records_per_owner,
        model=model,
    )
