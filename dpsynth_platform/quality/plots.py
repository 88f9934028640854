"""Charts of a quality report. Restricted, like the report.

What belongs here: which numbers of a report are drawn, their labels, and the charts as static SVG. What does not:
measuring quality, or writing SVG (`foundation.svg`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpsynth_platform.foundation.svg import Line, bar_chart, line_chart
from dpsynth_platform.quality.closeness import Closeness
from dpsynth_platform.quality.fidelity import Fidelity
from dpsynth_platform.quality.precision_recall import LEVELS
from dpsynth_platform.quality.records import RecordMeasures
from dpsynth_platform.quality.report import QualityReport
from dpsynth_platform.quality.utility import Utility


@dataclass(frozen=True)
class Chart:
    """The numbers and labels of one chart.

    Attributes:
        series: positions and values, of equal length, by name.
        bars: side by side at the positions of the first series, which are texts; else lines over numbers.
    """

    title: str
    description: str
    x_label: str
    y_label: str
    series: Mapping[str, tuple[Sequence[str] | Sequence[float], Sequence[float]]]
    bars: bool

    @property
    def svg(self) -> str:
        draw = self._bars if self.bars else self._lines
        return draw(title=self.title, description=self.description, x_label=self.x_label, y_label=self.y_label)

    def _bars(self, **words: str) -> str:
        labels = [str(label) for label in next(iter(self.series.values()))[0]]
        return bar_chart(labels, {name: values for name, (_, values) in self.series.items()}, **words)

    def _lines(self, **words: str) -> str:
        lines = [Line(name, [float(x) for x in at], values) for name, (at, values) in self.series.items()]
        return line_chart(lines, **words)  # type: ignore[arg-type]  # all of them are texts


def plots(report: QualityReport) -> dict[str, str]:
    """The available charts by name, as SVG."""
    return {name: chart.svg for name, chart in charts(report).items()}


def charts(report: QualityReport) -> dict[str, Chart]:
    """The available charts by name."""
    found = {
        "marginals": _marginals(report.fidelity),
        "ways": _ways(report.fidelity),
        "classifiers": classifiers_chart(report.utility),
        "precision": _curve(report.records, "precision"),
        "recall": _curve(report.records, "recall"),
        "closeness": closeness_chart(report.closeness),
    }
    return {name: chart for name, chart in found.items() if chart is not None}


def _marginals(fidelity: Fidelity) -> Chart | None:
    if not fidelity.columns:
        return None
    names = [item.column for item in fidelity.columns]
    return Chart(
        title="One-way distances",
        description="Total variation distance of each column from the real rows.",
        x_label="column",
        y_label="total variation distance",
        series={
            "synthetic": (names, [item.synthetic for item in fidelity.columns]),
            "fresh sample of real rows": (names, [item.resampled for item in fidelity.columns]),
        },
        bars=True,
    )


def _ways(fidelity: Fidelity) -> Chart | None:
    if fidelity.triples is None or fidelity.resampled_triples is None:
        return None
    drawn = [(item.resampled for item in fidelity.columns), (item.resampled for item in fidelity.pairs)]
    best = [sum(values) / len(items) for values, items in zip(drawn, (fidelity.columns, fidelity.pairs), strict=True)]
    made = [fidelity.mean_column, fidelity.mean_pair, fidelity.triples.mean]
    ways = [str(number) for number in range(1, 4 + len(fidelity.more))]
    return Chart(
        title="Distances by number of columns",
        description="Mean total variation distance of marginals of one to five columns from the real rows.",
        x_label="columns together",
        y_label="mean total variation distance",
        series={
            "synthetic": (ways, [*made, *(item.mean for item in fidelity.more)]),
            "fresh sample of real rows": (
                ways,
                [*best, fidelity.resampled_triples.mean, *(item.mean for item in fidelity.resampled_more)],
            ),
        },
        bars=True,
    )


def _curve(records: RecordMeasures | None, what: str) -> Chart | None:
    """The curve of alpha-precision or beta-recall; None without rows."""
    if records is None:
        return None
    sides = {"synthetic rows": records.synthetic, "held-out real rows": records.real}
    level, typical = {"precision": ("alpha", "real"), "recall": ("beta", "synthetic")}[what]
    counted = "rows inside" if what == "precision" else "real rows that they cover"
    return Chart(
        title=f"{level.capitalize()}-{what}",
        description=f"Of the most typical {typical} rows, a share {level}: share of {counted}. The diagonal is ideal.",
        x_label=level,
        y_label=what,
        series={
            name: (LEVELS.tolist(), list(getattr(side.precision_recall, f"{what}s")))
            for name, side in sides.items()
            if side is not None
        },
        bars=False,
    )


def classifiers_chart(utility: Utility) -> Chart | None:
    """Scores of the classifiers; None without any."""
    trained = {"trained on synthetic rows": utility.synthetic, "trained on real rows": utility.real}
    means = {name: item.mean for name, item in trained.items() if item is not None and item.mean is not None}
    if not means:
        return None
    measures = ["F1", "ROC AUC", "accuracy"]
    return Chart(
        title=f"Classifiers of {utility.target}, tested on held-out real rows",
        description="Mean scores of XGBoost and logistic regression.",
        x_label="measure",
        y_label="score",
        series={name: (measures, [mean.f1, mean.roc_auc, mean.accuracy]) for name, mean in means.items()},
        bars=True,
    )


def closeness_chart(closeness: Closeness | None, record: str = "row", distance: str = "distance") -> Chart | None:
    """Cumulative distances to the nearest real record; None without any."""
    if closeness is None:
        return None
    shares = [percent / 100 for percent in range(101)]
    return Chart(
        title=f"Distance to the nearest {record} that the mechanism read",
        description=f"Share of the {record}s whose nearest real {record} is at most this distance away.",
        x_label=distance,
        y_label=f"share of the {record}s",
        series={
            f"synthetic {record}s": (closeness.synthetic_percentiles, shares),
            f"held-out real {record}s": (closeness.real_percentiles, shares),
        },
        bars=False,
    )
