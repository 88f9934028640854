"""What is read of a database file, as the ledger knows it: a table has one id, however contracts address it.

What belongs here: the ids of a database file and its tables, and which of them a contract reads. What does not: binding
them to a family (`raw`), and databases behind a server, which have no file.

| source | reads |
| --- | --- |
| `tables` | the private tables, and the database |
| `sql`, a table | this table |
| `sql`, a view or a query | all tables, and the database: what a query reads is not found out |
| `sql`, where tables have one plain name | the table, all tables that were ever read, and the database |

Ids are those of contents and places (`file_versions`), so that a copy of a file, and a file that changed, keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dpsynth_platform.contracts.base import caseless
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.contracts.sql import tables_named
from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.sources.database_files import DatabaseFile, open_database, plain_name
from dpsynth_platform.sources.file_versions import places_below, version_of_content

FILE_DATABASES = ("sqlite", "duckdb")
"""Kinds of databases that are one file, as SQLAlchemy names them."""


@dataclass(frozen=True)
class ReadOfDatabase:
    """What a contract reads of a database file.

    Attributes:
        alone: the id of the table that a contract of the format `sql` reads, if it is one.
        people: by ids of tables and of the database, what they are in words. Their people are of one family.
    """

    alone: str | None = None
    people: Mapping[str, str] = field(default_factory=dict)


def path_of(source: Source) -> Path | None:
    """The database file of a source of the format `sql`; None for a database of another kind, or without a file."""
    import sqlalchemy as sa

    url = sa.make_url(source.uri)
    path = Path(url.database or "")
    return path.resolve() if url.get_backend_name() in FILE_DATABASES and path.is_file() else None


def table_of(source: Source) -> str | None:
    """The plain name of the table or view that a source of the format `sql` names, in lower case."""
    return None if source.table is None else caseless(plain_name(source.table.rpartition(".")[2]))


def only_table(source: Source) -> str | None:
    """As `table_of`, also of a query that names one table alone: its rows have owners, so that it is private."""
    import sqlalchemy as sa

    if source.query is None:
        return table_of(source)
    named = {
        caseless(plain_name(each)) for each in tables_named(source.query, sa.make_url(source.uri).get_backend_name())
    }
    return named.pop() if len(named) == 1 else None


def table_ids(zone: Path, database: DatabaseFile, names: Iterable[str]) -> dict[str, str]:
    """The ids of tables, by their plain names. Registers the present content."""
    content, place = database.content, database.path.resolve()
    return {
        name: version_of_content(
            zone, f"{place}#{caseless(name)}", canonical_digest([content, caseless(name)]), register=True
        ).table_id
        for name in names
    }


def of_database(zone: Path, database: DatabaseFile, tables: Iterable[str]) -> dict[str, str]:
    """The database and tables of it by their ids, in words."""
    whole = version_of_content(zone, str(database.path.resolve()), database.content, register=True).table_id
    found = {each: f"table {name} of {database.path}" for name, each in table_ids(zone, database, tables).items()}
    return {whole: f"the database {database.path}"} | found


def read_by(zone: Path, source: Source) -> ReadOfDatabase:
    """What a source of the format `sql` reads of a database file; nothing of other databases. Registers the content."""
    path = path_of(source)
    if path is None:
        return ReadOfDatabase()
    try:
        database = open_database(path)
    except SourceError:  # such as of two tables with one plain name: which one is read is unknown
        return ReadOfDatabase(people=_of_unknown(zone, path, table_of(source)))
    name = next((each for each in database if caseless(each) == table_of(source)), None)
    if name is None:
        return ReadOfDatabase(people=of_database(zone, database, database))
    ids = table_ids(zone, database, [name])
    return ReadOfDatabase(ids[name], {ids[name]: f"table {name} of {path}"})


def _of_unknown(zone: Path, path: Path, named: str | None) -> dict[str, str]:
    """A database whose tables are unknown, the table that is named, and all that were read before, in words."""
    content = digest_file(path)
    names = {*places_below(zone, f"{path}#"), *([] if named is None else [named])}
    contents = {f"{path}#{name}": (canonical_digest([content, name]), f"table {name} of {path}") for name in names}
    contents[str(path)] = (content, f"the database {path}")
    return {
        version_of_content(zone, place, digest, register=True).table_id: words
        for place, (digest, words) in contents.items()
    }
