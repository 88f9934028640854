"""The published ancestry of a release beyond its own line: checkpoints, models, releases and the entries that paid.

What belongs here: choosing from a walk what a public dossier may hold, and what each part went into. What does not: the
walk (`store`), and the verdict on it (`clearance`). Tables in between are omitted: their names are places, which a
dossier does not publish.

A name that other producers gave may be any text. It is marked as theirs, and shortened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpsynth_platform.lineage.naming import JOB_NAMESPACE, DatasetName
from dpsynth_platform.lineage.nodes import Kind, Node, Relative

if TYPE_CHECKING:
    from dpsynth_platform.lineage.store import LineageStore

_PUBLISHED: tuple[Kind, ...] = ("checkpoint", "model", "release", "mechanism")
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Upstream:
    """Something that went into the line, directly or not, and that the line did not make. Public.

    Attributes:
        kind: checkpoint, model, release or mechanism.
        namespace, name: its OpenLineage name; of a mechanism, the ledger entry that paid for it.
        relation: `base`, `trained-on`, `derived`, `paid-by` and others.
        into: the step of the line, or the name of the next part downstream.
        own: this platform or its ledger confirms the name; otherwise only others report it.
    """

    kind: str
    namespace: str
    name: str
    relation: str
    into: str
    own: bool = False


def shortened(text: str) -> str:
    """A name's first characters, with an ellipsis for the rest."""
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def upstream_of(store: LineageStore, starts: Mapping[DatasetName, str]) -> tuple[Upstream, ...]:
    """The published ancestry of some names, nearest first, by shortest paths.

    Args:
        starts: the line's source and the public bases, each with the step that reads it. A name that the graph lacks
            counts as a checkpoint, unless the line's first step reads it.
    """
    found = store.ancestry(starts)
    known = [
        Upstream(item.node.kind, *_public_name(item.node), item.relation or "base", _into(item, starts), _own(item))
        for item in found.relatives
        if _is_published(item)
    ]
    unknown = [
        Upstream("checkpoint", shortened(name.namespace), shortened(name.name), "base", starts[name])
        for name in found.missing
        if starts[name] != "raw"
    ]
    return (*known, *unknown)


def _is_published(item: Relative) -> bool:
    return item.node.kind in _PUBLISHED and item.relation != "alias"


def _own(item: Relative) -> bool:
    return item.node.own or (item.node.kind == "mechanism" and item.relation == "paid-by")


def _into(item: Relative, starts: Mapping[DatasetName, str]) -> str:
    """The next published part downstream, or else the step that reads the start."""
    below = item.previous
    while below is not None and not _is_published(below):
        below = below.previous
    return starts[item.start] if below is None else _public_name(below.node)[1]


def _public_name(node: Node) -> tuple[str, str]:
    """Namespace and name: of our own release its id, of our other outputs the logical name instead of the place."""
    if node.own and "dpsynth_release" in node.facets:
        return JOB_NAMESPACE, node.facets["dpsynth_release"]["releaseId"]
    for link in node.facets.get("symlinks", {}).get("identifiers", ()) if node.own else ():
        return link["namespace"], link["name"]
    return shortened(node.name.namespace), shortened(node.name.name)
