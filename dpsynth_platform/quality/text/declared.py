"""The text part of a dataset's quality report: the contract's text column, written by a language model.

What belongs here: which tables, texts and labels are compared, and the figures as rows of the quality report. What does
not: measures (`report`), or gates.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.quality.report_rows import Row
from dpsynth_platform.quality.text.corpora import corpus_of
from dpsynth_platform.quality.text.report import TextQualityReport, measure_texts

TRIALS = 3


def measure_written(
    contract: DataContract, real: pa.Table, held_out: pa.Table, synthetic: pa.Table, *, progress: Progress = silent
) -> TextQualityReport | None:
    """Measures the text column; None if texts cannot be compared, for example because there are too few.

    Classifiers are compared if the contract's target is a column of categories and `check_labels` accepts its values.
    The mechanism read the owners of `real`, not those of `held_out`. `progress` is called with public stages.
    """
    target = contract.quality.target
    label = target if target is not None and contract.columns[target].type == "categorical" else None
    tables = {"real": real, "held out": held_out, "synthetic": synthetic}
    try:
        sides = [corpus_of(name, table, contract.text_column or "", label) for name, table in tables.items()]
        try:
            return measure_texts(*sides, trials=TRIALS, progress=progress)
        except SourceError:
            unlabelled = [replace(side, labels=()) for side in sides]
            return measure_texts(*unlabelled, trials=TRIALS, progress=progress)
    except SourceError:
        return None


def written_rows(report: TextQualityReport | None) -> list[Row]:
    """The figures as rows of the quality report (`report_rows.HEADER`)."""
    if report is None:
        return [("texts", "cannot be compared: too few, or too few of a kind", "", "")]
    return [(f"texts: {name} ({better})", synthetic, real, "") for name, better, synthetic, real in report.table()]
