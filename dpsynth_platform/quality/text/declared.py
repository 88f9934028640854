"""The text part of a dataset's quality report: the column that a language model wrote, as its contract declares it.

What belongs here: which tables, texts and labels are compared, and the figures as rows beside those of the columns.
What does not: any measure (`report`), or a gate.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.quality.report_rows import Row
from dpsynth_platform.quality.text.corpora import Corpus, corpus_of
from dpsynth_platform.quality.text.report import TextQualityReport, measure_texts

TRIALS = 3


def measure_written(
    contract: DataContract, real: pa.Table, held_out: pa.Table, synthetic: pa.Table, *, progress: Progress = silent
) -> TextQualityReport | None:
    """Measures the written column; None where texts cannot be compared, as where there are too few.

    Classifiers are compared where the contract's target is a column of categories of which every table has the same.

    Args:
        contract: names the written column and the target.
        real: rows of real owners that the mechanism read.
        held_out: rows of owners that were kept from it.
        synthetic: the synthetic rows.
        progress: called with public stages.
    """
    try:
        sides = [_corpus(contract, name, table) for name, table in _named(real, held_out, synthetic)]
        try:
            return measure_texts(*sides, trials=TRIALS, progress=progress)
        except SourceError:
            unlabelled = [replace(side, labels=()) for side in sides]
            return measure_texts(*unlabelled, trials=TRIALS, progress=progress)
    except SourceError:
        return None


def written_rows(report: TextQualityReport | None) -> list[Row]:
    """The figures as rows below those of the columns (`quality.shown.HEADER`)."""
    if report is None:
        return [("texts", "cannot be compared: too few, or too few of a kind", "", "")]
    return [(f"texts: {name} ({better})", synthetic, real, "") for name, better, synthetic, real in report.table()]


def _named(real: pa.Table, held_out: pa.Table, synthetic: pa.Table) -> list[tuple[str, pa.Table]]:
    return [("real", real), ("held out", held_out), ("synthetic", synthetic)]


def _corpus(contract: DataContract, name: str, table: pa.Table) -> Corpus:
    target = contract.quality.target
    label = target if target is not None and contract.columns[target].type == "categorical" else None
    return corpus_of(name, table, contract.text_column or "", label)
