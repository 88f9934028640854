"""The pages of lineage: a part of the graph, a way between two nodes, search, and one node.

What belongs here: reading the stored graph for somebody with certain actions, and putting the steps of one run
together. What does not: walking it (`lineage.neighbourhood`), judging it (`lineage.clearance`), and drawing (`pages`).

What a facet says is shown in full to those who may see exact counts (`READ_SPEND`), and to others as far as it may
leave the operator's place (`lineage.export`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import View, require
from dpsynth_platform.errors import NotFound
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.ledger_words import SHORT
from dpsynth_platform.lineage import neighbourhood as near
from dpsynth_platform.lineage import uses
from dpsynth_platform.lineage.export import public_facets
from dpsynth_platform.lineage.naming import JOB_NAMESPACE, DatasetName, dataset_name
from dpsynth_platform.lineage.nodes import LEDGER_NAMESPACE, Node
from dpsynth_platform.lineage.scenarios import MEANING
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage_words import distrust_words, use_words
from dpsynth_platform.privacy.figures import moment, number_of
from dpsynth_platform.reviewing import accounts, catalogue
from dpsynth_platform.reviewing.chronicle import Chronicle, chronicle
from dpsynth_platform.settings import Settings
from dpsynth_platform.storage import STEPS, Place

MOST_NODES = 150
"""Nodes that one drawing shows in each direction."""
DEEPEST = 10
"""Steps that can be asked for in each direction."""
MOST_FOUND = 50
MOST_OTHERS = 12
"""Ledger entries that a finding names one by one."""


@dataclass(frozen=True)
class FindingView(View):
    """What a mechanism adds up with.

    Attributes:
        scenario: `E0` to `E3`.
        meaning: the scenario in words.
        words: with how many others, and which.
        entries: ids of some of the other ledger entries.
    """

    scenario: str
    meaning: str
    words: str
    entries: tuple[str, ...]


@dataclass(frozen=True)
class GraphNode(View):
    """One place in a drawing: a node, or the steps of one run together.

    Attributes:
        key: names it among the others of this drawing and, for a single node, everywhere.
        kind: `dataset`, `model`, `checkpoint`, `release`, `mechanism`, or `run` for steps together.
        label: short; `title` is the whole name.
        own: our platform wrote it.
        distance: steps from the start; above it negative.
        dataset, period, release, entry: what it belongs to, for links to its pages; None where it does not.
        members: keys of the nodes that stand together here; itself where it is one.
        findings: E0 to E3.
        notes: what else a reader must know: withdrawn, told by others, claims.
        more: how many further nodes lead on from here, beyond what is shown.
    """

    key: str
    kind: str
    label: str
    title: str
    own: bool
    distance: int
    dataset: str | None
    period: str | None
    release: str | None
    entry: str | None
    members: tuple[str, ...]
    findings: tuple[FindingView, ...]
    notes: tuple[str, ...]
    more: int


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


@dataclass(frozen=True)
class PathView(View):
    """A shortest way between two nodes.

    Attributes:
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


@dataclass(frozen=True)
class FacetView(View):
    """One facet of a node.

    Attributes:
        value: JSON, indented.
        event: number of the lineage event that told it.
        told_by: `this platform`, or the producer.
    """

    name: str
    value: str
    event: int
    told_by: str


