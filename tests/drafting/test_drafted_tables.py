"""Contracts of linked tables: drafted from keys and names, filled in, checked and planned; no row is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from clinic import clinic, written
from databases import MARKER, NUMBER, ROWS, SHOP, database, filled
from deployment import Deployment
from line_cases import small_deployment
from linked_line_cases import CONTRACT, clinic_deployment

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import contract_json_schema, load_contract
from dpsynth_platform.drafting.draft import drafted_linked
from dpsynth_platform.drafting.linked import are_several
from dpsynth_platform.foundation.errors import BoundingError, ContractDraft
from dpsynth_platform.operations.bound_learning import learn_bound
from dpsynth_platform.reviewing.contract_words import column_words, contract_words
from dpsynth_platform.reviewing.new_versions import version_stamp
from dpsynth_platform.synth.planning import changes, check_contract, load_dataset

TRACKS = ("INSERT INTO Track VALUES (1, 'x', NULL)",)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return small_deployment(tmp_path / "deployment")


def refused(deployment: Deployment, *arguments: str) -> list[str]:
    """The lines of a command that fails."""
    done = deployment.here(*arguments)
    assert done.returncode == 1 and MARKER not in done.stderr + done.stdout, done.stderr
    return done.stderr.replace(f"{deployment.settings.contracts}/", "").strip().split("\n")


def fill_in(deployment: Deployment, name: str, **changed: Any) -> None:
    """Fills in a drafted contract of the family that the deployment has."""
    file = deployment.settings.contracts / f"{name}.yaml"
    document = filled(file.read_text())
    document |= {"description": "A shop.", "owners": ["a@example.org"], "family": "tests"} | changed
    document["privacy"] |= {"unit": "user", "namespace": "person", "expected_units": 50_000}
    document["privacy"]["guarantee"]["epsilon"] = 1.0
    document["audit"] = {"accept_inconclusive": "A test of other things."}
    file.write_text(yaml.safe_dump(document))


def test_ten_tables_of_a_database_are_drafted_filled_in_checked_and_planned(deployment: Deployment) -> None:
    shop = database(deployment.settings.home / "shop.sqlite", [*SHOP, *ROWS, *TRACKS])
    done = deployment.dpsynth("contract", "init", str(shop))
    assert done.returncode == 0, done.stderr
    file = deployment.settings.contracts / "shop.yaml"
    text = file.read_text()
    for shown in (text, done.stdout, done.stderr):
        assert MARKER not in shown and str(NUMBER) not in shown and "86753" not in shown
    assert (deployment.settings.families / "shop-owners.yaml").is_file()
    assert "uri: '${DPSYNTH_HOME}/shop.sqlite'" in text and "source.period_column" not in text
    assert "# privacy.owner_columns: [Customer.COLUMN] above, and max_children: N of Customer." in text
    gaps = refused(deployment, "contract", "check", "shop")
    for gap in (
        "shop.yaml: tables.Line.max_children: not filled in; accepted: the most rows that are kept of each row of the "
        "parent",
        "shop.yaml: tables.Track.public: not filled in; accepted: why it has nothing about people, or leave out the "
        "table",
        "shop.yaml: tables.Invoice.columns.Total.min: not filled in; accepted: a number",
        "shop.yaml: tables.Customer.columns.Country.values: a list of 0; accepted: 2 to 10000 values, or learned",
        "shop.yaml: family: not filled in; accepted: a string",
        "shop.yaml: privacy.expected_units: not filled in; accepted: a whole number",
    ):
        assert gap in gaps
    assert len(gaps) == 24
    with pytest.raises(ContractDraft):
        load_contract(file, deployment.settings.variables)
    fill_in(deployment, "shop")
    checked = deployment.dpsynth("contract", "check", "shop")
    assert checked.returncode == 0, checked.stderr
    assert "valid; dataset shop, 6 private tables with 8 modelled columns" in checked.stdout
    assert "source: its tables and columns are as declared" in checked.stdout
    assert "method aim: of each of linked tables" in checked.stdout
    planned = deployment.json("plan", "shop")
    assert planned["fits"] and planned["mechanism"] == "linked" and planned["claimed"] <= 1
    assert planned["why_mechanism"].startswith("each table by aim: ")
    assert "Line: at most 9 rows of an owner, which weigh one row together" in planned["preparation"]


def test_the_draft_depends_on_no_row(tmp_path: Path, deployment: Deployment) -> None:
    empty, full = database(tmp_path / "empty.db", SHOP), database(tmp_path / "full.db", [*SHOP, *ROWS])
    first, second = (drafted_linked(deployment.settings, place, "shop", "tests") for place in (empty, full))
    assert first.text().replace(str(empty), str(full)) == second.text() and first.budget is None
    assert yaml.safe_load(second.text()) == second.contract


def test_a_directory_of_csv_files_has_its_dialect_in_the_draft(tmp_path: Path, deployment: Deployment) -> None:
    place = tmp_path / "clinic"
    place.mkdir()
    (place / "patients.csv").write_text(f"patient_id;age\n1;{NUMBER}\n")
    (place / "stays.csv").write_text(f"stay_id;patient_id;ward\n1;1;{MARKER}\n")
    lines = refused(deployment, "contract", "init", str(place), "--csv-separator", ";")
    assert lines[-1].startswith("tables.patients: ") and "--csv-header" in lines[-1]
    done = deployment.here("contract", "init", str(place), "--csv-header", "--csv-separator", ";")
    assert done.returncode == 0, done.stderr
    document = yaml.safe_load((deployment.settings.contracts / "clinic.yaml").read_text())
    assert document["source"] == {"uri": str(place), "csv": {"separator": ";"}}
    assert document["tables"]["stays"]["parent"] == {"table": "patients", "columns": ["patient_id"]}
    fill_in(deployment, "clinic")
    assert deployment.here("contract", "check", "clinic").returncode == 0
    (place / "stays.csv").write_text(f"stay_id;patient_id;ward;{MARKER}\n1;1;x;y\n")
    assert refused(deployment, "contract", "check", "clinic") == [
        "clinic: tables.stays: not declared in the contract: the fields no. 4 of its first line, which are not shown; "
        "declare each in tables.stays.columns, with ignore: true to leave it out"
    ]


def test_what_is_one_table_and_what_are_several(tmp_path: Path) -> None:
    one, other = pa.table({"id": [1]}), pa.table({"number": [1]})
    for place, tables in (
        ("parts", {"a.parquet": one, "b.parquet": one}),
        ("several", {"a.parquet": one, "b.parquet": other}),
        ("partitions", {"day=1/a.parquet": one, "day=2/a.parquet": other}),
        ("single", {"a.parquet": one}),
    ):
        for name, table in tables.items():
            file = tmp_path / place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, file)
    (tmp_path / "empty").mkdir()
    database(tmp_path / "a.duckdb", ["CREATE TABLE users(id integer)"])
    (tmp_path / "text.txt").write_text("x")
    found = {place.name for place in tmp_path.iterdir() if are_several(place)}
    assert found == {"several", "a.duckdb"}


def test_questions_are_for_one_table(deployment: Deployment) -> None:
    shop = database(deployment.settings.home / "shop.db", SHOP)
    assert refused(deployment, "contract", "init", str(shop), "--ask") == [
        "--ask: is for one table; accepted: without it, and an editor for the draft"
    ]
    assert not (deployment.settings.contracts / "shop.yaml").exists()


def changed(path: str, value: Any) -> dict[str, Any]:
    """The clinic's contract with another value at a path; None removes the key."""
    document = yaml.safe_load(yaml.safe_dump(CONTRACT))
    *keys, last = path.split("/")
    part = document
    for key in keys:
        part = part[key]
    if value is None:
        del part[last]
    else:
        part[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "messages"),
    [
        (
            "tables/patients/columns/birth/min",
            3.5,
            ["tables.patients.columns.birth.min: 3.5; accepted: a date such as 2026-01-31"],
        ),
        (
            "tables/stays/columns/ward/valus",
            ["A"],
            [
                "tables.stays.columns.ward.valus: unknown key (did you mean 'values'?); accepted: accept_pii, most, "
                "nullable, type, values"
            ],
        ),
        (
            "tables/stays/constraints",
            [{"forbid": {"patients.sex": [True], "ward": ["A"]}}],
            ["tables.stays.constraints.0.forbid.patients.sex: true without quotes is no text; accepted: "],
        ),
        (
            "tables/stays/constraints",
            [{"forbid": {"patients.sex": ["F"], "ward": ["A"]}}, {"forbid": {"previous.ward": ["Z"], "ward": ["A"]}}],
            [
                "tables.stays.constraints.1.forbid.previous.ward: 'Z' is not in the column's list of values; accepted: "
                "A, B, C"
            ],
        ),
        (
            "privacy/owner_columns",
            ["stays.stay"],
            ["privacy.owner_columns: stays.stay; accepted: one column of the root, as patients.COLUMN"],
        ),
        (
            "privacy/max_contributions",
            3,
            ["privacy.max_contributions: 3; with tables it follows from them and is 17; accepted: leave it out"],
        ),
        ("columns", {"a": {"type": "boolean"}}, ["columns: beside tables; accepted: leave it out, and declare "]),
        ("tables", {}, ["tables: a dict; accepted: tables by their names, or columns in place of tables"]),
        (
            "tables/stays/parent/table",
            "nobody",
            ["tables.stays.parent.table: 'nobody'; accepted: diagnoses, patients"],
        ),
        ("tables/stays/key", None, ["tables.diagnoses.parent.columns: 1, and the key of stays has 0; accepted: "]),
        ("generate/constraints", [{"ascending": ["a", "b"]}], ["generate.constraints: with tables; accepted: tables."]),
        (
            "generate",
            {"method": "arn", "network": {"sampled": "records"}},
            ["generate.network.sampled: 'records' with tables; accepted: owners, or leave it out"],
        ),
        (
            "generate",
            {"method": "rap"},
            ["generate.method: 'rap' with tables; accepted: aim, mst, mwem, independent, "],
        ),
        ("generate", {"method": "aim", "network": {"steps": 3}}, ["generate.network: is for method arn, tbart, "]),
    ],
)
def test_faults_of_tables_are_named_with_their_paths(
    tmp_path: Path, path: str, value: Any, messages: list[str]
) -> None:
    deployment = clinic_deployment(tmp_path)
    deployment.contract = changed(path, value)
    deployment.write()
    lines = refused(deployment, "contract", "check", "people", "--offline")
    for message in messages:
        assert any(line.startswith(f"people.yaml: {message}") for line in lines), lines
    assert not any("TABLE" in line and "tables.TABLE" not in line for line in lines)


