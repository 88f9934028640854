"""Where linked tables are: files in a directory, and tables of a database file."""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import closing
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from clinic import TABLES, clinic, written
from databases import MARKER, ROWS, SHOP, database, stored
from pydantic import TypeAdapter

from dpsynth_platform.contracts.tables import LinkedTables, TableName
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.linked_tables import TablesOptions, synthesize_tables
from dpsynth_platform.linked_tables.task import linked_task
from dpsynth_platform.sources.database_files import DatabaseFile, plain_name
from dpsynth_platform.sources.table_places import place_of, tables_at

OPTIONS = TablesOptions(epsilon=2, delta=1e-6, schema=TABLES, method="independent")
ENDS = (".sqlite", ".db", ".duckdb")
KEYS = {
    "patients": ', PRIMARY KEY("patient id")',
    "stays": ', PRIMARY KEY(stay), FOREIGN KEY("patient id") REFERENCES patients("patient id")',
    "diagnoses": ", PRIMARY KEY(stay, line), FOREIGN KEY(stay) REFERENCES stays(stay), "
    "FOREIGN KEY(code) REFERENCES codes(code)",
    "codes": ", PRIMARY KEY(code)",
}
LISTED = ("patients", "codes", "stays", "diagnoses")


def listed(number: int) -> dict[str, pa.Table]:
    """A small clinic, each table after those that it refers to."""
    tables = clinic(number)
    return {name: tables[name] for name in LISTED}


def refused(data: Path) -> str:
    with pytest.raises(SourceError) as error:
        tables_at(data)
    assert MARKER not in str(error.value)
    return str(error.value)


def test_a_directory_has_a_table_for_each_file_and_delta_table(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "b": [2]})
    pq.write_table(table, tmp_path / "one.parquet")
    pa.csv.write_csv(table, tmp_path / "two words.CSV")
    pa.csv.write_csv(table, tmp_path / "3.tsv")
    deltalake.write_deltalake(str(tmp_path / "four"), table)
    (tmp_path / "five").mkdir()
    pq.write_table(table, tmp_path / "five" / "part-0.parquet")
    for name in ("notes.txt", ".hidden.parquet", "_part.parquet"):
        (tmp_path / name).write_text("nothing")
    (tmp_path / "empty").mkdir()
    assert tables_at(tmp_path) == {
        "table_3": tmp_path / "3.tsv",
        "five": tmp_path / "five",
        "four": tmp_path / "four",
        "one": tmp_path / "one.parquet",
        "two_words": tmp_path / "two words.CSV",
    }


def test_tables_in_memory_are_their_own_places() -> None:
    tables = clinic(5)
    assert tables_at(tables) is tables


def test_what_is_no_place_of_tables_is_named_with_what_is_accepted(tmp_path: Path) -> None:
    assert "there is no such file" in refused(tmp_path / "missing.sqlite")
    assert f"{tmp_path}: there is no table; accepted: a directory with a file for each table" in refused(tmp_path)
    table = pa.table({"a": [1]})
    pq.write_table(table, tmp_path / "one.parquet")
    pa.csv.write_csv(table, tmp_path / "one.csv")
    assert "one.csv and one.parquet are both the table 'one'" in refused(tmp_path)
    deltalake.write_deltalake(str(tmp_path / "delta"), table)
    assert "it is one Delta table" in refused(tmp_path / "delta")
    assert "neither a directory of tables nor a database" in refused(tmp_path / "one.parquet")


@pytest.mark.parametrize("end", ENDS)
def test_a_damaged_or_empty_database_is_refused(tmp_path: Path, end: str) -> None:
    whole = database(tmp_path / f"shop{end}", [*SHOP, *ROWS])
    damaged = tmp_path / f"damaged{end}"
    content = whole.read_bytes()
    damaged.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    assert "accepted: a database file of SQLite or DuckDB" in refused(damaged)
    empty = database(tmp_path / f"empty{end}", ["CREATE TABLE t(x integer)", "DROP TABLE t"])
    assert "the database has no table" in refused(empty)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("Order Details", "Order_Details"),
        ("3", "table_3"),
        ("Müller", "Muller"),
        ("病人", "u75c5_u4eba"),
        ("病", "u75c5"),
        ("больные 2", "u431_u43e_u43b_u44c_u43d_u44b_u435_2"),
        ("--", "table"),
    ],
)
def test_tables_of_all_scripts_have_names_for_declarations(name: str, plain: str) -> None:
    assert plain_name(name) == plain
    assert plain_name(plain) == plain
    TypeAdapter(TableName).validate_python(plain)