@dataclass(frozen=True)
class NodeView(View):
    """One node with all that is known of it.

    Attributes:
        also: other names of it.
        facets: the latest of each that may be believed.
        whole: whether what this platform said is shown in full (`READ_SPEND`), else as far as it may leave the
            operator's place. What others said is so only for `READ_QUALITY`: nobody knows what they put into it.
        events: lineage events of other producers that tell of it: number, producer, when.
        distrusted: what was taken back, in words.
        declared_public: by whom and why, or None.
        uses: registered uses of a release, in words.
        contamination: what spoils a product, in sentences.
    """

    node: GraphNode
    namespace: str
    name: str
    also: tuple[str, ...]
    facets: tuple[FacetView, ...]
    whole: bool
    events: tuple[tuple[int, str, str], ...]
    distrusted: tuple[str, ...]
    declared_public: str | None
    uses: tuple[str, ...]
    contamination: tuple[str, ...]


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
    start = _one(settings, node) if node else _newest(settings, known)
    if start is None:
        return None
    up, down = (min(max(steps, 0), DEEPEST) for steps in (up, down))
    own_place = _step_of(start)
    found = near.around(
        _store(settings),
        start.name,
        up=up,
        down=down,
        most=MOST_NODES,
        group=lambda item: _group(item, own_place) if collapse else None,
    )
    if found is None:
        raise NotFound(f"the lineage graph knows nothing of {start.name}")
    return _Drawing(settings, known, found, own_place, collapse).view(up, down)


def path(settings: Settings, allowed: Collection[Action], one: str, other: str) -> PathView:
    """A shortest way between two nodes, each by its key or by what people call it. Raises like `graph`."""
    require(allowed, Action.READ)
    first, last = _one(settings, one), _one(settings, other)
    found = near.way(_store(settings), first.name, last.name) or []
    about = _About(settings, chronicle(settings))
    relations = []
    for (here, _), (_, link) in pairwise(found):
        if link is not None:
            relations.append((link.relation, "down" if link.parent == here.id else "up"))
    words = f"{len(relations)} steps" if found else "no way leads from one to the other"
    nodes = tuple(about.node(item, distance) for distance, (item, _) in enumerate(found))
    return PathView(str(first.name), str(last.name), nodes, tuple(relations), words)


def search(settings: Settings, allowed: Collection[Action], text: str) -> SearchView:
    """Nodes by a part of their name, or a release's id. Raises `NotAllowed` like `graph`."""
    require(allowed, Action.READ)
    wanted = text.strip()
    if not wanted or not accounts.has_ledger(settings):
        return SearchView(text, (), False)
    store, about = _store(settings), _About(settings, chronicle(settings))
    found = {item.id: item for item in (*store.find(wanted), *store.holding(wanted, most=MOST_FOUND + 1))}
    nodes = tuple(about.node(item, 0) for item in found.values())
    return SearchView(text, nodes[:MOST_FOUND], len(nodes) > MOST_FOUND)


def node(settings: Settings, allowed: Collection[Action], name: str) -> NodeView:
    """One node, by its key or by what people call it. Raises like `graph`."""
    require(allowed, Action.READ)
    store, found = _store(settings), _one(settings, name)
    known = chronicle(settings)
    declared = store.public(found.name)
    return NodeView(
        node=_About(settings, known).node(found, 0),
        namespace=found.name.namespace,
        name=found.name.name,
        also=tuple(_also(found)),
        facets=tuple(_facets(found, allowed)),
        whole=Action.READ_SPEND in allowed,
        events=tuple((item.sequence, item.source, item.received_at) for item in store.foreign_events(found.name)),
        distrusted=tuple(distrust_words(item) for item in store.distrusts(found.name)),
        declared_public=None
        if declared is None
        else f"declared public by {declared.by} at {moment(declared.at)}: {declared.reason}",
        uses=tuple(use_words(item).strip() for item in uses.registered(store, found))
        if found.kind == "release"
        else (),
        contamination=tuple(_contamination(settings, known, store, found)),
    )


