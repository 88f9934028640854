"""Shared by the lineage tests: an emitter without outside receivers, and the specification's schemas."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clearance_cases import BUDGETS
from jsonschema import Draft202012Validator
from ledger_cases import KEYS
from referencing import Registry, Resource

from dpsynth_platform.contracts import cross_checks
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.lineage import custom_facets as own_facets
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.store import LineageStore

PROJECT = Path(__file__).resolve().parents[2]
SPEC = Path(os.environ.get("DPSYNTH_SPEC") or PROJECT.parent / "shared" / "spec") / "openlineage"
Emitting = Callable[..., LineageEmitter]
OPENLINEAGE = "https://openlineage.io/spec/2-0-2/OpenLineage.json"


@pytest.fixture(autouse=True)
def _no_outside_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def contract() -> DataContract:
    return parse_contract(
        {
            "dataset": "visits",
            "description": "Visits to a clinic.",
            "owners": ["clinic@example.org"],
            "source": {"uri": "/data/visits", "key": ["patient_id"]},
            "family": "clinic",
            "privacy": {
                "unit": "user",
                "owner_columns": ["patient_id"],
                "namespace": "patient",
                "max_contributions": 2,
                "guarantee": {"epsilon": 1.0},
                "expected_units": 1000,
            },
            "columns": {
                "patient_id": {"type": "identifier"},
                "email": {"type": "text", "pii": "hash"},
                "age": {"type": "integer", "min": 0, "max": 120},
                "insured": {"type": "boolean"},
            },
            "generate": {"rows": 100},
            "release": {"uri": "/public/visits"},
        },
        where="test",
        variables={},
    )


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "lineage" / "events.jsonl"


@pytest.fixture
def url(record: Path) -> str:
    return f"sqlite:///{record.parent / 'ledger.db'}"


@pytest.fixture
def store(url: str) -> LineageStore:
    return LineageStore(url)


@pytest.fixture
def ledger(url: str) -> Ledger:
    """With an account for each family of the tests of clearance."""
    opened = Ledger(url)
    for budget in BUDGETS.values():
        opened.open_account(budget, (*KEYS, "other") if budget.namespace == "customer" else KEYS)
    return opened


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a method of this version trained from a checkpoint."""
    monkeypatch.setattr(cross_checks, "BASE_MODEL_METHODS", ("independent",))


@pytest.fixture
def emitting(url: str, record: Path) -> Emitting:
    """Makes emitters of one deployment, each with its own receiver."""
    return lambda client=lambda: None: LineageEmitter(url, record.parent, client)


@pytest.fixture
def emitter(emitting: Emitting) -> LineageEmitter:
    return emitting()


@pytest.fixture
def events() -> Callable[[Path], list[dict[str, Any]]]:
    """Reads a record of events."""
    return lambda record: [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def check() -> Callable[[dict[str, Any]], None]:
    """Validates our own facets always, and the whole event where the specification is at hand."""
    return _check


@pytest.fixture
def own_port() -> Iterator[int]:
    """A port on which a receiver may come and go: nobody else on this machine is given it meanwhile."""
    with socket.socket() as held:  # bound and not listening, so that connections are refused
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def specification() -> bool:
    """Whether the specification is at hand."""
    return SPEC.is_dir()


def _check(event: dict[str, Any]) -> None:
    for name, facet in _all_facets(event):
        if name in own_facets.CUSTOM_FACETS:
            schema = own_facets.schema_of(name, facet["_schemaURL"])
            assert schema is not None, f"{name} names a schema that is not shipped"
            validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
            validator.validate({name: facet})
    if SPEC.is_dir():
        _check_against_specification(event)


def _check_against_specification(event: dict[str, Any]) -> None:
    schemas = [json.loads(path.read_text()) for path in [SPEC / "OpenLineage.json", *SPEC.glob("facets/*.json")]]
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in schemas
    )
    for url in (OPENLINEAGE, f"{OPENLINEAGE}#/$defs/RunEvent"):
        Draft202012Validator(
            {"$ref": url}, registry=registry, format_checker=Draft202012Validator.FORMAT_CHECKER
        ).validate(event)
    known = {schema["$id"] for schema in schemas}
    for name, facet in _all_facets(event):
        if name not in own_facets.CUSTOM_FACETS:
            assert facet["_schemaURL"].partition("#")[0] in known, f"{name} is of a version that the spec does not have"
            Draft202012Validator({"$ref": facet["_schemaURL"]}, registry=registry).validate(facet)


def _all_facets(event: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for holder in (event["run"], event["job"], *event.get("inputs", []), *event.get("outputs", [])):
        for kind in ("facets", "inputFacets", "outputFacets"):
            yield from holder.get(kind, {}).items()
