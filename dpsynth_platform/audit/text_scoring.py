"""Running every attack on a model that writes texts: those on its columns, and two on the texts; and reconstruction.

What belongs here: asking the trained language model, and the synthetic texts, about the canaries' texts. What does not:
the attacks' arithmetic (`attacks`), real records; and the coins, but for counting what came back.

Reconstruction is told and decides nothing: one more attack that decides would raise what all must prove.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dpsynth_platform.audit.attacks import (
    TEXT_LIKELIHOOD,
    TEXT_OVERLAP,
    Scored,
    alike_items,
    likelihood_scores,
    overlap_scores,
)
from dpsynth_platform.audit.canaries import CanarySet
from dpsynth_platform.audit.scoring import score_canaries
from dpsynth_platform.audit.tables.evidence import MOST_ROWS
from dpsynth_platform.audit.texts.reconstruction import Reconstructed, count_reconstructed, reconstruct
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import TOPIC_METHODS, TRAINED_METHODS
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.text.counted import counts_columns
from dpsynth_platform.synth.text.dp_finetune import as_learned, columns_model, log_likelihoods, model_with_rows

MOST_SORTED = 5_000
"""Synthetic rows that attacks on the columns look at where texts are sorted by topics: each has to be sorted first."""


def score_texts(
    contract: DataContract, plan: SealedPlan, canaries: CanarySet, directory: Path, synthetic: pa.Table
) -> list[Scored]:
    """Scores of every attack of `policy.attacks_on`, in the order of `CanarySet.owners`.

    Where no model was trained, nothing that is left could be asked how likely a text is; where no column is counted,
    texts alone are attacked.

    Args:
        contract: names the written column.
        plan: that the model was trained by.
        canaries: included and held-out ones, as the model saw them (`as_the_model_saw`).
        directory: of the complete model.
        synthetic: rows drawn from it, likewise; at least one.

    Raises:
        MechanismFailed: the directory holds no complete model.
        AccountingError: there are no synthetic rows, or no text is written.
    """
    if contract.text_column is None:
        raise AccountingError("audit: accepted is a contract of which a column is written by a language model")
    values = canaries.values
    texts = values.column(contract.text_column).to_pylist()
    written = synthetic.slice(0, MOST_ROWS).column(contract.text_column).to_pylist()
    alike = alike_items(texts)  # the model is told other columns, too: that tells some of equal texts apart at most
    trained = plan.method in TRAINED_METHODS
    likelihoods = likelihood_scores(*log_likelihoods(plan, directory, values)) if trained else None
    on_columns = (
        score_canaries(_without(canaries, contract.text_column), columns_model(directory), synthetic)
        if counts_columns(contract)
        else []
    )
    return [
        *on_columns,
        *([] if likelihoods is None else [Scored(TEXT_LIKELIHOOD, likelihoods, alike)]),
        Scored(TEXT_OVERLAP, overlap_scores(texts, (text for text in written if text)), alike),
    ]


def reconstructed_texts(plan: SealedPlan, canaries: CanarySet, directory: Path) -> tuple[Reconstructed, ...]:
    """How many canaries' texts the trained model goes on with, told their prompt and first half; exactly, and nearly.

    Args:
        plan: that the model was trained by.
        canaries: included and held-out ones.
        directory: of the complete model.

    Returns:
        Nothing where all coins fell alike: then there is nothing to compare with; and where no model was trained.

    Raises:
        MechanismFailed: the directory holds no complete model, or training would not read a canary's record.
    """
    included = canaries.included
    if plan.method not in TRAINED_METHODS or included.all() or not included.any():
        return ()
    model, rows = model_with_rows(plan, directory, canaries.values)
    likeness = reconstruct(model, [text for _, text in rows], [prompt for prompt, _ in rows])
    return count_reconstructed(likeness, included)


def as_the_model_saw(plan: SealedPlan, canaries: CanarySet, synthetic: pa.Table) -> tuple[CanarySet, pa.Table]:
    """Canaries and synthetic rows with all columns that were counted, the topic of each text among them.

    Where texts are sorted by topics, of the synthetic rows the first `MOST_SORTED`.
    """
    if plan.method not in TOPIC_METHODS:
        return canaries, synthetic
    return CanarySet(as_learned(plan, canaries.table)), as_learned(plan, synthetic.slice(0, MOST_SORTED))


def _without(canaries: CanarySet, written: str) -> CanarySet:
    return CanarySet(canaries.table.drop_columns([written]))
