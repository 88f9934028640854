"""Releases of linked tables: published, verified, changed, described by cards, and copied to targets."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deltalake import DeltaTable
from released_tables import LINKED, as_rows, contract_of, drawn, evidence_of_tables
from table_cases import pem, resign, rewrite

import dpsynth
from dpsynth_platform.console.views.dossiers import dossier_view
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.release import Target
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import ContractError, PublicationFailed, ReleaseRefused
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.linked_tables import TablesOptions, synthesize_tables
from dpsynth_platform.release.dossier import Evidence
from dpsynth_platform.release.publish import Published, publish
from dpsynth_platform.release.target_files import SignedRelease
from dpsynth_platform.release.targets import put, removal
from dpsynth_platform.release.tombstone import Tombstone
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.release.withdrawal import bury

Change = Callable[[dict[str, pa.Table]], None]


@pytest.fixture
def of_tables(evidence: Evidence, family: FamilyBudget) -> Evidence:
    return evidence_of_tables(evidence, family)


@pytest.fixture
def clinic(of_tables: Evidence, tmp_path: Path, signing_key: Ed25519PrivateKey) -> Published:
    return publish(of_tables, as_rows(drawn()), tmp_path / "public", signing_key, announce=lambda: None)


@pytest.fixture
def signed(clinic: Published) -> SignedRelease:
    return SignedRelease.of(clinic, "clinic", None)


def same(found: pa.Table, table: pa.Table) -> bool:
    """Whether two tables have the same rows, in any order."""
    return sorted(map(str, found.to_pylist())) == sorted(map(str, table.to_pylist()))


def dossier_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / layout.DOSSIER).read_text())
    return found


def problems(path: Path, key: Ed25519PrivateKey) -> list[str]:
    return [str(problem) for problem in verify_release(path, pem(key)).problems]


def rewritten(path: Path, key: Ed25519PrivateKey, name: str, table: pa.Table) -> list[str]:
    """The problems after its own publisher replaced a table, with the dossier's numbers, and signed again."""
    shutil.rmtree(path / "data" / name)
    write_table(path / "data" / name, table.schema, table.to_batches())
    (path / layout.SAMPLE).unlink()

    def count(dossier: dict[str, Any]) -> None:
        before = next(item for item in dossier["synthetic"]["tables"] if item["name"] == name)
        if before["role"] != "public":
            dossier["synthetic"]["rows"] += table.num_rows - before["rows"]
        before["rows"] = table.num_rows

    rewrite(path, key, count)
    return problems(path, key)


def test_every_table_is_a_delta_table_of_its_own(clinic: Published, signing_key: Ed25519PrivateKey) -> None:
    tables = drawn()
    assert sorted(item.name for item in (clinic.path / "data").iterdir()) == sorted(tables)
    for name, table in tables.items():
        found = DeltaTable(clinic.path / "data" / name).to_pyarrow_table()
        assert same(found, table), name
    assert dict(clinic.tables) == {name: table.num_rows for name, table in tables.items()}
    private = sum(table.num_rows for name, table in tables.items() if name != "codes")
    assert clinic.rows == dossier_of(clinic.path)["synthetic"]["rows"] == private
    report = verify_release(clinic.path, pem(signing_key))
    assert report.ok, report.words
    assert f"{private} rows in 4 tables that join" in report.words
    assert report.to_json()["tables"] == dict(clinic.tables)