def test_faults_of_tables_hide_no_fault_elsewhere(tmp_path: Path) -> None:
    deployment = clinic_deployment(tmp_path)
    deployment.contract = changed("tables/stays/max_children", 0)
    deployment.contract["privacy"]["expected_units"] = "many"
    deployment.contract["descripton"] = deployment.contract.pop("description")
    deployment.contract["family"] = "strangers"
    deployment.write()
    found = [line.split(": ")[1] for line in refused(deployment, "contract", "check", "people")]
    assert found == ["tables.stays.max_children", "descripton", "privacy.expected_units", "family"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tables: tables["stays"].append_column("bed", pa.array([1] * len(tables["stays"]))),
            "people: tables.stays: not declared in the contract: bed (int64); declare each in tables.stays.columns, "
            "with ignore: true to leave it out",
        ),
        (
            lambda tables: tables["stays"].drop_columns(["ward"]),
            "people: tables.stays: column 'ward' is declared, but not in the source",
        ),
    ],
)
def test_columns_of_the_source_are_compared(tmp_path: Path, change: Any, message: str) -> None:
    tables = clinic(50)
    tables["stays"] = change(tables)
    deployment = clinic_deployment(tmp_path, tables)
    assert refused(deployment, "contract", "check", "people") == [message]
    assert refused(deployment, "plan", "people") == [message]


