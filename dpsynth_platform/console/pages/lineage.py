"""The page of lineage: the graph around a node, a path, a column's way, search, the records of a node, and downloads.

What belongs here: turning views into boxes, arrows and tables, and their order on the page. What does not: where the
boxes go (`layout`), how they look (`drawing`), and what they say (`views`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import nicegui
from fastapi import Request
from markupsafe import Markup
from nicegui import ui
from starlette.responses import Response

from dpsynth_platform.console.identity import signed_in
from dpsynth_platform.console.pages import drawing
from dpsynth_platform.console.pages.downloads import csv_text, download
from dpsynth_platform.console.pages.frame import PageContext, add_page
from dpsynth_platform.console.pages.markup import script
from dpsynth_platform.console.views import lineage as views
from dpsynth_platform.foundation.addresses import column_page, node_page
from dpsynth_platform.foundation.errors import NotFound
from dpsynth_platform.foundation.settings import Settings

_DEPTH = 2
_MOST_DRAWN = 150
"""Parts of a column's way that are drawn; its table has all."""
_FEW_COLUMNS = 8
"""A table of more columns is folded on its page."""
_MOST_COLUMNS = 300
"""Columns of a table on its page."""
_BROKEN = ("alias", "paid-by", "claims", "evaluated-on")
"""Relations that are no flow of data."""

_RELATIONS = {
    "derived": ("went into", "made from"),
    "trained-on": ("trained", "trained on"),
    "base": ("was the start of", "started from"),
    "paid-by": ("paid for", "paid by"),
    "claims": ("is claimed to have paid for", "claims to be paid by"),
    "used-by": ("was used by", "used"),
    "evaluated-on": ("was used to evaluate", "evaluated on"),
    "alias": ("is also called", "is also called"),
}
"""Each relation in words, from the source's side and from the target's."""

_KINDS = {
    "dataset": "table or record",
    "release": "release",
    "model": "model that we trained",
    "checkpoint": "model of others",
    "mechanism": "ledger entry",
    "run": "steps of one run together",
}
_IN_TABLES = ("schema", "columnLineage", "tags")
"""Facets that the table of columns shows."""
WHOLE = "(the whole)"
_ORIGINALS = {True: "hidden", False: "not hidden", None: "not recorded"}
"""What happens to original values."""


@dataclass(frozen=True)
class _Lineage:
    """The requested parts of the page; the others are None."""

    found: views.SearchView | None = None
    graph: views.GraphView | None = None
    path: views.PathView | None = None
    node: views.NodeView | None = None
    columns: views.ColumnsView | None = None
    trace: views.TraceView | None = None


def register(settings: Settings) -> None:
    """Registers the page, and its downloads."""
    add_page(settings, "Lineage", "/lineage", _requested, _lineage)

    @nicegui.app.get("/lineage/drawing.svg")
    def _svg(request: Request) -> Response:
        view = _requested(PageContext(settings, request, "Lineage", signed_in(request).identity))
        picture = _picture(view, linked=False)
        if picture is None:
            raise NotFound("there is nothing to draw; accepted: the address of a drawing of the lineage page")
        return download(picture, "image/svg+xml", f"lineage-{_subject(view)}.svg")

    @nicegui.app.get("/lineage/table.csv")
    def _csv(request: Request) -> Response:
        view = _requested(PageContext(settings, request, "Lineage", signed_in(request).identity))
        return download(_table(view), "text/csv; charset=utf-8", f"lineage-{_subject(view)}.csv")


def _requested(context: PageContext) -> _Lineage:
    query = context.query
    text, node = query.get("text", "").strip(), query.get("node", "")
    if text:
        return _Lineage(found=context.read(views.search, text))
    if node and (query.get("column") or query.get("drawn") == "yes"):
        return _Lineage(trace=context.read(views.trace, node, query.get("column", ""), _months(context)))
    graph = context.read(
        views.graph,
        node,
        up=context.number("up", _DEPTH, 0, views.DEEPEST),
        down=context.number("down", _DEPTH, 0, views.DEEPEST),
        collapse=context.ticked("collapse", default=True),
        periods=_months(context),
    )
    if graph is None:
        return _Lineage()
    other = query.get("path", "").strip()
    if other:
        return _Lineage(graph=graph, path=context.read(views.path, graph.start, other))
    shown = context.read(views.node, graph.start)
    return _Lineage(graph=graph, node=shown, columns=context.read(views.columns, graph.start))