class _About:
    """What is told of nodes, beside what the graph has: of the deployment's contracts and its ledger."""

    def __init__(self, settings: Settings, known: Chronicle) -> None:
        self._known = known
        self._sources: dict[DatasetName, list[str]] = {}
        for name, (contract, _) in catalogue.catalogue(settings).datasets.items():
            self._sources.setdefault(dataset_name(contract.source.uri), []).append(name)
        self._found: dict[str, tuple[FindingView, ...]] = {}

    def node(self, node: Node, distance: int, more: int = 0, claims: Collection[str] = ()) -> GraphNode:
        """One node by itself."""
        entry = self.entry(node)
        place = self._place(node, entry)
        release = release_of(node)
        notes = [
            *self._notes(node, release),
            *(f"claims ledger entry {item}, which the ledger does not bear out" for item in claims),
        ]
        return GraphNode(
            key=str(node.name),
            kind=node.kind,
            label=self._label(node, entry, release),
            title=str(node.name),
            own=node.own,
            distance=distance,
            dataset=place.dataset if place else None,
            period=place.period if place else None,
            release=release,
            entry=entry.entry_id if entry else None,
            members=(str(node.name),),
            findings=self.findings(entry),
            notes=tuple(notes),
            more=more,
        )

    def entry(self, node: Node) -> Entry | None:
        """The ledger entry that a node is, or that its own guarantee names."""
        if node.kind == "mechanism":
            return self._known.entries.get(node.name.name)
        named = node.facets.get("dpsynth_guarantee", {}) if node.own else {}
        return self._known.entries.get(str(named.get("ledgerEntry")))

    def findings(self, entry: Entry | None) -> tuple[FindingView, ...]:
        """The scenarios that an entry is part of."""
        if entry is None:
            return ()
        if entry.entry_id not in self._found:
            self._found[entry.entry_id] = tuple(
                FindingView(
                    scenario=item.scenario,
                    meaning=MEANING[item.scenario],
                    words=_finding_words(item.entries),
                    entries=tuple(other.entry_id for other in item.entries[:MOST_OTHERS]),
                )
                for item in self._known.repetitions.of(entry.entry_id)
            )
        return self._found[entry.entry_id]

    def _place(self, node: Node, entry: Entry | None) -> Place | None:
        step = _step_of(node)
        if step is not None:
            return step[0]
        if entry is not None:
            return Place(entry.request.dataset, entry.request.period)
        sources = self._sources.get(node.name, [])
        return Place(sources[0]) if sources else None

    def _label(self, node: Node, entry: Entry | None, release: str | None) -> str:
        step = _step_of(node)
        if node.kind == "mechanism":
            return f"entry {node.name.name[:SHORT]}" + (f" ({entry.request.place})" if entry else "")
        if release is not None:
            return release
        if step is not None:
            return f"{step[0].label}: {step[1]}"
        sources = self._sources.get(node.name, [])
        last = PurePosixPath(node.name.name).name or node.name.name
        return f"{', '.join(sources)}: source" if sources else last

    def _notes(self, node: Node, release: str | None) -> list[str]:
        published = self._known.publications.get(release or "")
        notes = []
        if published is not None and published.withdrawn is not None:
            notes.append(f"withdrawn by {published.withdrawn.by} at {moment(published.withdrawn.at)}")
        if not node.own and node.kind != "mechanism" and not node.is_told_by_us:
            notes.append("told by other producers only")
        return notes


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
        self._about = _About(settings, known)
        self._keys = {here: str(node.name) for here, node in found.nodes.items()}
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
        """The drawing."""
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
        steps = {step[1]: node for node in nodes if (step := _step_of(node)) is not None}
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
            members=tuple(str(node.name) for node in ordered),
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


def release_of(node: Node) -> str | None:
    """Id of the release that a node is, or None."""
    if node.kind != "release":
        return None
    found = node.facets.get("version", {}).get("datasetVersion")
    return None if found is None else str(found)


def _store(settings: Settings) -> LineageStore:
    if not accounts.has_ledger(settings):
        raise NotFound("there is no lineage graph yet; the first run of a dataset makes it")
    return LineageStore(settings.ledger_url)


def _one(settings: Settings, text: str) -> Node:
    """The one node that a key names, or that people call so."""
    store = _store(settings)
    namespace, _, name = text.rpartition(":")
    exact = store.node(DatasetName(namespace, name)) if namespace else None
    contracts = catalogue.catalogue(settings).datasets
    if exact is None and text in contracts:
        exact = store.node(dataset_name(contracts[text][0].source.uri))
    if exact is not None:
        return exact
    found = store.find(text)
    if len(found) != 1:
        many = f"{len(found)} nodes are called so; give one's full name" if found else "the lineage graph knows none"
        raise NotFound(f"{text!r}: {many}; accepted: a name, NAMESPACE:NAME, path, URI, dataset or release's id")
    return found[0]