def test_types_and_keys_of_the_source_are_compared(tmp_path: Path) -> None:
    tables = clinic(50)
    column = tables["stays"].column_names.index("admitted")
    tables["stays"] = tables["stays"].set_column(column, "admitted", pa.array([1.5] * len(tables["stays"])))
    deployment = clinic_deployment(tmp_path, tables)
    (line,) = refused(deployment, "contract", "check", "people")
    assert line.startswith("people: tables.stays.columns.admitted: declared date, found Arrow type double; accepted: ")
    deployment.contract = changed("tables/diagnoses/constraints", [{"forbid": {"code": ["nine"], "severity": [1]}}])
    written(deployment.write().settings.home / "sources" / "people", clinic(50))
    (line,) = refused(deployment, "contract", "check", "people")
    assert line.startswith("people: tables.diagnoses.constraints.0.forbid.code: 'nine' is not in the column's list")
    assert deployment.here("contract", "check", "people", "--offline").returncode == 0  # the keys are not known


def test_a_source_that_is_not_there_is_no_fault_of_the_contract(tmp_path: Path) -> None:
    deployment = clinic_deployment(tmp_path)
    (deployment.settings.home / "sources" / "people").rename(tmp_path / "elsewhere")
    done = deployment.here("contract", "check", "people")
    assert done.returncode == 0 and "source: not compared: " in done.stdout, done.stderr


