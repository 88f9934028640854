"""Nodes of the lineage graph as every page shows them, and finding one by its name.

What belongs here: names, labels, the place a node belongs to, and its findings. What does not: its neighbourhood
(`around`), and its records (`facets`).

A node on this machine is named by its logical name, not by its path: names appear in addresses, logs of proxies and
browsers' histories. Its number in the graph follows after `#`, since an earlier node of the same name may be elsewhere,
for example after `DPSYNTH_HOME` was moved. The location is for the operator (`facets`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from dpsynth_platform.foundation.errors import NotFound
from dpsynth_platform.foundation.figures import moment, number_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import STEPS, Place
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.ledger.words import SHORT
from dpsynth_platform.lineage.naming import JOB_NAMESPACE, DatasetName, dataset_name, logical_name, without_secrets
from dpsynth_platform.lineage.neighbourhood import numbered
from dpsynth_platform.lineage.nodes import Node
from dpsynth_platform.lineage.scenarios import MEANING
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.reviewing import catalogue
from dpsynth_platform.reviewing.chronicle import Chronicle

_HERE = "file"
_MOST_DIGITS = 18
MOST_OTHERS = 12
"""Ledger entries that a finding lists."""


@dataclass(frozen=True)
class FindingView:
    """Mechanisms whose costs add up with this one, by a scenario `E0` to `E3`; `entries` are some of them."""

    scenario: str
    meaning: str
    words: str
    entries: tuple[str, ...]


@dataclass(frozen=True)
class GraphNode:
    """One place in a drawing: a node, or the steps of one run.

    Attributes:
        key: identifies it in this drawing and, for a single node, everywhere in this deployment.
        kind: `dataset`, `model`, `checkpoint`, `release`, `mechanism`, or `run` for grouped steps.
        label: short; `title` is its name, on this machine the logical one.
        own: our platform wrote it.
        distance: steps from the start; negative above it.
        dataset, period, release, entry: what it belongs to, for links to its pages.
        members: keys of the grouped nodes; its own key for a single node.
        notes: what else a reader must know: withdrawn, reported by others only, false claims.
        more: how many further nodes follow from here, beyond what is shown.
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


class Names:
    """Names of nodes, without their location on this machine."""

    def __init__(self, settings: Settings) -> None:
        self._sources: dict[DatasetName, list[str]] = {}
        for name, (contract, _) in catalogue.catalogue(settings).datasets.items():
            self._sources.setdefault(dataset_name(contract.source.place), []).append(name)

    def sources(self, node: Node) -> list[str]:
        """The datasets whose source is this node."""
        return self._sources.get(node.name, [])

    def of(self, node: Node) -> str:
        """A release's id, a step such as `visits/2026-01/model`, a source's dataset; else its own name."""
        if not _is_here(node):
            return str(without_secrets(str(node.name)))
        release, step = release_of(node), step_of(node)
        if release is not None:
            return release
        if step is not None:
            return logical_name(step[0].dataset, step[1], step[0].period).name
        return next(iter(self.sources(node)), f"{_HERE}:{last_part(node)}")

    def key(self, node: Node) -> str:
        """What identifies a node everywhere in this deployment, and in addresses."""
        name = self.of(node)
        return name if name == str(node.name) else f"{name}#{node.id}"