def _months(context: PageContext) -> bool:
    return context.ticked("periods", default=True)


def _lineage(context: PageContext, view: _Lineage) -> None:
    context.heading("Lineage")
    graph = view.graph
    context.html(
        "lineage.html.j2",
        found=view.found,
        graph=graph,
        path=view.path,
        trace=view.trace,
        start=next((node for node in graph.nodes if node.key == graph.start), None) if graph else None,
        labels={node.key: node.label for node in graph.nodes} if graph else {},
        drawing=_picture(view),
        collapse=context.ticked("collapse", default=True),
        months=_months(context),
        asked=context.query,
        deepest=views.DEEPEST,
        most_drawn=_MOST_DRAWN,
        originals=_ORIGINALS,
        kinds=drawing.legend(),
        kind_words=_KINDS,
        relation_words=_RELATIONS,
    )
    if view.node is not None and view.columns is not None:
        tables = _IN_TABLES if view.columns.columns else ()
        facets = [(facet, json.loads(facet.value)) for facet in view.node.facets if facet.name not in tables]
        context.html(
            "node.html.j2",
            view=view.node,
            columns=view.columns,
            most_columns=_MOST_COLUMNS,
            few_columns=_FEW_COLUMNS,
            facets=facets,
            kind_words=_KINDS,
        )
    ui.add_body_html(f"<script>{script('graph.js')}</script>")


def _picture(view: _Lineage, *, linked: bool = True) -> Markup | None:
    if view.trace is not None:
        return _trace_drawing(view.trace, linked=linked)
    if view.path is not None:
        return _path_drawing(view.path, linked=linked)
    return None if view.graph is None else _graph_drawing(view.graph, linked=linked)


def _graph_drawing(graph: views.GraphView, *, linked: bool) -> Markup:
    labels = {node.key: node.label for node in graph.nodes}
    arrows = [_arrow(edge.source, edge.target, edge.relation, labels) for edge in graph.edges]
    return drawing.graph([_box(node, graph.start) for node in graph.nodes], arrows, "Lineage", linked=linked)


def _path_drawing(path: views.PathView, *, linked: bool) -> Markup | None:
    """The steps of the path; each arrow follows the data, whatever the direction of the path."""
    if not path.nodes:
        return None
    labels = {node.key: node.label for node in path.nodes}
    steps: Iterable[tuple[tuple[views.GraphNode, views.GraphNode], tuple[str, str]]] = zip(
        pairwise(path.nodes), path.relations, strict=True
    )
    arrows = [
        _arrow(one.key, other.key, relation, labels)
        if leads == "down"
        else _arrow(other.key, one.key, relation, labels)
        for (one, other), (relation, leads) in steps
    ]
    return drawing.graph([_box(node, path.nodes[0].key) for node in path.nodes], arrows, "The path", linked=linked)


def _trace_drawing(trace: views.TraceView, *, linked: bool) -> Markup:
    """A column's way: thick where original values pass, with a mark where they are hidden."""
    nearest = sorted((*trace.upstream, *trace.downstream), key=lambda part: abs(part.distance))[:_MOST_DRAWN]
    parts = {part.key: part for part in (trace.start, *nearest)}
    # Above the start, `masked` is of the way down from a part to it: original values leave every part.
    below = {trace.start.key, *(part.key for part in trace.downstream)}
    hidden = {key for key, part in parts.items() if part.masked and key in below}
    boxes = [
        drawing.Box(
            key=part.key,
            kind=part.kind,
            label=part.column or WHOLE,
            detail=part.label,
            address=column_page(part.node, part.column),
            title=f"{part.column or WHOLE} of {part.label}",
            here=part.key == trace.start.key,
        )
        for part in parts.values()
    ]
    arrows: dict[tuple[str, str], drawing.Arrow] = {}
    for step in sorted(trace.steps, key=lambda step: step.direct):  # a direct step is drawn, whatever else there is
        if step.source in parts and step.target in parts:
            arrows[step.source, step.target] = drawing.Arrow(
                parent=step.source,
                child=step.target,
                title=f"{parts[step.target].column or WHOLE} of {parts[step.target].label}: {step.words}",
                broken=not step.direct,
                strong=step.direct and not step.masking and step.source not in hidden,
                masking=bool(step.masking),
            )
    return drawing.graph(boxes, list(arrows.values()), "The column's way", linked=linked)