def test_variables_are_not_replaced_in_names_of_columns(tmp_path: Path) -> None:
    deployment = clinic_deployment(tmp_path)
    odd = "${DPSYNTH_HOME}"
    deployment.contract = changed("tables/stays/columns", {odd: {"type": "integer", "min": 0, "max": 1}})
    deployment.contract["tables"]["stays"] |= {"order_by": [odd], "constraints": []}
    found, _ = load_dataset(deployment.write().settings, "people")
    assert found.tables["stays"].order_by == [odd] and f"stays.{odd}" in found.columns


def test_changes_are_named_by_the_keys_of_the_contract(tmp_path: Path) -> None:
    deployment = clinic_deployment(tmp_path)

    def contract(path: str, value: Any) -> DataContract:
        deployment.contract = changed(path, value)
        deployment.write()
        return check_contract(deployment.settings, deployment.settings.contracts / "people.yaml")

    before = contract("description", "The same.")
    assert changes(before, contract("tables/stays/max_children", 5)) == ["tables.stays.max_children"]
    assert changes(before, contract("tables/stays/columns/ward/values", ["A", "B"])) == [
        "tables.stays.columns.ward.values"
    ]
    assert changes(before, contract("tables/codes/public", "Another reason.")) == []


def test_the_json_schema_requires_what_does_not_follow_from_tables() -> None:
    schema, document = contract_json_schema(), json.loads(json.dumps(CONTRACT))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    for path, value in (("tables", None), ("privacy/namespace", None), ("tables/stays/max_children", 0)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed(path, value), schema)


def test_a_contract_in_words_names_the_tree_and_why_tables_are_public(tmp_path: Path) -> None:
    found, _ = load_dataset(clinic_deployment(tmp_path).settings, "people")
    words = dict(contract_words(found))
    assert words["table stays"] == "at most 4 rows of one row of patients, the first by admitted: 4 of one owner"
    in_stays = "at most 3 rows of one row of stays, chosen at random: 12 of one owner"
    assert words["table diagnoses"] == f"{in_stays}; code is a key of codes"
    assert words["rows"] == "100 of patients, and what belongs to them"
    assert column_words(found, "patients.remark") == "text; kept for the schema, without values"
    assert words["table codes"] == "released as it is, declared public: The clinic lists them."


def test_new_content_of_tables_shows_at_little_cost(tmp_path: Path) -> None:
    deployment = clinic_deployment(tmp_path)
    contract, _ = load_dataset(deployment.settings, "people")
    before = version_stamp(contract)
    assert before is not None and version_stamp(contract) == before
    written(deployment.settings.home / "sources" / "people", clinic(601))
    assert version_stamp(contract) not in (None, before)


def test_a_bound_is_not_learned(tmp_path: Path) -> None:
    contract, _ = load_dataset(clinic_deployment(tmp_path).settings, "people")
    nothing: Any = None  # is asked for
    with pytest.raises(BoundingError, match="people: the bound of linked tables follows from max_children of each"):
        learn_bound(contract, None, nothing, ledger=nothing, storage=nothing, lineage=nothing, runner="x", warn=nothing)
