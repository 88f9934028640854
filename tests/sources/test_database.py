"""Databases as a source: exact values, one statement that only reads, and a digest of rows without an order."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from test_plain_files import READ, declared
from test_source import MARK

from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.sources import source
from dpsynth_platform.sources.database import _confine, _digest, extract
from dpsynth_platform.sources.iceberg import open_catalog
from dpsynth_platform.sources.json_files import CONFIGURATION
from dpsynth_platform.sources.passwords import check_environment, password_for

CREATE = """
CREATE TABLE visits (person text, day date, number bigint, share numeric(10, 3), kind text, sick boolean, note text,
  other text)
"""


def fill(url: str, *, backwards: bool = False) -> None:
    rows = [row | {"other": "x"} for row in READ.to_pylist()]
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS visits")
        connection.exec_driver_sql(CREATE)
        names = ", ".join(f":{name}" for name in rows[0])
        connection.execute(sa.text(f"INSERT INTO visits VALUES ({names})"), rows[::-1] if backwards else rows)
    engine.dispose()


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql_url"))
    return f"sqlite:///{tmp_path / 'clinic.db'}"


def copied(place: dict[str, Any], directory: Path) -> source.Copy:
    directory.mkdir()
    return source.Copy(directory, extract(declared({"format": "sql"} | place).source, {"person"}, directory))


def rows_of(place: dict[str, Any], directory: Path) -> pa.Table:
    by = declared({"format": "sql"} | place)
    pinned = source.pin(by, directory / "zone", copy=copied(place, directory))
    return pa.Table.from_batches(source.batches(pinned, by, None)).select(READ.column_names).sort_by("person")


def test_a_table_and_a_query_are_read_as_they_are(url: str, tmp_path: Path) -> None:
    fill(url)
    assert rows_of({"uri": url, "table": "visits"}, tmp_path / "a").equals(READ)
    query = "SELECT * FROM visits WHERE person <> 'a:b' -- all of them;"
    assert rows_of({"uri": url, "query": query}, tmp_path / "b").equals(READ)


def test_the_order_of_rows_is_no_version(url: str, tmp_path: Path) -> None:
    found = []
    for number in range(3):
        fill(url, backwards=number == 1)
        if number == 2:
            engine = sa.create_engine(url)
            with engine.begin() as connection:
                connection.exec_driver_sql("UPDATE visits SET number = 9 WHERE number = 5")
            engine.dispose()
        found.append(copied({"uri": url, "table": "visits"}, tmp_path / str(number)).content)
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("name", ["t", "r", "rr", "digest", "row", "T"])
def test_a_version_is_of_all_columns_whatever_their_names(url: str, tmp_path: Path, name: str) -> None:
    """A name of the digest's own statement would stand for that column alone, which may be null."""
    found = []
    for number, other in enumerate((7, 8)):
        query = f'SELECT {other} AS person, NULL AS "{name}" UNION ALL SELECT {other}, 1'
        if url.startswith("sqlite"):
            (tmp_path / "clinic.db").touch()
        found.append(copied({"uri": url, "query": query}, tmp_path / str(number)).content)
    assert found[0] != found[1]