def _newest(settings: Settings, known: Chronicle) -> Node | None:
    if not accounts.has_ledger(settings):
        return None
    store = _store(settings)
    for release in reversed(list(known.publications)):
        found = store.find(release)
        if found:
            return found[0]
    found = store.holding("", most=1)
    return found[0] if found else None


def _step_of(node: Node) -> tuple[Place, str] | None:
    """The dataset, period and step whose output a node of ours is, by the name that people use for it."""
    if not node.own:
        return None
    for name in _also(node):
        namespace, _, logical = name.partition(":")
        parts = logical.split("/")
        if namespace == JOB_NAMESPACE and len(parts) in (2, 3) and parts[-1] in STEPS:
            return Place(parts[0], parts[1] if len(parts) == 3 else None), parts[-1]
    return None


def _group(node: Node, apart: tuple[Place, str] | None) -> Place | None:
    """What a restricted step's output belongs to; that of the place that is looked at stays by itself."""
    step = _step_of(node)
    if step is None or step[1] == "released" or (apart is not None and apart[1] != "released" and step[0] == apart[0]):
        return None
    return step[0]


def _also(node: Node) -> list[str]:
    """Other names of a node, as its facet tells them."""
    told = node.facets.get("symlinks", {}).get("identifiers")
    found = [item for item in told if isinstance(item, Mapping)] if isinstance(told, list) else []
    return sorted(_without_secrets(f"{item.get('namespace')}:{item.get('name')}") for item in found)


_SECRETS = re.compile(r'([a-z][a-z0-9+.-]{0,30}://)(?:[^/\s"]*@)?([^\s?#"]*)(?:[?#][^\s"]*)?', re.IGNORECASE)


def _without_secrets(value: Any) -> Any:
    """What another producer said, without what may be a password in its addresses: user, query and fragment."""
    if isinstance(value, str):
        return _SECRETS.sub(lambda found: f"{found[1]}{found[2]}", value)
    if isinstance(value, Mapping):
        return {name: _without_secrets(part) for name, part in value.items()}
    return [_without_secrets(part) for part in value] if isinstance(value, list) else value


def _facets(node: Node, allowed: Collection[Action]) -> Iterator[FacetView]:
    public = public_facets(node.facets)
    shown = {}
    for name, facet in node.facets.items():
        own = node.origin_of(name) == "own"
        if (Action.READ_SPEND if own else Action.READ_QUALITY) in allowed:
            shown[name] = facet if own else _without_secrets(facet)
        elif name in public:
            shown[name] = public[name]
    for name in sorted(shown):
        value = {key: part for key, part in shown[name].items() if not key.startswith("_")}
        yield FacetView(
            name=name,
            value=json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True),
            event=node.told_by[name],
            told_by="this platform" if node.origin_of(name) == "own" else "another producer",
        )


def _finding_words(others: Collection[Entry]) -> str:
    places = list(dict.fromkeys(entry.request.place for entry in others))
    shown = ", ".join(places[:MOST_OTHERS])
    more = f" and {len(places) - MOST_OTHERS} more" if len(places) > MOST_OTHERS else ""
    return f"adds up with {number_of(len(others), 'other mechanism')}: {shown}{more}"


def _contamination(settings: Settings, known: Chronicle, store: LineageStore, node: Node) -> Iterator[str]:
    if node.own or node.kind == "mechanism" or node.name.namespace == LEDGER_NAMESPACE:
        return
    contracts = catalogue.catalogue(settings).datasets.values()
    families = uses.Families(
        tables={dataset_name(contract.source.uri): contract.family for contract, _ in contracts},
        entries={entry.entry_id: entry.family for entry in known.entries.values()},
    )
    for item in uses.contaminations(store, node.name, families):
        yield item.words
