"""Attacks on the line of linked tables: other rows under a name or a budget that is not theirs."""

from __future__ import annotations

import copy
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from clinic import clinic, written
from databases import stored
from deltalake import DeltaTable, write_deltalake
from deployment import Deployment
from line_cases import run_here
from linked_line_cases import CONTRACT, clinic_deployment
from test_linked_reading import KEYS, contract_of, read

from dpsynth_platform.contracts.loading import load_family
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.linked_rows.line import plan_of
from dpsynth_platform.privacy.events import event_from_json
from dpsynth_platform.privacy.statement import privacy_statement, words_of
from dpsynth_platform.scrub.fingerprints import FINGERPRINT_DTYPE, owner_fingerprints
from dpsynth_platform.sources.source import pin
from dpsynth_platform.synth.planning import load_dataset

PRIVACY = {
    "unit": "user",
    "namespace": "person",
    "guarantee": {"epsilon": 1.0, "delta": 1.0e-6},
    "expected_units": 600,
}
WARDS = {"public": "The clinic lists them.", "key": ["stay"]}


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    deployment = clinic_deployment(tmp_path, clinic(60))
    for name, value in deployment.environment.items():
        if name.startswith("DPSYNTH_"):
            monkeypatch.setenv(name, value)
    return deployment


def in_sqlite(path: Path) -> Path:
    named = {
        name: table.rename_columns([each.replace(" ", "_") for each in table.column_names])
        for name, table in clinic(60).items()
    }
    return stored(path, named, {})


def with_public(deployment: Deployment) -> None:
    deployment.contract = copy.deepcopy(CONTRACT)
    deployment.contract["tables"]["wards"] = WARDS
    deployment.write()


def refused(deployment: Deployment) -> None:
    with pytest.raises(ContractError, match=r"tables\.wards\.public"):
        plan_of(load_dataset(deployment.settings, "people")[0])


def test_a_link_to_a_private_table_is_not_public(deployment: Deployment) -> None:
    place = deployment.settings.home / "sources" / "people"
    (place / "wards.parquet").symlink_to(place / "stays.parquet")
    with_public(deployment)
    refused(deployment)


def as_delta(place: Path, name: str) -> None:
    (place / f"{name}.parquet").unlink()
    write_deltalake(str(place / name), clinic(60)[name])


def test_a_link_to_a_private_delta_table_is_not_public(deployment: Deployment) -> None:
    place = deployment.settings.home / "sources" / "people"
    as_delta(place, "stays")
    (place / "wards").symlink_to(place / "stays")
    with_public(deployment)
    refused(deployment)


def test_a_delta_table_whose_log_names_a_private_file_is_not_public(deployment: Deployment) -> None:
    place = deployment.settings.home / "sources" / "people"
    as_delta(place, "stays")
    (file,) = (place / "stays").glob("*.parquet")
    shutil.copytree(place / "stays" / "_delta_log", place / "wards" / "_delta_log")
    log = place / "wards" / "_delta_log" / "00000000000000000000.json"
    log.write_text(log.read_text().replace(file.name, str(file)))
    with_public(deployment)
    refused(deployment)


def test_a_private_delta_table_that_was_compacted_elsewhere_is_not_public(deployment: Deployment) -> None:
    place = deployment.settings.home / "sources" / "people"
    as_delta(place, "stays")
    contract, _ = load_dataset(deployment.settings, "people")
    pin(contract, deployment.settings.restricted, register=True)
    shutil.copytree(place / "stays", place / "wards")
    DeltaTable(str(place / "wards")).optimize.z_order(["ward"])
    for file in (place / "wards").glob("part-*.parquet"):
        if file.name in {each.name for each in (place / "stays").glob("*.parquet")}:
            file.unlink()
    with_public(deployment)
    refused(deployment)


