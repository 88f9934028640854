"""Events as other producers send them: complete by the specification, as bytes."""

from __future__ import annotations

import json
from typing import Any

from event_cases import event

BASE = {"_producer": "https://example.org/producer", "_schemaURL": "https://example.org/Facet.json"}


def whole(told: dict[str, Any]) -> dict[str, Any]:
    """The event with what the specification demands of every facet, and of every event."""
    holders = [told.get("run"), told.get("job"), told.get("dataset"), *told.get("inputs", []), *told.get("outputs", [])]
    for holder in filter(None, holders):
        for facet in holder.get("facets", {}).values():
            facet.update(BASE)
    return {"producer": BASE["_producer"], "schemaURL": BASE["_schemaURL"], "eventTime": "2026-03-01T00:00:00Z"} | told


def sent(*arguments: Any, **more: Any) -> bytes:
    """`event_cases.event`, whole and as bytes."""
    return json.dumps(whole(event(*arguments, **more))).encode()