class NodeReader:
    """Makes views of nodes from the graph, the deployment's contracts and its ledger."""

    def __init__(self, settings: Settings, known: Chronicle) -> None:
        self.names = Names(settings)
        self._known = known
        self._found: dict[str, tuple[FindingView, ...]] = {}

    def node(self, node: Node, distance: int, more: int = 0, claims: Collection[str] = ()) -> GraphNode:
        entry = self.entry(node)
        place = self.place(node)
        release = release_of(node)
        notes = [
            *self._notes(node, release),
            *(f"claims ledger entry {without_secrets(item)}, which the ledger does not confirm" for item in claims),
        ]
        return GraphNode(
            key=self.names.key(node),
            kind=node.kind,
            label=self._label(node, entry, release),
            title=self.names.of(node),
            own=node.own,
            distance=distance,
            dataset=place.dataset if place else None,
            period=place.period if place else None,
            release=release,
            entry=entry.entry_id if entry else None,
            members=(self.names.key(node),),
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

    def place(self, node: Node) -> Place | None:
        """The dataset and period that a node belongs to, or None."""
        step, entry = step_of(node), self.entry(node)
        if step is not None:
            return step[0]
        if entry is not None:
            return Place(entry.request.dataset, entry.request.period)
        sources = self.names.sources(node)
        return Place(sources[0]) if sources else None

    def _label(self, node: Node, entry: Entry | None, release: str | None) -> str:
        step = step_of(node)
        if node.kind == "mechanism":
            return f"entry {without_secrets(node.name.name)[:SHORT]}" + (f" ({entry.request.place})" if entry else "")
        if release is not None:
            return release
        if step is not None:
            return f"{step[0].label}: {step[1]}"
        sources = self.names.sources(node)
        return f"{', '.join(sources)}: source" if sources else last_part(node)

    def _notes(self, node: Node, release: str | None) -> list[str]:
        published = self._known.publications.get(release or "")
        notes = []
        if published is not None and published.withdrawn is not None:
            notes.append(f"withdrawn by {published.withdrawn.by} at {moment(published.withdrawn.at)}")
        if not node.own and node.kind != "mechanism" and not node.is_reported_by_us:
            notes.append("reported by other producers only")
        return notes


def release_of(node: Node) -> str | None:
    """Id of the release that a node is, or None."""
    if node.kind != "release":
        return None
    found = node.facets.get("version", {}).get("datasetVersion")
    return None if found is None else str(found)


def last_part(node: Node) -> str:
    """The last part of a node's name, as it is shown."""
    name = without_secrets(str(node.name)).removeprefix(f"{node.name.namespace}:")
    return PurePosixPath(name).name or name


def store_of(settings: Settings) -> LineageStore:
    """The stored graph. Raises `NotFound` if there is none yet."""
    if not settings.has_ledger:
        raise NotFound("there is no lineage graph yet; the first run of a dataset creates it")
    return LineageStore(settings.ledger_url)


def node_called(settings: Settings, text: str) -> Node:
    """The node with a key or name; of several at former places of this machine, the newest.

    Raises `NotFound` if the graph does not contain it, or several nodes have the name.
    """
    store, names = store_of(settings), Names(settings)
    exact = _by_key(store, names, text)
    contracts = catalogue.catalogue(settings).datasets
    if exact is None and text in contracts:
        exact = store.node(dataset_name(contracts[text][0].source.place))
    if exact is not None:
        return exact
    found = found_by(store, text)
    if len({names.of(node) for node in found}) != 1:
        many = f"{len(found)} nodes have this name; give the full name of one" if found else "no such node"
        raise NotFound(f"{text!r}: {many}; accepted: a name, NAMESPACE:NAME, path, URI, dataset or release's id")
    return max(found, key=lambda node: node.id)


def _by_key(store: LineageStore, names: Names, text: str) -> Node | None:
    name, _, number = text.rpartition("#")
    if name and number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS:
        found = numbered(store, int(number))
        if found is not None and names.of(found) == name:
            return found
    namespace, _, rest = text.rpartition(":")
    exact = store.node(DatasetName(namespace, rest)) if namespace else None
    return exact if exact is not None and is_shown_whole(exact) else None


def found_by(store: LineageStore, text: str) -> list[Node]:
    """`LineageStore.find`, without names in which a secret is hidden: that a guess finds them would tell it."""
    return [] if without_secrets(text) != text else [node for node in store.find(text) if is_shown_whole(node)]


def is_shown_whole(node: Node) -> bool:
    """Whether no secret is hidden in a node's name."""
    return bool(without_secrets(str(node.name)) == str(node.name))


def step_of(node: Node) -> tuple[Place, str] | None:
    """The dataset, period and step whose output a node of this platform is, by its logical name."""
    if not node.own:
        return None
    for name in other_names(node):
        namespace, _, logical = name.partition(":")
        parts = logical.split("/")
        if namespace == JOB_NAMESPACE and len(parts) in (2, 3) and parts[-1] in STEPS:
            return Place(parts[0], parts[1] if len(parts) == 3 else None), parts[-1]
    return None


def other_names(node: Node) -> list[str]:
    """Other names of a node, from its facet."""
    listed = node.facets.get("symlinks", {}).get("identifiers")
    found = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    return sorted(without_secrets(f"{item.get('namespace')}:{item.get('name')}") for item in found)


def _is_here(node: Node) -> bool:
    """Whether a node is named by a path, of this machine or of one that shares its disks."""
    return node.name.namespace.partition("://")[0] == _HERE


def _finding_words(others: Collection[Entry]) -> str:
    places = list(dict.fromkeys(entry.request.place for entry in others))
    shown = ", ".join(places[:MOST_OTHERS])
    more = f" and {len(places) - MOST_OTHERS} more" if len(places) > MOST_OTHERS else ""
    return f"adds up with {number_of(len(others), 'other mechanism')}: {shown}{more}"