def test_tables_that_a_model_drew_are_published_and_join(
    of_tables: Evidence, tmp_path: Path, signing_key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_USER", "tester")
    options = TablesOptions(epsilon=1, delta=1e-6, schema={"tables": LINKED}, method="mst")
    made = synthesize_tables(drawn(400), tmp_path / "out", options)
    tables = {name: pq.read_table(made.synthetic / f"{name}.parquet") for name in LINKED}
    shown = publish(of_tables, as_rows(tables), tmp_path / "public", signing_key, announce=lambda: None)
    assert problems(shown.path, signing_key) == []
    assert shown.tables["stays"] == made.rows["stays"].rows
    for format_ in ("duckdb", "sqlite"):
        assert add(place(tmp_path, format_), SignedRelease.of(shown, "clinic", None))


def test_the_dossier_says_what_each_table_is(clinic: Published) -> None:
    dossier = dossier_of(clinic.path)
    patients, stays, diagnoses, codes = dossier["synthetic"]["tables"]
    assert [table["role"] for table in (patients, stays, diagnoses, codes)] == ["root", "child", "child", "public"]
    assert [table["bound"] for table in (patients, stays, diagnoses, codes)] == [1, 4, 12, None]
    assert stays["parent"] == {"table": "patients", "columns": ["patient id"]}
    assert diagnoses["key"] == ["stay", "line"]
    assert diagnoses["lookups"] == {"code": "codes"}
    assert (diagnoses["max_children"], codes["max_children"]) == (3, None)
    assert codes["public_because"] == "The clinic lists them."
    treated = {column["name"]: column["treatment"] for column in dossier["synthetic"]["columns"]}
    assert treated["stays.patient id"] == treated["patients.patient id"] == "regenerated"
    assert treated["stays.ward"] == treated["diagnoses.code"] == "modelled"
    assert treated["codes.words"] == treated["codes.code"] == "public"
    shown = {column["name"]: column.get("histogram") for column in dossier["synthetic"]["columns"]}
    assert sum(shown["stays.ward"]["counts"]) == stays["rows"]
    assert set(dossier["quality"]["figures"]) >= {
        f"{name}.expected_error_per_one_way_cell" for name in ("patients", "stays", "diagnoses")
    }
    assert dossier["contract"]["tables"]["stays"]["order_by"] == ["admitted"]
    assert "columns" not in dossier["contract"]["tables"]["stays"]
    assert "/restricted" not in (clinic.path / layout.DOSSIER).read_text()


def test_the_guarantee_is_of_an_owner_with_all_rows_in_all_tables(clinic: Published) -> None:
    dossier = dossier_of(clinic.path)
    assert (dossier["guarantee"]["max_contributions"], dossier["guarantee"]["weighting"]) == (17, "owners")
    words, statement = " ".join(dossier["guarantee"]["plain_words"]), dossier["statement"]
    for said in (words, statement["unit"]):
        assert "Rows of the first table describe the average owner." in said and "not the average row" not in said
    assert "All rows that belong to one user in all tables are protected together, as one." in words
    assert "all records with the same patients.patient id, directly or by foreign keys, of" in statement["unit"]
    assert "Public tables, released as they are: codes: The clinic lists them." in statement["covered"]
    assert "The rows of public tables (codes): no mechanism protects them." in statement["not_covered"]
    held = " ".join(item["assumption"] for item in statement["assumptions"])
    assert "more than 17 rows in all tables: 1 of patients, 4 of stays, 12 of diagnoses." in held
    assert "the rows of stays, diagnoses below them" in statement["output"]


def test_page_card_and_console_show_the_tables(clinic: Published) -> None:
    dossier = dossier_of(clinic.path)
    view = dossier_view(dossier)
    assert [table.name for table in view.tables] == ["patients", "stays", "diagnoses", "codes"]
    page, card = (clinic.path / layout.PAGE).read_text(), (clinic.path / layout.CARD).read_text()
    for table in view.tables:
        assert f'<th scope="row">{table.name}</th><td>{table.rows}</td>' in page
        assert f"| {table.name} | {table.rows} |" in card
    assert "stay refers to stays; code refers to codes; of one owner at most 12 rows reached the mechanism" in page
    assert "Public, released as it is, because: The clinic lists them" in card
    head = yaml.safe_load(card.split("---\n")[1])
    assert [config["config_name"] for config in head["configs"]] == ["patients", "stays", "diagnoses", "codes"]


def test_a_broken_foreign_key_is_found(clinic: Published, signing_key: Ed25519PrivateKey) -> None:
    stays = drawn()["stays"]
    gone = pa.array([999, *stays["patient id"].to_pylist()[1:]], pa.int64())
    found = rewritten(clinic.path, signing_key, "stays", stays.set_column(1, "patient id", gone))
    assert found == ["data/stays: of 1 rows, patient id refers to no row of patients"]


def test_a_foreign_key_without_a_value_is_found(clinic: Published, signing_key: Ed25519PrivateKey) -> None:
    stays = drawn()["stays"]
    gone = pa.array([None, None, *stays["patient id"].to_pylist()[2:]], pa.int64())
    found = rewritten(clinic.path, signing_key, "stays", stays.set_column(1, "patient id", gone))
    assert found == ["data/stays: of 2 rows, patient id refers to no row of patients"]


def test_a_lookup_that_refers_to_nothing_is_found(clinic: Published, signing_key: Ed25519PrivateKey) -> None:
    found = rewritten(clinic.path, signing_key, "codes", drawn()["codes"].slice(1))
    (message,) = found
    assert message.startswith("data/diagnoses: of ") and message.endswith("code refers to no row of codes")


def test_a_lookup_may_be_missing(clinic: Published, signing_key: Ed25519PrivateKey) -> None:
    diagnoses = drawn()["diagnoses"]
    some = pa.array([None, *diagnoses["code"].to_pylist()[1:]], pa.string())
    assert rewritten(clinic.path, signing_key, "diagnoses", diagnoses.set_column(2, "code", some)) == []


def test_a_repeated_key_is_found(clinic: Published, signing_key: Ed25519PrivateKey) -> None:
    diagnoses = drawn()["diagnoses"]
    twice = pa.concat_tables([diagnoses, diagnoses.slice(0, 3)])
    found = rewritten(clinic.path, signing_key, "diagnoses", twice)
    assert found == ["data/diagnoses: 3 rows have a missing or repeated key (stay, line)"]


def test_a_changed_row_or_a_removed_table_is_found(clinic: Published, signing_key: Ed25519PrivateKey) -> None:
    (part,) = (clinic.path / "data" / "stays").glob("*.parquet")
    whole = part.read_bytes()
    changed = drawn()["stays"]
    pq.write_table(changed.set_column(3, "cost", pc.add(changed["cost"], 1.0)), part)
    assert any("is not what was signed" in message for message in problems(clinic.path, signing_key))
    part.write_bytes(whole)
    assert problems(clinic.path, signing_key) == []
    shutil.rmtree(clinic.path / "data" / "stays")
    assert any("data/stays/" in message and "is missing" in message for message in problems(clinic.path, signing_key))
    resign(clinic.path, signing_key)
    assert any(message.startswith("data/stays: ") for message in problems(clinic.path, signing_key))


def test_a_table_beside_the_named_ones_is_found(clinic: Published, signing_key: Ed25519PrivateKey) -> None:
    shutil.copytree(clinic.path / "data" / "codes", clinic.path / "data" / "further")
    resign(clinic.path, signing_key)
    found = problems(clinic.path, signing_key)
    assert found and all("belongs to no table that the dossier names" in message for message in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tables: tables[1].update(rows=7), "data/stays: has 80 rows, the dossier says 7"),
        (lambda tables: tables[1].update(key=["cost", "other"]), "its keys are not those that the dossier names"),
        (lambda tables: tables[1]["parent"].update(table="nobody"), "its keys are not those that the dossier names"),
        (lambda tables: tables.append(tables[0]), "names a table twice"),
        (lambda tables: tables[1].update(name="../stays"), "breaks the schema's rule pattern"),
        (lambda tables: tables[1].update(secret=1), "has a member that the schema does not know"),
    ],
)
def test_a_dossier_of_other_tables_is_refused(
    clinic: Published, signing_key: Ed25519PrivateKey, change: Callable[[Any], None], message: str
) -> None:
    rewrite(clinic.path, signing_key, lambda dossier: change(dossier["synthetic"]["tables"]))
    assert any(message in found for found in problems(clinic.path, signing_key))


