"""The public part of a lineage event: an allow-list by facet and by field.

What belongs here: for every facet that the platform emits, which of its fields are public and which values they can
have. What does not: sending (`outbox`), and making facets (`facets`).

Public are contracts, plans, verdicts, names, results on canaries, and facts about published rows. Nothing else leaves:
no unknown facet or field, no count or hash of restricted content, no text of an error, no person's reason. An invalid
value is left out like an unknown field. A facet without a field that its schema requires is left out as a whole, so
that the public event is valid OpenLineage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from dpsynth_platform.foundation.errors import DpsynthError, LineageRefused
from dpsynth_platform.foundation.redaction import MACHINE, UNEXPECTED
from dpsynth_platform.lineage import columns
from dpsynth_platform.lineage import custom_facets as own_facets
from dpsynth_platform.lineage.allow import (
    NAME,
    WITHHELD,
    Record,
    Rule,
    by_name,
    flag,
    listed,
    matching,
    number,
    one_of,
    text,
    whole,
)
from dpsynth_platform.lineage.runs import INTERRUPTED

NOT_COMPLETED = "The run did not complete. Only its operator can see the error."
LONGEST_TEXT = 20_000


def public_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """The part of our own run, job or dataset event that may be published; valid OpenLineage.

    Raises:
        LineageRefused: it lacks a field that all events of this platform have.
    """
    form = _RUN_EVENT if "run" in event else _JOB_EVENT if "job" in event else _DATASET_EVENT
    found = form(event)
    if found is WITHHELD:
        raise LineageRefused("the lineage event has no public form: this platform does not emit such events")
    kept: dict[str, Any] = found
    return kept


def public_facets(found: Mapping[str, Any]) -> dict[str, Any]:
    """The public part of a dataset's facets, by name."""
    kept: dict[str, Any] = _facets("dataset")(found)
    return kept


TEXT = text(LONGEST_TEXT)
UUID = matching(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = matching(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})")
RELEASE_NUMBER = matching(r"\d{1,6}(\.\d{1,6}){1,3}([a-z0-9.+-]{0,20})?")
DIGEST = matching(r"[0-9a-f]{64}")
ENTRY = matching(r"[0-9a-f]{32}")
DATASET = {"namespace": NAME, "name": NAME}
# A random name, or a release's id with 16 digits of a hiding commitment. No hash of content has either form.
VERSION = matching(r"[0-9a-f]{16}|[0-9a-f]{32}|[a-z][a-z0-9_]{0,62}-(\d{4}-\d{2}-(\d{2}-week-|quarter-)?)?[0-9a-f]{16}")
PRODUCER = matching(r"urn:dpsynth-platform:\d[0-9A-Za-z.+-]{0,40}")
UNIT = one_of("example", "user", "group")
ADJACENCY = one_of("add-or-remove", "zero-out", "replace-one", "fixed-graph")
VERDICT = one_of("pass", "fail", "inconclusive")
FIGURE = matching(r"\d{1,12}(\.\d{1,12})?(e[+-]?\d{1,3})?")


def _code_only(value: Any) -> Any:
    """The code of an error, with one sentence for all errors."""
    code = str(value).partition(":")[0]
    return f"{code if code in _codes() else DpsynthError.code}: {NOT_COMPLETED}"


def _codes() -> set[str]:
    found, classes = {UNEXPECTED, MACHINE, INTERRUPTED}, [DpsynthError]
    while classes:
        one = classes.pop()
        found.add(one.code)
        classes += one.__subclasses__()
    return found


_TAG_VALUES: Mapping[str, Rule] = {
    "zone": one_of("restricted", "operator", "public"),
    "pii": one_of("drop", "mask", "hash", "replace"),
    "identifier": one_of("true"),
    "ignored": one_of("true"),
    "pseudonym": one_of("true"),
    "image": one_of("unscrubbed"),
    "treatment": one_of("modelled", "written", "pictured", "answered", "regenerated", "empty", "absent"),
}


def _tag(value: Any) -> Any:
    key = value.get("key") if isinstance(value, Mapping) else None
    if not isinstance(key, str) or key not in _TAG_VALUES:
        return WITHHELD
    return Record({"key": NAME, "value": _TAG_VALUES[key]}, {"field": NAME, "source": one_of("INTEGRATION", "USER")})(
        value
    )


