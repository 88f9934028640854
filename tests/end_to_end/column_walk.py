"""Walking a column back to where it comes from, over the events that a line left.

What belongs here: reading column lineage out of events, as any receiver could. What does not: assertions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Field = tuple[str, str]
"""A dataset's name and a column of it."""


@dataclass(frozen=True)
class Root:
    """Where a walk ends: a column that nothing is known to come before, or one that says why it has no origin.

    Attributes:
        masked: whether a value was hidden on every way that was walked to it.
        reason: why the column has no origin; empty where the walk left what the events describe.
    """

    dataset: str
    column: str
    masked: bool
    reason: str = ""


def described(events: Iterable[Mapping[str, Any]]) -> dict[Field, dict[str, Any]]:
    """Every described column with its entry in the column lineage facet of the run that wrote it."""
    return {
        (output["name"], column): entry
        for event in events
        if event["eventType"] == "COMPLETE"
        for output in event["outputs"]
        for column, entry in output["facets"].get("columnLineage", {"fields": {}})["fields"].items()
    }


def roots(known: Mapping[Field, Mapping[str, Any]], start: Field, masked: bool = False) -> set[Root]:
    """The ends of all walks from a column, through direct and indirect origins alike."""
    entry = known.get(start)
    if entry is None:
        return {Root(*start, masked)}
    if not entry["inputFields"]:
        return {Root(*start, masked, entry["transformationDescription"])}
    found = set()
    for origin in entry["inputFields"]:
        hidden = masked or any(step["masking"] for step in origin["transformations"])
        found |= roots(known, (origin["name"], origin["field"]), hidden)
    return found
