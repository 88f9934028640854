"""A table of a database file is one table for the ledger, whether a contract reads it alone, by a query or linked."""

from __future__ import annotations

import copy
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from clinic import TABLES, clinic
from databases import database, stored
from deployment import Deployment
from line_cases import NO_CHANCE, ledger_of, run_here
from linked_line_cases import CONTRACT
from test_linked_places import KEYS

from dpsynth_platform.foundation.yaml_files import dump

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]

ALONE: dict[str, Any] = {
    "dataset": "alone",
    "description": "Patients, alone.",
    "owners": ["tests@example.org"],
    "privacy": CONTRACT["privacy"] | {"owner_columns": ["patient id"], "max_contributions": 1},
    "columns": {name: {"ignore": True} for name in TABLES["tables"]["patients"]["columns"]}
    | {"patient id": {"type": "identifier"}, "sex": TABLES["tables"]["patients"]["columns"]["sex"]},
    "generate": {"method": "independent", "rows": 10},
    "audit": {"canaries": 60, "max_epsilon_lower_bound": 1.0} | NO_CHANCE,
    "release": {"uri": "${DPSYNTH_HOME}/public/alone", "approvals": 1},
}
OTHER = "others"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment of the linked clinic in a database, and another family in the same namespace."""
    contract = copy.deepcopy(CONTRACT)
    place = tmp_path / "clinic.db"
    contract["source"] = {"uri": str(place)}
    deployment = Deployment(tmp_path, contract=contract)
    deployment.write()
    tables = clinic(600)
    stored(place, {name: tables[name] for name in ("patients", "codes", "stays", "diagnoses")}, KEYS)
    database(place, ['CREATE VIEW "seen" AS SELECT "patient id", sex FROM patients', "CREATE TABLE notes(a integer)"])
    monkeypatch.setenv("DPSYNTH_HOME", str(deployment.settings.home))
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(deployment.settings.deploy))
    family = deployment.family | {"family": OTHER}
    (deployment.settings.deploy / "families" / f"{OTHER}.yaml").write_text(dump(family))
    return deployment


def alone(deployment: Deployment, family: str, **source: Any) -> None:
    """Writes the contract of one table or query of the database."""
    place = deployment.root / "clinic.db"
    found = {"uri": f"sqlite:///{place}", "format": "sql", "key": ["patient id"]} | source
    document = copy.deepcopy(ALONE) | {"family": family, "source": found}
    if "query" in source or source.get("table") in ("seen", "staff"):
        document["columns"] = {name: ALONE["columns"][name] for name in ("patient id", "sex")}
    (deployment.settings.contracts / "alone.yaml").write_text(dump(document))


def pinned(deployment: Deployment, dataset: str) -> str:
    """What a run says that refuses to start; empty where it starts."""
    job = "people_candidate" if dataset == "people" else f"{dataset}_candidate"
    return str(run_here(deployment, job, steps=["raw"]).failures.get("raw", ""))


READ = [
    {"table": "patients"},
    {"table": "main.PATIENTS"},
    {"table": "seen"},
    {"query": 'SELECT "patient id", sex FROM patients'},
    {"query": "SELECT 1 AS \"patient id\", 'F' AS sex"},
]


@pytest.mark.parametrize("source", READ)
@pytest.mark.parametrize("first", ["people", "alone"])
def test_a_private_table_is_of_one_family_however_it_is_read(own: Deployment, first: str, source: Any) -> None:
    alone(own, OTHER, **source)
    order = ["people", "alone"] if first == "people" else ["alone", "people"]
    assert pinned(own, order[0]) == ""
    refused = pinned(own, order[1])
    assert "belongs to family" in refused and "for life" in refused and "clinic.db" in refused
    before = len(ledger_of(own).history())
    assert pinned(own, order[1]) and not pinned(own, order[0])
    assert len(ledger_of(own).history()) == before, "a refused run binds nothing"


@pytest.mark.parametrize("source", READ)
@pytest.mark.parametrize("first", ["people", "alone"])
def test_contracts_of_one_family_read_the_same_database(own: Deployment, first: str, source: Any) -> None:
    alone(own, own.contract["family"], **source)
    for dataset in ["people", "alone"] if first == "people" else ["alone", "people"]:
        assert pinned(own, dataset) == ""


def test_a_table_that_no_contract_of_linked_tables_reads_may_be_of_another_family(own: Deployment) -> None:
    with closing(sqlite3.connect(own.root / "clinic.db")) as connection:
        connection.execute('CREATE TABLE staff AS SELECT "patient id", sex FROM patients')
        connection.commit()
    assert pinned(own, "people") == ""
    alone(own, OTHER, table="staff")
    assert pinned(own, "alone") == ""


def test_a_changed_or_copied_or_linked_database_is_the_same(own: Deployment) -> None:
    assert pinned(own, "people") == ""
    place = own.root / "clinic.db"
    copied = own.root / "copy.db"
    copied.write_bytes(place.read_bytes())
    linked = own.root / "link.db"
    linked.symlink_to(place)
    alone(own, OTHER, table="patients", uri=f"sqlite:///{copied}")
    assert "belongs to family" in pinned(own, "alone")
    database(place, ["INSERT INTO notes VALUES (1)"])
    for uri in (f"sqlite:///{linked}", f"sqlite+pysqlite:///{place}"):
        alone(own, OTHER, table="patients", uri=uri)
        assert "belongs to family" in pinned(own, "alone")


def test_a_lookup_that_another_contract_reads_as_its_table_is_not_public(own: Deployment) -> None:
    alone(own, OTHER, table="codes")
    assert "tables.codes.public: dataset alone declares it as private" in pinned(own, "people")
