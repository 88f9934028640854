"""Figures with plotly: of synthetic rows and their budget, and of what an evaluation reports.

What belongs here: drawing. What does not: any read of real rows, and the choice of what an evaluation shows
(`dpsynth_platform.quality.plots`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import is_text
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.quality.associations import matrix
from dpsynth_platform.quality.columns import Column, align, of_rows, row_counts
from dpsynth_platform.quality.one_type import plain
from dpsynth_platform.quality.plots import Chart

if TYPE_CHECKING:
    from plotly.graph_objects import Bar, Figure

MOST_COLUMNS = 20
_BINS = 20
_MOST_ROWS = 50_000
"""A random sample of so many synthetic rows gives the associations."""
_WIDE = 3
_HIGH = 260
_LONGEST_LINE = 110
_BLUE, _ORANGE, _GREY = "#4477aa", "#ee7733", "#cccccc"
_SERIES = (_ORANGE, _BLUE, "#228833", "#aa3377", "#66ccee", "#bbbbbb")


def of_synthetic(table: pa.Table, names: Sequence[str], title: str, cap: float, left: float) -> Figure:
    """The distribution of each of these columns, their associations, and what is spent of a cap."""
    graphs, subplots = _plotly()
    high = -(-len(names) // _WIDE)
    below: list[Any] = [{"colspan": _WIDE - 1}, *[None] * (_WIDE - 2), {}]
    figure = subplots.make_subplots(
        rows=high + 1,
        cols=_WIDE,
        specs=[*[[{}] * _WIDE for _ in range(high)], below],
        subplot_titles=[
            *map(escape, names),
            *[""] * (high * _WIDE - len(names)),
            "strength of association",
            "epsilon of the ledger's cap",
        ],
    )
    texts = [name for name in names if is_text(plain(table.column(name)).type)]
    columns = align({"synthetic": table.select(names)}, texts)
    for place, column in enumerate(columns):
        bars = _distribution(graphs, column, table.column(column.name))
        figure.add_trace(bars, place // _WIDE + 1, place % _WIDE + 1)
    shown = [escape(name) for name in names]
    strengths = {"z": _associations(columns), "x": shown, "y": shown, "zmin": 0, "zmax": 1}
    figure.add_trace(graphs.Heatmap(**strengths, colorscale="Blues", showscale=False), high + 1, 1)
    for label, epsilon, colour in (("spent", cap - left, _ORANGE), ("left", left, _GREY)):
        bar = {"x": ["this ledger"], "y": [epsilon], "text": [f"{label}: {epsilon:.3g}"]}
        figure.add_trace(graphs.Bar(**bar, marker_color=colour), high + 1, _WIDE)
    layout = {"title": {"text": escape(title)}, "showlegend": False, "barmode": "stack", "height": _HIGH * (high + 1)}
    return figure.update_layout(**layout)


def of_charts(charts: Mapping[str, Chart], notice: str) -> Figure:
    """Charts below each other.

    Args:
        notice: above them, so that a picture of the figure says it, too.
    """
    graphs, subplots = _plotly()
    figure = subplots.make_subplots(
        rows=max(1, len(charts)), cols=1, subplot_titles=[escape(chart.title) for chart in charts.values()]
    )
    for row, chart in enumerate(charts.values(), 1):
        for (name, (at, values)), colour in zip(chart.series.items(), cycle(_SERIES), strict=False):
            common = {"y": list(values), "name": escape(name), "legendgroup": name, "marker_color": colour}
            trace = (
                graphs.Bar(x=[escape(str(label)) for label in at], **common)
                if chart.bars
                else graphs.Scatter(x=list(at), mode="lines", **common)
            )
            figure.add_trace(trace, row, 1)
        figure.update_xaxes(title_text=escape(chart.x_label), row=row, col=1)
        figure.update_yaxes(title_text=escape(chart.y_label), row=row, col=1)
    title = {"text": "<br>".join(map(escape, wrap(notice, _LONGEST_LINE))), "font": {"size": 12}}
    return figure.update_layout(title=title, height=_HIGH * 1.3 * max(1, len(charts)))


def _distribution(graphs: Any, coded: Column, column: pa.ChunkedArray) -> Bar:
    """Shares of the rows: of the most frequent values, or of ranges of equal width."""
    at: Any
    if coded.size is not None:
        found = pc.value_counts(plain(column)).to_pylist()
        found = sorted(found, key=lambda item: -item["counts"])[:_BINS]
        at = ["missing" if item["values"] is None else escape(str(item["values"])) for item in found]
        counts: Any = np.array([item["counts"] for item in found])
        return graphs.Bar(x=at, y=counts / len(column), marker_color=_BLUE)
    known = coded.parts[0][~np.isnan(coded.parts[0])]
    at, counts = np.unique(known, return_counts=True)
    if len(at) > _BINS:
        counts, edges = np.histogram(known, bins=_BINS)
        at = (edges[:-1] + edges[1:]) / 2
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        at = at.astype("datetime64[us]")
    return graphs.Bar(x=at, y=counts / len(column), marker_color=_BLUE)


def _associations(columns: Sequence[Column]) -> Any:
    """Absolute associations, shape (columns, columns); NaN of a constant column."""
    (count,) = row_counts(columns)
    rows = np.random.default_rng().choice(count, min(count, _MOST_ROWS), replace=False)
    return np.abs(matrix(of_rows(columns, rows), 0))


def _plotly() -> tuple[Any, Any]:
    try:
        import plotly.graph_objects as graphs
        import plotly.subplots as subplots
    except ImportError:
        raise ConfigurationError(
            "plotly draws the figures and is not installed; do: pip install 'dpsynth-platform[plots]'"
        ) from None
    return graphs, subplots
