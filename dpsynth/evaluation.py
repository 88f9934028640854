"""Quality of a synthetic table, measured with real rows that the generator never saw.

What belongs here: the call and what it returns. What does not: the measures (`dpsynth_platform.quality`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from dpsynth import frames
from dpsynth.words import in_python

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from dpsynth_platform.quality.report import QualityReport


@dataclass(frozen=True)
class Evaluation:
    """Measures of a synthetic table beside the best possible and a trivial one. Restricted: it compares with real rows.

    Attributes:
        notice: what the figures may be used for.
        legend: what the measures mean.
    """

    notice: str
    legend: str
    _report: QualityReport = field(repr=False)

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each measure, by its name."""
        import pandas as pd

        from dpsynth_platform.quality.report_rows import HEADER

        return pd.DataFrame(self._report.table(), columns=list(HEADER)).set_index(HEADER[0])

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return self._report.to_json()

    @in_python
    def plot(self) -> Figure:
        """A plotly figure of distances, classifiers and closeness, as far as they were measured. Restricted, too.

        Raises `ConfigurationError` if plotly is not installed.
        """
        from dpsynth.figures import of_charts
        from dpsynth_platform.quality.plots import charts

        return of_charts(charts(self._report), self.notice)

    def _repr_html_(self) -> str:
        return f"{self.frame.to_html()}<p>{escape(self.legend)}</p><p>{escape(self.notice)}</p>"

    def __str__(self) -> str:
        return f"{self.frame.to_string()}\n{self.notice}"


@in_python
def evaluate(
    real: Any,
    synthetic: Any,
    target: str,
    *,
    train: Any = None,
    protected: Sequence[str] = (),
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    orders: Sequence[Sequence[str]] = (),
    task: Literal["classification", "regression"] = "classification",
    workload: Mapping[str, Any] | Path | str | None = None,
    findings: Sequence[Mapping[str, Any] | Callable[[pa.Table], Any]] | Path | str = (),
) -> Evaluation:
    """Measures fidelity, similarity, utility, findings, fairness and closeness of a synthetic table.

    Args:
        real: rows that the generator never saw: a frame, an Arrow table or a path, as in `synthesize`.
        target: the column that classifiers predict; at most 50 different values. With `task="regression"`, numbers.
        train: the rows that the generator used, for the best possible figures.
        protected: columns to judge fairness by.
        categorical: columns whose numbers are codes.
        drop: columns to leave out, such as ids. The fields of a struct are columns, as `address.zip`.
        orders: lists of columns whose values do not decrease in a row, for the gaps between them.
        task: what is done with the target.
        workload: marginals that matter, as in a contract's `generate.workload`, or the path of a YAML file with it.
        findings: conclusions of an analysis, as in a contract's `quality.findings`, or the path of a YAML file with
            `findings`. A function of an Arrow table is one, too: its conclusion is what it returns (None: none).

    Raises:
        SourceError: a table cannot be read, or the tables cannot be compared.
        ContractError: the workload or a finding is not declared as it should be.
        DpsynthError: any other failure, without any value of the data.

    Examples:
        >>> found = dpsynth.evaluate(holdout, result.data, "city", train=people, drop=["person id"])
        >>> found.frame.columns.to_list()
        ['synthetic', 'real or best possible', 'without any model']
        >>> found.frame.index[0]
        'one-way distance, mean'
    """
    from dpsynth_platform.contracts.findings import findings_of, read_findings
    from dpsynth_platform.contracts.workload import read_workload, workload_in
    from dpsynth_platform.quality.files import flat_without, read_file
    from dpsynth_platform.quality.one_type import in_one_type
    from dpsynth_platform.quality.report import measure_tables
    from dpsynth_platform.quality.report_rows import LEGEND

    conclusions = read_findings(Path(findings)) if isinstance(findings, str | Path) else findings_of(findings)
    asked = (
        read_workload(Path(workload))
        if isinstance(workload, str | Path)
        else None
        if workload is None
        else workload_in({"workload": workload})
    )
    given = {"real": real, **({} if train is None else {"train": train}), "synthetic": synthetic}

    def table(data: Any) -> pa.Table:
        found, _ = frames.read(data)
        return read_file(found, without=drop) if isinstance(found, Path) else flat_without(found, drop)

    tables = in_one_type({name: table(data) for name, data in given.items()}, categorical)
    report = measure_tables(
        tables["real"],
        tables["synthetic"],
        target,
        train=tables.get("train"),
        protected=protected,
        categorical=categorical,
        orders=orders,
        task=task,
        workload=asked,
        findings=conclusions,
    )
    return Evaluation(report.notice, LEGEND, report)
