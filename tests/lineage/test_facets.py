from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator, ValidationError

from dpsynth_platform.contracts import DataContract
from dpsynth_platform.lineage import facets, naming
from dpsynth_platform.lineage.emitter import DatasetRef, LineageEmitter, StepRun

SOURCE = naming.dataset_name("/data/visits")
SCHEMA = pa.schema([("patient_id", pa.string()), ("email", pa.string()), ("age", pa.int32()), ("_owner", pa.string())])
DIGEST = "ab" * 32


def every_facet(contract: DataContract) -> StepRun:
    """A run that carries every facet that the platform can make."""
    table = facets.merge(
        facets.schema(SCHEMA),
        facets.column_lineage(facets.scrub_origins(contract, SOURCE, SCHEMA.names)),
        facets.tags(contract, "restricted", SCHEMA.names),
        facets.ownership(contract.owners),
        facets.version("3f"),
        facets.documentation(contract.description),
        facets.symlink(naming.logical_name("visits", "scrubbed", "2026-12")),
        facets.table_type(),
        facets.privacy_unit(contract),
        facets.guarantee(contract, epsilon=1.0, delta=1e-5, tier="strong", accounting="pld", ledger_entry="e1"),
    )
    checks = facets.audit_assertion(verdict="pass", threshold=1.0, lower_bound=0.2)
    return StepRun(
        dagster_run_id="6f0c3f0e-7d1c-4b0a-9a53-0d6c2b9d8f11",
        dataset="visits",
        step="scrubbed",
        period="2026-12",
        description="Removes personal data.",
        owners=("clinic@example.org",),
        inputs=(DatasetRef(SOURCE, facets.privacy_unit(contract), input_facets=checks),),
        outputs=(
            DatasetRef(
                naming.dataset_name("/r/visits/scrubbed"),
                table,
                output_facets=facets.output_statistics(rows=3, size=10, file_count=1),
            ),
            DatasetRef(naming.dataset_name("/r/visits/model"), facets.file_type("MODEL") | facets.purged()),
        ),
        run_facets=facets.clearance(contract, verdict="cleared", ledger_entry="e1", plan_digest=DIGEST)
        | facets.participants(contract, ledger_entry="e1", commitment=DIGEST)
        | facets.audit_verdict(verdict="pass", lower_bound=0.2, highest_reachable=3.1, threshold=1.0, confidence=0.95),
    )


def test_every_facet_is_valid(
    contract: DataContract, emitter: LineageEmitter, record: Path, check: Any, events: Any
) -> None:
    run = every_facet(contract)
    emitter.start(replace(run, outputs=()))
    emitter.fail(run, ValueError("x"))
    start, end = events(record)
    check(start)
    check(end)
    assert set(end["run"]["facets"]) == {
        "parent", "processing_engine", "nominalTime", "errorMessage",
        "dpsynth_clearance", "dpsynth_participants", "dpsynth_auditVerdict",
    }  # fmt: skip
    assert set(end["outputs"][0]["facets"]) >= {"schema", "columnLineage", "tags", "dpsynth_guarantee"}
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert end["outputs"][1]["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "DROP"
    assert end["run"]["facets"]["nominalTime"]["nominalEndTime"] == "2027-01-01T00:00:00+00:00"


def test_scrubbed_columns_are_marked_as_masked(contract: DataContract) -> None:
    masked = {item.column: item.masking for item in facets.scrub_origins(contract, SOURCE, SCHEMA.names)}
    assert masked == {"patient_id": False, "email": True, "age": False}
    assert not any(item.masking for item in facets.identity_origins(SOURCE, ["email"]))


def test_tags_name_zone_and_declared_classes(contract: DataContract) -> None:
    facet: Any = facets.tags(contract, "restricted", SCHEMA.names)["tags"]
    assert [(tag.key, tag.value, tag.field) for tag in facet.tags] == [
        ("zone", "restricted", None),
        ("identifier", "true", "patient_id"),
        ("pii", "hash", "email"),
    ]


@pytest.mark.parametrize("name", sorted(facets.CUSTOM_FACETS))
def test_our_schemas_are_strict(name: str) -> None:
    schema = facets.custom_schema(facets.CUSTOM_FACETS[name])
    Draft202012Validator.check_schema(schema)
    definition = schema["$defs"][facets.CUSTOM_FACETS[name]]
    assert set(definition["required"]) | {"_deleted"} >= set(definition["properties"])
    with pytest.raises(ValidationError):
        Draft202012Validator(schema).validate({name: {"rowCount": 5}})


def test_the_check_of_these_tests_bites(
    emitter: LineageEmitter, contract: DataContract, record: Path, check: Any, specification: bool
) -> None:
    emitter.start(every_facet(contract))
    (start,) = (json.loads(line) for line in record.read_text().splitlines())
    start["run"]["facets"]["dpsynth_clearance"]["rowCount"] = 5
    with pytest.raises(ValidationError):
        check(start)
    del start["run"]["facets"]["dpsynth_clearance"]["rowCount"]
    check(start)
    if specification:
        start["outputs"][0]["facets"]["schema"]["fields"] = "many"
        with pytest.raises(ValidationError):
            check(start)
