"""Finding one's way in the lineage graph: between two nodes, and to one by a part of its name.

What belongs here: the two. What does not: walking the graph (`lineage.neighbourhood`), and what is told of each node
(`nodes`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import View, require
from dpsynth_platform.console.views.lineage.nodes import About, GraphNode, node_called, store_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lineage import neighbourhood as near
from dpsynth_platform.reviewing.chronicle import chronicle

MOST_FOUND = 50


@dataclass(frozen=True)
class PathView(View):
    """A shortest way between two nodes.

    Attributes:
        one, other: their names.
        nodes: from one to the other; empty where there is no way.
        relations: of each step, how, and whether it goes `down` to what came of it or `up`.
    """

    one: str
    other: str
    nodes: tuple[GraphNode, ...]
    relations: tuple[tuple[str, str], ...]
    words: str


@dataclass(frozen=True)
class SearchView(View):
    """What a search found: nodes by a part of their name.

    Attributes:
        more: whether there are others.
    """

    text: str
    nodes: tuple[GraphNode, ...]
    more: bool


def path(settings: Settings, allowed: Collection[Action], one: str, other: str) -> PathView:
    """A shortest way between two nodes, each by its key or by what people call it. Raises like `graph`."""
    require(allowed, Action.READ)
    first, last = node_called(settings, one), node_called(settings, other)
    found = near.way(store_of(settings), first.name, last.name) or []
    about = About(settings, chronicle(settings))
    relations = []
    for (here, _), (_, link) in pairwise(found):
        if link is not None:
            relations.append((link.relation, "down" if link.parent == here.id else "up"))
    words = f"{len(relations)} steps" if found else "no way leads from one to the other"
    nodes = tuple(about.node(item, distance) for distance, (item, _) in enumerate(found))
    return PathView(about.names.of(first), about.names.of(last), nodes, tuple(relations), words)


def search(settings: Settings, allowed: Collection[Action], text: str) -> SearchView:
    """Nodes by a part of their name, or a release's id. Raises `NotAllowed` like `graph`."""
    require(allowed, Action.READ)
    wanted = text.strip()
    if not wanted or not settings.has_ledger:
        return SearchView(text, (), False)
    store, about = store_of(settings), About(settings, chronicle(settings))
    found = {item.id: item for item in (*store.find(wanted), *store.holding(wanted, most=MOST_FOUND + 1))}
    nodes = tuple(about.node(item, 0) for item in found.values())
    return SearchView(text, nodes[:MOST_FOUND], len(nodes) > MOST_FOUND)