def test_an_empty_table_is_published(of_tables: Evidence, tmp_path: Path, signing_key: Ed25519PrivateKey) -> None:
    tables = drawn()
    tables["diagnoses"] = tables["diagnoses"].slice(0, 0)
    made = publish(of_tables, as_rows(tables), tmp_path / "public", signing_key, announce=lambda: None)
    assert problems(made.path, signing_key) == []
    assert made.tables["diagnoses"] == 0
    assert dpsynth.load_release(made.path, "arrow").data["diagnoses"].schema == tables["diagnoses"].schema
    release = SignedRelease.of(made, "clinic", None)
    for format_ in ("delta", "duckdb", "sqlite"):
        target = Target(uri=str(tmp_path / format_), format=format_)
        assert (add(target, release), add(target, release)) == (True, False)


def test_mlcroissant_reads_tables_with_keys_and_references(clinic: Published, caplog: pytest.LogCaptureFixture) -> None:
    import mlcroissant

    with caplog.at_level(logging.WARNING):
        dataset = mlcroissant.Dataset(str(clinic.path / layout.CROISSANT))
    assert caplog.text == ""
    assert not dataset.metadata.ctx.issues.errors
    assert not dataset.metadata.ctx.issues.warnings
    sets = {found.id: found for found in dataset.metadata.record_sets}
    assert list(sets) == ["patients", "stays", "diagnoses", "codes"]
    card = json.loads((clinic.path / layout.CROISSANT).read_text())
    described = {found["@id"]: found for found in card["recordSet"]}
    assert described["diagnoses"]["key"] == [{"@id": "diagnoses/stay"}, {"@id": "diagnoses/line"}]
    references = {
        field["@id"]: field["references"]
        for found in described.values()
        for field in found["field"]
        if "references" in field
    }
    assert references == {
        "stays/column/2": {"field": {"@id": "patients/column/1"}},
        "diagnoses/stay": described["stays"]["field"][0]["source"],  # stays has a reference itself
        "diagnoses/code": {"field": {"@id": "codes/code"}},
    }
    for name, table in drawn().items():
        records = list(dataset.records(name))
        assert len(records) == table.num_rows, name
        assert set(records[0]) == {field["@id"] for field in described[name]["field"]}


