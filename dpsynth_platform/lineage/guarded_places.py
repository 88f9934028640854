"""What lies in a guarded place: tables of a source of linked tables, and files inside of any guarded directory.

What belongs here: telling by its name whether a node is a table of a source, or lies in what is guarded. What does not:
walks (`walks`), and which nodes are guarded themselves (`survey`).

A source of linked tables is private as a whole, but for its lookups, which the contract declares public. Other
producers name a table of it in several ways, of which all count:

| the source | a table of it |
| --- | --- |
| `file:/data/clinic` | `file:/data/clinic/codes.parquet`, and what lies inside of that; also behind a symbolic link |
| `file:/data/clinic.db` | `file:/data/clinic.db/codes`, `sqlite:///data/clinic.db` with `main.codes` |
| | `duckdb://localhost` with `data/clinic.db.codes`, as a contract of the format sql has it |
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from sqlalchemy import Connection, or_, select

from dpsynth_platform.contracts.base import caseless
from dpsynth_platform.foundation.release_layout import DATA
from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.lineage import graph_rows as rows
from dpsynth_platform.lineage.naming import DatasetName, canonical, dataset_name
from dpsynth_platform.lineage.nodes import Node, Relative

if TYPE_CHECKING:
    from dpsynth_platform.contracts.bases import PublicBase

WHOLE = ""
"""In place of a table's name, the source as a whole."""
_DATABASES = ("sqlite://", "duckdb://")
_HERE = ("", "localhost")


@dataclass(frozen=True)
class SourceTables:
    """The tables of a dataset's source, by their names in lineage.

    Attributes:
        places: the source's path, as declared and without links; none if it is not on this machine.
        public: the names of its lookups, in lower case.
    """

    places: tuple[str, ...]
    public: frozenset[str]

    @classmethod
    def of(cls, source: DatasetName, bases: Iterable[PublicBase]) -> SourceTables:
        place = [source.name] if source.namespace == "file" else []
        found = tuple(dict.fromkeys([*place, *map(os.path.realpath, place)]))
        return cls(found, frozenset(lookup_name(base) for base in bases if base.kind == "lookup"))

    def table_of(self, name: DatasetName) -> str | None:
        """The table that a name is of, in plain letters and lower case; `WHOLE`; None for what is elsewhere."""
        name = canonical(name)
        scheme, divided, host = name.namespace.partition("://")
        is_database = f"{scheme}{divided}" in _DATABASES and host in _HERE
        if not is_database and name.namespace != "file":
            return None
        path = f"/{name.name}" if is_database else name.name
        for place in self.places:
            if path == place:
                return WHOLE
            if path.startswith(f"{place}/") or (is_database and path.startswith(f"{place}.")):
                return _table(Path(place), path[len(place) + 1 :], is_database=is_database)
        return None

    def is_private(self, name: DatasetName) -> bool:
        """Whether a name is of the source as a whole, or of anything in it but a lookup."""
        table = self.table_of(name)
        return table is not None and table not in self.public

    def files_of(self, lookup: str) -> Iterator[DatasetName]:
        """What is at the source under a lookup's name, and what that links to."""
        for place in self.places:
            with suppress(OSError):
                for found in Path(place).iterdir():
                    if _table(Path(place), found.name, is_database=False) == lookup:
                        yield from (dataset_name(found), dataset_name(found.resolve()))


def file_of(lookup: DatasetName) -> DatasetName:
    """The file or directory of a lookup, as others name it; its own name where there is none, as in a database."""
    directory, _, table = lookup.name.rpartition("/")
    found = SourceTables.of(DatasetName(lookup.namespace, directory), ()).files_of(caseless(table))
    return next(found, lookup)


def lookup_name(base: PublicBase) -> str:
    """The table of a lookup, in plain letters and lower case."""
    return caseless(base.name.rpartition("/")[2])


def _table(source: Path, inside: str, *, is_database: bool) -> str:
    """The table of what lies in a source: of a file without its ending, of a directory with it (`table_places`)."""
    from dpsynth_platform.sources.database_files import plain_name  # late: pages of lineage read no table
    from dpsynth_platform.sources.directories import PARQUET_NAMES
    from dpsynth_platform.sources.table_places import CSV_NAMES

    first, below, _ = inside.partition("/")
    if is_database:
        return caseless(plain_name(first.rpartition(".")[2]))
    if source.is_file():
        first = first.removeprefix("main.")
    stem = PurePosixPath(first)
    is_file = stem.suffix.lower() in (*PARQUET_NAMES, *CSV_NAMES) and not below and not (source / first).is_dir()
    return caseless(plain_name(stem.stem if is_file else first))


def nodes_named(connection: Connection, is_meant: Callable[[DatasetName], bool]) -> list[Node]:
    """The nodes of this machine's files and of database files whose names are meant."""
    column = tables.node.c
    spelled = [
        namespace
        for namespace in connection.scalars(select(column.namespace).distinct())
        if canonical(DatasetName(namespace, "")).namespace.startswith(("file", *_DATABASES))
    ]
    query = select(column.id, column.namespace, column.name)
    found = rows.in_parts(connection, query, column.namespace, spelled)
    meant = [row.id for row in found if is_meant(DatasetName(row.namespace, row.name))]
    return list(rows.nodes_by_id(connection, meant).values())


def inside_guarded(
    connection: Connection, met: Sequence[Relative], is_guarded: Callable[[Node], bool]
) -> frozenset[int]:
    """Ids of the nodes that lie inside of a guarded place, such as a file of another dataset's source.

    What we wrote is described by its own node, and a public part of a source by ours of a run that started from it.
    """
    column = tables.node.c
    described = or_(
        column.own.is_(True), column.facets.contains('"dpsynth_privacyUnit"'), column.facets.contains('"restricted"')
    )
    holders = {
        _taken(node): node for node in map(rows.node_of, connection.execute(select(tables.node).where(described)))
    }
    public = {canonical(node.name) for node in _started_from(connection)}

    def is_inside(node: Node) -> bool:
        name = canonical(node.name)
        if node.own or not (name.namespace == "file" or "://" in name.namespace):
            return False
        passed_public, path = name in public, posixpath.dirname(name.name)
        while path not in ("", "/"):
            here = DatasetName(name.namespace, path)
            holder = holders.get(here)
            if holder is not None:
                return is_guarded(holder) and not (passed_public and not holder.own)
            passed_public, path = passed_public or here in public, posixpath.dirname(path)
        return False

    return frozenset(item.node.id for item in met if is_inside(item.node))


def _taken(node: Node) -> DatasetName:
    """The place of a node; of our release, its whole directory."""
    name = canonical(node.name)
    is_release = node.own and node.kind == "release" and posixpath.basename(name.name) == DATA
    return DatasetName(name.namespace, posixpath.dirname(name.name)) if is_release else name


def _started_from(connection: Connection) -> list[Node]:
    """The public bases of our own runs, under all their names."""
    edge, event = tables.edge.c, tables.event.c
    ours = (
        select(edge.parent)
        .distinct()
        .join(tables.event, event.sequence == edge.event)
        .where(edge.relation == "base", event.origin == "own")
    )
    found = set(connection.scalars(ours))
    other = rows.in_parts(
        connection, select(edge.child, edge.parent).where(edge.relation == "alias"), edge.child, sorted(found)
    )
    return list(rows.nodes_by_id(connection, found | {row.parent for row in other}).values())
