"""The schemas that ship with the package: sound, closed where leaks would show, and immutable once released."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files

import pytest
from jsonschema import Draft202012Validator

from dpsynth_platform.release import dossier, reviewers, schema

FROZEN = {
    "attestation-1.json": "cb37d396b4017963e51ab01b7c69354a674c658e63c93edbeddcc532dff0c8cf",
    "dossier-1.json": "6fb58bd548989651a6acac571c6ce3bb7dbd11d13e7cb72d69e325d5b80df71b",
    "dossier-2.json": "aecd501d8f4e99859957144a136d2b18f062ca89636f3d802cefee4f84c6e3c6",
    "dossier-3.json": "3a64b0369cd01b1a2fce096dcbb7480a67ec72fee0b74355ca7222a7e3cbb183",
    "dossier-4.json": "a364b367a489bb2cc84cbf3e41afaea24f2662058fe55c1c312a3ba1026d234e",
    "dossier-5.json": "176565e9ed283c8ed45270a058faec32d55144b7932111614011613915e1b34e",
    "dossier-6.json": "27532a0724145cb821685a93e7fd2ece495b799a9f8f273f66e839f7f5c1b2ae",
    "dossier-7.json": "6db1a970221fae35880ef9040f15eb6d25d30ec2bc6f7301f9fac20646271f15",
    "dossier-8.json": "46562195528b4713d86d5c08650f941d752cabc94b9d2dc8fdf2321aa6529690",
    "dossier-9.json": "bbe20d79d5dba551460efed23cc04abba35fb72dffb99d47bff0f74cbf35f771",
    "dossier-10.json": "bb184a673aff2f7bbb0b148f1f7a0dbecc13499da53b400e7bd98a800d7984c4",
    "reviewers-dossier-1.json": "20610cd578a527c0196db10e530f8d782c13d7608c417e01b488413075b026b6",
}
"""SHA-256 of every schema that a release may name. A changed document gets a new format and a new file."""
NAMES = sorted(item.name for item in (files("dpsynth_platform.release") / "schemas").iterdir())


def test_every_schema_is_frozen() -> None:
    assert {name: hashlib.sha256(schema.text(name).encode()).hexdigest() for name in NAMES} == FROZEN


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_sound_and_refers_to_nothing_elsewhere(name: str) -> None:
    document = json.loads(schema.text(name))
    Draft202012Validator.check_schema(document)
    assert document["$id"].startswith("urn:dpsynth-platform:schema:")
    assert document["additionalProperties"] is False
    assert document["required"] == sorted(document["properties"])
    refs = {part["$ref"] for part in _parts(document) if "$ref" in part}
    assert all(ref.startswith("#/$defs/") for ref in refs)


def _parts(node: object) -> list[dict[str, str]]:
    if isinstance(node, dict):
        return [node, *(part for item in node.values() for part in _parts(item))]
    return [part for item in node for part in _parts(item)] if isinstance(node, list) else []


def test_the_formats_that_are_written_have_a_schema() -> None:
    name = schema.DOSSIERS[dossier.FORMAT]
    assert json.loads(schema.text(name))["properties"]["format"] == {"const": dossier.FORMAT}
    assert json.loads(schema.text(schema.REVIEWERS))["properties"]["format"] == {"const": reviewers.FORMAT}
    assert set(schema.DOSSIERS.values()) | {schema.REVIEWERS, schema.ATTESTATION} == set(NAMES)


def test_a_breach_names_place_and_rule_and_no_value() -> None:
    found = schema.breaches({"predicateType": "secret-value", "_type": 5, "more": "secret-more"}, schema.ATTESTATION)
    assert [breach.where for breach in found] == sorted(breach.where for breach in found)
    words = " ".join(f"{breach.where} {breach.message}" for breach in found)
    assert words.count("lacks predicate, subject") == 1
    assert "secret" not in words
    assert schema.breaches([], schema.ATTESTATION)[0].where == "$"
    assert len(schema.breaches({"subject": [5] * 100}, schema.ATTESTATION)) == 10
