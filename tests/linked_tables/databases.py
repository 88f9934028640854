"""A shop's database in SQLite and DuckDB, and drafts filled in as a person would."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import yaml

MARKER = "Qzx"
"""Stands in every text of every row."""
NUMBER = 8675309
"""In every column of numbers, except for an employee's employee."""
SHOP = (
    "CREATE TABLE Artist(ArtistId integer PRIMARY KEY, Name varchar(120))",
    "CREATE TABLE Track(TrackId integer PRIMARY KEY, Name text, ArtistId integer REFERENCES Artist(ArtistId))",
    "CREATE TABLE Employee(EmployeeId integer PRIMARY KEY, Name text, "
    "ReportsTo integer REFERENCES Employee(EmployeeId))",
    "CREATE TABLE Customer(CustomerId integer PRIMARY KEY, Country varchar(40), "
    "SupportRepId integer REFERENCES Employee(EmployeeId))",
    "CREATE TABLE Invoice(InvoiceId integer PRIMARY KEY, CustomerId integer NOT NULL REFERENCES Customer(CustomerId), "
    "Made timestamp, Total decimal(10,2))",
    "CREATE TABLE Line(InvoiceId integer REFERENCES Invoice(InvoiceId), Line integer, "
    "TrackId integer REFERENCES Track(TrackId), CustomerId integer REFERENCES Customer(CustomerId), "
    "Price double, PRIMARY KEY(InvoiceId, Line))",
    'CREATE TABLE "Line Note"(Line integer, InvoiceId integer, Note text, Urgent boolean, '
    "FOREIGN KEY(InvoiceId, Line) REFERENCES Line(InvoiceId, Line))",
    "CREATE TABLE Liked(CustomerId integer REFERENCES Customer(CustomerId), "
    "TrackId integer REFERENCES Track(TrackId), Day date, PRIMARY KEY(CustomerId, TrackId))",
    "CREATE TABLE Detail(CustomerId integer PRIMARY KEY REFERENCES Customer(CustomerId), Photo blob, Height real)",
    "CREATE TABLE Log(Words text, Size integer)",
)
ROWS = (
    f"INSERT INTO Artist VALUES ({NUMBER}, '{MARKER}')",
    f"INSERT INTO Track VALUES ({NUMBER}, '{MARKER}', {NUMBER})",
    f"INSERT INTO Employee VALUES ({NUMBER}, '{MARKER}', NULL)",
    f"INSERT INTO Customer VALUES ({NUMBER}, '{MARKER}', {NUMBER})",
    f"INSERT INTO Invoice VALUES ({NUMBER}, {NUMBER}, '2019-08-07 10:11:12', 86753.09)",
    f"INSERT INTO Line VALUES ({NUMBER}, {NUMBER}, {NUMBER}, {NUMBER}, {NUMBER})",
    f"INSERT INTO \"Line Note\" VALUES ({NUMBER}, {NUMBER}, '{MARKER}', true)",
    f"INSERT INTO Liked VALUES ({NUMBER}, {NUMBER}, '2019-08-07')",
    f"INSERT INTO Detail VALUES ({NUMBER}, '{MARKER}', {NUMBER})",
    f"INSERT INTO Log VALUES ('{MARKER}', {NUMBER})",
)
TYPES = {"int64": "bigint", "string": "text", "date32[day]": "date", "double": "double", "bool": "boolean"}
"""Types of columns in SQL, by those of Arrow."""


def database(path: Path, statements: Sequence[str]) -> Path:
    """A database in a new file: DuckDB's if its name ends so, else SQLite's."""
    if path.suffix == ".duckdb":
        with duckdb.connect(str(path)) as connection:
            for statement in statements:
                connection.execute(statement)
    else:
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
    return path


def stored(path: Path, tables: dict[str, pa.Table], keys: dict[str, str]) -> Path:
    """Tables in a new database, with the keys that `keys` declares in SQL."""
    statements = []
    for name, table in tables.items():
        columns = [f'"{item.name}" {TYPES[str(item.type)]}' for item in table.schema]
        statements.append(f"CREATE TABLE {name}({', '.join(columns)}{keys.get(name, '')})")
    database(path, statements)
    if path.suffix == ".duckdb":
        with duckdb.connect(str(path)) as connection:
            for name, table in tables.items():
                connection.register("given", table)
                connection.execute(f"INSERT INTO {name} SELECT * FROM given")
                connection.unregister("given")
        return path
    with closing(sqlite3.connect(path)) as connection, connection:
        for name, table in tables.items():
            shown = [item.cast(pa.string()) if pa.types.is_date(item.type) else item for item in table.itercolumns()]
            rows = zip(*(column.to_pylist() for column in shown), strict=True)
            connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(shown))})", rows)
    return path


def filled(draft: str, **public: str) -> dict[str, Any]:
    """A draft whose gaps a person has filled in.

    Args:
        public: why tables are public, by their names; others have a reason of their own.
    """
    gaps: dict[str, Any] = {"min": 0, "max": 9, "decimals": 2, "values": ["a", "b"]}
    days = {"min": "2020-01-01", "max": "2020-12-31"}
    document: dict[str, Any] = yaml.safe_load(draft)
    for name, table in document["tables"].items():
        if "public" in table:
            table["public"] = public.get(name, "It is a list that everyone may read.")
        if "max_children" in table:
            table["max_children"] = table["max_children"] or 3
        for column in table.get("columns", {}).values():
            if "type" in column and column["type"] is None:
                column |= {"type": "integer", "min": 0, "max": 9}
            for key in [key for key, value in column.items() if value is None or value == []]:
                column[key] = (days if column["type"] in ("date", "datetime") else gaps)[key]
    return document
