"""The lineage graph as text and as JSON, for `dpsynth lineage show` and `dpsynth lineage impact`.

What belongs here: sentences and trees from the graph's objects. What does not: querying the graph (`cli.lineage`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.ledger.records import Decision
from dpsynth_platform.lineage.column_walks import ColumnWalk
from dpsynth_platform.lineage.distrust import Distrust
from dpsynth_platform.lineage.naming import without_secrets
from dpsynth_platform.lineage.nodes import MODELS, Ancestry, Node, Relation, StoredEvent
from dpsynth_platform.lineage.survey import path_of
from dpsynth_platform.lineage.uses import RegisteredUse

_RELATIONS: tuple[Relation, ...] = ("trained-on", "base", "derived", "used-by", "paid-by", "claims", "alias")
"""The relations of a walk, in the order in which they are shown."""
MOST_EVENTS = 20
"""Events of other producers that are listed."""
_STEPS = {
    "IDENTITY": "Taken over as it is.",
    "TRANSFORMATION": "Computed from its values.",
    "AGGREGATION": "Aggregated from its values.",
    "FILTER": "Decides which rows there are.",
    "SORT": "Decides the order in which rows are taken.",
    "GROUP_BY": "Rows are grouped by it.",
    "CONDITIONAL": "Its values decide what happens.",
    "ROWS": "Its rows come from those rows.",
    "derived": "Made from the whole; no column lineage says more.",
    "trained-on": "Trained on the whole.",
    "base": "Started from this model.",
    "used-by": "Used; no column lineage says more.",
}
"""Steps of column lineage by OpenLineage's subtype, or by the relation of datasets without column lineage."""
_MASKED = {True: "masked", False: "not masked", None: "not recorded"}
_USE = {"product": " {}", "by": ", by {}", "source": ", reported by the producer {}", "reason": ": {}"}


def node_words(node: Node) -> str:
    """One node in a line: its name, its kind, and its release id if it has one."""
    version = node.facets.get("version", {}).get("datasetVersion", "") if node.kind == "release" else ""
    return f"{without_secrets(str(node.name))} ({' '.join(filter(None, (node.kind, version)))})"


def tree(walk: Ancestry) -> Iterator[str]:
    """A walk as indented lines, without its starts: each step once, data before reports and records.

    The steps from a node follow its first line; later lines of the node refer to it as shown above.
    """
    nodes = {item.node.id: item.node for item in walk.relatives}
    shown = {item.node.id for item in walk.relatives if item.previous is None}
    waiting = [(step, 1) for start in sorted(shown, reverse=True) for step in reversed(_steps(walk, nodes, start))]
    while waiting:
        (relation, here), depth = waiting.pop()
        seen = here in shown
        if relation == "alias" and seen:
            continue
        shown.add(here)
        also = ", ".join(_names(walk, nodes, here))
        mark = " (shown above)" if seen else f", also called {also}" if also else ""
        yield f"{'  ' * depth}{relation}: {node_words(nodes[here])}{mark}"
        if not seen:
            waiting += [(step, depth + 1) for step in reversed(_steps(walk, nodes, here))]


def other_names(walk: Ancestry, node: Node) -> list[str]:
    """Further names of a node on a walk about which nothing else is known."""
    return _names(walk, {item.node.id: item.node for item in walk.relatives}, node.id)


def _names(walk: Ancestry, nodes: Mapping[int, Node], node: int) -> list[str]:
    leading = walk.ways.get(node, ())
    return sorted(
        without_secrets(str(nodes[there].name)) for there, relation, _ in leading if _is_name(walk, there, relation)
    )


def _is_name(walk: Ancestry, node: int, relation: Relation) -> bool:
    return relation == "alias" and all(how == "alias" for _, how, _ in walk.ways.get(node, ()))


def _steps(walk: Ancestry, nodes: Mapping[int, Node], node: int) -> list[tuple[Relation, int]]:
    """Relations and targets of the steps from a node, in the order of display; without mere names."""
    leading = walk.ways.get(node, ())
    steps = [(relation, there) for there, relation, _ in leading if not _is_name(walk, there, relation)]
    return sorted(steps, key=lambda step: (_rank(nodes[step[1]]), _RELATIONS.index(step[0]), nodes[step[1]].name))


