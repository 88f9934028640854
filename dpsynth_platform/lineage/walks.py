"""Walks of the stored graph, upward to origins and downward to descendants, with shortest paths.

What belongs here: the recursive query, the search for shortest paths, and the nodes that a walk reaches without passing
a mechanism. What does not: judging the result.

One query finds all reachable edges, at any depth, and a second one their nodes; the search itself is in memory. Each
node is visited once, so cycles end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from sqlalchemy import Connection, func, select

from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.lineage import graph_rows as rows
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import MODELS, Ancestry, Node, Relation, Relative

NO_DESCENT: tuple[Relation, ...] = ("evaluated-on",)
MAKING: tuple[Relation, ...] = ("derived", "base", "trained-on", "used-by")

_Way = tuple[int, Relation, str]
"""An edge's target, relation and run."""


def walk(
    connection: Connection, start: Sequence[DatasetName], *, upward: bool, public: Collection[DatasetName] = ()
) -> Ancestry:
    """Everything that can be reached from the starts, nearest first.

    Args:
        upward: to origins; otherwise to descendants.
        public: names that were declared public, so their origin is not unknown.
    """
    starts = rows.find_nodes(connection, start)
    ways, nodes = _surroundings(connection, starts.values(), upward=upward)
    relatives = _nearest_first(starts.values(), ways, nodes)
    return Ancestry(
        relatives=tuple(relatives),
        missing=tuple(name for name in dict.fromkeys(start) if name not in starts),
        unknown=tuple(_unknown(relatives, ways, public)) if upward else (),
        ways=ways,
    )


def exposed(connection: Connection, start: Sequence[DatasetName], *, upward: bool) -> list[Relative]:
    """The nodes that can be reached from the starts without passing a mechanism, nearest first.

    A node that we wrote and that a ledger entry paid for is differentially private: data reach it through that
    mechanism only. The node itself is part of the result. Upward, only nodes that the same entry paid for (a release's
    model) and initial checkpoints (`base`, which are read in clear) follow it. Downward nothing follows, since that is
    post-processing. Entries that others report for a node do not stop a walk: such a report protects nobody.
    """
    starts = rows.find_nodes(connection, start)
    ways, nodes = _surroundings(connection, starts.values(), upward=upward)
    paid = {here: set(entries) for here, entries in paid_for(connection).items()}
    for here in nodes.keys() & paid.keys():
        ways[here] = [
            (there, relation, run_id)
            for there, relation, run_id in (ways.get(here, ()) if upward else ())
            if relation in ("base", "alias") or paid[here] & paid.get(there, set())
        ]
    return _nearest_first(starts.values(), ways, nodes)


def paid_for(connection: Connection) -> dict[int, list[str]]:
    """Nodes that we wrote, with the ids of the ledger entries that paid for them."""
    return references(connection, "paid-by", own=True)


def references(
    connection: Connection, relation: Literal["paid-by", "claims"], *, own: bool = False
) -> dict[int, list[str]]:
    """Nodes with the ledger entries that they refer to: confirmed by the ledger (`paid-by`), or only claimed.

    Args:
        own: only nodes that we wrote, and only our own reports of them: others may have used the name first.
    """
    edge, child, event = tables.edge.c, tables.node.alias("child"), tables.event.c
    ours = [child.c.own.is_(True), event.origin == "own"] if own else []
    query = (
        select(edge.child, tables.node.c.name)
        .distinct()
        .join(tables.node, tables.node.c.id == edge.parent)
        .join(child, child.c.id == edge.child)
        .join(tables.event, event.sequence == edge.event)
        .where(edge.relation == relation, *ours)
        .order_by(edge.child, tables.node.c.name)
    )
    found: dict[int, list[str]] = {}
    for row in connection.execute(query):
        found.setdefault(row.child, []).append(row.name)
    return found


def _surroundings(
    connection: Connection, starts: Collection[Node], *, upward: bool
) -> tuple[dict[int, list[_Way]], dict[int, Node]]:
    """All edges between reachable nodes, each once for all its runs and versions, and the nodes."""
    ids, edge = [node.id for node in starts], tables.edge.c
    here, there = (edge.child, edge.parent) if upward else (edge.parent, edge.child)
    followed = edge.relation.not_in(NO_DESCENT)
    reach = select(tables.node.c.id).where(tables.node.c.id.in_(ids)).cte("reach", recursive=True)
    reach = reach.union(select(there).join(reach, here == reach.c.id).where(followed))
    edges = (
        select(here.label("here"), there.label("there"), edge.relation, func.min(edge.run_id).label("run_id"))
        .join(reach, here == reach.c.id)
        .where(followed)
        .group_by(here, there, edge.relation)
        .order_by(here, there, edge.relation)
    )
    ways: dict[int, list[_Way]] = {}
    for row in connection.execute(edges):
        ways.setdefault(row.here, []).append((row.there, row.relation, row.run_id))
    reached = {end for leading in ways.values() for end, _, _ in leading}
    return ways, rows.nodes_by_id(connection, reached | set(ids))


def _nearest_first(
    starts: Iterable[Node], ways: Mapping[int, Sequence[_Way]], nodes: Mapping[int, Node]
) -> list[Relative]:
    """Breadth first; an alias adds no distance."""
    found: dict[int, Relative] = {}
    queue = deque((Relative(node, 0), node.id) for node in starts)
    while queue:
        relative, here = queue.popleft()
        if here in found:
            continue
        found[here] = relative
        for there, relation, run_id in ways.get(here, ()):
            if there in found:
                continue
            near = relation == "alias"
            step = Relative(nodes[there], relative.distance + (not near), relative, relation, run_id)
            (queue.appendleft if near else queue.append)((step, there))
    return list(found.values())


def _unknown(
    relatives: Sequence[Relative], ways: Mapping[int, Sequence[_Way]], public: Collection[DatasetName]
) -> list[DatasetName]:
    """Models without a known origin under any of their names, and models that were made from each other only.

    Only the first model of a chain is listed, not the models that were made from it. So data, a model that was declared
    public, or a model in the result are an origin for all that was made from them.
    """
    models = [relative.node for relative in relatives if relative.node.kind in MODELS]
    links = [(here, there, relation) for here, leading in ways.items() for there, relation, _ in leading]
    aliases = [(here, there) for here, there, relation in links if relation == "alias"]
    made = {here for here, _, relation in links if relation in MAKING}
    without = {node.id for node in models} - _reachable(made, [(there, here) for here, there in aliases])
    named = _reachable([node.id for node in models], aliases)
    from_data = {here for here, there, relation in links if relation in MAKING and there not in named}
    declared = {node.id for node in models if node.name in public}
    downward = [(there, here) for here, there, relation in links if relation in (*MAKING, "alias")]
    settled = _reachable(without | from_data | declared, downward)
    return [node.name for node in models if node.id not in declared and (node.id in without or node.id not in settled)]


def _reachable(start: Collection[int], links: Iterable[tuple[int, int]]) -> set[int]:
    """Everything that links lead to from the start, and the start."""
    leading: dict[int, list[int]] = {}
    for here, there in links:
        leading.setdefault(here, []).append(there)
    seen, waiting = set(start), list(start)
    while waiting:
        for there in leading.get(waiting.pop(), ()):
            if there not in seen:
                seen.add(there)
                waiting.append(there)
    return seen
