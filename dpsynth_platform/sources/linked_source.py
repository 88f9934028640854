"""Linked tables as they are stored: opened as declared, with plain names, and a name of their content.

What belongs here: opening all declared tables of a directory, a database file or in memory. What does not: finding them
by name (`table_places`), the meaning of declarations (`contracts.tables`), and choosing rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.contracts.columns import Column, IdentifierColumn, TextColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.linked_contract import dotted
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.contracts.uris import local_path
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.sources.database_files import DatabaseFile
from dpsynth_platform.sources.database_ids import of_database, table_ids
from dpsynth_platform.sources.delta import open_delta
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.directories import data_files
from dpsynth_platform.sources.file_versions import Files, version_of
from dpsynth_platform.sources.plain_files import dialect_of
from dpsynth_platform.sources.table_files import IN_MEMORY, Source, open_source
from dpsynth_platform.sources.table_places import Tables, is_csv, place_of, tables_at

MOST_KEYS = 10_000
"""Rows of a public table that private ones may refer to."""


@dataclass(frozen=True)
class Difference:
    """Columns of a private table that are declared and not there, and that are there and not declared."""

    absent: list[str]
    undeclared: list[str]


@dataclass(frozen=True)
class LinkedSource:
    """The declared tables, and where they are.

    Attributes:
        declared: by the source's names of columns.
        places: all tables at the place.
        sources: of each declared table, public ones included. Private tables of a database have no rows here unless
            they were asked for.
    """

    declared: LinkedTables
    places: Tables
    sources: Mapping[str, Source]

    @cached_property
    def tables(self) -> LinkedTables:
        """By plain names of columns: letters, digits, `_` and `-`."""
        return self.declared.renamed({name: source.names for name, source in self.sources.items()})

    @cached_property
    def lookups(self) -> dict[str, list[str]]:
        """The keys of each public table, as texts.

        Raises:
            SourceError: a key is repeated or missing, or there are too many.
        """
        tables = self.tables
        return {name: _keys_of(name, self.sources[name], tables.tables[name].key[0]) for name in tables.lookups}

    def given(self, name: str) -> dict[str, str]:
        """The source's names of a table's columns, by the plain names."""
        return {plain: given for given, plain in self.sources[name].names.items()}

    @property
    def differences(self) -> dict[str, Difference]:
        """Of private tables, columns that are declared or there alone; tables without such columns are left out."""
        found = {}
        for name in self.declared.private:
            table, source = self.declared.tables[name], self.sources[name]
            known = [*table.columns, *identifiers(self.declared, name), *table.lookups]
            ignored = {each for each, column in table.columns.items() if column.type == "ignored"}
            absent = [each for each in dict.fromkeys(known) if each not in source.found and each not in ignored]
            undeclared = [each for each in source.schema.names if each not in known]
            if absent or undeclared:
                found[name] = Difference(absent, undeclared)
        return found

    @property
    def schema(self) -> pa.Schema:
        """All columns of private tables but lookups, as `table.column`, by the source's names.

        Columns of type text are strings, whatever they hold: they are not read.
        """
        fields = []
        for name in self.declared.private:
            known = {**self.declared.tables[name].columns, **identifiers(self.declared, name)}
            found = [item for item in self.sources[name].schema if item.name in known]
            unread = {item.name for item in found if known[item.name].type == "text"}
            found = [item.with_type(pa.string()) if item.name in unread else item for item in found]
            fields += [item.with_name(dotted(name, item.name)) for item in found]
        return pa.schema(fields)

    @property
    def content(self) -> str:
        """A digest of all tables. It depends on the data, so it is restricted."""
        if isinstance(self.places, DatabaseFile):
            return self.places.content
        # Of a Delta table, the first of its versions with the same rows: compaction makes no other content.
        return canonical_digest({name: source.versions[0] for name, source in self.sources.items()})

    def table_ids(self, zone: Path) -> dict[str, tuple[str, ...]]:
        """The columns that lead to an owner, by the id that each private table has as the only one of a contract.

        So that no other family's contract can read a table alone, under another budget.

        Args:
            zone: the restricted zone, which keeps the versions of plain files.
        """
        if isinstance(self.places, DatabaseFile):
            ids = table_ids(zone, self.places, self.declared.private)
            return {ids[name]: self._to_owner(name) for name in ids}
        found = {}
        for name in self.declared.private:
            source = self.sources[name]
            if source.format == "delta":
                table_id = source.versions[0].partition("@")[0]
            else:
                paths = tuple(data_files(source.path)) if source.path.is_dir() else (source.path,)
                table_id = version_of(zone, Files(source.path, paths), register=True).table_id
            found[table_id] = self._to_owner(name)
        return found

    def people(self, zone: Path) -> dict[str, str]:
        """The private tables of a database file, and the database, by ids (`database_ids`); in words."""
        if not isinstance(self.places, DatabaseFile):
            return {}
        return of_database(zone, self.places, self.declared.private)

    def files(self) -> list[Path]:
        """The tables' data files that are on this machine, links followed; also those that only a Delta log names."""
        found = [self.places.path] if isinstance(self.places, DatabaseFile) else []
        for source in self.sources.values():
            if source.format == "delta":
                found += open_delta(str(source.path)).table.local_files()
            elif source.table is None:
                found += data_files(source.path) if source.path.is_dir() else [source.path]
        return [each.resolve() for each in found]

    def _to_owner(self, name: str) -> tuple[str, ...]:
        """The columns by which a contract of this table alone has the same owners; else a name that no column has.

        A foreign key names the owner only where the key that it refers to does.
        """
        steps, table = [], self.declared.tables[name]
        while table.parent is not None:
            steps.append(", ".join(table.parent.columns))
            table = self.declared.tables[table.parent.table]
        if self.declared.owner is not None or not steps:
            steps.append(self.declared.owner or table.key[0])
        return (" > ".join(steps),)