def _rank(node: Node) -> int:
    """Data made from data come first, then tables of another origin, then reports and records."""
    columns = node.facets.get("columnLineage", {}).get("fields")  # others' facets may have any form
    origins = columns.values() if isinstance(columns, Mapping) else ()
    if node.kind in MODELS or any(isinstance(origin, Mapping) and origin.get("inputFields") for origin in origins):
        return 0
    return 1 if "schema" in node.facets else 2


def use_words(use: RegisteredUse) -> str:
    """One registered use."""
    parts = (
        template.format(without_secrets(value)) for name, template in _USE.items() if (value := getattr(use, name))
    )
    return f"  event {use.event}, {moment(use.at)}: {use.purpose}{''.join(parts)}"


def withdrawn_words(withdrawn: Decision) -> str:
    """A warning about a withdrawn release."""
    return (
        f"WITHDRAWN: release {withdrawn.release} was withdrawn by {withdrawn.by} at {moment(withdrawn.at)} "
        f"({withdrawn.reason}); do not use it for anything new"
    )


def unverified_source_lines(events: Sequence[StoredEvent]) -> Iterator[str]:
    """The events of other producers about a node, the latest last."""
    if len(events) > MOST_EVENTS:
        yield f"{len(events) - MOST_EVENTS} earlier events of other producers report it, too"
    for event in events[-MOST_EVENTS:]:
        yield f"reported by the producer {event.source}: event {event.sequence}, {moment(event.received_at)}"


def distrust_words(distrust: Distrust) -> str:
    """One distrusted event."""
    return (
        f"distrusted: event {distrust.event} of the producer {distrust.source}, by {distrust.by} at "
        f"{moment(distrust.at)}: {distrust.reason}"
    )


def step_words(subtype: str, description: str) -> str:
    """What a step of column lineage does: its own sentence, or one for its subtype or relation."""
    return description or _STEPS.get(subtype, subtype)


def impact_rows(walk: ColumnWalk) -> list[dict[str, Any]]:
    """Everything that a downward walk over columns reached, as JSON, nearest first; each part once."""
    found: dict[tuple[int, str | None], dict[str, Any]] = {}
    for item in walk.reached[1:]:
        node = walk.nodes[item.part.node]
        step = item.step
        row = {
            "name": without_secrets(str(node.name)),
            "column": item.part.column,
            "kind": node.kind,
            "direct": item.direct,
            "masked": item.masked,
            "steps": item.distance,
            "how": "" if step is None else without_secrets(step_words(step.subtype, step.description)),
        }
        found.setdefault((node.id, item.part.column), row)
    return list(found.values())


def impact_words(row: Mapping[str, Any]) -> tuple[str, str]:
    """Whether values come from the column or only depend on it, and whether the original ones are hidden."""
    return "from it" if row["direct"] else "depend on it", _MASKED[row["masked"]]


def node_json(node: Node) -> dict[str, Any]:
    """One node with its accepted facets; those of other producers without what may be a password in addresses."""
    facets = {
        name: facet if node.origin_of(name) == "own" else without_secrets(facet) for name, facet in node.facets.items()
    }
    name = without_secrets(str(node.name)).removeprefix(f"{node.name.namespace}:")
    return {
        "namespace": without_secrets(node.name.namespace),
        "name": name,
        "kind": node.kind,
        "own": node.own,
        "facets": facets,
    }


def walk_json(walk: Ancestry) -> list[dict[str, Any]]:
    """The nodes that a walk reached, nearest first, each with a shortest path."""
    return [
        {
            "name": without_secrets(str(item.node.name)),
            "kind": item.node.kind,
            "relation": item.relation,
            "distance": item.distance,
            "run_id": item.run_id,
            "path": without_secrets(list(path_of(item))),
        }
        for item in walk.relatives
        if item.previous is not None
    ]