def _table(view: _Lineage) -> str:
    """The table of what the page shows, as CSV."""
    if view.trace is not None:
        header = (
            "column",
            "table",
            "name",
            "kind",
            "zone",
            "steps",
            "values",
            "original values",
            "how",
            "months",
            "releases",
        )
        return csv_text(header, _trace_rows(view.trace))
    if view.found is not None:
        return csv_text(("what", "name", "where", "tags"), _found_rows(view.found))
    nodes = view.path.nodes if view.path else view.graph.nodes if view.graph else ()
    if view.graph is None or view.path is not None:
        return csv_text(
            ("step", "what", "name", "kind"), [(item.distance, item.label, item.title, item.kind) for item in nodes]
        )
    labels = {node.key: node.label for node in nodes}
    edges = [(labels[edge.source], labels[edge.target], _RELATIONS[edge.relation][1]) for edge in view.graph.edges]
    return csv_text(("source", "made from it", "relation"), edges)


def _trace_rows(trace: views.TraceView) -> Iterator[tuple[str | int, ...]]:
    for part in (*trace.upstream, *trace.downstream):
        yield (
            part.column or WHOLE,
            part.label,
            part.title,
            part.kind,
            part.zone,
            part.distance,
            "passed on" if part.direct else "depended on",
            _ORIGINALS[part.masked],
            part.words,
            " ".join(part.periods),
            " ".join(part.releases),
        )


def _found_rows(found: views.SearchView) -> Iterator[tuple[str, ...]]:
    for node in found.nodes:
        yield node.kind, node.label, node.title, ""
    for column in found.columns:
        yield "column", column.column, column.label, "; ".join(column.tags)
    for job in found.jobs:
        yield "job", job.name, job.namespace, ""


def _subject(view: _Lineage) -> str:
    """What a download is about, for its file name."""
    if view.trace is not None:
        return "-".join(filter(None, (view.trace.node.label, view.trace.column)))
    if view.found is not None:
        return view.found.text
    if view.path is not None:
        return f"{view.path.one}-to-{view.path.other}"
    return (
        next((node.label for node in view.graph.nodes if node.key == view.graph.start), "") if view.graph else "empty"
    )


def _box(node: views.GraphNode, start: str) -> drawing.Box:
    withdrawn = any(note.startswith("withdrawn") for note in node.notes)
    foreign = any(note.startswith("reported by other") for note in node.notes)
    detail = ", ".join(filter(None, (node.kind, "withdrawn" if withdrawn else "", "of others" if foreign else "")))
    return drawing.Box(
        key=node.key,
        kind=node.kind,
        label=node.label,
        detail=detail,
        address=node_page(node.members[-1]),
        title=node.label,
        marks=tuple(finding.scenario for finding in node.findings),
        here=node.key == start,
        beyond_left=node.more if node.distance < 0 else 0,
        beyond_right=node.more if node.distance >= 0 else 0,
    )


def _arrow(source: str, target: str, relation: str, labels: dict[str, str]) -> drawing.Arrow:
    return drawing.Arrow(
        parent=source,
        child=target,
        title=f"{labels.get(target, target)}: {_RELATIONS[relation][1]} {labels.get(source, source)}",
        broken=relation in _BROKEN,
        marked=relation == "claims",
    )
