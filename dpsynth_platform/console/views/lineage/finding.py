"""Paths between two nodes of the lineage graph, and search by a part of a name or tag.

What belongs here: finding paths and nodes for an actor. What does not: walking the graph
(`lineage.neighbourhood`), and the parts of each node (`nodes`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import require
from dpsynth_platform.console.views.lineage.columns import tag_words
from dpsynth_platform.console.views.lineage.facets import facets_seen, job_seen, place_seen
from dpsynth_platform.console.views.lineage.nodes import (
    GraphNode,
    NodeReader,
    found_by,
    node_called,
    step_of,
    store_of,
)
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lineage import neighbourhood as near
from dpsynth_platform.lineage.column_walks import columns_of
from dpsynth_platform.lineage.naming import JOB_NAMESPACE, DatasetName
from dpsynth_platform.lineage.nodes import Node
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.reviewing.chronicle import chronicle

MOST_FOUND = 50
MOST_READ = 2000
"""The newest nodes among whose columns and tags a text is looked for."""


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
class ColumnFound:
    """A column by a part of its name or of a tag: in how many `tables` of one step, with the newest one's key."""

    column: str
    tags: tuple[str, ...]
    label: str
    key: str
    tables: int


@dataclass(frozen=True)
class JobFound:
    """A job by a part of its name, with keys and labels of what its last run wrote; `own` is of this platform."""

    name: str
    namespace: str
    own: bool
    outputs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SearchView:
    """What matches a text: nodes by name or tag, columns by name or tag, jobs by name; `more` if there are others."""

    text: str
    nodes: tuple[GraphNode, ...]
    columns: tuple[ColumnFound, ...]
    jobs: tuple[JobFound, ...]
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
    """Nodes, columns and jobs by a part of a name, a release's id, or a tag such as `pii: mask` or `zone: public`.

    The text is looked for in what the actor sees, so that a search cannot tell what is hidden in a name.
    """
    require(allowed, Action.READ)
    wanted = text.strip()
    if not wanted or not settings.has_ledger:
        return SearchView(text, (), (), (), False)
    store, reader = store_of(settings), NodeReader(settings, chronicle(settings))
    tagged, columns = _described(store, reader, allowed, wanted)
    containing = store.containing(
        wanted, most=MOST_FOUND + 1, accepted=lambda item: _is_in(wanted, _node_words(reader, item, allowed))
    )
    named = (*found_by(store, wanted), *containing)
    nodes = list({item.id: item for item in (*named, *tagged)}.values())
    jobs = store.jobs(
        wanted, most=MOST_FOUND + 1, accepted=lambda name: _is_in(wanted, (job_seen(name, allowed).name,))
    )
    return SearchView(
        text=text,
        nodes=tuple(reader.node(item, 0) for item in nodes[:MOST_FOUND]),
        columns=tuple(columns[:MOST_FOUND]),
        jobs=tuple(_job(reader, job_seen(name, allowed), outputs) for name, outputs in jobs[:MOST_FOUND]),
        more=any(len(found) > MOST_FOUND for found in (nodes, columns, jobs)),
    )


def _described(
    store: LineageStore, reader: NodeReader, allowed: Collection[Action], text: str
) -> tuple[list[Node], list[ColumnFound]]:
    """Nodes with a tag that contains the text, and columns with it in a name or tag, among what the actor may see."""
    wanted, nodes = _plain(text), []
    found: dict[tuple[str, str], ColumnFound] = {}
    for node in store.described_with(max(re.split(r"[:\s]+", text), key=len), most=MOST_READ):
        facets = facets_seen(node, allowed)
        if any(wanted in _plain(tag_words("zone", zone)) for zone in node.zones if "tags" in facets):
            nodes.append(node)
        for column in columns_of(facets).values():
            tags = tuple(tag_words(*tag) for tag in column.tags)
            if any(wanted in _plain(word) for word in (column.name, *tags)):
                step = step_of(node)
                label = f"{step[0].dataset}: {step[1]}" if step else reader.node(node, 0).label
                before = found.get((label, column.name))
                found[label, column.name] = (
                    replace(before, tables=before.tables + 1)
                    if before
                    else ColumnFound(column.name, tags, label, reader.names.key(node), 1)
                )
    return nodes, list(found.values())


def _is_in(text: str, words: Iterable[str | None]) -> bool:
    return any(text.casefold() in word.casefold() for word in words if word)


def _node_words(reader: NodeReader, node: Node, allowed: Collection[Action]) -> tuple[str | None, ...]:
    """What the actor may see of a node's name."""
    return reader.names.of(node), reader.node(node, 0).label, place_seen(node, allowed)


def _plain(text: str) -> str:
    """For comparison: in lower case, a tag's key and value divided by one colon alone."""
    return re.sub(r"\s*:\s*", ":", text.casefold())


def _job(reader: NodeReader, name: DatasetName, outputs: Collection[Node]) -> JobFound:
    shown = [reader.node(item, 0) for item in outputs]
    return JobFound(
        name.name, name.namespace, name.namespace == JOB_NAMESPACE, tuple((item.key, item.label) for item in shown)
    )
