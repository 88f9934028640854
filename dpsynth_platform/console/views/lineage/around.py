"""What lies around a node of the lineage graph, as it is drawn.

What belongs here: putting the steps of one run together. What does not: walking the graph (`lineage.neighbourhood`),
what is told of each node (`nodes`), and drawing (`pages`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import View, require
from dpsynth_platform.console.views.lineage.nodes import About, GraphNode, node_called, step_of, store_of
from dpsynth_platform.foundation.errors import NotFound
from dpsynth_platform.foundation.figures import number_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import STEPS, Place
from dpsynth_platform.lineage import neighbourhood as near
from dpsynth_platform.lineage.nodes import Node
from dpsynth_platform.reviewing.chronicle import Chronicle, chronicle

MOST_NODES = 150
"""Nodes that one drawing shows in each direction."""
DEEPEST = 10
"""Steps that can be asked for in each direction."""


@dataclass(frozen=True)
class GraphEdge(View):
    """One edge, from what was there first to what came of it.

    Attributes:
        source, target: keys of nodes.
        relation: `derived`, `trained-on`, `base`, `paid-by`, `claims`, `used-by`, `evaluated-on` or `alias`. Of
            `paid-by` and `claims` the source is the mechanism.
    """

    source: str
    target: str
    relation: str


@dataclass(frozen=True)
class GraphView(View):
    """A part of the graph.

    Attributes:
        start: key of the node that it lies around.
        up, down, collapse: as they were asked for, within what is possible.
        nodes: farthest above first.
        left_out: how many nodes within the depth are not shown, because they were too many.
        words: what is shown and what is not, in a sentence.
    """

    start: str
    up: int
    down: int
    collapse: bool
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
) -> GraphView | None:
    """What lies around a node.

    Args:
        settings: the deployment.
        allowed: what the asker may do; `READ`.
        node: its key, or what people call it; empty: the newest release's, or the newest node's.
        up: steps above, up to `DEEPEST`.
        down: steps below.
        collapse: the restricted steps of one run are one place.

    Returns:
        None where nothing is asked for and the graph is empty.

    Raises:
        NotAllowed: the asker may not read.
        NotFound: the graph does not know it, or several nodes are called so.
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
        most=MOST_NODES,
        group=lambda item: _group(item, own_place) if collapse else None,
    )
    if found is None:
        raise NotFound("the lineage graph knows nothing of it any more")
    return _Drawing(settings, known, found, own_place, collapse).view(up, down)


class _Drawing:
    """A neighbourhood as it is drawn."""

    def __init__(
        self,
        settings: Settings,
        known: Chronicle,
        found: near.Neighbourhood,
        own_place: tuple[Place, str] | None,
        collapse: bool,
    ) -> None:
        self._found = found
        self._about = About(settings, known)
        self._keys = {here: self._about.names.key(node) for here, node in found.nodes.items()}
        self._groups: dict[str, list[int]] = {}
        if collapse:
            self._put_together(own_place)

    def _put_together(self, own_place: tuple[Place, str] | None) -> None:
        together: dict[Place, list[int]] = {}
        for here, node in self._found.nodes.items():
            place = _group(node, own_place)
            if place is not None:
                together.setdefault(place, []).append(here)
        for place, members in together.items():
            if len(members) > 1:
                key = f"run:{place.label}"
                self._groups[key] = members
                self._keys.update(dict.fromkeys(members, key))

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
            collapse=bool(self._groups),
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
                yield self._about.node(node, distance, more, claims.get(here, ()))
        for key, members in self._groups.items():
            yield self._run(key, members)

    def _run(self, key: str, members: Collection[int]) -> GraphNode:
        nodes = [self._found.nodes[here] for here in members]
        steps = {step[1]: node for node in nodes if (step := step_of(node)) is not None}
        ordered = [steps[name] for name in STEPS if name in steps]
        place = _group(ordered[0], None)
        assert place is not None  # noqa: S101 - that is why they stand together
        entry = next((found for node in ordered if (found := self._about.entry(node)) is not None), None)
        return GraphNode(
            key=key,
            kind="run",
            label=f"{place.label}: {steps_words(list(steps))}",
            title=f"the steps {', '.join(name for name in STEPS if name in steps)} of {place.label}",
            own=True,
            distance=min((self._found.distances[here] for here in members), key=abs),
            dataset=place.dataset,
            period=place.period,
            release=None,
            entry=entry.entry_id if entry else None,
            members=tuple(self._about.names.key(node) for node in ordered),
            findings=self._about.findings(entry),
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


def steps_words(steps: Collection[str]) -> str:
    """`7 steps` of a run."""
    return number_of(len(steps), "step")


def _newest(settings: Settings, known: Chronicle) -> Node | None:
    if not settings.has_ledger:
        return None
    store = store_of(settings)
    for release in reversed(list(known.publications)):
        found = store.find(release)
        if found:
            return found[0]
    found = store.holding("", most=1)
    return found[0] if found else None


def _group(node: Node, apart: tuple[Place, str] | None) -> Place | None:
    """What a restricted step's output belongs to; that of the place that is looked at stays by itself."""
    step = step_of(node)
    if step is None or step[1] == "released" or (apart is not None and apart[1] != "released" and step[0] == apart[0]):
        return None
    return step[0]