def test_the_version_of_a_large_copy_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy as large as the memory: rows are read in parts, and sorted beside it."""
    monkeypatch.setitem(CONFIGURATION, "memory_limit", "300MB")
    rows = [{"number": f"{number:05d}", "text": "x" * 6000} for number in range(50_000)]
    with (tmp_path / "rows.csv").open("w") as file:
        file.write('"number","text"\n')
        file.writelines(f"{row['number']},{row['text']}\n" for row in rows)
    expected = sorted(hashlib.sha256(json.dumps(row, separators=(",", ":")).encode()).digest() for row in rows)
    whole = hashlib.sha256(repr(["number", "text"]).encode() + b"".join(expected))
    assert _digest(tmp_path / "rows.csv", ["number", "text"]) == whole.hexdigest()


def test_versions_of_a_database_have_numbers(url: str, tmp_path: Path) -> None:
    fill(url)
    by, zone = declared({"format": "sql", "uri": url, "table": "visits"}), tmp_path / "zone"
    with pytest.raises(SourceError, match="has no version until a run copies it"):
        source.pin(by, zone)
    first = source.pin(by, zone, register=True, copy=copied({"uri": url, "table": "visits"}, tmp_path / "a"))
    assert first.content and first.content not in repr(first)
    again = source.pin(by, zone, register=True, copy=copied({"uri": url, "table": "visits"}, tmp_path / "b"))
    assert again.name == first.name


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1) AS a; CREATE TABLE made (x int); SELECT * FROM (SELECT 1",
        "SELECT * FROM visits) AS a; COMMIT; DROP TABLE visits; --",
        "WITH gone AS (DELETE FROM visits RETURNING *) SELECT * FROM gone",
        "DELETE FROM visits RETURNING *",
    ],
)
def test_a_query_cannot_write(url: str, tmp_path: Path, query: str) -> None:
    fill(url)
    with pytest.raises(SourceError, match="the database cannot be read") as caught:
        copied({"uri": url, "query": query}, tmp_path / "a")
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM visits").scalar_one() == len(READ)
        assert sa.inspect(engine).get_table_names() == ["visits"]
    engine.dispose()


def test_errors_of_the_database_are_not_shown(url: str, tmp_path: Path) -> None:
    fill(url)
    query = (
        f"SELECT person, CAST(person AS integer) + abs(CAST(-9223372036854775808 AS bigint)) AS x FROM visits -- {MARK}"
    )
    for number, asked in enumerate(({"query": query}, {"table": "none"}, {"table": f'x"; {MARK}'})):
        with pytest.raises(SourceError, match="the database cannot be read") as caught:
            copied({"uri": url} | asked, tmp_path / str(number))
        assert MARK not in str(caught.value)
        assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_names_that_are_there_twice_are_refused(url: str, tmp_path: Path) -> None:
    fill(url)
    with pytest.raises(SourceError, match="column 'a' is in the rows more than once"):
        copied({"uri": url, "query": "SELECT person AS a, day AS a FROM visits"}, tmp_path / "a")
    with pytest.raises(SourceError, match="the rows have one column"):
        copied({"uri": url, "query": "SELECT person FROM visits"}, tmp_path / "b")


def test_types_of_postgresql(postgresql_url: str, tmp_path: Path) -> None:
    """Exact texts of types that JSON or a driver's objects would change."""
    query = """
    SELECT x AS person, d AS day, n AS number, s AS share, 'a'::varchar AS kind, b AS sick, t::text AS note, 1 AS other
    FROM (VALUES ('p1'::text, '2026-01-31'::date, 9007199254740993::bigint, 0.1::real, true,
                  '2026-01-31 07:30+02'::timestamptz),
                 (NULL, NULL, NULL, 'NaN'::real, NULL, NULL)) AS v (x, d, n, s, b, t)
    """
    first, second = rows_of({"uri": postgresql_url, "query": query}, tmp_path / "a").to_pylist()
    assert first["number"] == 9007199254740993 and first["share"] == 0.1 and first["day"] == dt.date(2026, 1, 31)
    assert first["sick"] is True and first["note"] == "2026-01-31 05:30:00+00"
    assert [second[name] for name in ("person", "day", "number", "sick", "note")] == [None] * 5


@pytest.mark.parametrize("id_", ["ARRAY[person]", "1.50::numeric(5,2)", "to_json(person)", "true", "1::real"])
def test_ids_of_several_texts_are_refused(postgresql_url: str, tmp_path: Path, id_: str) -> None:
    fill(postgresql_url)
    with pytest.raises(SourceError, match="column 'person' is declared identifier, and its type has several texts"):
        copied({"uri": postgresql_url, "query": f"SELECT {id_} AS person, day FROM visits"}, tmp_path / "a")