def test_long_names_of_tables_stay_distinct() -> None:
    first, second = plain_name("病人" * 40), plain_name("病人" * 41)
    assert first != second and len(first) <= 63
    for each in (first, second, plain_name("a" * 64)):
        TypeAdapter(TableName).validate_python(each)
    assert "__" not in first and plain_name("a" * 63) == "a" * 63


def test_a_compressed_file_among_tables_is_refused_by_its_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "one.parquet")
    (tmp_path / "notes.zip").write_bytes(b"no table")
    assert set(tables_at(tmp_path)) == {"one"}
    for name in ("two.csv.gz", "Two.TSV.zst", "two.parquet.bz2"):
        (tmp_path / name).write_bytes(b"\x1f\x8b")
        found = refused(tmp_path)
        assert f"{name} is compressed as a whole" in found and "the unpacked file" in found
        (tmp_path / name).rename(tmp_path / f"_{name}")
        assert set(tables_at(tmp_path)) == {"one"}


def test_two_tables_of_one_plain_name_are_refused(tmp_path: Path) -> None:
    alike = database(tmp_path / "alike.db", ['CREATE TABLE "a b"(x)', 'CREATE TABLE "a-b"(x)'])
    assert "two tables are named 'a_b'" in refused(alike)
    schemas = database(
        tmp_path / "alike.duckdb", ["CREATE TABLE a(x integer)", "CREATE SCHEMA o", "CREATE TABLE o.a(x integer)"]
    )
    assert "two tables are named 'a'" in refused(schemas)


@pytest.mark.parametrize("end", ENDS)
def test_a_database_gives_its_tables_and_is_not_written_to(tmp_path: Path, end: str) -> None:
    shop = database(tmp_path / f"shop{end}", [*SHOP, "CREATE VIEW Every AS SELECT * FROM Log", *ROWS])
    before = shop.read_bytes()
    tables = tables_at(shop)
    assert set(tables) == {
        *("Artist", "Track", "Employee", "Customer", "Invoice", "Line", "Line_Note", "Liked", "Detail", "Log")
    }
    assert len(tables) == 10 and "Every" not in tables
    invoice = place_of(tables, "Invoice")
    assert isinstance(invoice, pa.Table)
    assert invoice["Made"].to_pylist() == [dt.datetime(2019, 8, 7, 10, 11, 12)]
    assert float(invoice["Total"][0].as_py()) == 86753.09 and pa.types.is_decimal(invoice["Total"].type)
    assert place_of(tables, "Liked")["Day"].to_pylist() == [dt.date(2019, 8, 7)]
    assert place_of(tables, "Line_Note")["Urgent"].to_pylist() == [True]
    assert place_of(tables, "Detail", {"Photo", "Height"})["Photo"].to_pylist() == [None]
    assert place_of(tables, "Detail", {"CustomerId", "Photo", "Height"}).num_rows == 1
    with pytest.raises(SourceError, match="there is no such table; accepted: Artist, "):
        place_of(tables, "Every")
    assert shop.read_bytes() == before and sorted(tmp_path.iterdir()) == [shop]


@pytest.mark.parametrize("end", ENDS)
def test_a_database_that_changes_meanwhile_is_refused(tmp_path: Path, end: str) -> None:
    shop = database(tmp_path / f"shop{end}", [*SHOP, *ROWS])
    tables = tables_at(shop)
    database(shop, ["CREATE TABLE Later(x integer)"])
    with pytest.raises(SourceError, match="was changed while it was read; run again"):
        place_of(tables, "Log")


def test_any_path_is_that_of_a_database(tmp_path: Path) -> None:
    odd = tmp_path / "odd #1%41"
    odd.mkdir()
    for end in ENDS:
        place = database(odd / f"a b #%41{end}", ["CREATE TABLE t(x integer)", "INSERT INTO t VALUES (1)"])
        assert place_of(tables_at(place), "t").num_rows == 1


