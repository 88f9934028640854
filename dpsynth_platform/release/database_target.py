"""A database file of DuckDB or SQLite for each release, whose tables have the keys that the dossier names.

What belongs here: the file's form, and comparing one that is there with the release. What does not: tables that hold
several releases (`delta_target` and others).

A single table is `data`, linked tables have their names. Foreign keys are declared, so that the database itself has
checked that every one joins. The table `_release` holds the release's documents as they were signed, by their names. A
file is written in a hidden directory and renamed when it is whole. SQLite has no dates, moments, times and decimals:
they are texts there (ISO 8601), and truth values are 0 and 1.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.release import Target
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import PublicationFailed
from dpsynth_platform.foundation.storage import read_table, sync, table_schema
from dpsynth_platform.release.target_files import SignedRelease
from dpsynth_platform.release.target_rows import digest_of_rows, rows_of
from dpsynth_platform.sources.json_files import CONFIGURATION

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

DOCUMENTS = "_release"
ONLY = "data"
"""Name of a single table."""
_AT_ONCE = 10_000

Rows = Iterable[tuple[Any, ...]]


def put(target: Target, release: SignedRelease) -> bool:
    """Writes the file of a release unless it is there, and compares what is there. See `targets.put`."""
    file = Path(target.place_of(release.release_id))
    new = not file.exists()
    if new:
        for name in release.digests:
            release.check(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        for left in file.parent.glob(f".{file.name}.*"):  # of a killed run
            shutil.rmtree(left)
        hidden = file.with_name(f".{file.name}.{secrets.token_hex(8)}")  # a directory: databases write beside the file
        hidden.mkdir(mode=0o700)
        try:
            _WRITERS[target.format](hidden / file.name, release)
            (hidden / file.name).chmod(0o644)
            sync(hidden / file.name)
            (hidden / file.name).rename(file)
            sync(file.parent)
        finally:
            shutil.rmtree(hidden)
    if not _holds(file, target.format, release):
        raise PublicationFailed(
            f"the file {file.name} there does not hold what was signed; accepted: the file as it was written, or an "
            "empty place"
        )
    return new


def _described(release: SignedRelease) -> list[dict[str, Any]]:
    """The tables as the dossier has them, those that are referred to first."""
    dossier = json.loads(release.check(layout.DOSSIER).read_text(encoding="utf-8"))
    single: dict[str, Any] = {"name": layout.SINGLE, "role": "root", "key": [], "parent": None, "lookups": {}}
    tables: list[dict[str, Any]] = dossier["synthetic"].get("tables", [single])
    return sorted(tables, key=lambda table: table["role"] != "public")


def _documents(release: SignedRelease) -> dict[str, bytes]:
    names = (name for name in release.documents if not name.startswith(f"{layout.DATA}/"))
    return {name: release.check(name).read_bytes() for name in names}


def _created(table: Mapping[str, Any], types: Mapping[str, str], keys: Mapping[str, Sequence[str]]) -> str:
    """The statement that makes a table with its keys."""
    parts = [f"{_quoted(name)} {kind}{' NOT NULL' if name in table['key'] else ''}" for name, kind in types.items()]
    if table["key"]:
        parts.append(f"PRIMARY KEY ({_listed(table['key'])})")
    for columns, other in _links(table):
        parts.append(f"FOREIGN KEY ({_listed(columns)}) REFERENCES {_quoted(other)} ({_listed(keys[other])})")
    return f"CREATE TABLE {_quoted(table['name'] or ONLY)} ({', '.join(parts)})"


def _links(table: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], str]]:
    """Foreign keys, with the tables that they refer to."""
    if table["parent"]:
        yield table["parent"]["columns"], table["parent"]["table"]
    yield from (([column], other) for column, other in table["lookups"].items())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(_quoted, names))


def _write_duckdb(file: Path, release: SignedRelease) -> None:
    import pyarrow as pa

    tables = _described(release)
    keys = {table["name"]: table["key"] for table in tables}
    types: dict[str, dict[str, str]] = {}
    with closing(_connected(file)) as connection:
        for table in tables:
            name, directory = table["name"], release.data(table["name"])
            schema = table_schema(directory)
            reader = pa.RecordBatchReader.from_batches(schema, read_table(directory))
            connection.register("empty_rows", schema.empty_table())
            described = connection.execute("DESCRIBE SELECT * FROM empty_rows").fetchall()
            types[name] = {column: kind for column, kind, *_ in described}
            for columns, other in _links(table):  # a foreign key has the type of its key
                types[name] |= {column: types[other][key] for column, key in zip(columns, keys[other], strict=True)}
            connection.execute(_created(table, types[name], keys))
            connection.register("rows", reader)
            connection.execute(f"INSERT INTO {_quoted(name or ONLY)} SELECT * FROM rows")  # noqa: S608 - quoted
            connection.unregister("rows")
        connection.execute(f"CREATE TABLE {DOCUMENTS} (name VARCHAR PRIMARY KEY, content BLOB NOT NULL)")
        connection.executemany(f"INSERT INTO {DOCUMENTS} VALUES (?, ?)", list(_documents(release).items()))  # noqa: S608
        connection.execute("CHECKPOINT")


def _write_sqlite(file: Path, release: SignedRelease) -> None:
    tables = _described(release)
    keys = {table["name"]: table["key"] for table in tables}
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        for table in tables:
            directory = release.data(table["name"])
            types = {field.name: _sqlite_type(field) for field in table_schema(directory)}
            connection.execute(_created(table, types, keys))
            places = ", ".join("?" * len(types))
            rows = map(_sqlite_row, rows_of(read_table(directory)))
            connection.executemany(f"INSERT INTO {_quoted(table['name'] or ONLY)} VALUES ({places})", rows)  # noqa: S608
        connection.execute(f"CREATE TABLE {DOCUMENTS} (name TEXT PRIMARY KEY, content BLOB NOT NULL)")
        connection.executemany(f"INSERT INTO {DOCUMENTS} VALUES (?, ?)", _documents(release).items())  # noqa: S608
        connection.commit()


_WRITERS: dict[str, Callable[[Path, SignedRelease], None]] = {"duckdb": _write_duckdb, "sqlite": _write_sqlite}


def _sqlite_type(field: pa.Field) -> str:
    import pyarrow.types as kinds

    known = (
        (lambda found: kinds.is_boolean(found) or kinds.is_integer(found), "INTEGER"),
        (kinds.is_floating, "REAL"),
        (lambda found: kinds.is_binary(found) or kinds.is_large_binary(found), "BLOB"),
        (lambda found: kinds.is_temporal(found) or kinds.is_decimal(found), "TEXT"),
        (lambda found: kinds.is_string(found) or kinds.is_large_string(found), "TEXT"),
    )
    for fits, name in known:
        if fits(field.type):
            return name
    raise PublicationFailed(
        f"column {field.name!r} has the type {field.type}, which SQLite does not take; accepted: duckdb, or another "
        "target"
    )


def _sqlite_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_sqlite_value, row))


def _sqlite_value(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, float) and math.isnan(value):
        return None  # SQLite stores it so
    return int(value) if isinstance(value, bool) else value


def _holds(file: Path, format_: str, release: SignedRelease) -> bool:
    """Whether a file has all rows and documents of the release, and no other."""
    of_database = {"duckdb": _duckdb_rows, "sqlite": _sqlite_rows}[format_]
    if sorted(_NAMES[format_](file)) != sorted([DOCUMENTS, *(name or ONLY for name in release.tables)]):
        return False
    documents = dict(of_database(file, DOCUMENTS))
    if documents != _documents(release):
        return False
    for name in release.tables:
        signed: Rows = rows_of(read_table(release.data(name)))
        if format_ == "sqlite":
            signed = map(_sqlite_row, signed)
        if digest_of_rows(of_database(file, name or ONLY)) != digest_of_rows(signed):
            return False
    return True


def _connected(file: Path, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    import duckdb

    configuration = {key: value for key, value in CONFIGURATION.items() if key != "memory_limit"}  # keys have an index
    configuration["enable_external_access"] = False
    connection = duckdb.connect(str(file), read_only=read_only, config=configuration)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _duckdb_names(file: Path) -> list[str]:
    """Names of all tables and views."""
    with closing(_connected(file, read_only=True)) as connection:
        found = connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE NOT internal "
            "UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal"
        ).fetchall()
    return [name for (name,) in found]


def _sqlite_names(file: Path) -> list[str]:
    """Names of all tables, views, triggers and declared indexes."""
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        found = connection.execute(
            r"SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'"
        ).fetchall()
    return [name for (name,) in found]


_NAMES: dict[str, Callable[[Path], list[str]]] = {"duckdb": _duckdb_names, "sqlite": _sqlite_names}


def _duckdb_rows(file: Path, table: str) -> Iterator[tuple[Any, ...]]:
    with closing(_connected(file, read_only=True)) as connection:
        reader = connection.sql(f"SELECT * FROM {_quoted(table)}").to_arrow_reader(_AT_ONCE)  # noqa: S608 - quoted
        yield from rows_of(reader)


def _sqlite_rows(file: Path, table: str) -> Iterator[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        yield from connection.execute(f"SELECT * FROM {_quoted(table)}")  # noqa: S608 - quoted
