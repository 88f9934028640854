"""Synthetic rows beside the mechanism's own noisy counts, column by column, for people who look at a run.

What belongs here: which values of a column are drawn, and the charts. What does not: the comparison itself
(`release.fidelity`), and real rows: Dagster keeps what it shows in its event log, which no retention and no erasure
reaches. Noisy counts are covered by the guarantee, and stand in the public dossier, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.foundation.svg import bar_chart
from dpsynth_platform.release.fidelity import FidelityCounter, columns_of, fidelity, is_possible
from dpsynth_platform.synth.tabular.measured import read_measured

NOTICE = (
    "Synthetic rows beside the mechanism's noisy counts, as in the public dossier: at no further cost, and without any "
    "count of real rows. The columns that differ most beyond the noise come first."
)
HEADER = ("column", "difference", "expected of noise alone", "values within the noise")
MOST_VALUES = 20
"""Values of an unordered column that are drawn; the rest are one bar."""
MOST_CHARTS = 12
"""Columns that are drawn: the event log keeps every chart of every run."""


@dataclass(frozen=True)
class ComparedColumn:
    """One column's rows beside its noisy counts.

    Attributes:
        difference: total variation distance between both, over the values that rows can have.
        by_noise: the part of it to be expected from noise alone.
        within: of `cells` values, those whose rows are within the noise.
        labels, synthetic, noisy: values as they are drawn, with their shares of the rows and of the noisy total.
    """

    name: str
    difference: float
    by_noise: float
    within: int
    cells: int
    labels: Sequence[str]
    synthetic: Sequence[float]
    noisy: Sequence[float]

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of `HEADER`."""
        return (self.name, f"{self.difference:.3f}", f"{self.by_noise:.3f}", f"{self.within} of {self.cells}")

    @property
    def in_words(self) -> str:
        return f"{self.name}: {self.within} of {self.cells} values within the noise of their counts"

    @property
    def chart(self) -> str:
        """Bars side by side, as SVG."""
        return bar_chart(
            self.labels,
            {"synthetic rows": self.synthetic, "noisy counts of the mechanism": self.noisy},
            title=self.name,
            description=self.in_words,
            x_label="value",
            y_label="share",
        )


def compared_columns(synthetic: Path) -> list[ComparedColumn]:
    """The columns that the mechanism counted one by one, those first that differ most beyond the noise.

    `synthetic` is the step's output: rows, and noisy counts where the method leaves them.
    """
    measured = read_measured(synthetic)
    if measured is None:
        return []
    tables = [table for table in measured["tables"] if not table["order"]]
    axes = [measured["axes"][table["axes"][0]] for table in tables]
    single = {**measured, "axes": axes, "tables": [table | {"axes": [place]} for place, table in enumerate(tables)]}
    if not tables:
        return []
    counter = FidelityCounter(single)
    for batch in read_table(synthetic / "table", columns=columns_of(single)):
        counter.add(batch)
    compared = fidelity(single, counter.tables())["tables"]
    columns = [_compared(table, axis) for table, axis in zip(compared, axes, strict=True) if "difference" in table]
    return sorted(columns, key=lambda column: column.by_noise - column.difference)


def _compared(table: Mapping[str, Any], axis: Mapping[str, Any]) -> ComparedColumn:
    kept = [group for group in range(len(axis["labels"])) if is_possible(axis, group)]
    rows = sum(table["synthetic"][group] for group in kept)
    bars = [
        (axis["labels"][group], table["synthetic"][group] / rows, table["measured"][group] / table["total"])
        for group in kept
    ]
    if "groups" in axis and len(bars) > MOST_VALUES + 1:
        bars.sort(key=lambda bar: -bar[1])
        others = bars[MOST_VALUES:]
        rest = (f"{len(others)} others", sum(bar[1] for bar in others), sum(bar[2] for bar in others))
        bars = [*bars[:MOST_VALUES], rest]
    labels, synthetic, noisy = zip(*bars, strict=True)
    return ComparedColumn(
        axis["column"],
        table["difference"],
        table["by_noise"],
        table["within"],
        table["cells"],
        labels,
        synthetic,
        noisy,
    )