def test_a_copied_database_does_not_make_a_private_table_public(deployment: Deployment) -> None:
    path = in_sqlite(deployment.settings.home / "clinic.sqlite")
    text = yaml.safe_dump(CONTRACT | {"source": {"uri": str(path)}}).replace("patient id", "patient_id")
    (deployment.settings.contracts / "people.yaml").write_text(text)
    other = shutil.copy(path, deployment.settings.home / "other.sqlite")
    private = yaml.safe_load(text) | {"dataset": "other"}
    private["source"]["uri"] = str(other)
    private["tables"]["codes"] = {"key": ["code"], "parent": {"table": "stays", "columns": ["stay"]}, "max_children": 1}
    del private["tables"]["diagnoses"]
    (deployment.settings.contracts / "other.yaml").write_text(yaml.safe_dump(private))
    with pytest.raises(ContractError, match=r"tables\.codes\.public"):
        plan_of(load_dataset(deployment.settings, "people")[0])


def test_a_database_table_that_a_run_has_read_is_not_public(deployment: Deployment) -> None:
    path = in_sqlite(deployment.settings.home / "clinic.sqlite")
    text = yaml.safe_dump(CONTRACT | {"source": {"uri": str(path)}}).replace("patient id", "patient_id")
    file = deployment.settings.contracts / "people.yaml"
    file.write_text(text)
    ran = run_here(deployment, steps=["raw"])
    assert ran.success, ran.failures
    changed = yaml.safe_load(text)
    changed["tables"]["stays"] = {"public": "The clinic lists them.", "key": ["stay"]}
    del changed["tables"]["diagnoses"], changed["tables"]["codes"]
    file.write_text(yaml.safe_dump(changed))
    with pytest.raises(ContractError, match=r"tables\.stays\.public: a run has read it as private"):
        plan_of(load_dataset(deployment.settings, "people")[0])


def test_a_later_content_of_a_table_that_a_run_has_read_is_not_public(deployment: Deployment) -> None:
    place = deployment.settings.home / "sources" / "people"
    ran = run_here(deployment, steps=["raw"])
    assert ran.success, ran.failures
    with_public(deployment)
    pq.write_table(pa.table({"stay": ["a", "b"]}), place / "wards.parquet")
    plan_of(load_dataset(deployment.settings, "people")[0])  # a further one may be
    pq.write_table(clinic(60)["stays"].slice(1), place / "stays.parquet")
    deployment.contract["tables"]["stays"] = WARDS
    del deployment.contract["tables"]["diagnoses"], deployment.contract["tables"]["codes"]
    deployment.write()
    with pytest.raises(ContractError, match=r"tables\.stays\.public: a run has read it as private"):
        plan_of(load_dataset(deployment.settings, "people")[0])


def test_a_private_table_that_is_a_link_into_the_restricted_zone_is_refused(tmp_path: Path) -> None:
    place, zone = written(tmp_path / "clinic", clinic(60)), tmp_path / "zone"
    zone.mkdir()
    (place / "stays.parquet").rename(zone / "kept.parquet")
    (place / "stays.parquet").symlink_to(zone / "kept.parquet")
    with pytest.raises(SourceError, match="among the platform's own files"):
        pin(contract_of(place), zone, register=True)


def test_a_delta_table_whose_log_leads_into_the_restricted_zone_is_refused(tmp_path: Path) -> None:
    place, zone = written(tmp_path / "clinic", clinic(60)), tmp_path / "zone"
    as_delta(place, "stays")
    (file,) = (place / "stays").glob("*.parquet")
    zone.mkdir()
    file.rename(zone / file.name)
    log = place / "stays" / "_delta_log" / "00000000000000000000.json"
    log.write_text(log.read_text().replace(file.name, str(zone / file.name)))
    with pytest.raises(SourceError, match="among the platform's own files"):
        pin(contract_of(place), zone, register=True)


