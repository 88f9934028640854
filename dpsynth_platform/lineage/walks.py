"""Walking the stored graph: what something came from and what came of it, each with a shortest path.

What belongs here: the recursive query, the search for shortest paths, and what a walk meets that no mechanism stands
before. What does not: judging what is found.

One query finds whatever can be reached, however deep, and a second one its nodes; the search itself takes place in
memory. A node is entered once, so cycles end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from sqlalchemy import Connection, Select, func, select

from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.lineage import graph_rows as rows
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import MODELS, Ancestry, Node, Relation, Relative

NO_DESCENT: tuple[Relation, ...] = ("evaluated-on",)
MAKING: tuple[Relation, ...] = ("derived", "base", "trained-on", "used-by")

_Way = tuple[int, Relation, str]
"""Where an edge leads, how, and by which run."""


def walk(
    connection: Connection, start: Sequence[DatasetName], *, upward: bool, public: Collection[DatasetName] = ()
) -> Ancestry:
    """Everything that can be reached from the starts, nearest first.

    Args:
        upward: to what they came from, else to what came of them.
        public: names that were declared public, which therefore are not unknown.
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
    """What can be reached from the starts without passing a mechanism, nearest first.

    A node that we wrote ourselves and that a ledger entry paid for is differentially private: data reach it through
    that mechanism alone. So upward nothing follows but what the same entry paid for, too (a release's model), and what
    the mechanism began with (`base`: a checkpoint is read in clear); downward nothing follows at all, since it is
    post-processing. The node itself is part of the result. What others say that an entry of ours paid for is passed:
    their word protects nobody.
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
    """Nodes that we wrote ourselves with the ids of the ledger entries that paid for them."""
    return references(connection, "paid-by", own=True)


def references(
    connection: Connection, relation: Literal["paid-by", "claims"], *, own: bool = False
) -> dict[int, list[str]]:
    """Nodes with the ledger entries that they refer to: borne out by the ledger, or only claimed.

    Args:
        own: only of nodes that we wrote, and only what we told of them ourselves: others may have known the name first.
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
    """All ways between what can be reached, and the nodes at their ends."""
    ids = [node.id for node in starts]
    ways: dict[int, list[_Way]] = {}
    for row in connection.execute(_edges(ids, upward=upward)):
        ways.setdefault(row.here, []).append((row.there, row.relation, row.run_id))
    reached = {there for leading in ways.values() for there, _, _ in leading}
    return ways, rows.nodes_by_id(connection, reached | set(ids))


def _edges(ids: Iterable[int], *, upward: bool) -> Select[tuple[int, int, str, str]]:
    """Each edge between what can be reached once, whatever number of runs or versions it has."""
    edge = tables.edge.c
    here, there = (edge.child, edge.parent) if upward else (edge.parent, edge.child)
    led = edge.relation.not_in(NO_DESCENT)
    reach = select(tables.node.c.id).where(tables.node.c.id.in_(list(ids))).cte("reach", recursive=True)
    reach = reach.union(select(there).join(reach, here == reach.c.id).where(led))
    return (
        select(here.label("here"), there.label("there"), edge.relation, func.min(edge.run_id).label("run_id"))
        .join(reach, here == reach.c.id)
        .where(led)
        .group_by(here, there, edge.relation)
        .order_by(here, there, edge.relation)
    )


def _nearest_first(
    starts: Iterable[Node], ways: Mapping[int, Sequence[_Way]], nodes: Mapping[int, Node]
) -> list[Relative]:
    """Breadth first; an alias is another name of the same place and adds no distance."""
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
    """Models of which, under none of their names, an origin is known, and models that came of each other alone.

    What a chain of models begins with is unknown, and what was made of it is not named beside it: so a model is settled
    by data, by one that was declared public, or by one that is in the result itself.
    """
    models = [relative.node for relative in relatives if relative.node.kind in MODELS]
    bare = {node.id for node in models if not _has_origin(node.id, ways)}
    links = [(here, there, relation) for here, leading in ways.items() for there, relation, _ in leading]
    named = _flooded({node.id for node in models}, [(here, there) for here, there, how in links if how == "alias"])
    from_data = {here for here, there, relation in links if relation in MAKING and there not in named}
    declared = {node.id for node in models if node.name in public}
    made = [(there, here) for here, there, relation in links if relation in (*MAKING, "alias")]
    settled = _flooded(bare | from_data | declared, made)
    return [node.name for node in models if node.id not in declared and (node.id in bare or node.id not in settled)]


def _flooded(start: Collection[int], links: Iterable[tuple[int, int]]) -> set[int]:
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


def _has_origin(start: int, ways: Mapping[int, Sequence[_Way]]) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        for there, relation, _ in ways.get(waiting.pop(), ()):
            if relation in MAKING:
                return True
            if relation == "alias" and there not in seen:
                seen.add(there)
                waiting.append(there)
    return False
