"""The page of lineage: the graph around a node, the way between two, search, and what is recorded of one.

What belongs here: turning the read models into boxes and arrows, and their order on the page. What does not: where the
boxes go (`layout`), how they look (`drawing`), and what they say (`views`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from fastapi import Request
from markupsafe import Markup

from dpsynth_platform.console.pages import drawing
from dpsynth_platform.console.pages.frame import Here, page, shown
from dpsynth_platform.console.views import lineage as views
from dpsynth_platform.foundation.addresses import node_page
from dpsynth_platform.foundation.settings import Settings

_DEPTH = 2
_BROKEN = ("alias", "paid-by", "claims", "evaluated-on")
"""Relations along which no data came."""

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
"""Each relation in words, as what was there first says it, and as what came of it does."""

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
    """What the page was asked for; None where it was not."""

    found: views.SearchView | None
    graph: views.GraphView | None
    path: views.PathView | None
    node: views.NodeView | None
    collapse: bool


def register(settings: Settings) -> None:
    """Puts the page at its address."""

    @page("/lineage")
    async def lineage(request: Request) -> None:
        await shown(settings, request, "Lineage", _asked, _lineage)


def _asked(here: Here) -> _Lineage:
    allowed, text = here.identity.actions, here.asked.get("text", "").strip()
    collapse = here.ticked("collapse", default=True)
    if text:
        return _Lineage(views.search(here.settings, allowed, text), None, None, None, collapse)
    graph = views.graph(
        here.settings,
        allowed,
        here.asked.get("node", ""),
        up=here.number("up", _DEPTH, 0, views.DEEPEST),
        down=here.number("down", _DEPTH, 0, views.DEEPEST),
        collapse=collapse,
    )
    if graph is None:
        return _Lineage(None, None, None, None, collapse)
    other = here.asked.get("path", "").strip()
    path = views.path(here.settings, allowed, graph.start, other) if other else None
    node = None if path else views.node(here.settings, allowed, graph.start)
    return _Lineage(None, graph, path, node, collapse)


def _lineage(here: Here, view: _Lineage) -> None:
    here.heading("Lineage")
    graph, picture = view.graph, None
    if view.path is not None:
        picture = _path_drawing(view.path)
    elif graph is not None:
        picture = _graph_drawing(graph)
    here.html(
        "lineage.html.j2",
        found=view.found,
        graph=graph,
        path=view.path,
        start=next((node for node in graph.nodes if node.key == graph.start), None) if graph else None,
        labels={node.key: node.label for node in graph.nodes} if graph else {},
        drawing=picture,
        collapse=view.collapse,
        deepest=views.DEEPEST,
        kinds=drawing.key(),
        kind_words=_KINDS,
        relation_words=_RELATIONS,
    )
    if view.node is not None:
        here.html("node.html.j2", view=view.node, kind_words=_KINDS)


def _graph_drawing(graph: views.GraphView) -> Markup:
    labels = {node.key: node.label for node in graph.nodes}
    arrows = [_arrow(edge.source, edge.target, edge.relation, labels) for edge in graph.edges]
    return drawing.graph([_box(node, graph.start) for node in graph.nodes], arrows, "Lineage")


def _path_drawing(path: views.PathView) -> Markup | None:
    """The steps of the way, each arrow as the data went, whichever way it is walked."""
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
    return drawing.graph([_box(node, path.nodes[0].key) for node in path.nodes], arrows, "The way")


def _box(node: views.GraphNode, start: str) -> drawing.Box:
    withdrawn = any(note.startswith("withdrawn") for note in node.notes)
    foreign = any(note.startswith("told by other") for note in node.notes)
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