def open_linked(declared: LinkedTables, places: Tables, dialect: Dialect, *, rows: bool = True) -> LinkedSource:
    """All declared tables; reads no row of files, and of a database all rows.

    Args:
        rows: False: reads no row of a private table of a database either.

    Raises:
        ContractError: a public table has keys of private rows, as a database says.
        SourceError: a table is missing or cannot be read.
    """
    if isinstance(places, DatabaseFile):
        _check_public(declared, places)
    sources = {name: source_of(declared, name, places, dialect, rows=rows) for name in declared.tables}
    _check_names(declared, sources)
    return LinkedSource(declared, places, sources)


def source_of(tables: LinkedTables, name: str, places: Tables, dialect: Dialect, *, rows: bool = True) -> Source:
    """A table with its declared columns and its keys; of a database, the others have no values."""
    table, ids = tables.tables[name], identifiers(tables, name)
    columns: dict[str, Column] = {**table.columns, **ids}
    columns |= {column: TextColumn(type="text") for column in table.lookups}
    with in_table(name):
        unread = {each for each in table.columns if each not in table.modelled}
        place = place_of(places, name, unread, table.columns, rows=rows or table.public is not None)
        source = open_source(place, columns, dialect if is_csv(place) else None, [*columns])
    # That no owner has a row in a table may come of one owner's absence, and must not show.
    source = replace(source, may_be_empty=table.parent is not None)
    if table.public is not None and table.key[0] not in source.found:
        raise SourceError(f"tables.{name}.key: {table.key[0]!r} is no column of {source.path}")
    return source


def identifiers(tables: LinkedTables, name: str) -> dict[str, Column]:
    """A table's keys, and the root's owner."""
    owner = [tables.owner] if tables.owner is not None and name == tables.root else []
    return {column: IdentifierColumn(type="identifier") for column in (*tables.tables[name].keys, *owner)}


@contextmanager
def in_table(name: str) -> Iterator[None]:
    """Puts a table's name in front of faults of its source."""
    try:
        yield
        return
    except SourceError as error:
        lines = str(error).split("\n")
    bare = [line.removeprefix(f"{IN_MEMORY}: ") for line in lines]
    raise SourceError("\n".join(f"tables.{name}{'.' if line.startswith('columns.') else ': '}{line}" for line in bare))


def _check_public(tables: LinkedTables, places: DatabaseFile) -> None:
    """Refuses public tables that hold keys of private rows by the database's own foreign keys; reads no row."""
    for name in tables.lookups:
        for foreign in places.catalog[name].foreign if name in places else ():
            if foreign.table in tables.private:
                raise ContractError(
                    f"tables.{name}.public: the database says that {', '.join(foreign.columns)} refers to "
                    f"{foreign.table}, whose rows are private, and a public table is released as it is; accepted: a "
                    "parent, or leave the table out"
                )


def _check_names(tables: LinkedTables, sources: Mapping[str, Source]) -> None:
    """Refuses columns whose plain names have two signs _ in a row, as `_id` has: views use such names."""
    for name in tables.private:
        for given, plain in sources[name].names.items():
            if "__" in plain:
                raise SourceError(
                    f"tables.{name}: column {given!r} is {plain!r} in plain letters, and two signs _ in a row are for "
                    "columns of other rows; accepted: a name that begins with a letter of a to z, without two signs _ "
                    "in a row"
                )


def _keys_of(name: str, source: Source, key: str) -> list[str]:
    """The keys of a public table, as texts. Raises `SourceError` for repeated or missing ones, or too many."""
    column = pa.chunked_array(batch.column(0) for batch in source.batches([key])).combine_chunks()
    keys = column.cast(pa.string())
    if keys.null_count or len(keys.unique()) < len(keys):
        raise SourceError(
            f"tables.{name}: column {key!r} has repeated or missing values; accepted: distinct keys, to which lookups "
            "may refer"
        )
    if not 2 <= len(keys) <= MOST_KEYS:
        raise SourceError(f"tables.{name}: {len(keys)} rows; accepted: a public table of 2 to {MOST_KEYS}")
    return sorted(keys.to_pylist())


def source_of_contract(contract: DataContract, *, rows: bool) -> LinkedSource:
    """The tables of a contract; see `open_linked`."""
    dialect = dialect_of(contract.source)
    return open_linked(contract.linked, tables_at(local_path(contract.source.uri)), dialect, rows=rows)


def pinned_content(contract: DataContract, zone: Path | None) -> tuple[LinkedSource, str]:
    """The tables of a contract without rows, and a digest of their content.

    Args:
        zone: the restricted zone; None: it may be anywhere.

    Raises:
        SourceError: a table cannot be read as declared, or is among the platform's own files.
    """
    found = source_of_contract(contract, rows=False)
    place = local_path(contract.source.uri)
    if zone is not None and any(each.is_relative_to(zone.resolve()) for each in (place.resolve(), *found.files())):
        raise SourceError("the tables lie among the platform's own files; accepted: files in a separate place")
    return found, found.content
