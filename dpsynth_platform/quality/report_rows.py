"""The parts of a quality report as rows of a table for people.

What belongs here: names and numbers of each measure. What does not: measuring, or the whole report (`report`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpsynth_platform.quality.closeness import NEIGHBOURS, Closeness
from dpsynth_platform.quality.fairness import Fairness, Gaps
from dpsynth_platform.quality.fidelity import Fidelity
from dpsynth_platform.quality.moments import GapDistance, MomentsFidelity
from dpsynth_platform.quality.similarity import Similarity
from dpsynth_platform.quality.utility import Trained, Utility
from dpsynth_platform.synth.tabular.missing import MOSTLY

Row = tuple[str, str, str, str]

HEADER = ("measure", "synthetic", "real or best possible", "without any model")
LEGEND = (
    "Distances are total variation (0: the same). Without any model, hours, weekdays and months are uniform, moments "
    "evenly spread, and other gaps and rows are of columns combined at random. HIST and Pair: similarity of the "
    "histograms of columns and of pairs of columns (1: the same). CorAcc: share of pairs whose association is as "
    "strong. KS, Wasserstein: largest gap and area between distribution functions (0: the same). Classifiers learn "
    "from synthetic rows (for the best possible: from real ones) and are tested on held-out real rows. FPED, FNED: sum "
    "over groups of the difference between their false positive (negative) rate and that of all rows. Measures of "
    "whole rows: for the best possible, held-out real rows take the place of synthetic ones."
)
"""Explains the measures below the table."""
DATASET_LEGEND = (
    f"{LEGEND} Rows are compared by the modelled columns alone, without ids, texts and pictures: where these columns "
    "are few, many rows equal a real one."
)
"""The same for a dataset with a contract."""
LINKED_LEGEND = (
    "Distances are total variation (0: the same), of rows that are cut to the declared bounds; the best possible is a "
    "fresh sample of as many real owners. Children are a row's rows in another table. Models learn from synthetic rows "
    "(for the best possible: from real ones) and are tested on held-out real rows. Errors of queries are relative, at "
    "most 1, over all rows, and include a different number of owners."
)
"""The same for a dataset with linked tables."""
_WORST = 5
_WAYS = {4: "four", 5: "five"}
_SIMILARITY = {
    "histogram": "similarity of columns (HIST), mean of 20 and 50 bins",
    "histogram_20": "similarity of columns (HIST), 20 bins",
    "histogram_50": "similarity of columns (HIST), 50 bins",
    "pair": "similarity of pairs of columns (Pair), mean of 20 and 50 bins",
    "pair_20": "similarity of pairs of columns (Pair), 20 bins",
    "pair_50": "similarity of pairs of columns (Pair), 50 bins",
    "association_accuracy": "pairs of columns that are as strongly associated (CorAcc), share",
}
_MODELS = {"mean": "mean of both", "xgboost": "XGBoost", "logistic_regression": "logistic regression"}
_GAPS = {
    "selection": "gap in selection rate",
    "true_positive": "gap in true positive rate",
    "equalized_odds": "equalized odds difference",
    "fped": "differences of false positive rates, sum (FPED)",
    "fned": "differences of false negative rates, sum (FNED)",
}


def fidelity_rows(found: Fidelity) -> list[Row]:
    """Distances of marginals, and the pairs with the largest distances."""
    if found.not_available:
        return [unavailable("marginal distance", found.not_available)]
    best_column = mean_of([item.resampled for item in found.columns])
    best_pair = mean_of([item.resampled for item in found.pairs])
    independent = mean_of([item.independent for item in found.pairs])
    rows = [
        ("one-way distance, mean", shown_number(found.mean_column), shown_number(best_column), ""),
        ("two-way distance, mean", shown_number(found.mean_pair), shown_number(best_pair), shown_number(independent)),
    ]
    if found.triples is not None and found.resampled_triples is not None:
        part = "" if found.triples.measured == found.triples.marginals else f" of {found.triples.measured} drawn"
        best = shown_number(found.resampled_triples.mean)
        rows.append((f"three-way distance, mean{part}", shown_number(found.triples.mean), best, ""))
    for made, drawn in zip(found.more, found.resampled_more, strict=True):
        part = "" if made.measured == made.marginals else f" of {made.measured} drawn"
        rows.append(
            (f"{_WAYS[made.ways]}-way distance, mean{part}", shown_number(made.mean), shown_number(drawn.mean), "")
        )
    for item in sorted(found.pairs, key=lambda pair: -pair.synthetic)[:_WORST]:
        numbers = (shown_number(item.synthetic), shown_number(item.resampled), shown_number(item.independent))
        rows.append((f"two-way distance, {item.first} and {item.second}", *numbers))
    for column in found.columns:
        if max(column.missing, column.real_missing) > MOSTLY:
            shares = (shown_number(column.missing), shown_number(column.real_missing))
            rows.append((f"share missing or unlisted, {column.column}", *shares, ""))
    return rows


def moments_rows(found: MomentsFidelity | None) -> list[Row]:
    """Distances of hours, weekdays, months and gaps, with the medians of gaps in an order."""
    if found is None:
        return []
    rows: list[Row] = []
    for part in found.parts:
        numbers = (shown_number(part.synthetic), shown_number(part.resampled), shown_number(part.flat))
        rows.append((f"{part.part} distance, {part.column}", *numbers))
    for each in found.arrivals:
        numbers = (shown_number(each.synthetic), shown_number(each.real), shown_number(each.flat))
        rows.append((f"gaps of successive rows (KS), {each.column}", *numbers))
    for gap in found.gaps:
        name = f"{gap.earlier} to {gap.later}"
        numbers = (shown_number(gap.synthetic), shown_number(gap.resampled), shown_number(gap.independent))
        rows.append((f"gap distance, {name}", *numbers))
        rows.append((f"gap, {name}: median", _duration(gap.median, gap), _duration(gap.real_median, gap), ""))
        rows.append((f"gap, {name}: share out of order", shown_number(gap.broken), shown_number(gap.real_broken), ""))
    return rows


def _duration(value: float | None, gap: GapDistance) -> str:
    """A gap with two digits, in the largest suitable unit."""
    if value is None:
        return "not available"
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)) if gap.unit == "s" else ():
        if abs(value) >= 2 * length:
            return f"{float(f'{value / length:.2g}'):g} {unit}"
    return f"{value:g} {gap.unit}".strip()


def similarity_rows(synthetic: Similarity | None, real: Similarity | None) -> list[Row]:
    """HIST, Pair and CorAcc against held-out rows: of the synthetic rows and of the mechanism's real rows."""
    if synthetic is None:
        return [unavailable("similarity (HIST, Pair, CorAcc)", "there are no rows to compare")]
    return [
        (name, shown_number(getattr(synthetic, key)), shown_number(getattr(real, key)) if real else "", "")
        for key, name in _SIMILARITY.items()
    ]


