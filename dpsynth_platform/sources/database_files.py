"""A database in one file, SQLite's or DuckDB's: its tables, their keys, and their rows.

What belongs here: the catalog, and reading a table of a file that nothing changes meanwhile. What does not: databases
behind a connection (`database`), and declarations.

Types are those that the catalog declares. SQLite does not enforce its own, so each value is read as the declared type,
by the rules of CSV files where it is a text (`csv_texts`):

| declared in SQLite | type |
| --- | --- |
| INT in it | int64 |
| BOOL in it | bool |
| DATETIME, TIMESTAMP; DATE | timestamp in microseconds; date32; both from texts of ISO 8601 |
| REAL, FLOA, DOUB in it | float64 |
| BLOB in it | binary |
| NUMERIC, DECIMAL, with a scale above 0, with scale 0, without | decimal128, int64, float64 |
| others | string |

A column of texts, of either database, is read as the type that the contract declares, also by those rules: SQLite has
no type for dates, and many databases keep them as texts.

Connections read only. No extension is loaded, and no other file is read.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dpsynth_platform.compute.engine import quoted
from dpsynth_platform.contracts.columns import Column
from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.csv_files import text_schema
from dpsynth_platform.sources.csv_texts import MOMENT, values_of
from dpsynth_platform.sources.json_files import CONFIGURATION

if TYPE_CHECKING:
    import duckdb

ACCEPTED = "a database file of SQLite or DuckDB, not encrypted, that nothing writes to meanwhile"
_ROWS_AT_ONCE = 1 << 14
_LONGEST_NAME = 63
_SCALED = re.compile(r"(?:NUMERIC|DECIMAL)\s*\(\s*\d+\s*(?:,\s*(\d+)\s*)?\)")
_MOST_SCALE = 18


@dataclass(frozen=True)
class ForeignKey:
    """Columns that name a row of a table by `referred`, in the same order."""

    columns: tuple[str, ...]
    table: str
    referred: tuple[str, ...]


@dataclass(frozen=True)
class Catalogued:
    """What a database's catalog says of a table.

    Attributes:
        stored: the table's name, quoted for SQL.
        unique: further sets of columns whose values are distinct.
    """

    schema: pa.Schema
    stored: str = ""
    key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    foreign: tuple[ForeignKey, ...] = ()


def plain_name(name: str) -> str:
    """The name of a table in a declaration: letters, digits and single signs `_`, a letter first.

    `Order Details` is `Order_Details`, and `3` is `table_3`. Letters lose their accents: `Müller` is `Muller`. Those of
    other scripts are their hexadecimal numbers in Unicode, as in `u75c5_u4eba`. Long names end in eight digits of a
    digest.
    """
    letters = [each for each in unicodedata.normalize("NFKD", name) if not unicodedata.combining(each)]
    spelled = "".join(each if each.isascii() or not each.isalnum() else f"_u{ord(each):x}_" for each in letters)
    plain = re.sub(r"[^A-Za-z0-9]+", "_", spelled).strip("_")
    found = plain if re.match("[A-Za-z]", plain) else f"table_{plain}".strip("_")
    if len(found) <= _LONGEST_NAME:
        return found
    return f"{found[: _LONGEST_NAME - 9].strip('_')}_{canonical_digest(name)[:8]}"


class DatabaseFile(Mapping[str, pa.Table]):
    """The tables of a database file by their plain names. Asking for a table reads all its rows.

    Attributes:
        catalog: of each table; it is read at once, and no row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = _stamp(path)
        self.catalog: dict[str, Catalogued] = {}
        with self._refused("the database"):
            for name, found in self._catalogued():
                if (plain := plain_name(name)) in self.catalog:
                    raise SourceError(
                        f"{path}: two tables are named {plain!r} (schemas, and signs other than letters and digits, do "
                        "not count); accepted: distinct names"
                    )
                self.catalog[plain] = found
        if not self.catalog:
            raise SourceError(f"{path}: the database has no table; accepted: {ACCEPTED}, with tables")

    def __getitem__(self, name: str) -> pa.Table:
        return self.read(name)

    @property
    def content(self) -> str:
        """A digest of the file, and of the log of its newest changes if there is one: rows are read from both."""
        found = [digest_file(each) for each in _files(self.path) if each == self.path or _size(each)]
        return found[0] if len(found) == 1 else canonical_digest(found)

    def __contains__(self, name: object) -> bool:  # the default reads the table
        return name in self.catalog

    def __iter__(self) -> Iterator[str]:
        return iter(self.catalog)

    def __len__(self) -> int:
        return len(self.catalog)

    def read(self, name: str, unread: Collection[str] = (), declared: Mapping[str, Column] | None = None) -> pa.Table:
        """A table with all its columns, batch by batch from the file.

        Args:
            unread: columns that are missing in all rows, whatever the file has in them.
            declared: declarations of columns, by which texts are read.

        Raises:
            SourceError: the file cannot be read or was changed, or a value is not of its column's type.
            KeyError: there is no such table.
        """
        found = self.catalog[name]
        kept = [item for item in found.schema if item.name not in unread] or [found.schema.field(0)]
        with self._refused(f"table {name!r}"):
            read = pa.Table.from_batches(self._batches(found, pa.schema(kept)), pa.schema(kept))
        if _stamp(self.path) != self._stamp:
            raise SourceError(f"{self.path}: the database was changed while it was read; run again")
        names, rows = {item.name for item in kept}, len(read)
        columns = [read[item.name] if item.name in names else pa.nulls(rows, item.type) for item in found.schema]
        return self._typed(name, columns, declared)

    def described(self, name: str, declared: Mapping[str, Column] | None = None) -> pa.Table:
        """A table as `read` gives it, without a row: none is read."""
        return self._typed(name, [pa.nulls(0, item.type) for item in self.catalog[name].schema], declared)

    def _typed(
        self, name: str, columns: Sequence[pa.ChunkedArray | pa.Array], declared: Mapping[str, Column] | None
    ) -> pa.Table:
        names = self.catalog[name].schema.names
        typed = text_schema(names, declared or {})
        found = [self._declared(name, *each) for each in zip(columns, typed, strict=True)]
        return pa.Table.from_arrays(found, names=names)

    def _declared(self, table: str, column: pa.ChunkedArray | pa.Array, item: pa.Field) -> pa.ChunkedArray | pa.Array:
        """The values of a column: texts as the declared type, others as they are."""
        if column.type != pa.string() or item.type == pa.string():
            return column
        try:
            chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
            return pa.chunked_array([values_of(each.fill_null(""), item.type) for each in chunks], item.type)
        except pa.ArrowException:
            pass  # its text quotes the data
        raise SourceError(
            f"{self.path}: table {table!r}: column {item.name!r} has texts, and some of them cannot be read as "
            f"{item.type}; accepted: dates as 2026-01-31, times as 2026-01-31 07:30, numbers as 0.5; or type text, "
            "categorical or ignore: true"
        )

    @abstractmethod
    def _catalogued(self) -> Iterator[tuple[str, Catalogued]]:
        """The tables by their own names, in the order in which they were made."""

    @abstractmethod
    def _batches(self, table: Catalogued, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows of a table, with these columns."""

    @contextmanager
    def _refused(self, what: str) -> Iterator[None]:
        import duckdb

        try:
            yield
            return
        except (sqlite3.Error, duckdb.Error, pa.ArrowException, OSError, ValueError) as error:
            problem = reason_of(error)  # the library's text may quote the data
        raise SourceError(f"{self.path}: {what} cannot be read ({problem}); accepted: {ACCEPTED}")


def open_database(path: Path) -> DatabaseFile:
    """The tables of a database file, by what is in it and not by its name; reads the catalog only.

    Raises:
        SourceError: it is no database of SQLite or DuckDB, cannot be read, or has no table.
    """
    problem = "it is neither a directory of tables nor a database"
    try:
        with path.open("rb") as file:
            start = file.read(16)
        if start == b"SQLite format 3\0":
            return _SQLite(path)
        if start[8:12] == b"DUCK":
            return _DuckDB(path)
    except OSError as error:
        problem = f"it cannot be read ({reason_of(error)})"
    raise SourceError(f"{path}: {problem}; accepted: a directory with a file for each table, or {ACCEPTED}")


class _SQLite(DatabaseFile):
    def _catalogued(self) -> Iterator[tuple[str, Catalogued]]:
        with closing(self._connected()) as connection:
            names = [
                name
                for name, kind, schema in connection.execute("SELECT name, type, schema FROM pragma_table_list")
                if kind == "table" and schema == "main" and not name.startswith("sqlite_")
            ]
            made = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema ORDER BY rowid")]
            known = {name.casefold(): (name, _columns(connection, name)) for name in sorted(names, key=made.index)}
            for name, columns in known.values():
                schema = pa.schema([pa.field(each, _sqlite_type(type_)) for each, type_, _ in columns])
                yield (
                    name,
                    Catalogued(
                        schema,
                        quoted(name),
                        _primary(columns),
                        tuple(_unique(connection, name)),
                        tuple(_foreign(connection, name, known)),
                    ),
                )

    def _batches(self, table: Catalogued, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        shown = ", ".join(
            f"CAST({quoted(item.name)} AS TEXT)" if _as_text(item) else quoted(item.name) for item in schema
        )
        with closing(self._connected()) as connection:
            cursor = connection.execute(f"SELECT {shown} FROM {table.stored}")  # noqa: S608
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                columns = map(list, zip(*rows, strict=True))
                arrays = [_sqlite_values(values, item) for values, item in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _connected(self) -> sqlite3.Connection:
        # A database with a log of changes gets files beside it even by reading, unless it is said to stay as it is.
        # `read` finds out whether it did.
        beside = any(self.path.with_name(f"{self.path.name}{end}").exists() for end in ("-wal", "-journal"))
        alone = "" if beside else "&immutable=1"
        connection = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro{alone}", uri=True)
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection


_Columns = Sequence[tuple[str, str, int]]
"""Of each column its name, its declared type, and its place in the primary key, from 1; 0: none."""


def _columns(connection: sqlite3.Connection, table: str) -> _Columns:
    found = connection.execute("SELECT name, type, pk FROM pragma_table_xinfo(?) WHERE hidden <> 1", (table,))
    return found.fetchall()


def _primary(columns: _Columns) -> tuple[str, ...]:
    return tuple(name for name, _, place in sorted(columns, key=lambda column: column[2]) if place)


def _unique(connection: sqlite3.Connection, table: str) -> Iterator[tuple[str, ...]]:
    indexes = connection.execute('SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (table,))
    for (index,) in indexes.fetchall():
        names = [name for (name,) in connection.execute("SELECT name FROM pragma_index_info(?)", (index,))]
        if None not in names:  # of an expression
            yield tuple(names)


def _foreign(
    connection: sqlite3.Connection, table: str, known: Mapping[str, tuple[str, _Columns]]
) -> Iterator[ForeignKey]:
    """The foreign keys in the order of their declaration, with names spelled as in the tables."""
    rows = connection.execute(
        'SELECT id, "table", "from", "to" FROM pragma_foreign_key_list(?) ORDER BY id DESC, seq', (table,)
    ).fetchall()
    own = {name.casefold(): name for name, _, _ in known[table.casefold()][1]}
    for number in dict.fromkeys(row[0] for row in rows):
        parts = [row for row in rows if row[0] == number]
        name, columns = known.get(parts[0][1].casefold(), (None, ()))
        if name is None:
            continue
        others = {each.casefold(): each for each, _, _ in columns}
        named = [others.get((part[3] or "").casefold()) for part in parts]
        referred = _primary(columns) if parts[0][3] is None else tuple(each for each in named if each is not None)
        if len(referred) == len(parts):
            yield ForeignKey(tuple(own[part[2].casefold()] for part in parts), plain_name(name), referred)


def _sqlite_type(declared: str) -> pa.DataType:
    """The type that a column of SQLite is read as; see the module."""
    upper = declared.upper()
    if "INT" in upper and "POINT" not in upper and "INTERVAL" not in upper:
        return pa.int64()
    if "BOOL" in upper:
        return pa.bool_()
    if "DATETIME" in upper or "TIMESTAMP" in upper:
        return MOMENT
    if "DATE" in upper:
        return pa.date32()
    if "BLOB" in upper:
        return pa.binary()
    if any(part in upper for part in ("REAL", "FLOA", "DOUB")):
        return pa.float64()
    if scaled := _SCALED.match(upper):
        scale = int(scaled[1] or 0)
        return pa.int64() if scale == 0 else pa.decimal128(38, min(scale, _MOST_SCALE))
    return pa.float64() if upper.startswith(("NUMERIC", "DECIMAL", "NUMBER")) else pa.string()


def _as_text(item: pa.Field) -> bool:
    return item.type == pa.string() or item.type == pa.bool_() or bool(pa.types.is_temporal(item.type))


def _sqlite_values(values: list[Any], item: pa.Field) -> pa.Array:
    try:
        if item.type == pa.string():
            return pa.array(values, item.type)
        if _as_text(item):
            return values_of(pa.array(["" if value is None else value for value in values], pa.string()), item.type)
        if pa.types.is_decimal(item.type):
            return pa.array(values, pa.float64()).cast(item.type)
        return pa.array(values, item.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass  # its text may quote the data
    raise SourceError(
        f"column {item.name!r} is declared in the database to hold {item.type}, and some of its values are none "
        "(SQLite does not check it); accepted: numbers, dates as 2026-01-31, 0 or 1; or ignore: true, which does not "
        "read the column"
    )


class _DuckDB(DatabaseFile):
    def _catalogued(self) -> Iterator[tuple[str, Catalogued]]:
        with self._connected() as connection:
            tables = connection.execute(
                "SELECT schema_name, table_name FROM duckdb_tables() "
                "WHERE database_name = current_database() AND NOT internal AND NOT temporary ORDER BY table_oid"
            ).fetchall()
            constraints = connection.execute(
                "SELECT schema_name, table_name, constraint_type, constraint_column_names, referenced_table, "
                "referenced_column_names FROM duckdb_constraints() WHERE database_name = current_database() "
                "ORDER BY table_oid, constraint_index"
            ).fetchall()
            for schema, name in tables:
                own = [row[2:] for row in constraints if row[:2] == (schema, name)]
                stored = f"{quoted(schema)}.{quoted(name)}"
                empty: Any = connection.sql(f"SELECT * FROM {stored} LIMIT 0").to_arrow_reader()  # noqa: S608
                yield (
                    name,
                    Catalogued(
                        empty.schema,
                        stored,
                        next((tuple(columns) for kind, columns, _, _ in own if kind == "PRIMARY KEY"), ()),
                        tuple(tuple(columns) for kind, columns, _, _ in own if kind == "UNIQUE"),
                        tuple(
                            ForeignKey(tuple(columns), plain_name(other), tuple(referred))
                            for kind, columns, other, referred in own
                            if kind == "FOREIGN KEY"
                        ),
                    ),
                )

    def _batches(self, table: Catalogued, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._connected() as connection:
            rows = connection.sql(f"SELECT {', '.join(map(quoted, schema.names))} FROM {table.stored}")  # noqa: S608
            reader: Any = rows.to_arrow_reader(_ROWS_AT_ONCE)
            yield from reader

    def _connected(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        configuration = CONFIGURATION | {"enable_external_access": False}
        connection = duckdb.connect(str(self.path), read_only=True, config=configuration)
        connection.execute("SET TimeZone = 'UTC'")
        return connection


def _files(path: Path) -> list[Path]:
    """A database file, and where either kind of database has the log of its newest changes."""
    return [path.with_name(f"{path.name}{end}") for end in ("", "-wal", ".wal")]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _stamp(path: Path) -> list[tuple[int, int]]:
    """Changes whenever the file does, or the log of its newest changes."""
    found = []
    for file in _files(path):
        try:
            status = file.stat()
            found.append((status.st_mtime_ns, status.st_size) if status.st_size else (0, 0))
        except FileNotFoundError:
            found.append((0, 0))
    return found