def test_a_database_of_sqlite_in_a_log_of_changes_is_read_with_them(tmp_path: Path) -> None:
    place = tmp_path / "shop.db"
    with closing(sqlite3.connect(place, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        for statement in (*SHOP, *ROWS):
            writer.execute(statement)
        assert place_of(tables_at(place), "Log").num_rows == 1
    assert list(tmp_path.iterdir()) == [place]
    assert place_of(tables_at(place), "Log").num_rows == 1
    assert list(tmp_path.iterdir()) == [place]  # reading leaves no file beside it


def test_values_of_sqlite_are_read_as_the_declared_types(tmp_path: Path) -> None:
    types = ("INTEGER", "VARCHAR(9)", "", "NUMERIC(10,2)", "NUMERIC(9)", "NUMERIC", "REAL", "BOOLEAN", "DATE")
    types = (*types, "DATETIME", "BLOB", "TIME")
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(types))
    rows = (
        "(7, 'x', 8, 0.5, 6, 1.25, 2, 1, '2020-02-03', '2020-02-03T04:05:06Z', x'00ff', '10:11')",
        "(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "(-7, 8, 'y', 2, 7, 3, 0.5, 'false', '2020-02-03 00:00:00', '2020-02-03', x'', '')",
    )
    place = database(tmp_path / "a.db", [f"CREATE TABLE t({columns})", f"INSERT INTO t VALUES {', '.join(rows)}"])
    found = place_of(tables_at(place), "t")
    assert [str(item.type) for item in found.schema] == [
        *("int64", "string", "string", "decimal128(38, 2)", "int64", "double", "double", "bool", "date32[day]"),
        *("timestamp[us]", "binary", "string"),
    ]
    first, second, third = (list(row.values()) for row in found.to_pylist())
    assert [float(value) if number == 3 else value for number, value in enumerate(first)] == [
        *(7, "x", "8", 0.5, 6, 1.25, 2.0, True, dt.date(2020, 2, 3), dt.datetime(2020, 2, 3, 4, 5, 6), b"\x00\xff"),
        "10:11",
    ]
    assert second == [None] * len(types)
    assert third[:3] == [-7, "8", "y"] and third[7:10] == [False, dt.date(2020, 2, 3), dt.datetime(2020, 2, 3)]


@pytest.mark.parametrize("declared", ["INTEGER", "REAL", "DECIMAL(5,1)", "DATE", "TIMESTAMP", "BOOLEAN"])
def test_a_value_of_another_type_names_table_and_column_and_not_the_value(tmp_path: Path, declared: str) -> None:
    statements = [f"CREATE TABLE t(a integer, b {declared})", f"INSERT INTO t VALUES (1, '{MARKER}')"]
    tables = tables_at(database(tmp_path / "a.db", statements))
    with pytest.raises(SourceError, match="column 'b' is declared in the database to hold") as error:
        place_of(tables, "t")
    assert MARKER not in str(error.value) and error.value.__context__ is None
    assert place_of(tables, "t", {"b"})["b"].null_count == 1  # a column that is not read may hold anything


def test_texts_of_sqlite_that_are_no_unicode_are_not_shown(tmp_path: Path) -> None:
    statements = ["CREATE TABLE t(a integer, b text)", f"INSERT INTO t VALUES (1, CAST(x'{b'Qzx'.hex()}ff' AS TEXT))"]
    with pytest.raises(SourceError, match="table 't' cannot be read") as error:
        place_of(tables_at(database(tmp_path / "a.db", statements)), "t")
    assert MARKER not in str(error.value)


@pytest.mark.parametrize("end", [".db", ".duckdb"])
def test_texts_of_a_database_are_read_as_the_contract_declares(tmp_path: Path, end: str) -> None:
    statements = [
        "CREATE TABLE t(day text, moment text, size text, flag text, word text)",
        "INSERT INTO t VALUES ('2020-02-03', '2020-02-03 04:05', '7', '1', 'x'), (NULL, '', ' 8 ', 'false', NULL)",
    ]
    tables = tables_at(database(tmp_path / f"a{end}", statements))
    types = {"day": "date", "moment": "datetime", "size": "integer", "flag": "boolean"}
    bounds = {"date": ("2020-01-01", "2020-12-31"), "datetime": ("2020-01-01", "2020-12-31"), "integer": (0, 9)}
    declared = {
        name: {"type": type_} | dict(zip(("min", "max"), bounds.get(type_, ()), strict=False))
        for name, type_ in types.items()
    } | {"word": {"type": "text"}}
    columns = LinkedTables.model_validate({"tables": {"t": {"key": ["id"], "columns": declared}}}).tables["t"].columns
    assert place_of(tables, "t", (), columns).to_pylist() == [
        {
            "day": dt.date(2020, 2, 3),
            "moment": dt.datetime(2020, 2, 3, 4, 5),
            "size": 7,
            "flag": True,
            "word": "x",
        },
        {"day": None, "moment": None, "size": 8, "flag": False, "word": None},
    ]
    assert place_of(tables, "t", {"day"}, columns)["day"].null_count == 2


@pytest.mark.parametrize("end", [".db", ".duckdb"])
def test_a_text_that_is_not_as_declared_is_not_shown(tmp_path: Path, end: str) -> None:
    statements = ["CREATE TABLE t(a integer, b text)", f"INSERT INTO t VALUES (1, '{MARKER}')"]
    tables = tables_at(database(tmp_path / f"a{end}", statements))
    day = {"type": "date", "min": "2020-01-01", "max": "2020-12-31"}
    declared = LinkedTables.model_validate({"tables": {"t": {"key": ["a"], "columns": {"b": day}}}})
    with pytest.raises(SourceError, match="column 'b' has texts, and some of them cannot be read as date") as error:
        place_of(tables, "t", (), declared.tables["t"].columns)
    assert MARKER not in str(error.value) and error.value.__context__ is None


def test_types_of_duckdb_are_its_own_and_no_other_file_is_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside.csv"
    outside.write_text("x\n1\n")
    place = database(
        tmp_path / "a.duckdb",
        [
            "CREATE TYPE mood AS ENUM ('good', 'bad')",
            "CREATE TABLE t(m mood, h hugeint, u uuid, z timestamptz, l integer[])",
            "INSERT INTO t VALUES ('good', 1, uuid(), '2020-01-01 00:00:00+00', [1])",
            f"CREATE VIEW v AS SELECT * FROM read_csv('{outside}')",
        ],
    )
    tables = tables_at(place)
    assert isinstance(tables, DatabaseFile) and list(tables) == ["t"]
    found = place_of(tables, "t")
    assert str(found.schema.field("z").type) == "timestamp[us, tz=UTC]"
    assert found["m"].to_pylist() == ["good"]
    with tables._connected() as connection, pytest.raises(duckdb.Error):  # type: ignore[attr-defined]
        connection.execute("SELECT * FROM v").fetchall()


def test_a_public_table_without_a_choice_is_refused() -> None:
    tables = clinic(50)
    tables["codes"] = tables["codes"].slice(0, 1)
    with pytest.raises(SourceError, match="1 rows; accepted: a public table of 2 to 10000"):
        linked_task(tables, OPTIONS)


@pytest.mark.parametrize("end", ["sqlite", "duckdb"])
def test_a_public_table_that_refers_to_private_rows_is_refused(tmp_path: Path, end: str) -> None:
    path = database(
        tmp_path / f"shop.{end}",
        (
            "CREATE TABLE people(id integer PRIMARY KEY, a integer)",
            "CREATE TABLE notes(note integer PRIMARY KEY, of integer REFERENCES people(id), words text)",
            "CREATE TABLE visits(id integer REFERENCES people(id), note integer, b integer)",
        ),
    )
    whole = {"type": "integer", "min": 0, "max": 9}
    visits = {"parent": {"table": "people", "columns": ["id"]}, "max_children": 2, "lookups": {"note": "notes"}}
    schema = {
        "tables": {
            "people": {"key": ["id"], "columns": {"a": whole}},
            "visits": visits | {"columns": {"b": whole}},
            "notes": {"public": "They were printed.", "key": ["note"]},
        }
    }
    with pytest.raises(ContractError, match=r"tables\.notes\.public: .* of refers to people, whose rows are private"):
        linked_task(path, TablesOptions(epsilon=1, delta=1e-6, schema=schema))


def test_only_declared_tables_are_opened(tmp_path: Path) -> None:
    files = written(tmp_path / "files", clinic(50))
    (files / "other.parquet").write_text("no table")
    assert set(linked_task(files, OPTIONS).sources) == set(LISTED)
    base = stored(tmp_path / "base.db", listed(50), KEYS)
    database(base, ["CREATE TABLE other(day date)", "INSERT INTO other VALUES ('never')"])
    assert set(linked_task(base, OPTIONS).sources) == set(LISTED)
    with pytest.raises(SourceError, match=r"tables\.patients: there is no such table; accepted: other"):
        linked_task({"other": pa.table({"a": [1]})}, OPTIONS)


@pytest.mark.parametrize("end", [".sqlite", ".duckdb"])
def test_a_run_from_a_database_is_that_from_files(tmp_path: Path, end: str) -> None:
    base = stored(tmp_path / f"base{end}", listed(300), KEYS)
    made = synthesize_tables(base, tmp_path / "out", OPTIONS)
    assert made.spent
    for name, table in listed(300).items():
        found = pq.read_table(made.synthetic / f"{name}.parquet")
        assert found.column_names == table.column_names
        assert [str(item.type) for item in found.schema] == [str(item.type) for item in table.schema]
    again = synthesize_tables(base, tmp_path / "out", OPTIONS)
    assert not again.spent  # the same content
