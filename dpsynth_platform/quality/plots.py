"""Pictures of a quality report: static SVG, for readers without scripts.

What belongs here: which numbers of the report are drawn, and how they are named. What does not: measuring, or drawing
lines and bars (`svg`). Like the report, the pictures compare with real data and are for reviewers only.
"""

from __future__ import annotations

from dpsynth_platform.foundation.svg import Line, bar_chart, line_chart
from dpsynth_platform.quality.closeness import Closeness
from dpsynth_platform.quality.fidelity import Fidelity
from dpsynth_platform.quality.report import QualityReport
from dpsynth_platform.quality.utility import Utility


def plots(report: QualityReport) -> dict[str, str]:
    """The pictures that can be drawn, by name, as SVG."""
    drawn = {
        "marginals": _marginals(report.fidelity),
        "classifiers": _classifiers(report.utility),
        "closeness": _closeness(report.closeness),
    }
    return {name: picture for name, picture in drawn.items() if picture is not None}


def _marginals(fidelity: Fidelity) -> str | None:
    if not fidelity.columns:
        return None
    return bar_chart(
        [item.column for item in fidelity.columns],
        {
            "synthetic": [item.synthetic for item in fidelity.columns],
            "fresh sample of real rows": [item.resampled for item in fidelity.columns],
        },
        title="One-way distances",
        description="Total variation distance of each column from the real rows.",
        x_label="column",
        y_label="total variation distance",
    )


def _classifiers(utility: Utility) -> str | None:
    trained = {"trained on synthetic rows": utility.synthetic, "trained on real rows": utility.real}
    means = {name: item.mean for name, item in trained.items() if item is not None and item.mean is not None}
    if not means:
        return None
    return bar_chart(
        ["F1", "ROC AUC", "accuracy"],
        {name: [mean.f1, mean.roc_auc, mean.accuracy] for name, mean in means.items()},
        title=f"Classifiers of {utility.target}, tested on held-out real rows",
        description="Mean scores of XGBoost and logistic regression.",
        x_label="measure",
        y_label="score",
    )


def _closeness(closeness: Closeness | None) -> str | None:
    if closeness is None:
        return None
    shares = [percent / 100 for percent in range(101)]
    return line_chart(
        [
            Line("synthetic rows", closeness.synthetic_percentiles, shares),
            Line("held-out real rows", closeness.real_percentiles, shares),
        ],
        title="Distance to the nearest row that the mechanism had",
        description="Share of the rows that are at most so far from their nearest real row.",
        x_label="distance",
        y_label="share of the rows",
    )
