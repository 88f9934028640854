"""Running every attack on a model that writes texts: those on its columns, and two on the texts.

What belongs here: asking the trained language model, and the synthetic texts, about the canaries' texts. What does not:
the attacks' arithmetic (`attacks`), the coins, real records.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dpsynth_platform.audit.attacks import TEXT_LIKELIHOOD, TEXT_OVERLAP, Scored, likelihood_scores, overlap_scores
from dpsynth_platform.audit.canaries import CanarySet
from dpsynth_platform.audit.scoring import score_canaries
from dpsynth_platform.audit.tables.evidence import MOST_ROWS
from dpsynth_platform.contracts import DataContract
from dpsynth_platform.errors import AccountingError
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.text.dp_finetune import columns_model, log_likelihoods


def score_texts(
    contract: DataContract, plan: SealedPlan, canaries: CanarySet, directory: Path, synthetic: pa.Table
) -> list[Scored]:
    """Scores of every attack in `attacks.ATTACKS` and `attacks.TEXT_ATTACKS`, in the order of `CanarySet.owners`.

    Args:
        contract: names the written column.
        plan: that the model was trained by.
        canaries: included and held-out ones.
        directory: of the complete model.
        synthetic: rows drawn from it; at least one.

    Raises:
        MechanismFailed: the directory holds no complete model.
        AccountingError: there are no synthetic rows, or no text is written.
    """
    if contract.written is None:
        raise AccountingError("audit: accepted is a contract of which a column is written by a language model")
    values = canaries.values
    texts = values.column(contract.written).to_pylist()
    written = synthetic.slice(0, MOST_ROWS).column(contract.written).to_pylist()
    return [
        *score_canaries(_without(canaries, contract.written), columns_model(directory), synthetic),
        Scored(TEXT_LIKELIHOOD, likelihood_scores(*log_likelihoods(plan, directory, values))),
        Scored(TEXT_OVERLAP, overlap_scores(texts, (text for text in written if text))),
    ]


def _without(canaries: CanarySet, written: str) -> CanarySet:
    return CanarySet(canaries.table.drop_columns([written]))