def test_a_recipient_reads_all_tables(clinic: Published) -> None:
    release = dpsynth.load_release(clinic.path, "arrow")
    assert list(release.data) == ["patients", "stays", "diagnoses", "codes"]
    assert release.data["stays"].num_rows == 80
    assert "patients, stays, diagnoses, codes" in release._repr_html_()
    with pytest.raises(dpsynth.ConfigurationError, match="linked tables, whose noisy counts are not published"):
        release.count("ward = 'A'")


def test_no_row_stays_after_a_withdrawal(clinic: Published, signing_key: Ed25519PrivateKey) -> None:
    stone = Tombstone(clinic.release_id, "2026-11-20T08:00:00.000000+00:00", "A wrong column", ("a@example.org",))
    assert bury(clinic.path, stone, signing_key)
    assert not layout.has_rows(clinic.path)
    report = verify_release(clinic.path, pem(signing_key))
    assert report.ok and report.withdrawn is not None


def place(tmp_path: Path, format_: Any) -> Target:
    return Target(uri=str(tmp_path / "target"), format=format_)


def add(target: Target, release: SignedRelease) -> bool:
    return put(target, release, note=lambda _: None)


def test_files_are_the_whole_directory(signed: SignedRelease, tmp_path: Path, signing_key: Ed25519PrivateKey) -> None:
    assert add(place(tmp_path, "files"), signed)
    assert problems(tmp_path / "target" / signed.release_id, signing_key) == []


def test_delta_has_a_table_for_each(
    signed: SignedRelease, of_tables: Evidence, tmp_path: Path, signing_key: Ed25519PrivateKey
) -> None:
    target, uri = place(tmp_path, "delta"), tmp_path / "target"
    assert add(target, signed)
    assert not add(target, signed)
    other = replace(of_tables, commitments={"candidate": "ef" * 32})
    second = publish(other, as_rows(drawn(60)), tmp_path / "public", signing_key, announce=lambda: None)
    assert add(target, SignedRelease.of(second, "clinic", None))
    for name, table in drawn().items():
        found = DeltaTable(uri / name).to_pyarrow_table()
        own = found.filter(pc.equal(found["release"], signed.release_id)).drop(["release", "period"])
        assert same(own, table), name
        assert found.num_rows == table.num_rows + drawn(60)[name].num_rows
    rebuilt = tmp_path / "rebuilt"
    shutil.copytree(uri / "_dossier" / signed.release_id, rebuilt)
    for name in signed.tables:
        for part in (uri / name / signed.release_id).iterdir():
            shutil.copy(part, rebuilt / "data" / name)
    assert problems(rebuilt, signing_key) == []
    commit = DeltaTable(uri / "stays").history(1)[0]
    assert (uri / "stays" / commit["dpsynth.dossier"]).resolve().is_file()
    assert "in each of its tables, delete" in removal(target, signed.release_id, linked=True)


