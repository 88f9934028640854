"""Tables of databases: a copy in the restricted zone, which is the version that a run reads.

What belongs here: copying a table or a query's rows into a CSV file, by one statement in a transaction that only reads.
What does not: reading the copy (`csv_files`), its version (`file_versions`), and how long it is kept (`lifecycle`).

PostgreSQL writes the file itself (`COPY ... TO STDOUT`); other databases go through SQLAlchemy. Either way the texts
are exact, and values are read as the declared types of their columns.

A statement on a database file reads nothing beside it (`_confine`): the ledger knows whose records are in that file
(`database_ids`), and not what else a statement would find, such as another family's Parquet file.

The rows of a table have no order, so its content is named by their number and the sums of their hashes.
"""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import pyarrow as pa

from dpsynth_platform.contracts.base import COLUMN_NAME
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.database_ids import FILE_DATABASES
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.passwords import check_environment, password_for

if TYPE_CHECKING:
    import sqlalchemy as sa

COPY = "rows.csv"
"""The copy's name in its directory."""
COPIED = Dialect(separator=",", skip_blanks=False)
"""The dialect of copies."""
_ROWS_AT_ONCE = 8192
_LONGEST_ROW = 1 << 25
_BOOLEAN = 16
"""PostgreSQL's number of its type `boolean`, whose texts are `t` and `f`."""
_IDENTIFIERS = frozenset((18, 19, 20, 21, 23, 25, 1042, 1043, 2950))
"""PostgreSQL's numbers of its types of texts, whole numbers and UUIDs."""
_NUMERIC = 1700
_TYPES: dict[int, pa.DataType] = {
    _BOOLEAN: pa.bool_(),
    **dict.fromkeys((20, 21, 23), pa.int64()),
    **dict.fromkeys((700, 701), pa.float64()),
    1082: pa.date32(),
    1083: pa.time64("us"),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
    **dict.fromkeys((18, 19, 25, 1042, 1043, 2950), pa.string()),
}
"""Types by PostgreSQL's numbers of them."""
_T = TypeVar("_T")


def extract(source: Source, identifiers: Collection[str], directory: Path) -> str:
    """Copies the rows into a directory; returns a digest of them, whatever their order.

    Args:
        identifiers: columns of ids, which must be texts, whole numbers or UUIDs: others have several texts.

    Raises:
        SourceError: the database cannot be reached or does not answer as asked. Its text is not shown, since it may
            quote data.
        OSError: the copy cannot be written.
    """
    path = directory / COPY

    def copied(connection: sa.Connection) -> str:
        read = _from_postgresql if connection.dialect.name == "postgresql" else _from_other
        return _digest(path, read(connection, source, identifiers, path))

    return _connected(source, copied)


def columns_of(source: Source) -> dict[str, pa.DataType | None]:
    """The names and types of the columns of a table or query; reads no row.

    Types are those of PostgreSQL's catalog. Those of other databases, and of PostgreSQL's further types, are None.

    Raises:
        SourceError: the database cannot be reached or does not answer as asked.
    """

    def described(connection: sa.Connection) -> dict[str, pa.DataType | None]:
        # An alias, so that the server accepts one statement only.
        statement = f"SELECT * FROM ({_statement(connection, source)}\n) AS source WHERE 1 = 0"  # noqa: S608
        if connection.dialect.name != "postgresql":
            import sqlalchemy as sa

            found = connection.execute(sa.text(statement.replace(":", r"\:")))
            return dict.fromkeys(_checked(list(found.keys())))
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor:
            cursor.execute(statement.encode(), prepare=True)
            _checked([item.name for item in cursor.description])
            return {item.name: _type_of(item.type_code, item.scale) for item in cursor.description}

    return _connected(source, described)


def _type_of(code: int, scale: int | None) -> pa.DataType | None:
    """The type of a column by PostgreSQL's number of it."""
    if code == _NUMERIC:
        return pa.decimal128(38, scale) if scale is not None and 0 <= scale <= 38 else pa.float64()
    return _TYPES.get(code)


