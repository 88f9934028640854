"""The neighbourhood of a node in the lineage graph, as it is drawn.

What belongs here: grouping the steps of one run, and the months of a dataset. What does not: walking the graph
(`lineage.neighbourhood`), the parts of each node (`nodes`), and drawing (`pages`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import require
from dpsynth_platform.console.views.lineage.nodes import (
    FindingView,
    GraphNode,
    NodeReader,
    node_called,
    step_of,
    store_of,
)
from dpsynth_platform.foundation.errors import NotFound
from dpsynth_platform.foundation.figures import number_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import STEPS, Place
from dpsynth_platform.lineage import neighbourhood as near
from dpsynth_platform.lineage.nodes import Node
from dpsynth_platform.reviewing.chronicle import Chronicle, chronicle

MOST_NODES = 150
"""Places in each direction of a drawing."""
MOST_COLLAPSED = 1500
"""Nodes in each direction that are read where the months of a dataset are one place."""
FEW = 3
"""Months of a dataset that stay places of their own."""
_MANY = {"run": "runs", "released": "releases", "mechanism": "ledger entries"}
DEEPEST = 10
"""Most steps in each direction."""


@dataclass(frozen=True)
class GraphEdge:
    """One edge between the keys of two nodes, from what existed first to what was made from it.

    `relation` is `derived`, `trained-on`, `base`, `paid-by`, `claims`, `used-by`, `evaluated-on` or `alias`. Of
    `paid-by` and `claims` the source is the mechanism.
    """

    source: str
    target: str
    relation: str


@dataclass(frozen=True)
class GraphView:
    """A part of the graph around the node `start`, the farthest above first.

    `up`, `down`, `collapse` and `periods` are the requested ones within the limits; `left_out` is how many nodes within
    the depth are not shown, because there are too many.
    """

    start: str
    up: int
    down: int
    collapse: bool
    periods: bool
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    left_out: int
    words: str


def graph(
    settings: Settings,
    allowed: Collection[Action],
    node: str = "",
    up: int = 2,
    down: int = 2,
    collapse: bool = True,
    periods: bool = True,
) -> GraphView | None:
    """The neighbourhood of a node, or None if no node is given and the graph is empty.

    Args:
        node: its key or name; empty: the newest release's, or else the newest node.
        up, down: steps above and below, up to `DEEPEST`.
        collapse: show the restricted steps of one run as one place.
        periods: show more than `FEW` months of a dataset as one place; those of the node's own month stay apart.

    Raises `NotFound` if the graph does not contain the node, or several have the name.
    """
    require(allowed, Action.READ)
    known = chronicle(settings)
    start = node_called(settings, node) if node else _newest(settings, known)
    if start is None:
        return None
    up, down = (min(max(steps, 0), DEEPEST) for steps in (up, down))
    own_place = step_of(start)
    found = near.around(
        store_of(settings),
        start.name,
        up=up,
        down=down,
        most=MOST_COLLAPSED if periods else MOST_NODES,
        group=lambda item: _group(item, own_place) if collapse else None,
    )
    if found is None:
        raise NotFound("the lineage graph no longer contains the node")
    return _Drawing(settings, known, found, own_place, collapse, periods).view(up, down)


class _Drawing:
    def __init__(
        self,
        settings: Settings,
        known: Chronicle,
        found: near.Neighbourhood,
        own_place: tuple[Place, str] | None,
        collapse: bool,
        periods: bool,
    ) -> None:
        self._found = found
        self._periods = periods
        self._reader = NodeReader(settings, known)
        self._keys = {here: self._reader.names.key(node) for here, node in found.nodes.items()}
        self._groups: dict[str, list[int]] = {}
        self._months: dict[str, str] = {}
        if collapse:
            self._group_runs(own_place)
        if periods:
            self._group_months(own_place)
        self._leave_out_far_places()

    def _group_runs(self, own_place: tuple[Place, str] | None) -> None:
        runs: dict[Place, list[int]] = {}
        for here, node in self._found.nodes.items():
            place = _group(node, own_place)
            if place is not None:
                runs.setdefault(place, []).append(here)
        for place, members in runs.items():
            if len(members) > 1:
                key = f"run:{place.label}"
                self._groups[key] = members
                self._keys.update(dict.fromkeys(members, key))

    def _group_months(self, own_place: tuple[Place, str] | None) -> None:
        """The same step, run, release or ledger entry of many months as one place, except the start's own month."""
        start = self._reader.place(self._found.nodes[self._found.start]) or (own_place[0] if own_place else None)
        months: dict[tuple[str, str], dict[str, list[int]]] = {}
        for here, node in self._found.nodes.items():
            place, step = self._reader.place(node), step_of(node)
            if place is None or place.period is None or place == start:
                continue
            what = "run" if self._keys[here] in self._groups else step[1] if step else node.kind
            months.setdefault((place.dataset, what), {}).setdefault(place.period, []).append(here)
        for (dataset, what), by_month in months.items():
            if len(by_month) > FEW:
                key = f"months:{dataset}/{what}"
                members = [here for period in sorted(by_month) for here in by_month[period]]
                for here in members:
                    self._groups.pop(self._keys[here], None)
                self._groups[key] = members
                many = len(by_month if what == "run" else members)
                self._months[key] = f"{dataset}: {many} {_MANY.get(what, f'times {what}')}"
                self._keys.update(dict.fromkeys(members, key))

    def _leave_out_far_places(self) -> None:
        """Keeps the nearest `MOST_NODES` places of each direction, and of the same distance the newest."""
        found = self._found
        order: dict[str, tuple[int, int]] = {}
        for here in found.nodes:
            rank, key = (abs(found.distances[here]), -here), self._keys[here]
            order[key] = min(order.get(key, rank), rank)
        above = {self._keys[here] for here in found.nodes if found.distances[here] < 0}
        nearest = sorted(order, key=order.__getitem__)
        sides = ([key for key in nearest if (key in above) == side] for side in (True, False))
        kept = {key for side in sides for key in side[:MOST_NODES]}
        nodes = {here: node for here, node in found.nodes.items() if self._keys[here] in kept}
        self._found = replace(
            found,
            nodes=nodes,
            links=tuple(link for link in found.links if link.child in nodes and link.parent in nodes),
            left_out=found.left_out + len(found.nodes) - len(nodes),
        )
        self._groups = {key: members for key, members in self._groups.items() if key in kept}

    def view(self, up: int, down: int) -> GraphView:
        found = self._found
        nodes = sorted(self._nodes(), key=lambda item: (item.distance, item.kind, item.label))
        left_out = found.left_out
        words = f"{number_of(len(nodes), 'place')}; {up} steps above and {down} below"
        if left_out:
            words += f"; {number_of(left_out, 'more node')} at this depth not shown"
        return GraphView(
            start=self._keys[found.start],
            up=up,
            down=down,
            collapse=any(key not in self._months for key in self._groups),
            periods=self._periods,
            nodes=tuple(nodes),
            edges=tuple(self._edges()),
            left_out=left_out,
            words=words,
        )

    def _nodes(self) -> Iterator[GraphNode]:
        claims: dict[int, list[str]] = {}
        for link in self._found.links:
            if link.relation == "claims":
                claims.setdefault(link.child, []).append(self._found.nodes[link.parent].name.name)
        for here, node in self._found.nodes.items():
            if self._keys[here] not in self._groups:
                distance, more = self._found.distances[here], self._found.beyond.get(here, 0)
                yield self._reader.node(node, distance, more, claims.get(here, ()))
        for key, members in self._groups.items():
            yield self._of_months(key, members) if key in self._months else self._run(key, members)

    def _of_months(self, key: str, members: Collection[int]) -> GraphNode:
        nodes = [self._found.nodes[here] for here in members]
        newest, oldest = self._reader.node(nodes[-1], 0), self._reader.node(nodes[0], 0).period
        distance = min((self._found.distances[here] for here in members), key=abs)
        kinds = {node.kind for node in nodes}
        return replace(
            newest,
            key=key,
            kind=newest.kind if len(kinds) == 1 else "run",
            label=self._months[key],
            title=f"{self._months[key]}, {oldest} to {newest.period}; the link opens the newest",
            distance=distance,
            period=None,
            release=None,
            entry=None,
            members=tuple(self._reader.names.key(node) for node in nodes),
            findings=_of_each_scenario(self._reader.findings(self._reader.entry(node)) for node in nodes),
            notes=(),
            more=sum(self._found.beyond.get(here, 0) for here in members),
        )

    def _run(self, key: str, members: Collection[int]) -> GraphNode:
        nodes = [self._found.nodes[here] for here in members]
        steps = {step[1]: node for node in nodes if (step := step_of(node)) is not None}
        ordered = [steps[name] for name in STEPS if name in steps]
        place = _group(ordered[0], None)
        assert place is not None  # noqa: S101 - the members were grouped by it
        entry = next((found for node in ordered if (found := self._reader.entry(node)) is not None), None)
        return GraphNode(
            key=key,
            kind="run",
            label=f"{place.label}: {number_of(len(steps), 'step')}",
            title=f"the steps {', '.join(name for name in STEPS if name in steps)} of {place.label}",
            own=True,
            distance=min((self._found.distances[here] for here in members), key=abs),
            dataset=place.dataset,
            period=place.period,
            release=None,
            entry=entry.entry_id if entry else None,
            members=tuple(self._reader.names.key(node) for node in ordered),
            findings=self._reader.findings(entry),
            notes=(),
            more=sum(self._found.beyond.get(here, 0) for here in members),
        )

    def _edges(self) -> Iterator[GraphEdge]:
        seen: set[tuple[str, str, str]] = set()
        for link in self._found.links:
            edge = (self._keys[link.parent], self._keys[link.child], link.relation)
            mirrored = link.relation == "alias" and (edge[1], edge[0], "alias") in seen
            if edge[0] != edge[1] and edge not in seen and not mirrored:
                seen.add(edge)
                yield GraphEdge(*edge)


def _of_each_scenario(found: Iterable[tuple[FindingView, ...]]) -> tuple[FindingView, ...]:
    """Of each scenario the last finding: that of the newest month."""
    return tuple({finding.scenario: finding for findings in found for finding in findings}.values())


def _newest(settings: Settings, known: Chronicle) -> Node | None:
    if not settings.has_ledger:
        return None
    store = store_of(settings)
    for release in reversed(list(known.publications)):
        found = store.find(release)
        if found:
            return found[0]
    found = store.containing("", most=1)
    return found[0] if found else None


def _group(node: Node, start: tuple[Place, str] | None) -> Place | None:
    """The place of a restricted step's output, by which steps are grouped; None for a step of the start's own place."""
    step = step_of(node)
    if step is None or step[1] == "released" or (start is not None and start[1] != "released" and step[0] == start[0]):
        return None
    return step[0]