_TRANSFORMATION = Record(
    {"type": one_of("DIRECT", "INDIRECT")},
    {"subtype": one_of(*columns.SUBTYPES), "description": one_of(*columns.SENTENCES), "masking": flag},
)
_INPUT_FIELD = Record({**DATASET, "field": NAME}, {"transformations": listed(_TRANSFORMATION)})
_COLUMN = Record({"inputFields": listed(_INPUT_FIELD)}, {"transformationDescription": one_of(*columns.SENTENCES)})
_ASSERTION = Record(
    {"assertion": one_of(own_facets.AUDIT_ASSERTION, own_facets.ROWS_ASSERTION), "success": flag},
    {
        "severity": one_of("error", "warn"),
        "name": one_of("privacy-audit", "declared-rows"),
        "expected": FIGURE,
        "actual": FIGURE,
    },
)
_OWNERS = Record({"owners": listed(Record({"name": NAME}, {"type": one_of("MAINTAINER")}))})
_WORDS = Record({"description": TEXT}, {"contentType": one_of("text/plain")})
_ANCESTORS = listed(Record({**DATASET, "version": lambda value: "unknown" if VERSION(value) is WITHHELD else value}))

PUBLIC: Mapping[str, Mapping[str, Rule]] = {
    "run": {
        "parent": Record({"run": Record({"runId": UUID}), "job": Record(DATASET)}),
        "nominalTime": Record({"nominalStartTime": TIME}, {"nominalEndTime": TIME}),
        "processing_engine": Record(
            {"version": RELEASE_NUMBER},
            {"name": one_of("Dagster"), "openlineageAdapterVersion": RELEASE_NUMBER},
        ),
        "errorMessage": Record({"message": _code_only, "programmingLanguage": one_of("PYTHON")}),
        "dpsynth_clearance": Record(
            {
                "verdict": one_of("cleared", "blocked"),
                "ledgerEntry": ENTRY,
                "family": NAME,
                "policy": one_of("compose", "exclude", "block"),
                "planDigest": DIGEST,
            }
        ),
        "dpsynth_participants": Record({"ledgerEntry": ENTRY, "namespace": NAME, "commitment": DIGEST}),
        "dpsynth_auditVerdict": Record(
            {
                "verdict": VERDICT,
                "epsilonLowerBound": number(),
                "epsilonHighestReachable": number(),
                "epsilonThreshold": number(),
                "confidence": number(0, 1),
            }
        ),
        "dpsynth_use": Record({"release": NAME, "purpose": one_of("train", "evaluate", "other"), "product": NAME}),
    },
    "job": {
        "jobType": Record({"processingType": one_of("BATCH"), "integration": NAME}, {"jobType": one_of("ASSET")}),
        "documentation": _WORDS,
        "ownership": _OWNERS,
    },
    "dataset": {
        "schema": Record({"fields": listed(Record({"name": NAME}, {"type": NAME, "ordinal_position": whole}))}),
        "columnLineage": Record({"fields": by_name(_COLUMN)}, {"dataset": listed(_INPUT_FIELD)}),
        "tags": Record({"tags": listed(_tag)}),
        "ownership": _OWNERS,
        "documentation": _WORDS,
        "version": Record({"datasetVersion": VERSION}),
        "symlinks": Record({"identifiers": listed(Record({**DATASET, "type": NAME}))}),
        "datasetType": Record({"datasetType": one_of("TABLE", "MODEL", "FILE")}),
        "storage": Record({"storageLayer": one_of("delta")}, {"fileFormat": one_of("parquet")}),
        "lifecycleStateChange": Record(
            {"lifecycleStateChange": one_of("ALTER", "CREATE", "DROP", "OVERWRITE", "RENAME", "TRUNCATE")},
            {"previousIdentifier": Record(DATASET)},
        ),
        "dpsynth_privacyUnit": Record(
            {
                "unit": UNIT,
                "adjacency": ADJACENCY,
                "namespace": NAME,
                "ownerColumns": listed(NAME),
                "maxContributions": whole,
            }
        ),
        "dpsynth_guarantee": Record(
            {
                "epsilon": number(),
                "delta": number(0, 1),
                "unit": UNIT,
                "adjacency": ADJACENCY,
                "maxContributions": whole,
                "tier": one_of("strong", "reasonable", "weak"),
                "accounting": one_of("pld", "renyi", "privacy loss distributions", "Renyi differential privacy"),
                "ledgerEntry": ENTRY,
            },
            {"weighting": one_of("rows", "owners"), "method": matching(r"[a-z][a-z0-9-]{0,62}")},
        ),
        "dpsynth_release": Record(
            {"releaseId": VERSION, "candidateCommitment": DIGEST, "ledgerSequence": whole, "ledgerHash": DIGEST}
        ),
        "dpsynth_baseModel": Record({"baseModels": _ANCESTORS}),
        "dpsynth_training": Record({"trainedOn": _ANCESTORS}),
    },
    "input": {"dataQualityAssertions": Record({"assertions": listed(_ASSERTION)})},
    "output": {"outputStatistics": Record({"rowCount": whole, "size": whole, "fileCount": whole})},
}
"""The public fields of each facet, by its place: a run, a job, a dataset, or a dataset as an input or output.

Row counts are public for datasets in the public zone only (`_output`)."""

