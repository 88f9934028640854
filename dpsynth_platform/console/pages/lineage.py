"""The page of lineage: the graph around a node, the path between two, search, and the records of one node.

What belongs here: turning views into boxes and arrows, and their order on the page. What does not: where the boxes go
(`layout`), how they look (`drawing`), and what they say (`views`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from dpsynth_platform.console.pages import drawing
from dpsynth_platform.console.pages.frame import PageContext, add_page
from dpsynth_platform.console.views import lineage as views
from dpsynth_platform.foundation.addresses import node_page
from dpsynth_platform.foundation.settings import Settings

_DEPTH = 2
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


@dataclass(frozen=True)
class _Lineage:
    """The requested parts of the page; the others are None."""

    found: views.SearchView | None
    graph: views.GraphView | None
    path: views.PathView | None
    node: views.NodeView | None
    collapse: bool


def register(settings: Settings) -> None:
    """Registers the page."""
    add_page(settings, "Lineage", "/lineage", _requested, _lineage)


def _requested(context: PageContext) -> _Lineage:
    collapse = context.ticked("collapse", default=True)
    text = context.query.get("text", "").strip()
    if text:
        return _Lineage(context.read(views.search, text), None, None, None, collapse)
    graph = context.read(
        views.graph,
        context.query.get("node", ""),
        up=context.number("up", _DEPTH, 0, views.DEEPEST),
        down=context.number("down", _DEPTH, 0, views.DEEPEST),
        collapse=collapse,
    )
    if graph is None:
        return _Lineage(None, None, None, None, collapse)
    other = context.query.get("path", "").strip()
    path = context.read(views.path, graph.start, other) if other else None
    node = None if path else context.read(views.node, graph.start)
    return _Lineage(None, graph, path, node, collapse)


def _lineage(context: PageContext, view: _Lineage) -> None:
    context.heading("Lineage")
    graph, picture = view.graph, None
    if view.path is not None:
        picture = _path_drawing(view.path)
    elif graph is not None:
        picture = _graph_drawing(graph)
    context.html(
        "lineage.html.j2",
        found=view.found,
        graph=graph,
        path=view.path,
        start=next((node for node in graph.nodes if node.key == graph.start), None) if graph else None,
        labels={node.key: node.label for node in graph.nodes} if graph else {},
        drawing=picture,
        collapse=view.collapse,
        deepest=views.DEEPEST,
        kinds=drawing.legend(),
        kind_words=_KINDS,
        relation_words=_RELATIONS,
    )
    if view.node is not None:
        context.html("node.html.j2", view=view.node, kind_words=_KINDS)


def _graph_drawing(graph: views.GraphView) -> Markup:
    labels = {node.key: node.label for node in graph.nodes}
    arrows = [_arrow(edge.source, edge.target, edge.relation, labels) for edge in graph.edges]
    return drawing.graph([_box(node, graph.start) for node in graph.nodes], arrows, "Lineage")


def _path_drawing(path: views.PathView) -> Markup | None:
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
    return drawing.graph([_box(node, path.nodes[0].key) for node in path.nodes], arrows, "The path")


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
