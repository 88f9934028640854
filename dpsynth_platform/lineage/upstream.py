"""What a release tells of its ancestry beyond its own line: checkpoints, models, releases and the entries that paid.

What belongs here: choosing from a walk what may stand in a public dossier, and saying what each went into. What does
not: the walk (`store`), and the verdict on it (`clearance`). Tables in between are passed over: their names are places,
which a dossier does not tell, and what matters of them is what they were made with.

A name that other producers gave is their word, and may be any words. It is told as theirs, and shortened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpsynth_platform.lineage.naming import JOB_NAMESPACE, DatasetName
from dpsynth_platform.lineage.nodes import Kind, Node, Relative

if TYPE_CHECKING:
    from dpsynth_platform.lineage.store import LineageStore

TOLD: tuple[Kind, ...] = ("checkpoint", "model", "release", "mechanism")
LONGEST_TOLD = 200
"""Characters that are told of a name."""


@dataclass(frozen=True)
class Upstream:
    """Something that the line itself did not make and that went into it, at whatever distance. Public.

    Attributes:
        kind: checkpoint, model, release or mechanism.
        namespace, name: its OpenLineage name; of a mechanism, the ledger entry that paid for it.
        relation: how it went in: `base`, `trained-on`, `derived`, `paid-by` and the like.
        into: the step of the line, or the name of what is further down.
        own: this platform or its ledger bears the name out; otherwise it is only reported by others.
    """

    kind: str
    namespace: str
    name: str
    relation: str
    into: str
    own: bool = False


def shortened(text: str) -> str:
    """A name's first characters, with an ellipsis for the rest."""
    return text if len(text) <= LONGEST_TOLD else f"{text[: LONGEST_TOLD - 1]}…"


def upstream_of(store: LineageStore, starts: Mapping[DatasetName, str]) -> tuple[Upstream, ...]:
    """Everything that is told of what lies above some names, nearest first, each where a shortest path leads to it.

    Args:
        store: the graph.
        starts: the steps of the line that read these names: its source, and the checkpoint that training starts from.
            A name that the graph does not know is told as a checkpoint, unless the line's first step reads it.

    Raises:
        LedgerError: the database is away.
    """
    found = store.ancestry(starts)
    told = [
        Upstream(item.node.kind, *_public_name(item.node), item.relation or "base", _into(item, starts), _own(item))
        for item in found.relatives
        if _is_told(item)
    ]
    unknown = [
        Upstream("checkpoint", shortened(name.namespace), shortened(name.name), "base", starts[name])
        for name in found.missing
        if starts[name] != "raw"
    ]
    return (*told, *unknown)


def _is_told(item: Relative) -> bool:
    return item.node.kind in TOLD and item.relation != "alias"


def _own(item: Relative) -> bool:
    return item.node.own or (item.node.kind == "mechanism" and item.relation == "paid-by")


def _into(item: Relative, starts: Mapping[DatasetName, str]) -> str:
    """The next thing on the way down that is told, or else the step where the way began."""
    below = item.previous
    while below is not None and not _is_told(below):
        below = below.previous
    return starts[item.start] if below is None else _public_name(below.node)[1]


def _public_name(node: Node) -> tuple[str, str]:
    """Namespace and name; of a release of ours its id, of what else we wrote the logical name and not the place."""
    if node.own and "dpsynth_release" in node.facets:
        return JOB_NAMESPACE, node.facets["dpsynth_release"]["releaseId"]
    for link in node.facets.get("symlinks", {}).get("identifiers", ()) if node.own else ():
        return link["namespace"], link["name"]
    return shortened(node.name.namespace), shortened(node.name.name)
