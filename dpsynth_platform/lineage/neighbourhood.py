"""The neighbourhood of a node in the stored graph, to a chosen depth, and a path between two nodes.

What belongs here: walks for the display of a part of the graph. What does not: the complete walks for decisions
(`walks`), and drawing.

Only what is shown is read, level by level, whatever the size of the graph. Nodes of one group (such as the steps of one
run) can count as one place, without a distance between them: then a release is two steps from its source, not six.
Aliases add no distance either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.lineage import graph_rows as rows
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import Node, Relation
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.walks import NO_DESCENT

Group = Callable[[Node], Hashable]


@dataclass(frozen=True)
class Link:
    """An edge between two nodes, by their ids; one for all runs and versions."""

    child: int
    parent: int
    relation: Relation
    run_id: str


@dataclass(frozen=True)
class Neighbourhood:
    """A part of the graph.

    Attributes:
        start: id of the node in its centre.
        nodes: by id.
        distances: of each node from the start: above it negative, below it positive.
        links: all edges between the nodes.
        beyond: by node, how many further nodes follow it, away from the start.
        left_out: how many nodes within the depth exceed the limit.
    """

    start: int
    nodes: Mapping[int, Node]
    distances: Mapping[int, int]
    links: tuple[Link, ...]
    beyond: Mapping[int, int]
    left_out: int


def around(
    store: LineageStore,
    name: DatasetName,
    *,
    up: int,
    down: int,
    most: int,
    group: Group = lambda _: None,
) -> Neighbourhood | None:
    """The neighbourhood of a node, or None if the graph lacks it. `LedgerError`: the database is out of reach.

    Args:
        up: how many steps above.
        down: how many steps below.
        most: limit of nodes in each direction; nearer ones first, and of the same distance newer ones first.
        group: nodes with the same result are one place; None: the node is a place of its own.
    """

    def work(connection: Connection) -> Neighbourhood | None:
        start = rows.find_nodes(connection, [name]).get(name)
        if start is None:
            return None
        above = _Walk(connection, start, most, group, upward=True).to(up)
        below = _Walk(connection, start, most, group, upward=False).to(down)
        links = _links(connection, above, below)
        nodes = _without_mere_names({**below.nodes, **above.nodes}, start, links)
        distances = below.distances | {here: -distance for here, distance in above.distances.items()}
        return Neighbourhood(
            start=start.id,
            nodes=nodes,
            distances={here: distances[here] for here in nodes},
            links=tuple(link for link in links if link.child in nodes and link.parent in nodes),
            beyond={here: more for here, more in (above.beyond() | below.beyond()).items() if here in nodes},
            left_out=len(above.left_out) + len(below.left_out),
        )

    return store.database.read(work)


class _Walk:
    """One walk from one start, upward or downward."""

    def __init__(self, connection: Connection, start: Node, most: int, group: Group, *, upward: bool) -> None:
        self._connection = connection
        self._most = most
        self._group = group
        self._upward = upward
        self._known = {start.id: start}
        self._leading: dict[int, set[int]] = {}
        self.distances = {start.id: 0}
        self.left_out: set[int] = set()

    @property
    def nodes(self) -> dict[int, Node]:
        return {here: self._known[here] for here in self.distances}

    def to(self, steps: int) -> _Walk:
        level = set(self.distances)
        for distance in range(steps + 1):
            level = self._beyond_place(level, distance)
            if distance < steps:
                self.distances.update(dict.fromkeys(level, distance + 1))
        return self

    def beyond(self) -> dict[int, int]:
        """How many further nodes follow each node that was reached."""
        counts = {here: len(there - self.distances.keys()) for here, there in self._leading.items()}
        return {here: more for here, more in counts.items() if more}

    def _beyond_place(self, level: set[int], distance: int) -> set[int]:
        """Adds to a level all nodes at no distance from it; returns those that are one step away."""
        waiting, far = level, set()
        while waiting:
            edges = [edge for edge in self._edges(waiting) if edge[1] not in self.distances]
            self._read({there for _, there, _ in edges})
            near = {there for here, there, how in edges if there in self._known and self._is_same(here, there, how)}
            far |= {there for _, there, _ in edges if there in self._known}
            self.distances.update(dict.fromkeys(near, distance))
            waiting = near
        return far - self.distances.keys()

    def _edges(self, level: Collection[int]) -> list[tuple[int, int, Relation]]:
        edge = tables.edge.c
        here, there = (edge.child, edge.parent) if self._upward else (edge.parent, edge.child)
        query = (
            select(here.label("here"), there.label("there"), edge.relation)
            .distinct()
            .where(edge.relation.not_in(NO_DESCENT))
        )
        found = [
            (row.here, row.there, row.relation) for row in rows.in_parts(self._connection, query, here, sorted(level))
        ]
        for start, end, relation in found:
            if relation != "alias":
                self._leading.setdefault(start, set()).add(end)
        return found

    def _read(self, met: Collection[int]) -> None:
        """Reads nodes up to the limit, the newest first."""
        new = sorted(set(met) - self._known.keys() - self.left_out, reverse=True)
        room = max(self._most - len(self.distances), 0)
        self.left_out.update(new[room:])
        self._known.update(rows.nodes_by_id(self._connection, new[:room]))

    def _is_same(self, here: int, there: int, relation: Relation) -> bool:
        if relation == "alias":
            return True
        place = self._group(self._known[here])
        return place is not None and place == self._group(self._known[there])


def _links(connection: Connection, above: _Walk, below: _Walk) -> tuple[Link, ...]:
    """All edges between the nodes of two walks, each once."""
    ids = sorted({*above.distances, *below.distances})
    found: dict[tuple[int, int, Relation], Link] = {}
    for row in rows.in_parts(connection, select(tables.edge).order_by(tables.edge.c.id), tables.edge.c.child, ids):
        if row.parent in above.distances or row.parent in below.distances:
            key = (row.child, row.parent, row.relation)
            found.setdefault(key, Link(row.child, row.parent, row.relation, row.run_id))
    return tuple(found.values())


def _without_mere_names(nodes: Mapping[int, Node], start: Node, links: Iterable[Link]) -> dict[int, Node]:
    """Nodes without those that are only an alias of another one."""
    ends = {end for link in links if link.relation != "alias" for end in (link.child, link.parent)}
    return {here: node for here, node in nodes.items() if node.facets or here in ends or here == start.id}


def numbered(store: LineageStore, number: int) -> Node | None:
    """The node with an id, or None. Raises `LedgerError` if the database is out of reach."""
    return store.database.read(lambda connection: rows.nodes_by_id(connection, [number]).get(number))


def way(store: LineageStore, one: DatasetName, other: DatasetName) -> list[tuple[Node, Link | None]] | None:
    """A shortest path between two nodes, each node with the edge that leads to it; None if there is none.

    If one descends from the other, the path follows the edges' direction. Otherwise it follows edges in any direction,
    and so shows what the two have in common. Raises `LedgerError` if the database is out of reach.
    """

    def work(connection: Connection) -> list[tuple[Node, Link | None]] | None:
        ends = rows.find_nodes(connection, [one, other])
        if len(ends) < len({one, other}):
            return None
        edges = _edges(connection)
        for directions in (("down",), ("up",), ("up", "down")):
            found = _shortest(edges, ends[one].id, ends[other].id, directions)
            if found is not None:
                nodes = rows.nodes_by_id(connection, {here for here, _ in found})
                return [(nodes[here], link) for here, link in found]
        return None

    return store.database.read(work)


_Edge = tuple[int, int, Relation, str]
"""The fields of a `Link`, as a tuple: for a whole graph."""


def _edges(connection: Connection) -> list[_Edge]:
    edge = tables.edge.c
    query = select(edge.child, edge.parent, edge.relation, edge.run_id).where(edge.relation.not_in(NO_DESCENT))
    return [(row[0], row[1], row[2], row[3]) for row in connection.execute(query.order_by(edge.id))]


def _shortest(
    edges: Iterable[_Edge], start: int, end: int, directions: Collection[str]
) -> list[tuple[int, Link | None]] | None:
    leading: dict[int, list[tuple[int, _Edge]]] = {}
    for edge in edges:
        if "down" in directions:
            leading.setdefault(edge[1], []).append((edge[0], edge))
        if "up" in directions:
            leading.setdefault(edge[0], []).append((edge[1], edge))
    before: dict[int, tuple[int, _Edge] | None] = {start: None}
    waiting = deque([start])
    while waiting and end not in before:
        here = waiting.popleft()
        for there, edge in leading.get(here, ()):
            if there not in before:
                before[there] = (here, edge)
                waiting.append(there)
    if end not in before:
        return None
    path: list[tuple[int, Link | None]] = []
    here, step = end, before[end]
    while step is not None:
        path.append((here, Link(*step[1])))
        here, step = step[0], before[step[0]]
    return [(here, None), *reversed(path)]
