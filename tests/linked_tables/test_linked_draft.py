"""The draft of a declaration of linked tables: what it takes from keys and names, and that it shows no row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from clinic import TABLES, clinic, written
from databases import MARKER, NUMBER, ROWS, SHOP, database, filled

from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.drafting.linked import draft
from dpsynth_platform.foundation.errors import ContractError, SchemaMissing, SourceError
from dpsynth_platform.linked_tables import TablesOptions
from dpsynth_platform.linked_tables.task import linked_task
from dpsynth_platform.sources.dialect import Dialect

OPTIONS = TablesOptions(epsilon=2, delta=1e-6, method="independent")
ENDS = (".sqlite", ".duckdb")


def declared(document: dict[str, Any]) -> LinkedTables:
    return validated(LinkedTables, document, "the draft")


def links(tables: LinkedTables) -> dict[str, tuple[list[str], str | None, list[str], dict[str, str]]]:
    """Of each table its key, its parent with the foreign key, and its lookups."""
    return {
        name: (
            table.key,
            table.parent and table.parent.table,
            table.parent.columns if table.parent else [],
            dict(table.lookups),
        )
        for name, table in tables.tables.items()
    }


@pytest.mark.parametrize("end", ENDS)
def test_the_filled_draft_of_a_database_has_exactly_its_keys(tmp_path: Path, end: str) -> None:
    shop = database(tmp_path / f"shop{end}", SHOP)
    text = draft(shop, Dialect())
    with pytest.raises(ContractError):  # its gaps are not filled
        declared(yaml.safe_load(text))
    tables = declared(filled(text))
    assert links(tables) == {
        "Customer": (["CustomerId"], None, [], {}),
        "Invoice": (["InvoiceId"], "Customer", ["CustomerId"], {}),
        "Line": (["InvoiceId", "Line"], "Invoice", ["InvoiceId"], {"TrackId": "Track"}),
        "Line_Note": ([], "Line", ["InvoiceId", "Line"], {}),
        "Liked": ([], "Customer", ["CustomerId"], {"TrackId": "Track"}),
        "Detail": (["CustomerId"], "Customer", ["CustomerId"], {}),
        "Track": (["TrackId"], None, [], {}),
    }
    assert tables.root == "Customer" and tables.lookups == ["Track"]
    assert {name: list(table.columns) for name, table in tables.tables.items()} == {
        "Customer": ["Country", "SupportRepId"],
        "Invoice": ["Made", "Total"],
        "Line": ["CustomerId", "Price"],
        "Line_Note": ["Note", "Urgent"],
        "Liked": ["Day"],
        "Detail": ["Photo", "Height"],
        "Track": [],
    }
    assert tables.tables["Line"].columns["CustomerId"].type == "ignored"
    assert tables.tables["Detail"].columns["Photo"].type == "ignored"
    assert tables.tables["Detail"].max_children == 1  # by its key
    assert "# [CustomerId] refers to Customer, private, and not the parent" in text
    assert "# Its key [CustomerId, TrackId] is left out" in text
    assert "# No key leads to Customer from: Artist, Employee, Log." in text


def test_a_table_named_as_people_is_not_drafted_as_public(tmp_path: Path) -> None:
    text = draft(database(tmp_path / "shop.db", SHOP), Dialect())
    assert "# By their names, rows of Employee are people: not drafted as public, and not kept." in text
    assert "# [SupportRepId] refers to Employee, whose rows are people by its name: left out, except for" in text
    assert yaml.safe_load(text)["tables"]["Customer"]["columns"]["SupportRepId"] == {"ignore": True}


@pytest.mark.parametrize("end", ENDS)
def test_no_row_is_in_a_draft_or_changes_it(tmp_path: Path, end: str) -> None:
    empty = database(tmp_path / f"empty{end}", SHOP)
    full = database(tmp_path / f"full{end}", [*SHOP, *ROWS])
    text = draft(full, Dialect())
    assert MARKER not in text and str(NUMBER) not in text and "2019" not in text and "86753" not in text
    assert text == draft(empty, Dialect()) and "# Columns of texts that hold dates" in text


def test_a_run_with_the_filled_draft_is_planned(tmp_path: Path) -> None:
    others = ("INSERT INTO Track VALUES (1, 'x', NULL)",)
    shop = database(tmp_path / "shop.db", [*SHOP, *ROWS, *others])
    with pytest.raises(SchemaMissing) as missing:
        linked_task(shop, OPTIONS)
    assert MARKER not in str(missing.value) and missing.value.draft == draft(shop, Dialect())
    task = linked_task(shop, replace(OPTIONS, schema=filled(missing.value.draft)))
    assert sorted(task.tables.private) == ["Customer", "Detail", "Invoice", "Liked", "Line", "Line_Note"]


def test_cycles_and_tables_that_refer_to_themselves_are_cut_with_a_comment(tmp_path: Path) -> None:
    cycle = database(
        tmp_path / "a.db",
        [
            "CREATE TABLE person(id int PRIMARY KEY, boss int REFERENCES person, home int REFERENCES home)",
            "CREATE TABLE home(id int PRIMARY KEY, owner int REFERENCES PERSON(ID), last int REFERENCES visit)",
            "CREATE TABLE visit(id int PRIMARY KEY, home int REFERENCES home, person int REFERENCES person)",
        ],
    )
    text = draft(cycle, Dialect())
    found = declared(filled(text))
    assert links(found) == {
        "person": (["id"], None, [], {}),
        "home": (["id"], "person", ["owner"], {}),
        "visit": (["id"], "home", ["home"], {}),
    }
    ignored = [(name, each) for name, table in found.tables.items() for each in table.columns]
    assert ignored == [("person", "boss"), ("person", "home"), ("home", "last"), ("visit", "person")]
    assert all(column.type == "ignored" for table in found.tables.values() for column in table.columns.values())
    assert "# [boss] refers to person, the same table: left out" in text
    assert "# [home] refers to home, private, and not the parent: left out" in text


def test_composite_keys_keep_the_order_of_the_parents_key(tmp_path: Path) -> None:
    statements = [
        "CREATE TABLE users(country text, number integer, PRIMARY KEY(number, country))",
        "CREATE TABLE orders(c text, n integer, at text, FOREIGN KEY(c, n) REFERENCES users(country, number))",
    ]
    found = declared(filled(draft(database(tmp_path / "a.db", statements), Dialect())))
    assert found.tables["users"].key == ["number", "country"]
    assert found.tables["orders"].parent is not None and found.tables["orders"].parent.columns == ["n", "c"]


def test_foreign_keys_to_other_columns_than_the_key_are_no_links(tmp_path: Path) -> None:
    statements = [
        "CREATE TABLE users(id integer PRIMARY KEY, mail text UNIQUE)",
        "CREATE TABLE orders(id int PRIMARY KEY, mail text REFERENCES users(mail), lost integer REFERENCES gone)",
        "CREATE TABLE notes(user integer REFERENCES users, code text REFERENCES codes(code))",
        "CREATE TABLE codes(code text UNIQUE, words text)",
    ]
    text = draft(database(tmp_path / "a.db", statements), Dialect())
    assert links(declared(filled(text))) == {
        "users": (["id"], None, [], {}),
        "notes": ([], "users", ["user"], {"code": "codes"}),
        "codes": (["code"], None, [], {}),
    }
    assert "# No key leads to users from: orders." in text


def test_keys_of_files_are_guessed_from_names(tmp_path: Path) -> None:
    for name, columns in {
        "patients": ("patient_id", "sex"),
        "stays": ("id", "patientId", "ward_id"),
        "stay_notes": ("stay_id", "patient_id", "words"),
        "wards": ("WardID", "name"),
        "weather": ("day", "rain"),
    }.items():
        pq.write_table(pa.table({column: [MARKER] for column in columns}), tmp_path / f"{name}.parquet")
    text = draft(tmp_path, Dialect())
    assert "# Keys and parents are guessed from the names of columns" in text and MARKER not in text
    document = filled(text)
    assert document["tables"]["weather"]["parent"] == {"table": None, "columns": []}
    del document["tables"]["weather"]
    assert links(declared(document)) == {
        "patients": (["patient_id"], None, [], {}),
        "stay_notes": ([], "stays", ["stay_id"], {}),
        "stays": (["id"], "patients", ["patientId"], {"ward_id": "wards"}),
        "wards": (["WardID"], None, [], {}),
    }


def test_a_database_without_foreign_keys_has_its_own_keys_and_guessed_parents(tmp_path: Path) -> None:
    statements = [
        "CREATE TABLE details(patient_id integer PRIMARY KEY, height double)",
        "CREATE TABLE patient(patient_id integer PRIMARY KEY, sex text)",
        "CREATE TABLE visits(nr integer PRIMARY KEY, patient_id integer, day date)",
    ]
    text = draft(database(tmp_path / "a.duckdb", statements), Dialect())
    assert links(declared(filled(text))) == {
        "patient": (["patient_id"], None, [], {}),
        "details": (["patient_id"], "patient", ["patient_id"], {}),
        "visits": (["nr"], "patient", ["patient_id"], {}),
    }


def test_tables_of_unrelated_names_have_gaps_for_their_parents(tmp_path: Path) -> None:
    tables = {"flights": pa.table({"number": [1], "day": [2]}), "planes": pa.table({"tail": ["x"]})}
    document = yaml.safe_load(draft(tables, Dialect()))
    assert document["tables"]["flights"]["key"] == [] and document["tables"]["planes"]["max_children"] is None
    assert document["tables"]["planes"]["columns"] == {"tail": {"type": "categorical", "values": []}}


def test_a_csv_file_is_drafted_if_its_first_line_is_declared_as_header(tmp_path: Path) -> None:
    pa.csv.write_csv(pa.table({"user_id": [1], "age": [NUMBER]}), tmp_path / "users.csv")
    with pytest.raises(SourceError, match=r"^tables\.users: .*--csv-header"):
        linked_task(tmp_path, OPTIONS)
    with pytest.raises(SchemaMissing) as missing:
        linked_task(tmp_path, replace(OPTIONS, dialect=Dialect(header=True)))
    text = missing.value.draft
    assert "      age: {type: }" in text and "# A CSV file has no types" in text and str(NUMBER) not in text
    assert declared(filled(text)).tables["users"].key == ["user_id"]


def without(table: str, *columns: str, **others: Any) -> dict[str, Any]:
    """The clinic's declaration without some columns of a table, and with others."""
    tables = TABLES["tables"]
    kept = {name: column for name, column in tables[table]["columns"].items() if name not in columns}
    return {"tables": tables | {table: tables[table] | {"columns": kept | others, "constraints": []}}}