def test_floats_are_exact_whatever_a_role_sets(postgresql_url: str, tmp_path: Path) -> None:
    engine = sa.create_engine(postgresql_url)
    with engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET extra_float_digits = -3")
    engine.dispose()
    copied({"uri": postgresql_url, "query": "SELECT 'a' AS person, 0.1::float8 + 0.2 AS share"}, tmp_path / "a")
    assert "0.30000000000000004" in (tmp_path / "a" / "rows.csv").read_text()


def test_odd_texts_arrive(url: str, tmp_path: Path) -> None:
    fill(url)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for person, note in (("cr", "a\rb"), ("long", "x" * 3_000_000), ("empty", "")):
            text = sa.text("INSERT INTO visits (person, day, note) VALUES (:person, '2026-01-01', :note)")
            connection.execute(text, {"person": person, "note": note})
    engine.dispose()
    found = {row["person"]: row["note"] for row in rows_of({"uri": url, "table": "visits"}, tmp_path / "a").to_pylist()}
    assert (found["cr"], found["long"], found["empty"]) == ("a\rb", "x" * 3_000_000, None)


def test_a_value_of_another_type_is_not_said_to_be_in_a_file(url: str, tmp_path: Path) -> None:
    """The copy is the platform's, and has no decimal comma to be declared."""
    fill(url)
    day = "'9999-12-31 BC'"  # PostgreSQL has days that others do not
    query = f"SELECT person, number, share, kind, sick, note, other, {day} AS day FROM visits"
    with pytest.raises(SourceError, match=r"column 'day' is declared to hold date32.*or others by a query") as refusal:
        rows_of({"uri": url, "query": query}, tmp_path / "a")
    assert "csv" not in str(refusal.value) and "BC" not in str(refusal.value)


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such file; accepted: an existing database"):
        copied({"uri": f"sqlite:///{tmp_path / 'none.db'}", "table": "t"}, tmp_path / "a")
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(SourceError, match=r"the database cannot be read \(ValueError"):
        copied({"uri": "postgresql+psycopg://r@h:abc/x", "table": "t"}, tmp_path / "b")


@pytest.mark.parametrize("statement", ["ATTACH '{0}' AS other", "VACUUM INTO '{0}'", "DELETE FROM visits"])
def test_a_statement_on_sqlite_neither_makes_nor_attaches_nor_changes_a_file(tmp_path: Path, statement: str) -> None:
    url, other = f"sqlite:///{tmp_path / 'clinic.db'}", tmp_path / "other.db"
    fill(url)
    before = (tmp_path / "clinic.db").read_bytes()
    with pytest.raises(SourceError, match="the database cannot be read"):
        copied({"uri": url, "query": statement.format(other)}, tmp_path / "a")
    assert not other.exists() and (tmp_path / "clinic.db").read_bytes() == before


class Connected:
    """What SQLAlchemy's connection is to `_confine`: its engine for DuckDB is no requirement."""

    def __init__(self, path: Path) -> None:
        self.dialect = SimpleNamespace(name="duckdb")
        self.exec_driver_sql = duckdb.connect(str(path), read_only=True).execute


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_parquet('{0}/people.parquet')",
        "SELECT * FROM '{0}/people.parquet'",
        'SELECT * FROM "{0}/people"."parquet"',  # a contract's table: {0}/people.parquet
        "SELECT * FROM seen",
        "SELECT * FROM glob('{0}/*')",
        "ATTACH '{0}/other.duckdb' AS other (READ_ONLY)",
        "COPY notes TO '{0}/copy.csv'",
        "SET enable_external_access = true",
        "RESET enable_external_access",
        "SET lock_configuration = false",
        "DELETE FROM notes",
    ],
)
def test_a_statement_on_duckdb_reads_nothing_but_its_own_database(tmp_path: Path, statement: str) -> None:
    pq.write_table(pa.table({"name": ["x"]}), tmp_path / "people.parquet")
    duckdb.connect(str(tmp_path / "other.duckdb")).close()
    with duckdb.connect(str(tmp_path / "clinic.duckdb")) as made:
        made.execute("CREATE TABLE notes AS SELECT 1 AS a")
        made.execute(f"CREATE VIEW seen AS SELECT * FROM read_parquet('{tmp_path}/people.parquet')")
    connected: Any = Connected(tmp_path / "clinic.duckdb")
    _confine(connected)
    assert connected.exec_driver_sql("SELECT * FROM notes").fetchall() == [(1,)]
    with pytest.raises(duckdb.Error):
        connected.exec_driver_sql(statement.format(tmp_path)).fetchall()
    assert not (tmp_path / "copy.csv").exists()