def test_rows_in_a_databases_log_are_another_content(tmp_path: Path) -> None:
    path = in_sqlite(tmp_path / "clinic.sqlite")
    contract = contract_of(path, tables=json.loads(json.dumps(CONTRACT["tables"]).replace("patient id", "patient_id")))
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        first = pin(contract, tmp_path / "zone", register=True)
        writer.execute("DELETE FROM stays WHERE stay = 's0'")
        writer.commit()
        second = pin(contract, tmp_path / "zone", register=True)
        assert second.name != first.name


def test_a_later_content_has_the_same_id_by_any_spelling_of_its_place(tmp_path: Path) -> None:
    path = in_sqlite(tmp_path / "clinic.sqlite")
    tables = json.loads(json.dumps(CONTRACT["tables"]).replace("patient id", "patient_id"))
    first = pin(contract_of(path, tables=tables), tmp_path / "zone", register=True)
    (tmp_path / "link.sqlite").symlink_to(path)
    for number, uri in enumerate((f"file://{path}", str(tmp_path / "link.sqlite"))):
        with closing(sqlite3.connect(path)) as writer:
            writer.execute(f"DELETE FROM stays WHERE stay = 's{number}'")
            writer.commit()
        later = pin(contract_of(path, tables=tables, source={"uri": uri}), tmp_path / "zone", register=True)
        assert later.table_id == first.table_id and later.version > first.version


def test_a_grandchild_cannot_be_read_alone_with_its_parent_as_the_owner(tmp_path: Path) -> None:
    place = written(tmp_path / "clinic", clinic(60))
    whole = pin(contract_of(place), tmp_path / "zone", register=True)
    alone = contract_of(
        place,
        tables={
            "diagnoses": {
                "key": ["stay", "line"],
                "max_children": 3,
                "columns": {
                    "severity": {"type": "integer", "min": 1, "max": 5},
                    "code": {"type": "categorical", "values": ["x", "y", "z"]},
                },
            }
        },
        privacy=PRIVACY | {"owner_columns": ["diagnoses.stay"]},
    )
    parts = pin(alone, tmp_path / "zone", register=True).parts
    (table_id,) = parts
    assert table_id in whole.parts and parts[table_id] != whole.parts[table_id]


def test_rows_that_join_nothing_do_not_outlive_an_erased_owner(tmp_path: Path) -> None:
    place = tmp_path / "clinic"
    place.mkdir()
    policies = {"id": ["p1", "p2"], "part": ["a", None], "person": ["gone", "here"], "sex": ["F", "M"]}
    pq.write_table(pa.table(policies), place / "policies.parquet")
    claims = {"cid": ["c1", "c2"], "pid": ["p1", "p1"], "ppart": ["a", None], "v": [1, 2]}
    pq.write_table(pa.table(claims), place / "claims.parquet")
    number, sex = {"type": "integer", "min": 0, "max": 5}, {"type": "categorical", "values": ["F", "M"]}
    parent = {"table": "policies", "columns": ["pid", "ppart"]}
    contract = contract_of(
        place,
        tables={
            "policies": {"key": ["id", "part"], "max_children": 1, "columns": {"sex": sex}},
            "claims": {"key": ["cid"], "parent": parent, "max_children": 2, "columns": {"v": number}},
        },
        privacy=PRIVACY | {"owner_columns": ["policies.person"]},
    )
    erased = np.array([bytes.fromhex(owner_fingerprints(["gone"], KEYS)[0].as_py())], FINGERPRINT_DTYPE)
    assert dict(read(contract, tmp_path / "read", erased).rows) == {"policies": 1, "claims": 0}


def test_the_statement_says_that_repeated_keys_stop_a_run(tmp_path: Path) -> None:
    contract = contract_of(written(tmp_path / "clinic", clinic(60)))
    plan = plan_of(contract)
    event = event_from_json(plan.event)
    family = load_family(Path(__file__).parents[2] / "deploy" / "families" / "household-surveys.yaml")
    shown = privacy_statement(contract, family, event, words_of(plan.method, plan.event)).not_covered
    assert any("stands in several rows" in line for line in shown)