def _connected(source: Source, use: Callable[[sa.Connection], _T]) -> _T:
    """What `use` returns, with a connection that is never committed. Raises `SourceError` as `extract` does."""
    import duckdb
    import psycopg
    import sqlalchemy as sa

    try:
        url = _url(source)
        arguments = {"read_only": True} if url.get_backend_name() == "duckdb" else {}
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args=arguments)
        try:
            with engine.connect() as connection:
                _confine(connection)
                return use(connection)
        finally:
            engine.dispose()
    except (sa.exc.SQLAlchemyError, ImportError, ValueError) as error:
        problem = f"the database cannot be read ({_reason(error)})"
    except (psycopg.Error, duckdb.Error) as error:
        problem = f"the database cannot be read ({reason_of(error)})"
    raise SourceError(f"{problem}; accepted: a reachable database, and a table or query in it that its user may read")


def _confine(connection: sa.Connection) -> None:
    """Lets statements on a database file read no other file and change nothing, whatever they ask for."""
    if connection.dialect.name == "duckdb":
        connection.exec_driver_sql("SET enable_external_access = false")
        connection.exec_driver_sql("SET lock_configuration = true")
    elif connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA query_only = ON")
        driver: Any = connection.connection.driver_connection
        driver.set_authorizer(_allowed)


