"""Measures of fitness for a purpose as rows of a table for people.

What belongs here: names and numbers of workload error, single columns, findings, whole rows, and regression. What does
not: measuring, and the report's other parts (`report_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dpsynth_platform.quality.matching import ALIKE
from dpsynth_platform.quality.parity import Parity
from dpsynth_platform.quality.records import RecordMeasures, Records
from dpsynth_platform.quality.regression import Predicted, Regression
from dpsynth_platform.quality.report_rows import Row, mean_of, shown_number, unavailable
from dpsynth_platform.quality.single_columns import SingleDistance
from dpsynth_platform.quality.workload_error import WorkloadError

_WORST = 3
_KINDS = {
    "kolmogorov_smirnov": "KS distance of numbers",
    "wasserstein": "Wasserstein distance of numbers (share of the range)",
    "cramers_v": "chi-squared distance of categories (Cramer's V)",
}
_MODELS = {"mean": "mean of both", "xgboost": "XGBoost", "linear": "ridge regression"}
_ERRORS = {
    "r_squared": ("R squared", "0.000"),
    "absolute_error": ("absolute error (share of the median's)", "1.000"),
    "rank_correlation": ("rank correlation", "0.000"),
}
_RECORDS = {
    "detection_auc": "detection of synthetic rows (ROC AUC; 0.5 is good)",
    "mean_discrepancy": "maximum mean discrepancy (0 is good)",
    "precision": "alpha-precision, integrated (1 is good)",
    "recall": "beta-recall, integrated (near held-out rows is good)",
    "authenticity": "authenticity, share (near held-out rows is good)",
    "maximal_faithfulness": f"rows matched to real ones that look alike, within {ALIKE:.0%} (faithfulness), share",
}


def workload_rows(found: WorkloadError | None) -> list[Row]:
    """The error on the workload, and its largest."""
    if found is None:
        return []
    part = "" if found.measured == found.marginals else f" of {found.measured} drawn"
    numbers = (found.synthetic, found.resampled, found.independent)
    return [
        (f"workload: distance, weighted mean{part}", *map(shown_number, numbers)),  # type: ignore[list-item]
        (f"workload: distance, largest{part}", shown_number(found.largest), "", ""),
    ]


def single_column_rows(found: Sequence[SingleDistance]) -> list[Row]:
    """Means of each kind of distance, and the columns with the largest."""
    rows: list[Row] = []
    for kind, name in _KINDS.items():
        of_kind = [item for item in found if item.kind == kind]
        if not of_kind:
            continue
        means = (mean_of([item.synthetic for item in of_kind]), mean_of([item.resampled for item in of_kind]))
        rows.append((f"{name}, mean", *map(shown_number, means), ""))  # type: ignore[arg-type]
        for item in sorted(of_kind, key=lambda item: -item.synthetic)[:_WORST]:
            rows.append((f"{name}, {item.column}", shown_number(item.synthetic), shown_number(item.resampled), ""))
    return rows


def regression_rows(found: Regression | None) -> list[Row]:
    """Scores of the models of a numeric target."""
    if found is None:
        return []
    name = f"regression of {found.target}"
    if found.not_available or found.synthetic is None:
        return [unavailable(name, found.not_available or "not measured")]
    rows = [
        unavailable(f"{name}, trained on {kind} rows", trained.not_available)
        for kind, trained in (("synthetic", found.synthetic), ("real", found.real))
        if trained is not None and trained.not_available
    ]
    for model, model_name in _MODELS.items():
        for key, (label, baseline) in _ERRORS.items():
            made, kept = (_error(trained, model, key) for trained in (found.synthetic, found.real))
            rows.append((f"{name}, {model_name}: {label}", made, kept, baseline))
    return rows


def parity_rows(found: Parity | None) -> list[Row]:
    """The share of findings that hold, and each that does not."""
    if found is None:
        return []
    drawn = [item for item in found.findings if item.drawn]
    shares = (shown_number(found.synthetic), shown_number(found.resampled))
    rows = [(f"findings that hold, share of {len(drawn)} (epistemic parity)", *shares, "")]
    for item in found.findings:
        if not item.drawn:
            rows.append(unavailable(f"finding: {item.name}", "real rows lead to no conclusion"))
        elif not item.synthetic:
            rows.append((f"finding: {item.name}", "does not hold", "holds" if item.resampled else "does not hold", ""))
    return rows


def records_rows(found: RecordMeasures | None) -> list[Row]:
    """The measures of whole rows."""
    if found is None:
        return [unavailable("measures of whole rows", "a table has too few rows")]
    sides = (found.synthetic, found.real, found.independent)
    return [
        (name, *("" if side is None else shown_number(_figure(side, key)) for side in sides))  # type: ignore[misc]
        for key, name in _RECORDS.items()
    ]


def _figure(side: Records, key: str) -> float:
    return float(getattr(side, key) if hasattr(side, key) else getattr(side.precision_recall, key))


def _error(trained: Predicted | None, model: str, key: str) -> str:
    scores = None if trained is None else getattr(trained, model)
    return "" if trained is None else shown_number(None if scores is None else getattr(scores, key))