def utility_rows(found: Utility) -> list[Row]:
    """Scores of the classifiers."""
    if found.not_available or found.synthetic is None:
        return [unavailable("classifier", found.not_available or "not measured")]
    name = f"classifier of {found.target}"
    rows = [
        unavailable(f"{name}, trained on {kind} rows", trained.not_available)
        for kind, trained in (("synthetic", found.synthetic), ("real", found.real))
        if trained is not None and trained.not_available
    ]
    f1 = "F1 of the rarer class" if found.classes == 2 else "F1 (macro)"
    measures = {
        "f1": (f1, ""),
        "roc_auc": ("ROC AUC", shown_number(0.5)),
        "accuracy": ("accuracy", shown_number(found.majority_accuracy)),
    }
    for model, model_name in _MODELS.items():
        for measure, (label, baseline) in measures.items():
            made, kept = (_score(trained, model, measure) for trained in (found.synthetic, found.real))
            rows.append((f"{name}, {model_name}: {label}", made, kept, baseline))
    return rows


def fairness_rows(found: Sequence[Fairness]) -> list[Row]:
    """The classifiers' gaps between the groups of each protected column."""
    rows = []
    for item in found:
        if item.not_available:
            rows.append(unavailable(f"fairness by {item.column}", item.not_available))
            continue
        for key, name in _GAPS.items():
            made, kept = (_gap(gaps, key) for gaps in (item.synthetic, item.real))
            rows.append((f"{item.column}: {name} ({item.outcome})", made, kept, ""))
    return rows


def closeness_rows(found: Closeness | None) -> list[Row]:
    """Distances to the mechanism's real rows, and copies of them."""
    if found is None:
        return []
    names = {
        "nearest_median": "distance to the nearest real row, median",
        "nearest_lowest": "distance to the nearest real row, 5% quantile",
        "neighbours_median": f"mean distance to the {NEIGHBOURS} nearest real rows, median",
    }
    distances = [
        (name, shown_number(getattr(found.synthetic, key)), shown_number(getattr(found.real, key)), "")
        for key, name in names.items()
    ]
    made, kept = (f"{item.copies} ({item.copied:.2%})" for item in (found.synthetic, found.real))
    return [
        *distances,
        ("nearer to a real row than held-out rows are, share", shown_number(found.closer), shown_number(0.5), ""),
        ("exact copies of real rows", made, kept, ""),
    ]


def legend_of(report: Mapping[str, Any]) -> str:
    """Explains the rows of a dataset's report."""
    return LINKED_LEGEND if "linked" in report else DATASET_LEGEND


def unavailable(measure: str, reason: str) -> Row:
    """The row of a measure that could not be computed."""
    return (measure, f"not available: {reason}", "", "")


def _score(trained: Trained | None, model: str, measure: str) -> str:
    if trained is None:
        return ""
    scores = getattr(trained, model)
    return shown_number(None if scores is None else getattr(scores, measure))


def _gap(gaps: Gaps | None, key: str) -> str:
    return "" if gaps is None else shown_number(getattr(gaps, key))


def shown_number(value: float | None) -> str:
    """A figure with three decimals, or that there is none."""
    return "not available" if value is None or math.isnan(value) else f"{value:.3f}"


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of no value."""
    return sum(values) / len(values) if values else None