def _allowed(action: int, *_: object) -> int:
    """SQLite's question before each part of a statement. VACUUM INTO attaches a file, too."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK


def _reason(error: Exception) -> str:
    """The error's type, that of the driver, and PostgreSQL's code of it."""
    original = getattr(error, "orig", None)
    code = getattr(original, "sqlstate", None)
    kinds = dict.fromkeys(type(item).__name__ for item in (error, original) if item is not None)
    return ", ".join([*kinds, *([f"SQLSTATE {code}"] if isinstance(code, str) and code.isalnum() else [])])


def _url(source: Source) -> sa.URL:
    import sqlalchemy as sa

    url = sa.make_url(source.uri)
    if url.get_backend_name() in FILE_DATABASES and not Path(url.database or "").is_file():
        raise SourceError(f"{url.database}: there is no such file; accepted: an existing database")
    if source.password_file is None:
        check_environment(url)
        return url
    return url.set(password=password_for(url, Path(source.password_file)))


def _statement(connection: sa.Connection, source: Source) -> str:
    if source.query is not None:
        return source.query.strip().rstrip(";")
    return f"SELECT * FROM {'.'.join(_quoted(connection, part) for part in (source.table or '').split('.'))}"  # noqa: S608


def _quoted(connection: sa.Connection, name: str) -> str:
    """A name in the database's SQL. SQLAlchemy's own method doubles `%` for some drivers, as for their parameters."""
    marks = connection.dialect.identifier_preparer
    return marks.initial_quote + name.replace(marks.escape_quote, marks.escape_to_quote) + marks.final_quote


def _from_postgresql(connection: sa.Connection, source: Source, identifiers: Collection[str], path: Path) -> list[str]:
    statement = _statement(connection, source)
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    connection.exec_driver_sql("SET LOCAL datestyle TO ISO")
    connection.exec_driver_sql("SET LOCAL timezone TO 'UTC'")
    connection.exec_driver_sql("SET LOCAL client_encoding TO 'UTF8'")
    connection.exec_driver_sql("SET LOCAL extra_float_digits TO 1")
    connection.exec_driver_sql("SET LOCAL intervalstyle TO 'postgres'")
    connection.exec_driver_sql("SET LOCAL bytea_output TO 'hex'")
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor:
        # Prepared, so that the server accepts one statement only; a second one could leave the transaction.
        cursor.execute(f"SELECT * FROM ({statement}\n) AS source LIMIT 0".encode(), prepare=True)  # noqa: S608
        columns = [(item.name, item.type_code) for item in cursor.description]
        names = _checked([name for name, _ in columns])
        for name, code in columns:
            if name in identifiers and code not in _IDENTIFIERS:
                raise _no_identifier(name)
        shown = ", ".join(
            _quoted(connection, name) + ("::integer" if code == _BOOLEAN else "") for name, code in columns
        )
        rows = f"SELECT {shown} FROM ({statement}\n) AS source"  # noqa: S608
        with path.open("wb") as file, cursor.copy(f"COPY ({rows}) TO STDOUT (FORMAT csv)".encode()) as copied:
            file.write(_line(names))
            for part in copied:
                file.write(part)
    return names


def _from_other(connection: sa.Connection, source: Source, identifiers: Collection[str], path: Path) -> list[str]:
    import sqlalchemy as sa

    if connection.dialect.name in ("mysql", "mariadb"):
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
    found = connection.execution_options(stream_results=True, yield_per=_ROWS_AT_ONCE).execute(
        sa.text(_statement(connection, source).replace(":", r"\:"))
    )
    names = _checked(list(found.keys()))
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(_line(names).decode())
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        ids = [place for place, name in enumerate(names) if name in identifiers]
        for row in found:
            for place in ids:
                if not isinstance(row[place], str | int | UUID | None) or isinstance(row[place], bool):
                    raise _no_identifier(names[place])
            writer.writerow(_text(row))
    return names


def _text(row: Iterable[Any]) -> Iterator[str]:
    for value in row:
        if value is None:
            yield ""
        elif isinstance(value, bool):
            yield str(int(value))
        elif isinstance(value, dt.datetime):
            yield value.isoformat(" ")
        elif isinstance(value, Decimal):
            yield format(value, "f")
        elif isinstance(value, bytes):
            yield value.hex()
        else:
            yield str(value)


def _no_identifier(name: str) -> SourceError:
    return SourceError(
        f"column {name!r} is declared identifier, and its type has several texts for a value; accepted: texts, whole "
        "numbers or UUIDs (CAST in the query), one id a row"
    )


def _checked(names: list[str]) -> list[str]:
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise SourceError(f"column {twice!r} is in the rows more than once; accepted: distinct names (AS in the query)")
    if len(names) < 2:
        raise SourceError("the rows have one column, so that a missing value would be no line; accepted: two or more")
    odd = next((name for name in names if not re.fullmatch(COLUMN_NAME, name)), None)
    if odd is not None:
        raise SourceError(f"a column is named {odd!r}; accepted: 1 to 127 characters on one line (AS in the query)")
    return names


def _line(names: list[str]) -> bytes:
    quoted = ('"' + name.replace('"', '""') + '"' for name in names)
    return (",".join(quoted) + "\n").encode()


def _digest(path: Path, names: list[str]) -> str:
    """A digest of the names and of the rows' sorted digests. A sum of them could be brought to another table's sum."""
    import duckdb

    from dpsynth_platform.sources.json_files import CONFIGURATION, sql_text

    columns = ", ".join(f"{sql_text(name)}: 'VARCHAR'" for name in names)
    row = "r" * (1 + max(map(len, names)))  # no column's name, which would stand for that column alone
    digest = hashlib.sha256(repr(names).encode())
    # More than the memory holds is sorted beside the copy.
    configuration = CONFIGURATION | {"temp_directory": str(path.parent / "sorting")}
    with duckdb.connect(":memory:", config=configuration) as connection:
        found: Any = connection.sql(
            f"SELECT unhex(sha256(to_json({row}))) AS digest "  # noqa: S608
            f"FROM read_csv({sql_text(str(path))}, auto_detect = false, header = true, delim = ',', quote = '\"', "
            f"escape = '\"', hive_partitioning = false, max_line_size = {_LONGEST_ROW}, "
            # Its default is sixteen of the longest rows, so that a copy of half a gigabyte takes all the memory.
            f"buffer_size = {2 * _LONGEST_ROW}, columns = {{{columns}}}) AS {row} ORDER BY digest"
        ).to_arrow_reader(_ROWS_AT_ONCE)
        for batch in found:
            for one in batch.column(0):
                digest.update(one.as_buffer())
    return digest.hexdigest()
