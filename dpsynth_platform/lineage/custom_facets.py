"""Our own facets by name, their schemas and versions, and the names of our assertions in standard facets.

What belongs here: what a reader of events needs to know of them. What does not: making facets (`facets`), for which
OpenLineage's client is loaded.

The schemas are the files in `schemas/`. URNs identify them and are no addresses: the files ship with the package.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

AUDIT_ASSERTION = "epsilon_lower_bound_at_most"
ROWS_ASSERTION = "row_count"
CUSTOM_FACETS = {
    "dpsynth_privacyUnit": "PrivacyUnitDatasetFacet",
    "dpsynth_guarantee": "GuaranteeDatasetFacet",
    "dpsynth_clearance": "ClearanceRunFacet",
    "dpsynth_auditVerdict": "AuditVerdictRunFacet",
    "dpsynth_participants": "ParticipantsRunFacet",
    "dpsynth_release": "ReleaseDatasetFacet",
    "dpsynth_baseModel": "BaseModelDatasetFacet",
    "dpsynth_training": "TrainingDatasetFacet",
    "dpsynth_use": "UseRunFacet",
}
FIRST_VERSION = "1-0-0"
VERSIONS = {"GuaranteeDatasetFacet": "1-1-0"}
"""The present version of each facet's schema, if not the first. A shipped schema never changes: a change is a new
version in a file of its own, so that old events stay readable."""
_URN = re.compile(r"urn:dpsynth-platform:facets:(\d+-\d+-\d+):(\w+)\.json#/\$defs/(\w+)")


def schema_url(name: str) -> str:
    """The present `_schemaURL` of one of our own facets, by its class name."""
    return f"urn:dpsynth-platform:facets:{VERSIONS.get(name, FIRST_VERSION)}:{name}.json#/$defs/{name}"


def custom_schema(name: str, version: str | None = None) -> dict[str, Any]:
    """The JSON schema of one of our own facets, by its class name; FileNotFoundError if it has no such version."""
    place = ("schemas", version or VERSIONS.get(name, FIRST_VERSION), f"{name}.json")
    schema: dict[str, Any] = json.loads(files("dpsynth_platform.lineage").joinpath(*place).read_text(encoding="utf-8"))
    return schema


def schema_of(facet: str, url: object) -> dict[str, Any] | None:
    """The schema that a `_schemaURL` names, for `{facet: value}`; None if it is no schema of that facet."""
    match = _URN.fullmatch(url) if isinstance(url, str) else None
    if match is None or not match[2] == match[3] == CUSTOM_FACETS.get(facet):
        return None
    try:
        return custom_schema(match[2], match[1])
    except FileNotFoundError:
        return None