@pytest.mark.parametrize("uri", ["duckdb:///:memory:", "duckdb://", "duckdb:///{0}/none.duckdb"])
def test_a_duckdb_without_a_file_is_refused(tmp_path: Path, uri: str) -> None:
    """Its queries could only read other files."""
    with pytest.raises(SourceError, match="there is no such file"):
        copied({"uri": uri.format(tmp_path), "query": "SELECT * FROM 'people.parquet'"}, tmp_path / "a")


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ({"uri": "postgresql+psycopg://reader:ge/heim@db/clinic", "table": "t"}, "uri: has a password"),
        ({"uri": "postgresql+psycopg://reader:ge#heim@db/clinic", "table": "t"}, "uri: has a password"),
        ({"uri": "postgresql+psycopg://reader:ge?heim@db/clinic", "table": "t"}, "uri: has a password"),
        ({"uri": "postgresql+psycopg://reader:ge[heim@db/clinic", "table": "t"}, "uri: has a password"),
        ({"uri": "mssql+pyodbc:///?odbc_connect=PWD%3Dgeheim", "table": "t"}, "or a parameter that may be one"),
        ({"uri": "postgresql://db/x?host=db;password=geheim", "table": "t"}, "or a parameter that may be one"),
        ({"uri": "reader:geheim@db/clinic", "table": "t"}, "uri: it is no URL (it is not shown)"),
        ({"uri": "s3://AKIA:ge/heim@bucket/x", "format": "csv"}, "uri: has credentials"),
        ({"uri": "postgresql://reader:geheim@db/clinic", "table": "t"}, "uri: has a password"),
        ({"uri": "postgresql://reader@db/clinic?password=geheim", "table": "t"}, "uri: has a password"),
        ({"uri": "clinic.db", "table": "t"}, "uri: it is no URL (it is not shown); accepted: such as"),
        ({"uri": "sqlite:///x"}, "table: accepted: one of table and query"),
        ({"uri": "sqlite:///x", "table": "t", "query": "SELECT 1"}, "table: accepted: one of table and query"),
        ({"uri": "x", "format": "csv", "table": "t"}, "table: declared for the format csv; accepted: format: sql"),
    ],
)
def test_faults_of_a_contract(place: dict[str, Any], why: str) -> None:
    with pytest.raises(ContractError) as caught:
        declared({"format": "sql"} | place)
    assert why in str(caught.value) and "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "content", "password"),
    [
        ("postgresql://reader@db/x", "other:*:*:*:no\ndb:5432:x:reader:a:b\\\\c\\:d\n", "a:b\\c:d"),
        ("mysql+pymysql://reader@db:3307/x", "db:3307:*:reader:yes", "yes"),
        ("postgresql://reader@/x?host=/run/pg", "/run/pg:5432:x:reader:yes", "yes"),
        ("postgresql://reader@elsewhere/x", "db:*:*:*:geheim", None),
        ("postgresql://reader@db/x?host=elsewhere", "db:*:*:*:geheim", None),
        ("postgresql://reader@db/x?host=db,elsewhere", "db:*:*:*:geheim", None),
        ("oracle+oracledb://reader@elsewhere/x?host=db", "db:*:*:*:geheim", None),
        ("oracle+oracledb://reader@db:1522/x?port=1521", "db:1521:*:*:geheim", None),
        ("postgresql://reader@db:5433/x", "db:5432:*:*:geheim", None),
        ("postgresql://reader@db/x", "geheim", None),
        ("postgresql://reader@db/x", "[default]\naws_secret_access_key = geheim\n", None),
    ],
)
def test_a_password_goes_only_to_the_host_beside_it(
    tmp_path: Path, uri: str, content: str, password: str | None
) -> None:
    """Else whoever edits a contract would have any file that this user can read."""
    (tmp_path / "passwords").write_text(content)
    url, file = sa.make_url(uri), tmp_path / "passwords"
    if password is not None:
        assert password_for(url, file) == password
        return
    with pytest.raises(SourceError, match="no line of it is for") as caught:
        password_for(url, file)
    assert "geheim" not in str(caught.value)


