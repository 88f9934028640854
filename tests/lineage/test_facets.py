from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from facet_cases import SCHEMA, every_facet
from jsonschema import Draft202012Validator, ValidationError

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.lineage import custom_facets as own_facets
from dpsynth_platform.lineage import facets
from dpsynth_platform.lineage.emitter import LineageEmitter

FROZEN = {
    "1-0-0/AuditVerdictRunFacet.json": "a573d651192d7d6b6f50c9ecaf3f2d997f2217ba818634da8d6e71a1c89d7bdc",
    "1-0-0/BaseModelDatasetFacet.json": "b23a444f8a7d11536a4ebb23352ff8ac30a7e76853f3ec4cd382e2e311b366c0",
    "1-0-0/ClearanceRunFacet.json": "cb7864528641a6eaa0764826e3652b9a20ed8c6f8829e2fbbc5da41f55f00a0c",
    "1-0-0/GuaranteeDatasetFacet.json": "6c0f930e301fd9a9f4af68e8fe39341ab30b4638a09402f2b6119bf1d643c345",
    "1-0-0/ParticipantsRunFacet.json": "bceaf67294cd8a7985615ff70cdfff113098519d972558ee8faba41eb5c3b9d0",
    "1-0-0/PrivacyUnitDatasetFacet.json": "089ff20ade4fe13c2682de2156e07697607489dc20c6fcb98bbf4ff2adf14854",
    "1-0-0/ReleaseDatasetFacet.json": "98739337363e4c5e671ab59e5af3938aad27c5010a239dfe0d7229120d5be924",
    "1-0-0/TrainingDatasetFacet.json": "ecce9f3e72eec5b875e2268cc06b4046a4bdb49273949cd17afac59392d51724",
    "1-0-0/UseRunFacet.json": "35812edd3fd6d82819c472a494511f441e5ff568cbcf05548b7922ea8c48b97c",
    "1-1-0/GuaranteeDatasetFacet.json": "4a54605d65b8c8a99fb881cf7418fe657547a77a5649a675aa7c20dcd9c487a2",
    "records-1-0-0/SyntheticRecord.json": "b9051c86ee2131c175a391586603e3e7400f860dd5ac0693bf7640cd1fddc710",
    "records-1-1-0/SyntheticRecord.json": "7417c5e091364ef00cf9d1cd623eda11e09dcf10a761c3da7a2d4c3252b74d63",
    "records-1-2-0/SyntheticRecord.json": "7a7ad6cd8901cf5ff19d38025b392944aedfaf5761ebf57d110b5d11e774011e",
}
"""SHA-256 of every schema that was ever shipped. Lines are added, never changed."""


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
        "dpsynth_clearance", "dpsynth_participants", "dpsynth_auditVerdict", "dpsynth_use",
    }  # fmt: skip
    assert set(end["outputs"][0]["facets"]) >= {"schema", "columnLineage", "tags", "dpsynth_guarantee"}
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert end["outputs"][1]["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "DROP"
    assert end["run"]["facets"]["nominalTime"]["nominalEndTime"] == "2027-01-01T00:00:00+00:00"


def test_tags_name_zone_and_declared_classes(contract: DataContract) -> None:
    facet: Any = facets.tags(contract, "restricted", SCHEMA.names)["tags"]
    assert [(tag.key, tag.value, tag.field) for tag in facet.tags] == [
        ("zone", "restricted", None),
        ("identifier", "true", "patient_id"),
        ("pii", "hash", "email"),
        ("pseudonym", "true", "_owner"),
    ]
    shown: Any = facets.tags(contract, "public", ["email", "age"], {"email": "empty", "age": "modelled"})["tags"]
    assert [(tag.key, tag.value, tag.field) for tag in shown.tags[1:]] == [
        ("pii", "hash", "email"),
        ("treatment", "empty", "email"),
        ("treatment", "modelled", "age"),
    ]


def test_a_withdrawn_release_is_dropped_like_a_purged_output() -> None:
    facet: Any = facets.dropped()["lifecycleStateChange"]
    assert facet.lifecycleStateChange.value == "DROP"


def test_assertions_say_whether_they_hold() -> None:
    for declared, success in ((200, True), (201, False)):
        facet: Any = facets.rows_assertion(declared=declared, published=200)["dataQualityAssertions"]
        (found,) = facet.assertions
        assert (found.success, found.expected, found.actual) == (success, str(declared), "200")
    for verdict, success in (("pass", True), ("fail", False), ("inconclusive", False)):
        facet = facets.audit_assertion(verdict=verdict, threshold=1.0, lower_bound=0.2)["dataQualityAssertions"]
        assert facet.assertions[0].success is success


def test_a_schema_has_no_names_of_fields() -> None:
    """A struct that is left out is a column; its fields may have been keys in the data."""
    nested = pa.struct([("alice@example.org", pa.int64())])
    found = facets.schema(pa.schema([("tags", nested), ("several", pa.list_(nested)), ("ids", pa.list_(pa.string()))]))
    shown = [(item.name, item.type) for item in found["schema"].fields]
    assert shown == [("tags", "nested"), ("several", "nested"), ("ids", "list<item: string>")]


def test_shipped_schemas_never_change() -> None:
    """A facet that needs another schema gets the next version, in a directory of its own."""
    shipped = files("dpsynth_platform.lineage").joinpath("schemas")
    found = {
        f"{version.name}/{schema.name}": hashlib.sha256(schema.read_bytes()).hexdigest()
        for version in shipped.iterdir()
        for schema in version.iterdir()
    }
    assert found == FROZEN


@pytest.mark.parametrize("shipped", sorted(name for name in FROZEN if not name.startswith("records")))
def test_a_schema_is_named_by_its_place(shipped: str) -> None:
    version, _, file = shipped.partition("/")
    name = file.removesuffix(".json")
    schema = own_facets.custom_schema(name, version)
    assert schema["$id"] == f"urn:dpsynth-platform:facets:{version}:{name}.json"
    (key,) = schema["properties"]
    assert own_facets.CUSTOM_FACETS[key] == name
    assert own_facets.schema_of(key, f"{schema['$id']}#/$defs/{name}") == schema


def test_facets_name_the_schema_that_they_are_written_by() -> None:
    assert set(own_facets.VERSIONS) <= set(own_facets.CUSTOM_FACETS.values())
    for key, name in own_facets.CUSTOM_FACETS.items():
        assert facets._custom(key)[key]["_schemaURL"] == own_facets.schema_url(name)
        assert own_facets.schema_of(key, own_facets.schema_url(name)) == own_facets.custom_schema(name)
        latest = max(version for version, _, file in (item.partition("/") for item in FROZEN) if file == f"{name}.json")
        assert f":{latest}:" in own_facets.schema_url(name)


@pytest.mark.parametrize(
    "url",
    [
        None,
        5,
        "",
        "https://openlineage.io/spec/facets/1-0-0/GuaranteeDatasetFacet.json",
        "urn:dpsynth-platform:facets:9-0-0:GuaranteeDatasetFacet.json#/$defs/GuaranteeDatasetFacet",
        "urn:dpsynth-platform:facets:1-0-0:../../facets.json#/$defs/GuaranteeDatasetFacet",
        "urn:dpsynth-platform:facets:1-0-0:ClearanceRunFacet.json#/$defs/ClearanceRunFacet",
    ],
)
def test_no_other_schema_is_taken_for_one_of_ours(url: object) -> None:
    assert own_facets.schema_of("dpsynth_guarantee", url) is None


@pytest.mark.parametrize("name", sorted(own_facets.CUSTOM_FACETS))
def test_our_schemas_are_strict(name: str) -> None:
    schema = own_facets.custom_schema(own_facets.CUSTOM_FACETS[name])
    Draft202012Validator.check_schema(schema)
    definition = schema["$defs"][own_facets.CUSTOM_FACETS[name]]
    optional = {"by", "reason"} if name == "dpsynth_use" else set()
    assert set(definition["required"]) | {"_deleted"} | optional == set(definition["properties"]) | {"_deleted"}
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