OPERATOR_ONLY: Mapping[str, frozenset[str]] = {
    "dpsynth_use": frozenset({"by", "reason"}),
    "dataQualityAssertions": frozenset({"description", "params"}),
    "parent": frozenset({"facets"}),
}
"""The fields of our facets that stay with the operator, by facet. Our events have no field that is in neither table."""

_FACET_KINDS = {"run": "Run", "job": "Job", "dataset": "Dataset", "input": "Dataset", "output": "OutputDataset"}
_ENVELOPE = Record({"_producer": PRODUCER, "_schemaURL": NAME}, {"_deleted": flag})


def _facet(place: str, name: str, value: Any) -> Any:
    envelope, content = _ENVELOPE(value), PUBLIC[place][name](value)
    if envelope is WITHHELD or content is WITHHELD:
        return WITHHELD
    url, facet = envelope["_schemaURL"], {**envelope, **content}
    if name not in own_facets.CUSTOM_FACETS:
        return facet if _standard_url(place, name).fullmatch(url) else WITHHELD
    schema = own_facets.schema_of(name, url)
    required = set() if schema is None else set(schema["$defs"][own_facets.CUSTOM_FACETS[name]]["required"])
    return facet if schema is not None and required <= facet.keys() else WITHHELD


def _standard_url(place: str, name: str) -> re.Pattern[str]:
    """The `_schemaURL` of one of the specification's facets: `tags` of a dataset is a `TagsDatasetFacet`."""
    stem = "datasetVersion" if name == "version" else name
    title = "".join(word[0].upper() + word[1:] for word in stem.split("_")) + _FACET_KINDS[place] + "Facet"
    return re.compile(rf"https://openlineage\.io/spec/facets/\d{{1,3}}(-\d{{1,3}}){{2}}/{title}\.json#/\$defs/{title}")


def _facets(place: str) -> Rule:
    return Record({}, {name: partial(_facet, place, name) for name in PUBLIC[place]})


_INPUT = Record(DATASET, {"facets": _facets("dataset"), "inputFacets": _facets("input")})
_ANY_OUTPUT = Record(DATASET, {"facets": _facets("dataset"), "outputFacets": _facets("output")})


def _output(value: Any) -> Any:
    """Statistics are public for datasets in the public zone only."""
    found = _ANY_OUTPUT(value)
    if found is not WITHHELD:
        tags = found.get("facets", {}).get("tags", {}).get("tags", [])
        if not any(tag["key"] == "zone" and tag["value"] == "public" for tag in tags):
            found.pop("outputFacets", None)
    return found


_EVENT_URL = matching(
    r"https://openlineage\.io/spec/\d{1,3}(-\d{1,3}){2}/OpenLineage\.json#/\$defs/(Run|Job|Dataset)Event"
)
_COMMON: Mapping[str, Rule] = {"eventTime": TIME, "producer": PRODUCER, "schemaURL": _EVENT_URL}
_JOB = Record(DATASET, {"facets": _facets("job")})
_DATASETS: Mapping[str, Rule] = {"inputs": listed(_INPUT), "outputs": listed(_output)}
_RUN_EVENT = Record(
    {
        **_COMMON,
        "eventType": one_of("START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"),
        "run": Record({"runId": UUID}, {"facets": _facets("run")}),
        "job": _JOB,
    },
    _DATASETS,
)
_JOB_EVENT = Record({**_COMMON, "job": _JOB}, _DATASETS)
_DATASET_EVENT = Record({**_COMMON, "dataset": Record(DATASET, {"facets": _facets("dataset")})})