def test_a_password_of_the_environment_goes_only_to_the_host_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", MARK)
    place = {"uri": "postgresql+psycopg://reader@127.0.0.1:1/x", "table": "t"}
    with pytest.raises(SourceError, match=r"PGPASSWORD would be sent to 127\.0\.0\.1, and"):
        copied(place, tmp_path / "a")
    for scheme in ("postgresql", "postgresql+psycopg"):
        with pytest.raises(SourceError, match=r"PGPASSWORD would be sent to 127\.0\.0\.1, and"):
            open_catalog(f"{scheme}://reader@127.0.0.1:1/x", None)
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    with pytest.raises(SourceError, match="the database cannot be read"):
        copied(place, tmp_path / "b")


@pytest.mark.parametrize(
    ("uri", "variable"),
    [
        ("cockroachdb://reader@elsewhere/x", "PGPASSWORD"),
        ("postgresql+psycopg://reader@/x?service=elsewhere", "PGPASSWORD"),
        ("postgresql+psycopg://reader@db.example.org/x?service=elsewhere", "PGPASSWORD"),
        ("mysql+mysqldb://reader@elsewhere/x", "MYSQL_PWD"),
        ("mariadb+mariadbconnector://reader@elsewhere/x", "MYSQL_PWD"),
    ],
)
def test_nor_does_one_of_another_databases_client(uri: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGPASSWORD", "MYSQL_PWD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGHOST", "db.example.org")
    check_environment(sa.make_url(uri))
    monkeypatch.setenv(variable, MARK)
    with pytest.raises(SourceError, match=f"the variable {variable} would be sent to") as caught:
        check_environment(sa.make_url(uri))
    assert MARK not in str(caught.value)


def test_a_password_comes_from_a_file(tmp_path: Path) -> None:
    place = {"uri": "postgresql://reader@db/x", "table": "t", "password_file": str(tmp_path / "none")}
    with pytest.raises(SourceError, match=r"source\.password_file: .*none: .*accepted: a file with a line HOST:PORT:"):
        copied(place, tmp_path / "a")
    (tmp_path / "none").write_text(f"127.0.0.1:1:clinic:reader:{MARK}\n")
    by = declared({"format": "sql"} | place | {"uri": "postgresql+psycopg://reader@127.0.0.1:1/clinic"})
    (tmp_path / "b").mkdir()
    with pytest.raises(SourceError, match=r"the database cannot be read \(OperationalError") as caught:
        extract(by.source, {"person"}, tmp_path / "b")
    assert MARK not in str(caught.value)


def test_lineage_names_a_table_without_credentials() -> None:
    by = declared({"format": "sql", "uri": "postgresql+psycopg://reader@db.example.org/clinic", "table": "visits.all"})
    assert by.source.place == "postgres://db.example.org:5432/clinic.visits.all"
    query = declared({"format": "sql", "uri": "sqlite:////data/clinic.db", "query": "SELECT 1"}).source.place
    assert query.startswith("sqlite://localhost/data/clinic.db.query-")


def test_a_database_that_is_locked_or_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text(MARK * 100)
    with pytest.raises(SourceError, match="the database cannot be read") as caught:
        copied({"uri": f"sqlite:///{tmp_path / 'x.db'}", "table": "t"}, tmp_path / "a")
    assert MARK not in str(caught.value)
    with pytest.raises(SourceError, match=r"the database cannot be read \(NoSuchModuleError"):
        copied({"uri": "nosuch://x/y", "table": "t"}, tmp_path / "b")
    sqlite3.connect(tmp_path / "y.db").close()
