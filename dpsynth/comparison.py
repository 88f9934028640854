"""Methods side by side on a public table.

What belongs here: the call and what it returns. What does not: the tries and their measures
(`dpsynth_platform.one_table.comparison`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpsynth.synthesis import options_of, shown
from dpsynth.words import in_python
from dpsynth_platform.foundation.errors import ContractError

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from dpsynth_platform.one_table.comparison import Comparison

OPTIONS = ("delta", "expected_units", "time_limit", "rows", "learn_values")
"""Of each run; others would change what is compared."""


@dataclass(frozen=True)
class Compared:
    """Methods side by side on a public table.

    Attributes:
        about: the table, and why it is public.
        notice: what the figures may be used for.
        legend: what the measures mean.
    """

    about: str
    notice: str
    legend: str
    _found: Comparison = field(repr=False)

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each method and epsilon that made rows, and one for the real rows."""
        import pandas as pd

        return pd.DataFrame(self._found.table(), columns=list(self._found.header))

    @property
    def refused(self) -> list[str]:
        """A line for each method and epsilon without rows, with the reason."""
        return self._found.refused

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return self._found.to_json()

    @in_python
    def plot(self) -> Figure:
        """A plotly figure of all measures. Raises `ConfigurationError` if plotly is not installed."""
        from dpsynth.figures import of_charts

        return of_charts(self._found.charts(), self.notice)

    def _repr_html_(self) -> str:
        return (
            f"<p>{escape(self.about)}</p>{self.frame.to_html()}<p>{escape(self.legend)}</p><p>{escape(self.notice)}</p>"
        )

    def __str__(self) -> str:
        return f"{self.about}\n{self.frame.to_string()}\n{self.notice}"


@in_python
def compare(
    public: str | Path,
    why: str,
    target: str,
    *,
    methods: Sequence[str] = (),
    epsilons: Sequence[float] = (1.0,),
    columns: Mapping[str, Any] | None = None,
    task: Literal["classification", "regression"] = "classification",
    workload: Mapping[str, Any] | None = None,
    drop: Sequence[str] = (),
    out: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> Compared:
    """Runs methods on a table that is declared public, and measures quality, time and memory. It spends nothing.

    A fifth of the rows is held out for the measures. Each method runs in a process of its own.

    Args:
        public: the path of a Parquet, CSV or Delta table. No mechanism protects its rows.
        why: why it is public; the result says it.
        target: the column that models of the synthetic rows predict.
        methods: default: all that need no second public table.
        columns: as in `synthesize`; None: types and domains are read from the table.
        task: what is done with the target.
        workload: marginals that matter, as in a contract's `generate.workload`.
        drop: columns to leave out, such as ids.
        out: directory for the result with charts and for each synthetic table; None: they are not kept.
        progress: show a bar.
        options: of each run: `delta`, `expected_units`, `time_limit`, `rows`, `learn_values`, as `synthesize`.

    Raises:
        ContractError: the table is a source of the deployment, or an argument cannot be used.
        SourceError: the table cannot be read, has too few rows, or lacks the target.
        MechanismFailed: no method has made rows; the message has each reason.

    Examples:
        >>> people[["age", "city"]].to_parquet("public.parquet")
        >>> found = dpsynth.compare("public.parquet", "published by the bureau", "city", methods=["mst", "histogram"])
        >>> found.frame.columns.to_list()[:3]
        ['epsilon', 'method', 'pairs']
    """
    from dpsynth_platform.contracts.workload import workload_in
    from dpsynth_platform.one_table.comparison import LEGEND, METHODS, NOTICE
    from dpsynth_platform.one_table.comparison import compare as compared

    for name in options:
        if name not in OPTIONS:  # such as `owners`: each row is its own unit
            raise ContractError(f"{name}: no option of a comparison; accepted: {', '.join(OPTIONS)}")
    asked = None if workload is None else workload_in({"workload": workload})
    with shown(progress) as report:
        found = compared(
            public,
            why,
            target,
            options_of({"epsilon": 1.0, **options}, columns, ()),
            out=out,
            drop=drop,
            methods=methods or METHODS,
            epsilons=epsilons,
            task=task,
            workload=asked,
            progress=report,
        )
    return Compared(found.about, NOTICE, LEGEND, found)
