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
    measurement_scores,
    nearest_scores,
)
from dpsynth_platform.audit.canaries import CanarySet
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.tabular.model import clique_scores, load_model, log_likelihood

MOST_ROWS = 200_000
"""Synthetic rows are drawn alike, so that the first ones tell as much as any; more would only take time."""


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
    values = canaries.values.combine_chunks()
    cells = clique_scores(model, values)
    rows = model.domain.encode(synthetic.slice(0, MOST_ROWS).combine_chunks())
    counted = 1 if Guarantee.from_json(model.plan.guarantee).weighting == "owners" else canaries.records_per_owner
    measured = measurement_scores(cells.counts, cells.expected, cells.sigmas, counted)
    return [
        Scored(MEASUREMENTS, measured),
        Scored(LIKELIHOOD, log_likelihood(model, values)),
        Scored(NEAREST, nearest_scores(model.domain.encode(values), rows)),
    ]
