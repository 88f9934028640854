"""Running every attack on a model that writes texts: on its columns, two on the texts, and reconstruction.

What belongs here: preparing inputs of the attacks from language model, synthetic texts and the canaries' texts. What
does not: the attacks' arithmetic (`attacks`), real records, and coins, except for counting reconstructions.

Reconstruction is reported only: another deciding attack would lower the confidence of each.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.audit.attacks import (
    TEXT_LIKELIHOOD,
    TEXT_OVERLAP,
    Floats,
    Scored,
    equal_items,
    likelihood_scores,
    overlap_scores,
)
from dpsynth_platform.audit.canaries import CanarySet
from dpsynth_platform.audit.risk import Reconstructed, SharedFound
from dpsynth_platform.audit.scoring import score_canaries
from dpsynth_platform.audit.shared_secrets import count_shared
from dpsynth_platform.audit.tables.evidence import MOST_ROWS
from dpsynth_platform.audit.texts.reconstruction import count_reconstructed, reconstruct
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import TOPIC_METHODS, TRAINED_METHODS
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.counted import counts_columns
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.text.dp_finetune import as_learned, columns_model, log_likelihoods, model_with_rows

MOST_SORTED = 5_000
"""Synthetic rows for attacks on the columns where texts are sorted by topics: each has to be sorted first."""


def score_texts(
    contract: DataContract, plan: SealedPlan, canaries: CanarySet, directory: Path, synthetic: pa.Table
) -> list[Scored]:
    """Scores of every attack of `policy.attacks_on`, in the order of `CanarySet.owners`.

    Canaries and synthetic rows are those of `as_the_model_saw`.

    Raises:
        MechanismFailed: the directory holds no complete model.
        AccountingError: there are no synthetic rows, or no text column.
    """
    if contract.text_column is None:
        raise AccountingError(
            f"audit: {contract.dataset} has no text column; accepted: a contract with a column that a language model "
            "writes"
        )
    values = canaries.values
    texts = values.column(contract.text_column).to_pylist()
    written = synthetic.slice(0, MOST_ROWS).column(contract.text_column).to_pylist()
    duplicates = equal_items(
        texts
    )  # at most too coarse: the model reads other columns, too, which may distinguish some
    scored = []
    if counts_columns(contract):
        on_columns = CanarySet(canaries.table.drop_columns([contract.text_column]))
        scored += score_canaries(on_columns, columns_model(directory), synthetic)
    if plan.method in TRAINED_METHODS:
        likelihoods = likelihood_scores(*log_likelihoods(plan, directory, values))
        scored.append(Scored(TEXT_LIKELIHOOD, likelihoods, duplicates))
    scored.append(Scored(TEXT_OVERLAP, overlap_scores(texts, (text for text in written if text)), duplicates))
    return scored


def reconstructed_texts(plan: SealedPlan, canaries: CanarySet, directory: Path) -> tuple[Reconstructed, ...]:
    """Number of canary texts that the trained model reconstructs from prompt and first half, exactly and nearly.

    It is empty where all coins are equal, so that there is no group to compare with, and where no model was trained.

    Raises:
        MechanismFailed: the directory holds no complete model, or training would not read a canary's record.
    """
    included = canaries.included
    if plan.method not in TRAINED_METHODS or included.all() or not included.any():
        return ()
    return count_reconstructed(_continued(plan, directory, canaries.values), included)


def shared_secrets(
    contract: DataContract, plan: SealedPlan, canaries: CanarySet, directory: Path, synthetic: pa.Table
) -> tuple[SharedFound, ...]:
    """What came out of the secrets that several owners share; empty where the contract has none.

    Raises what `reconstructed_texts` raises.
    """
    if contract.text_column is None or contract.audit.shared_secrets is None:
        return ()
    written = synthetic.slice(0, MOST_ROWS).column(contract.text_column).to_pylist()
    trained = plan.method in TRAINED_METHODS
    return count_shared(
        canaries,
        contract.text_column,
        written,
        epsilon=contract.privacy.guarantee.epsilon,
        delta=contract.privacy.delta,
        continued=partial(_continued, plan, directory) if trained else None,
    )


def _continued(plan: SealedPlan, directory: Path, records: pa.Table) -> Floats:
    """How much of each record's text the trained model continues, given the first half."""
    model, rows = model_with_rows(plan, directory, records)
    return reconstruct(model, [text for _, text in rows], [prompt for prompt, _ in rows])


def as_the_model_saw(plan: SealedPlan, canaries: CanarySet, synthetic: pa.Table) -> tuple[CanarySet, pa.Table]:
    """Canaries and synthetic rows with all counted columns, including the topic of each text.

    Where texts are sorted by topics, only the first `MOST_SORTED` synthetic rows.
    """
    if plan.method not in TOPIC_METHODS:
        return canaries, synthetic
    return CanarySet(as_learned(plan, canaries.table)), as_learned(plan, synthetic.slice(0, MOST_SORTED))
