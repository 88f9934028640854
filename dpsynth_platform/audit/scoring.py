"""Running every attack on one model and the rows sampled from it.

What belongs here: preparing inputs of the attacks from model, synthetic rows and the canaries' values. What does not:
the attacks' arithmetic (`attacks`), coins, real records.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dpsynth_platform.audit.attacks import LIKELIHOOD, MEASUREMENTS, NEAREST, Scored, nearest_scores
from dpsynth_platform.audit.canaries import CanarySet
from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.audit.tables.marginal_aware import counts_attack
from dpsynth_platform.synth.tabular.model import Model, load_model, log_likelihood


def score_canaries(canaries: CanarySet, model_directory: Path, synthetic: pa.Table) -> list[Scored]:
    """Scores of every attack in `attacks.ATTACKS`, each in the order of `CanarySet.owners`.

    Raises:
        MechanismFailed: the directory holds no complete model.
        AccountingError: there are no synthetic rows.
    """
    model = load_model(model_directory)
    evidence = canary_evidence(canaries, model, synthetic)
    duplicates = evidence.duplicates
    return [
        Scored(MEASUREMENTS, counts_attack(evidence), duplicates),
        Scored(LIKELIHOOD, log_likelihood(model, evidence.targets), duplicates),
        Scored(NEAREST, nearest_scores(evidence.target_codes, evidence.synthetic_codes), duplicates),
    ]


def canary_evidence(canaries: CanarySet, model: Model, synthetic: pa.Table) -> Evidence:
    """An attacker's evidence from the canaries' values, the model fitted with them, and rows drawn from it.

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
