"""Public ones of linked tables are released as they are: private rows are refused in their place."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from clinic import clinic
from databases import stored
from deployment import Deployment
from linked_line_cases import CONTRACT, clinic_deployment

from dpsynth_platform.linked_rows.line import plan_of
from dpsynth_platform.synth.planning import load_dataset

WARDS = {"public": "The clinic lists them.", "key": ["stay"]}


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    deployment = clinic_deployment(tmp_path, clinic(60))
    for name, value in deployment.environment.items():
        if name.startswith("DPSYNTH_"):
            monkeypatch.setenv(name, value)
    return deployment


def faults(deployment: Deployment) -> list[str]:
    """What `contract check` says, which `plan` says, too."""
    done = deployment.here("contract", "check", "people")
    if done.returncode:
        assert deployment.here("plan", "people").stderr == done.stderr
    return done.stderr.strip().split("\n") if done.returncode else []


def with_public(deployment: Deployment, key: str = "stay") -> None:
    deployment.contract = copy.deepcopy(CONTRACT)
    deployment.contract["tables"]["wards"] = WARDS | {"key": [key]}
    deployment.write()


def another(deployment: Deployment, **changed: object) -> None:
    """A second dataset."""
    document = copy.deepcopy(CONTRACT) | {"dataset": "other"} | changed
    (deployment.settings.contracts / "other.yaml").write_text(yaml.safe_dump(document))


def test_a_copy_of_a_private_table_is_not_public(deployment: Deployment) -> None:
    place = deployment.settings.home / "sources" / "people"
    shutil.copy(place / "stays.parquet", place / "wards.parquet")
    with_public(deployment)
    assert faults(deployment) == [
        "people: tables.wards.public: it has a file of the source of dataset people, or a copy of one; accepted: a "
        "table that is public, or leave the table out"
    ]


def test_a_file_of_another_datasets_source_is_not_public(deployment: Deployment) -> None:
    file = deployment.settings.home / "sources" / "other.parquet"
    pq.write_table(pa.table({"ward": ["A", "B"], "person": [1, 2]}), file)
    place = deployment.settings.home / "sources" / "people"
    with_public(deployment, "ward")
    (place / "wards.parquet").symlink_to(file)
    assert faults(deployment) == []  # nobody guards it
    one_table = {"source": {"uri": str(file), "format": "parquet", "key": ["person"]}, "tables": {}}  # a fault, too
    privacy = CONTRACT["privacy"] | {"owner_columns": ["person"], "max_contributions": 1}
    another(deployment, **one_table, privacy=privacy, columns={"person": {"type": "identifier"}, "ward": None})
    (line,) = faults(deployment)
    assert line.startswith("people: tables.wards.public: it has a file of the source of dataset other")


def test_the_source_of_a_contract_with_faults_is_guarded(deployment: Deployment) -> None:
    place = deployment.settings.home / "sources" / "people"
    other = deployment.settings.home / "sources" / "other"
    other.mkdir()
    for name, table in clinic(61).items():
        pq.write_table(table, other / f"{name}.parquet")
    tables = copy.deepcopy(CONTRACT["tables"]) | {"rooms": {"public": None}}
    another(deployment, source={"uri": str(other)}, tables=tables)
    shutil.copy(other / "stays.parquet", place / "wards.parquet")
    with_public(deployment)
    lines = faults(deployment)
    assert [line.split(": ")[1] for line in lines] == ["tables.codes.public", "tables.wards.public"]
    assert all("it has a file of the source of dataset other" in line for line in lines)  # which may have no public one


def test_two_datasets_may_have_the_same_public_table(deployment: Deployment) -> None:
    another(deployment)
    assert faults(deployment) == []
    private = copy.deepcopy(CONTRACT["tables"])
    private["codes"] = {"key": ["code"], "parent": {"table": "stays", "columns": ["stay"]}, "max_children": 1}
    del private["diagnoses"]
    another(deployment, tables=private)
    (line,) = faults(deployment)
    assert line.startswith("people: tables.codes.public: it has a file of the source of dataset other")


def test_a_table_of_a_database_that_another_dataset_guards_is_not_public(deployment: Deployment) -> None:
    tables = clinic(60)
    flat = {
        name: table.rename_columns([each.replace(" ", "_") for each in table.column_names])
        for name, table in tables.items()
    }
    path = stored(deployment.settings.home / "clinic.sqlite", flat, {})
    text = yaml.safe_dump(CONTRACT | {"source": {"uri": str(path)}}).replace("patient id", "patient_id")
    file = deployment.settings.contracts / "people.yaml"
    file.write_text(text)
    assert faults(deployment) == []
    private = yaml.safe_load(text) | {"dataset": "other"}
    private["tables"]["codes"] = {"key": ["code"], "parent": {"table": "stays", "columns": ["stay"]}, "max_children": 1}
    del private["tables"]["diagnoses"]
    (deployment.settings.contracts / "other.yaml").write_text(yaml.safe_dump(private))
    assert faults(deployment) == [
        "people: tables.codes.public: dataset other declares it as private; accepted: a table that is public, or leave "
        "the table out"
    ]


@pytest.mark.parametrize(
    ("source", "is_private"),
    [
        ({"table": "CODES"}, True),
        ({"query": "SELECT code AS person, 1 AS ward FROM main.codes WHERE code <> ''"}, True),
        ({"query": 'WITH stays AS (SELECT * FROM "Codes") SELECT code AS person, 1 AS ward FROM stays'}, True),
        ({"query": "SELECT s.stay AS person, c.code AS ward FROM stays s, codes c"}, False),
        ({"query": "SELECT stay AS person, 'codes' AS ward FROM stays"}, False),
    ],
)
def test_what_another_dataset_reads_alone_of_a_database_is_not_public(
    deployment: Deployment, source: dict[str, str], is_private: bool
) -> None:
    flat = {
        name: table.rename_columns([each.replace(" ", "_") for each in table.column_names])
        for name, table in clinic(60).items()
    }
    path = stored(deployment.settings.home / "clinic.sqlite", flat, {})
    text = yaml.safe_dump(CONTRACT | {"source": {"uri": str(path)}}).replace("patient id", "patient_id")
    (deployment.settings.contracts / "people.yaml").write_text(text)
    other = {"uri": f"sqlite:///{path}", "format": "sql", "key": ["person"]} | source
    another(deployment, source=other, tables={}, columns={"person": {"type": "identifier"}})
    found = "people: tables.codes.public: dataset other declares it as private"
    assert [line.partition(";")[0] for line in faults(deployment)] == [found] * is_private


def test_what_a_run_has_pinned_is_not_public(deployment: Deployment) -> None:
    from dpsynth_platform.sources.source import pin

    contract, _ = load_dataset(deployment.settings, "people")
    pin(contract, deployment.settings.restricted, register=True)
    place = deployment.settings.home / "sources" / "people"
    copied = shutil.copy(place / "patients.parquet", deployment.settings.home / "sources" / "patients.parquet")
    pq.write_table(clinic(61)["patients"], place / "patients.parquet")  # the next version
    shutil.copy(copied, place / "wards.parquet")
    with_public(deployment, "patient id")
    (line,) = faults(deployment)
    assert line.startswith("people: tables.wards.public: it has the content of a source that this deployment guards")


def test_a_plan_of_public_tables_is_made(deployment: Deployment) -> None:
    assert plan_of(load_dataset(deployment.settings, "people")[0]).method == "linked"
