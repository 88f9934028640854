"""The quality report as a whole: made from three tables, shown as JSON, as markdown and as rows for a terminal.

What belongs here: putting the parts together and showing them. What does not: measuring, and any gate. The report
compares with real rows, so it is restricted and says so wherever it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts import DataContract
from dpsynth_platform.quality.fairness import Fairness, measure_fairness
from dpsynth_platform.quality.fidelity import Fidelity, measure_fidelity
from dpsynth_platform.quality.utility import Utility, measure_utility
from dpsynth_platform.synth.tabular.domain import domain_of

NOTICE = (
    "Restricted: this report compares with real data and is not covered by the guarantee. It is for reviewers only; "
    "no automatic gate reads it."
)
HEADER = ("measure", "synthetic", "real or best possible", "without any model")
_WORST = 5


@dataclass(frozen=True)
class QualityReport:
    """Fidelity, utility and fairness of one synthetic table. Restricted."""

    dataset: str
    period: str | None
    fidelity: Fidelity
    utility: Utility
    fairness: tuple[Fairness, ...]
    notice: str = NOTICE
    restricted: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        means = {"mean_column": self.fidelity.mean_column, "mean_pair": self.fidelity.mean_pair}
        shown = {name: None if math.isnan(value) else value for name, value in means.items()}
        return asdict(self) | {"fidelity": asdict(self.fidelity) | shown}

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The report as a table of four columns, see `HEADER`."""
        return [*self._fidelity_rows(), *self._utility_rows(), *self._fairness_rows()]

    def markdown(self) -> str:
        """The notice, and the rows as a markdown table."""
        lines = [f"**{self.notice}**", "", _markdown_row(HEADER), _markdown_row(["---"] * len(HEADER))]
        return "\n".join([*lines, *(_markdown_row(row) for row in self.rows())])

    def _fidelity_rows(self) -> list[tuple[str, str, str, str]]:
        found = self.fidelity
        if found.not_available:
            return [_unavailable("marginal distance", found.not_available)]
        best_column = _mean([item.resampled for item in found.columns])
        best_pair = _mean([item.resampled for item in found.pairs])
        independent = _mean([item.independent for item in found.pairs])
        rows = [
            ("one-way distance, mean", _number(found.mean_column), _number(best_column), ""),
            ("two-way distance, mean", _number(found.mean_pair), _number(best_pair), _number(independent)),
        ]
        for item in sorted(found.pairs, key=lambda pair: -pair.synthetic)[:_WORST]:
            numbers = (_number(item.synthetic), _number(item.resampled), _number(item.independent))
            rows.append((f"two-way distance, {item.first} and {item.second}", *numbers))
        return rows

    def _utility_rows(self) -> list[tuple[str, str, str, str]]:
        found = self.utility
        if found.not_available or found.synthetic is None or found.real is None:
            return [_unavailable("classifier", found.not_available or "not measured")]
        name = f"classifier of {found.target}"
        rows = [
            _unavailable(f"{name}, trained on {kind} rows", scores.not_available)
            for kind, scores in (("synthetic", found.synthetic), ("real", found.real))
            if scores.not_available
        ]
        baselines = {"accuracy": _number(found.majority_accuracy), "f1_macro": "", "roc_auc": _number(0.5)}
        labels = {"accuracy": "accuracy", "f1_macro": "F1 (macro)", "roc_auc": "ROC AUC"}
        for measure, label in labels.items():
            made, kept = (_number(getattr(scores, measure)) for scores in (found.synthetic, found.real))
            rows.append((f"{name}, {label}", made, kept, baselines[measure]))
        return rows

    def _fairness_rows(self) -> list[tuple[str, str, str, str]]:
        rows = []
        for item in self.fairness:
            if item.not_available:
                rows.append(_unavailable(f"fairness by {item.column}", item.not_available))
                continue
            selection = (_number(item.synthetic_selection_gap), _number(item.real_selection_gap))
            found = (_number(item.synthetic_true_positive_gap), _number(item.real_true_positive_gap))
            rows.append((f"{item.column}: gap in selection rate ({item.outcome})", *selection, ""))
            rows.append((f"{item.column}: gap in true positive rate ({item.outcome})", *found, ""))
        return rows


def measure_quality(
    contract: DataContract, period: str | None, real: pa.Table, synthetic: pa.Table, holdout: pa.Table
) -> QualityReport:
    """Measures one synthetic table.

    Args:
        contract: declares the columns, the target and the protected columns.
        period: the line's period.
        real: the bounded rows of real owners, without canaries.
        synthetic: the synthetic rows.
        holdout: real rows of owners that were kept from the mechanism; may be empty.
    """
    domain = domain_of(contract, period)
    kept, made, held = (domain.encode(table.combine_chunks()) for table in (real, synthetic, holdout))
    target, protected = contract.quality.target, contract.quality.protected
    utility, predictions = measure_utility(kept, made, held, domain, target)
    return QualityReport(
        dataset=contract.dataset,
        period=period,
        fidelity=measure_fidelity(kept, made, domain.names, domain.sizes),
        utility=utility,
        fairness=measure_fairness(predictions, domain, target, protected),
    )


def _unavailable(measure: str, reason: str) -> tuple[str, str, str, str]:
    return (measure, f"not available: {reason}", "", "")


def _number(value: float | None) -> str:
    return "not available" if value is None or math.isnan(value) else f"{value:.3f}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
