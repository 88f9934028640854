"""Which tables of a database file a contract of the format `sql` reads, as the ledger knows them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dpsynth_platform.contracts.source import Source
from dpsynth_platform.sources.database_ids import ReadOfDatabase, read_by


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def read(zone: Path, path: Path, **source: Any) -> ReadOfDatabase:
    return read_by(zone, Source(uri=f"sqlite:///{path}", format="sql", key=["a"], **source))


@pytest.mark.parametrize(
    "later", [{"table": "patients"}, {"table": "main.Patients"}, {"table": "seen"}, {"query": "SELECT * FROM patients"}]
)
def test_tables_of_one_plain_name_free_no_table_that_was_read_before(tmp_path: Path, later: dict[str, Any]) -> None:
    place, link = tmp_path / "clinic.db", tmp_path / "link.db"
    changed(
        place,
        "CREATE TABLE patients(a, b)",
        'CREATE TABLE "notes 1"(a)',
        "CREATE VIEW seen AS SELECT * FROM patients",
    )
    link.symlink_to(place)
    first = read(tmp_path / "zone", place, table="patients")
    assert first.alone is not None and list(first.people) == [first.alone]
    changed(place, 'CREATE TABLE "notes-1"(a)')
    found = read(tmp_path / "zone", link, **later)
    assert found.alone is None and first.alone in found.people
    assert sum(words.startswith("the database") for words in found.people.values()) == 1


def test_a_table_that_was_read_while_names_were_alike_keeps_its_id(tmp_path: Path) -> None:
    place = tmp_path / "clinic.db"
    changed(place, "CREATE TABLE patients(a, b)", 'CREATE TABLE "notes 1"(a)', 'CREATE TABLE "notes-1"(a)')
    first = read(tmp_path / "zone", place, table="patients")
    changed(place, 'DROP TABLE "notes-1"')
    assert read(tmp_path / "zone", place, table="patients").alone in first.people
    whole = read(tmp_path / "zone", place, query="SELECT * FROM patients")
    assert first.people.keys() <= whole.people.keys()
