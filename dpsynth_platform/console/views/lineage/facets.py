"""One node of the lineage graph, with all records of it.

What belongs here: its facets, its uses, and reports of other producers. What does not: its neighbourhood (`around`),
and judging it (`lineage.clearance`).

Facets and places are shown in full to actors who may see exact counts (`READ_SPEND`). Others see what may leave the
operator (`lineage.export`), without paths of this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import require
from dpsynth_platform.console.views.lineage.nodes import (
    GraphNode,
    NodeReader,
    node_called,
    other_names,
    store_of,
)
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lineage import uses
from dpsynth_platform.lineage.export import public_facets
from dpsynth_platform.lineage.naming import DatasetName, dataset_name, without_secrets
from dpsynth_platform.lineage.nodes import LEDGER_NAMESPACE, Node
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.words import distrust_words, use_words
from dpsynth_platform.reviewing import catalogue
from dpsynth_platform.reviewing.chronicle import Chronicle, chronicle


@dataclass(frozen=True)
class FacetView:
    """One facet of a node as indented JSON, with the number of the lineage event that reported it."""

    name: str
    value: str
    event: int
    told_by: str


@dataclass(frozen=True)
class NodeView:
    """One node with all records of it.

    Attributes:
        place: its full name, with its location; for `READ_SPEND`.
        facets: the latest trusted one of each name.
        whole: this platform's facets are shown in full (`READ_SPEND`), else as far as they may leave the operator.
            Those of other producers may contain anything and are shown for `READ_QUALITY` only.
        events: lineage events of other producers about it: number, producer, time.
        distrusted: withdrawn reports, in words.
        declared_public: by whom and why, or None.
        contamination: what contaminates a product, in sentences.
    """

    node: GraphNode
    place: str | None
    also: tuple[str, ...]
    facets: tuple[FacetView, ...]
    whole: bool
    events: tuple[tuple[int, str, str], ...]
    distrusted: tuple[str, ...]
    declared_public: str | None
    uses: tuple[str, ...]
    contamination: tuple[str, ...]


def node(settings: Settings, allowed: Collection[Action], name: str) -> NodeView:
    """One node, by its key or name. Raises like `graph`."""
    require(allowed, Action.READ)
    store, found = store_of(settings), node_called(settings, name)
    known, whole = chronicle(settings), Action.READ_SPEND in allowed
    declared = store.public(found.name)
    return NodeView(
        node=NodeReader(settings, known).node(found, 0),
        place=place_seen(found, allowed),
        also=tuple(other_names(found) if whole else without_paths(other_names(found))),
        facets=tuple(_facets(found, allowed)),
        whole=whole,
        events=tuple((item.sequence, item.source, item.received_at) for item in store.foreign_events(found.name)),
        distrusted=tuple(distrust_words(item) for item in store.distrusts(found.name)),
        declared_public=None
        if declared is None
        else f"declared public by {declared.by} at {moment(declared.at)}: {declared.reason}",
        uses=tuple(without_secrets(use_words(item).strip()) for item in uses.registered(store, found))
        if found.kind == "release"
        else (),
        contamination=tuple(
            without_secrets(item.words if whole else _without_paths_in_words(item))
            for item in _contaminations(settings, known, store, found)
        ),
    )


def place_seen(node: Node, allowed: Collection[Action]) -> str | None:
    """The full name of a node, with its location; None to actors who may not see that."""
    return str(without_secrets(str(node.name))) if Action.READ_SPEND in allowed else None


def job_seen(name: DatasetName, allowed: Collection[Action]) -> DatasetName:
    """The name of a job as an actor sees it: without secrets, and without paths unless with `READ_QUALITY`."""
    parts = [without_secrets(part) for part in (name.namespace, name.name)]
    if Action.READ_QUALITY not in allowed:
        parts = [_INNER_PATH.sub("\N{HORIZONTAL ELLIPSIS}/", without_paths(part)) for part in parts]
    return DatasetName(*parts)


def facets_seen(node: Node, allowed: Collection[Action]) -> dict[str, Any]:
    """The facets of a node that an actor may see, by name. Names of places in them are for walks, not for display."""
    whole = {name for name in node.facets if is_whole(node, name, allowed)}
    seen = {
        name: node.facets[name] if node.origin_of(name) == "own" else without_secrets(node.facets[name])
        for name in whole
    }
    return seen | public_facets({name: facet for name, facet in node.facets.items() if name not in whole})


def is_whole(node: Node, facet: str, allowed: Collection[Action]) -> bool:
    """Whether an actor sees a facet as it was reported, not only as far as it may leave the operator."""
    own = node.origin_of(facet) == "own"
    return (Action.READ_SPEND if own else Action.READ_QUALITY) in allowed


def _facets(node: Node, allowed: Collection[Action]) -> Iterator[FacetView]:
    shown = facets_seen(node, allowed)
    for name in sorted(shown):
        seen = shown[name] if is_whole(node, name, allowed) else without_paths(shown[name])
        value = {key: part for key, part in seen.items() if not key.startswith("_")}
        yield FacetView(
            name=name,
            value=json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True),
            event=node.facet_events[name],
            told_by="this platform" if node.origin_of(name) == "own" else "another producer",
        )


def _contaminations(settings: Settings, known: Chronicle, store: LineageStore, node: Node) -> list[uses.Contamination]:
    if node.own or node.kind == "mechanism" or node.name.namespace == LEDGER_NAMESPACE:
        return []
    contracts = catalogue.catalogue(settings).datasets.values()
    families = uses.Families(
        tables={dataset_name(contract.source.place): contract.family for contract, _ in contracts},
        entries={entry.entry_id: entry.family for entry in known.entries.values()},
    )
    return uses.contaminations(store, node.name, families)


def _without_paths_in_words(found: uses.Contamination) -> str:
    """The sentences without the paths of the named nodes. Longest names first, so that none is left in part."""
    words = found.words
    names = {str(found.product), str(found.data), str(found.release), found.origin}
    for name in sorted({*names, *found.product_path, *found.data_path}, key=len, reverse=True):
        words = words.replace(name, without_paths(name))
    return words


_PATH = re.compile(r"(^|\bfile:)(?://[^/]*)?/.*/")


_INNER_PATH = re.compile(r"(?<![^\W_])(?<![/:.\N{HORIZONTAL ELLIPSIS}-])/(?!/).*/|\b[a-z]:\\.*\\", re.IGNORECASE)
"""A path within a text: its slash follows nothing that would make it a part of a relative name or an address."""


def without_paths(value: Any) -> Any:
    """A value in which paths of this machine keep only their last part."""
    if isinstance(value, str):
        return _PATH.sub(lambda found: f"{found[1]}\N{HORIZONTAL ELLIPSIS}/", value)
    if isinstance(value, Mapping):
        return {name: without_paths(part) for name, part in value.items()}
    return [without_paths(part) for part in value] if isinstance(value, list) else value