@pytest.mark.parametrize("format_", ["duckdb", "sqlite"])
def test_a_database_file_has_rows_and_documents(signed: SignedRelease, tmp_path: Path, format_: str) -> None:
    target = place(tmp_path, format_)
    file = tmp_path / "target" / f"{signed.release_id}.{format_}"
    assert add(target, signed)
    assert not add(target, signed)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert removal(target, signed.release_id) == f"{file}: may still hold rows; delete this file"
    with closing(duckdb.connect(str(file), read_only=True) if format_ == "duckdb" else sqlite3.connect(file)) as found:
        for name, table in drawn().items():
            rows = found.execute(f"SELECT * FROM {name}").fetchall()
            expected = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
            if format_ == "sqlite":
                expected = [tuple(str(item) if hasattr(item, "year") else item for item in row) for row in expected]
            assert sorted(rows, key=str) == sorted(expected, key=str), name
        ((dossier,),) = found.execute("SELECT content FROM _release WHERE name = 'dossier.json'").fetchall()
    assert json.loads(dossier)["release"]["id"] == signed.release_id


@pytest.mark.parametrize("format_", ["duckdb", "sqlite"])
@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO stays SELECT 'new', 999, admitted, cost, ward FROM stays LIMIT 1",
        "INSERT INTO diagnoses SELECT stay, line, code, severity FROM diagnoses LIMIT 1",
        "INSERT INTO diagnoses SELECT stay, 99, 'other', severity FROM diagnoses LIMIT 1",
        "DELETE FROM codes",
    ],
)
def test_a_database_enforces_the_keys(signed: SignedRelease, tmp_path: Path, format_: str, change: str) -> None:
    add(place(tmp_path, format_), signed)
    file = tmp_path / "target" / f"{signed.release_id}.{format_}"
    with closing(duckdb.connect(str(file)) if format_ == "duckdb" else sqlite3.connect(file)) as found:
        if format_ == "sqlite":
            found.execute("PRAGMA foreign_keys = ON")
        with pytest.raises((duckdb.ConstraintException, sqlite3.IntegrityError)):
            found.execute(change)


@pytest.mark.parametrize("change", ["UPDATE stays SET cost = 5", "CREATE VIEW more AS SELECT 1 AS x"])
@pytest.mark.parametrize("format_", ["duckdb", "sqlite"])
def test_a_database_of_something_else_is_left_alone(
    signed: SignedRelease, tmp_path: Path, format_: str, change: str
) -> None:
    target = place(tmp_path, format_)
    add(target, signed)
    file = tmp_path / "target" / f"{signed.release_id}.{format_}"
    with closing(duckdb.connect(str(file)) if format_ == "duckdb" else sqlite3.connect(file)) as found:
        found.execute(change)
        found.commit()
    before = file.read_bytes()
    with pytest.raises(PublicationFailed, match="does not hold what was signed"):
        add(target, signed)
    assert file.read_bytes() == before


@pytest.mark.parametrize("format_", ["duckdb", "sqlite"])
def test_a_database_file_of_a_single_table(released: Published, tmp_path: Path, format_: str) -> None:
    release = SignedRelease.of(released, "visits", None)
    assert add(place(tmp_path, format_), release)
    assert not add(place(tmp_path, format_), release)


def test_tables_that_do_not_join_are_never_shown(
    of_tables: Evidence, tmp_path: Path, signing_key: Ed25519PrivateKey
) -> None:
    tables = drawn()
    tables["patients"] = tables["patients"].slice(1)
    announced: list[str] = []
    with pytest.raises(ReleaseRefused, match="patient id refers to no row of patients"):
        publish(
            of_tables, as_rows(tables), tmp_path / "public", signing_key, announce=lambda: announced.append("announced")
        )
    assert not announced
    assert [path.name for path in (tmp_path / "public").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            {"format": "iceberg", "uri": "sqlite:///x.db", "table": "a.b"},
            "release.publish: format iceberg, with tables",
        ),
        ({"format": "postgresql", "uri": "postgresql://h/d", "table": "t"}, "release.publish: format postgresql, with"),
        ({"format": "images", "uri": "/there"}, "release.publish: format images, with tables"),
        ({"format": "duckdb", "uri": "s3://bucket/there"}, "uri: no path; accepted: for the format duckdb"),
        ({"format": "sqlite", "uri": "/there", "table": "t"}, "table: declared for the format sqlite"),
    ],
)
def test_targets_that_take_no_tables_are_refused_in_the_contract(target: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as refused:
        contract_of(publish=target)
    assert message in str(refused.value)


@pytest.mark.parametrize("format_", ["delta", "files", "duckdb", "sqlite"])
def test_targets_that_take_tables(format_: str) -> None:
    assert contract_of(publish={"format": format_, "uri": "/there"}).release.publish[0].format == format_
