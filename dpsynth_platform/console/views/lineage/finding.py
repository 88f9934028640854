"""Paths between two nodes of the lineage graph, and search by a part of a name.

What belongs here: finding paths and nodes for an actor. What does not: walking the graph
(`lineage.neighbourhood`), and the parts of each node (`nodes`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import require
from dpsynth_platform.console.views.lineage.nodes import GraphNode, NodeReader, node_called, store_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lineage import neighbourhood as near
from dpsynth_platform.reviewing.chronicle import chronicle

MOST_FOUND = 50


@dataclass(frozen=True)
class PathView:
    """A shortest path between two nodes; without nodes if there is none.

    `relations` are of each step its relation, and `down` (to what was made from it) or `up`.
    """

    one: str
    other: str
    nodes: tuple[GraphNode, ...]
    relations: tuple[tuple[str, str], ...]
    words: str


@dataclass(frozen=True)
class SearchView:
    """Nodes by a part of their name; `more` if there are others."""

    text: str
    nodes: tuple[GraphNode, ...]
    more: bool


def path(settings: Settings, allowed: Collection[Action], one: str, other: str) -> PathView:
    """A shortest path between two nodes, each given by its key or name. Raises like `graph`."""
    require(allowed, Action.READ)
    first, last = node_called(settings, one), node_called(settings, other)
    found = near.way(store_of(settings), first.name, last.name) or []
    reader = NodeReader(settings, chronicle(settings))
    relations = []
    for (here, _), (_, link) in pairwise(found):
        if link is not None:
            relations.append((link.relation, "down" if link.parent == here.id else "up"))
    words = f"{len(relations)} steps" if found else "there is no path between the two"
    nodes = tuple(reader.node(item, distance) for distance, (item, _) in enumerate(found))
    return PathView(reader.names.of(first), reader.names.of(last), nodes, tuple(relations), words)


def search(settings: Settings, allowed: Collection[Action], text: str) -> SearchView:
    """Nodes by a part of their name, or a release's id."""
    require(allowed, Action.READ)
    wanted = text.strip()
    if not wanted or not settings.has_ledger:
        return SearchView(text, (), False)
    store, reader = store_of(settings), NodeReader(settings, chronicle(settings))
    found = {item.id: item for item in (*store.find(wanted), *store.containing(wanted, most=MOST_FOUND + 1))}
    nodes = tuple(reader.node(item, 0) for item in found.values())
    return SearchView(text, nodes[:MOST_FOUND], len(nodes) > MOST_FOUND)