def test_columns_without_a_declaration_are_named_with_lines_that_fit_in(tmp_path: Path) -> None:
    schema = without("stays", "ward", "left")
    schema["tables"]["patients"] = without("patients", "sex")["tables"]["patients"]
    files = written(tmp_path / "clinic", clinic(50))
    with pytest.raises(SchemaMissing) as missing:
        linked_task(files, replace(OPTIONS, schema=schema))
    assert missing.value.words == (
        "tables.patients: nothing is declared of: sex (string).\n"
        "tables.stays: nothing is declared of: left (date32[day]), ward (string). Accepted: --schema with these lines, "
        "too, filled in with public facts:"
    )
    assert missing.value.draft == (
        "tables:\n"
        "  patients:\n"
        "    columns:\n"
        "      sex: {type: categorical, values: []}\n"
        "  stays:\n"
        "    columns:\n"
        "      left: {type: date, min: , max: }\n"
        "      ward: {type: categorical, values: []}"
    )
    for name, table in filled(missing.value.draft)["tables"].items():
        schema["tables"][name]["columns"] |= table["columns"]
    assert linked_task(files, replace(OPTIONS, schema=schema)).tables.root == "patients"


def test_truth_values_need_a_declaration_too() -> None:
    """They would otherwise be in no view, and so in no released table."""
    tables = clinic(50)
    tables["stays"] = tables["stays"].append_column("urgent", pa.array([True] * len(tables["stays"])))
    with pytest.raises(SchemaMissing) as missing:
        linked_task(tables, replace(OPTIONS, schema=TABLES))
    assert missing.value.draft.endswith("      urgent: {type: boolean}")


def test_columns_that_are_not_there_are_named_with_their_table() -> None:
    tables = clinic(50)
    number = {"type": "integer", "min": 0, "max": 9}
    with pytest.raises(SourceError) as error:
        linked_task(tables, replace(OPTIONS, schema=without("stays", beds=number)))
    assert str(error.value) == (
        "tables.stays: there is no column 'beds'; accepted: stay, patient id, admitted, left, ward"
    )
    with pytest.raises(SchemaMissing) as missing:
        linked_task(tables, replace(OPTIONS, schema=without("stays", "ward", Ward=number)))
    assert "tables.stays: there is no column 'Ward'" in missing.value.words
    assert "tables.stays: nothing is declared of: ward (string)" in missing.value.words
