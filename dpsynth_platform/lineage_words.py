"""The lineage graph in words and as JSON, as `dpsynth lineage show` tells it.

What belongs here: sentences and trees from what the graph hands out. What does not: asking it (`lineage_command`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpsynth_platform.lineage.nodes import Ancestry, Node, Relative
from dpsynth_platform.lineage.survey import path_of
from dpsynth_platform.lineage.uses import RegisteredUse


def node_words(node: Node) -> str:
    """One node in a line: its name, what it is, and its release id if it has one."""
    version = node.facets.get("version", {}).get("datasetVersion", "") if node.kind == "release" else ""
    return f"{node.name} ({' '.join(filter(None, (node.kind, version)))})"


def tree(walk: Ancestry) -> Iterator[str]:
    """A walk as indented lines, without its starts. Every node stands once, where a shortest path leads to it."""
    below: dict[int, list[Relative]] = {}
    for item in walk.relatives:
        if item.previous is not None:
            below.setdefault(item.previous.node.id, []).append(item)
    waiting = [(item, 1) for start in walk.relatives if start.previous is None for item in below.get(start.node.id, [])]
    waiting.reverse()
    while waiting:
        item, depth = waiting.pop()
        yield f"{'  ' * depth}{item.relation}: {node_words(item.node)}"
        waiting += [(under, depth + 1) for under in reversed(below.get(item.node.id, []))]


def use_words(use: RegisteredUse) -> str:
    """One registered use."""
    product = f" {use.product}" if use.product else ""
    who = f", by {use.by}" if use.by else ""
    source = f", told by the producer {use.source}" if use.source else ""
    reason = f": {use.reason}" if use.reason else ""
    return f"  event {use.event}, {use.at[:19]} UTC: {use.purpose}{product}{who}{source}{reason}"


def node_json(node: Node) -> dict[str, Any]:
    """One node with its believed facets."""
    return {
        "namespace": node.name.namespace,
        "name": node.name.name,
        "kind": node.kind,
        "own": node.own,
        "facets": dict(node.facets),
    }


def walk_json(walk: Ancestry) -> list[dict[str, Any]]:
    """What a walk reached, nearest first, each with a shortest path."""
    return [
        {
            "name": str(item.node.name),
            "kind": item.node.kind,
            "relation": item.relation,
            "distance": item.distance,
            "run_id": item.run_id,
            "path": list(path_of(item)),
        }
        for item in walk.relatives
        if item.previous is not None
    ]
