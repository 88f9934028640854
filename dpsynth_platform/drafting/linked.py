"""Drafts the declaration of linked tables from public metadata: names, types and keys, never from rows.

What belongs here: the tree of tables that keys suggest, and its draft as YAML. What does not: the meaning of
declarations (`contracts.tables`), templates of columns (`templates`), and the other parts of a contract (`draft`).

A database declares its keys. Where no foreign key is declared, keys are guessed from names: a table's key is its first
column named as the table with `id` (`patient_id`, `PatientId` of `patients`), or else `id`. A column of another table
with the same meaning refers to it.

The root is the table that is named as people are (`patients`), or else the one to which most others lead. Tables that
lead to it are private, and the parent of each is by its first foreign key to a private table. A table that only private
ones refer to is drafted as public, which a person confirms by saying why; but never one that is named as people are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpsynth_platform.contracts.tables import MOST_TABLES
from dpsynth_platform.drafting.templates import CLAMPED, NULLABLE, draft_lines, untyped_note
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.yaml_files import dump_inline
from dpsynth_platform.sources.database_files import Catalogued, DatabaseFile, ForeignKey
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.table_files import Source, open_source
from dpsynth_platform.sources.table_places import Tables, is_csv, tables_at
from dpsynth_platform.sources.tables import is_delta

_PEOPLE = (
    *("patient", "person", "people", "customer", "client", "user", "member", "student", "pupil", "subject"),
    *("participant", "individual", "citizen", "resident", "household", "passenger", "visitor", "guest", "subscriber"),
    *("donor", "owner", "account", "player", "worker", "employee", "staff"),
)
"""Last words of names of tables whose rows are people, the likelier first."""
_ID = "id"


@dataclass(frozen=True)
class DraftedTables:
    """A draft of `tables:`.

    Attributes:
        notes: what must be checked, as comments.
        lines: YAML below `tables:`.
        is_csv: whether a table is a CSV file.
    """

    notes: tuple[str, ...]
    lines: tuple[str, ...]
    root: str
    is_csv: bool


def draft(data: Path | Tables, dialect: Dialect) -> str:
    """The declaration of these tables to fill in, as YAML; errors as for `drafted_tables`."""
    found = drafted_tables(data, dialect, "owner: COLUMN above")
    return "\n".join((*found.notes, "tables:", *found.lines))


def drafted_tables(data: Path | Tables, dialect: Dialect, owner: str) -> DraftedTables:
    """The draft of `tables:`. Reads no row.

    Args:
        owner: where the column is declared that names the owner of a row of the root; ROOT stands for its name.

    Raises:
        SourceError: a table cannot be opened, such as a CSV file whose first line is not declared as its header.
    """
    places = tables_at(data)
    sources = {name: _described(places, name, dialect) for name in places}
    tables = _catalogued(places, sources)
    guessed = not any(table.foreign for table in tables.values())
    if guessed:
        tables = _guessed(tables)
    tree = _tree(tables)
    shown = (*tree.private, *tree.public, *(tree.apart if guessed else ()))
    lines = [line for name in shown for line in _table(name, tree, tables, sources[name], guessed=guessed)]
    stored = isinstance(places, DatabaseFile)
    notes = tuple(_head(tree, sources, owner.replace("ROOT", tree.root), guessed=guessed, stored=stored))
    return DraftedTables(notes, tuple(lines), tree.root, any(source.format == "csv" for source in sources.values()))


def are_several(path: Path) -> bool:
    """Whether a path is a database file, or a directory of tables with different columns. Reads no row.

    Parquet files with the same columns are parts of one table.
    """
    try:
        if path.is_dir() and (is_delta(path) or any("=" in each.name for each in path.iterdir() if each.is_dir())):
            return False  # a partition's directory is named COLUMN=VALUE
        places = tables_at(path)
        if isinstance(places, DatabaseFile):
            return True
        if not 1 < len(places) <= MOST_TABLES:
            return False
        return (
            any(map(is_csv, places.values()))
            or len({frozenset(open_source(place, {}).found) for place in places.values()}) > 1
        )
    except (SourceError, OSError):
        return False


@dataclass(frozen=True)
class _Tree:
    """What keys suggest.

    Attributes:
        private: the root, and all tables that lead to it.
        parents: the foreign keys to the parents of private tables.
        lookups: of each private table, the public tables by the columns that hold their keys.
        public: the tables that `lookups` name.
        people: tables named as people, to which private ones refer; what refers to them is left out.
        apart: all others, and `people`.
        keyless: private tables whose key has lookups and that no table refers to: they need no key.
    """

    root: str
    private: tuple[str, ...]
    parents: dict[str, ForeignKey]
    lookups: dict[str, dict[str, str]]
    public: tuple[str, ...]
    people: tuple[str, ...]
    apart: tuple[str, ...]
    keyless: tuple[str, ...]


def _described(places: Tables, name: str, dialect: Dialect) -> Source:
    """A table's columns."""
    try:
        place = places.catalog[name].schema.empty_table() if isinstance(places, DatabaseFile) else places[name]
        return open_source(place, {}, dialect if is_csv(place) else None)
    except SourceError as error:
        problem = str(error)
    raise SourceError(f"tables.{name}: {problem}")


def _catalogued(places: Tables, sources: Mapping[str, Source]) -> dict[str, Catalogued]:
    """The tables with their keys; a table that is referred to and has none has the columns that are referred to."""
    found = {name: Catalogued(source.schema) for name, source in sources.items()}
    if isinstance(places, DatabaseFile):
        found = {name: replace(table, schema=found[name].schema) for name, table in places.catalog.items()}
    for table in list(found.values()):
        for each in table.foreign:
            if each.table in found and not found[each.table].key:
                found[each.table] = replace(found[each.table], key=each.referred)
    return found


def _guessed(tables: Mapping[str, Catalogued]) -> dict[str, Catalogued]:
    """The tables with keys guessed from the names of columns, where none are declared."""
    keys = {name: table.key or _guessed_key(name, table.schema.names) for name, table in tables.items()}
    single = {name: key for name, key in keys.items() if len(key) == 1}
    found = {}
    for name, table in tables.items():
        foreign = []
        for column in table.schema.names:
            named = [other for other in single if _bare(column) in _ids(other)]
            # A key of one name in two tables, such as of a person and of details, says not which one refers.
            alike = [other for other, key in single.items() if _bare(column) == _bare(key[0]) != _ID]
            others = [other for other in (*named, *(alike if keys[name] != (column,) else ())) if other != name]
            if others:
                foreign.append(ForeignKey((column,), others[0], single[others[0]]))
        found[name] = replace(table, key=keys[name], foreign=tuple(foreign))
    return found


def _guessed_key(table: str, columns: Sequence[str]) -> tuple[str, ...]:
    own = [column for column in columns if _bare(column) in _ids(table)]
    return tuple((own or [column for column in columns if _bare(column) == _ID])[:1])


def _ids(table: str) -> set[str]:
    """What the key of a table may be named."""
    return {f"{each}{_ID}" for each in _singulars(_bare(table))}


def _singulars(name: str) -> set[str]:
    """A name, and what it may be the plural of."""
    ends = (("ies", "y"), ("es", ""), ("s", ""))
    return {name} | {name.removesuffix(end) + other for end, other in ends if name.endswith(end) and name != end}


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _tree(tables: Mapping[str, Catalogued]) -> _Tree:
    edges = {
        name: [each for each in table.foreign if each.table != name and _fits(each, tables)]
        for name, table in tables.items()
    }
    reaching = {name: _reaching(name, edges) for name in tables}
    linked = any(len(found) > 1 for found in reaching.values())

    def rank(name: str) -> tuple[int, int]:
        alone = linked and len(reaching[name]) == 1
        return len(_PEOPLE) if alone else _person(name), -len(reaching[name])

    root = min(tables, key=rank)  # the first one of equals
    parents: dict[str, ForeignKey] = {}
    private, rest = [root], [name for name in tables if name in reaching[root] and name != root]
    while rest:
        # The first foreign key to a private table, unless that closes a cycle.
        firsts = {name: next(each for each in edges[name] if each.table in reaching[root]) for name in rest}
        open_ = {name: each for name, each in firsts.items() if each.table in private}
        if not open_:
            found = ((name, each) for name in rest for each in edges[name] if each.table in private)
            open_ = dict([next(found)])
        name, parents[name] = next(iter(open_.items()))
        private.append(name)
        rest.remove(name)
    referred = {each.table for each in parents.values()}
    lookups: dict[str, dict[str, str]] = {}
    keyless = []
    for name in private:
        outside = {each.columns[0]: each.table for each in edges[name] if _is_lookup(each, private)}
        joins = set(parents[name].columns) if name in parents else set()
        drop = name in parents and name not in referred and not joins.issuperset(tables[name].key)
        if drop and any(column in outside for column in tables[name].key):
            keyless.append(name)
        taken = joins if name in keyless else joins | set(tables[name].key)
        lookups[name] = {column: table for column, table in outside.items() if column not in taken}
    public = tuple(name for name in tables if any(name in found.values() for found in lookups.values()))
    people = tuple(
        name
        for name in tables
        if name not in private
        and _is_people(name)
        and any(each.table == name for own in private for each in edges[own])
    )
    apart = tuple(name for name in tables if name not in private and name not in public)
    return _Tree(root, tuple(private), parents, lookups, public, people, apart, tuple(keyless))


def _fits(each: ForeignKey, tables: Mapping[str, Catalogued]) -> bool:
    """Whether a foreign key refers to the key of a table."""
    return each.table in tables and sorted(each.referred) == sorted(tables[each.table].key)


def _is_lookup(each: ForeignKey, private: Sequence[str]) -> bool:
    return len(each.columns) == 1 and each.table not in private and not _is_people(each.table)


def _reaching(name: str, edges: Mapping[str, Sequence[ForeignKey]]) -> set[str]:
    """The table, and all that lead to it."""
    found = {name}
    while more := {other for other, own in edges.items() if any(each.table in found for each in own)} - found:
        found |= more
    return found


def _person(table: str) -> int:
    """How likely rows are people by the table's name; low is likely."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", table)
    last = _singulars(words[-1].lower()) if words else set()
    return next((place for place, word in enumerate(_PEOPLE) if word in last), len(_PEOPLE))


def _is_people(table: str) -> bool:
    return _person(table) < len(_PEOPLE)


def _head(tree: _Tree, sources: Mapping[str, Source], owner: str, *, guessed: bool, stored: bool) -> Iterator[str]:
    yield f"# A draft, from names, types and keys alone. The root is {tree.root}: each of its rows is protected as one"
    yield "# person's, with all that belongs to it. Is it the table of people? Where one person has several rows there:"
    yield f"# {owner}, and max_children: N of {tree.root}."
    if guessed:
        yield "# Keys and parents are guessed from the names of columns: no foreign key is declared. Check each."
    yield "# max_children: the most rows that are kept of each row of the parent. A large one costs accuracy."
    yield "# order_by: [COLUMN]: where the rows of one parent have an order, such as visits."
    if tree.public:
        yield "# public: why a table has nothing about people; it is released as it is. Or leave out the table and its"
        yield "# lookups, and declare the columns that refer to it {ignore: true}."
    if tree.people:
        yield f"# By their names, rows of {', '.join(tree.people)} are people: not drafted as public, and not kept."
    if tree.apart:
        yield f"# No key leads to {tree.root} from: {', '.join(tree.apart)}."
        yield "# Declare a parent of each with rows about people, public: WHY to release it as it is, or leave it out."
    if any(source.format == "csv" for source in sources.values()):
        yield untyped_note().rstrip("\n")
    if stored:
        yield "# Columns of texts that hold dates, times or numbers: declare these types, and the texts are read so."
    yield CLAMPED.rstrip("\n")
    yield "# {type: text} leaves a column empty, {ignore: true} leaves it out."
    yield NULLABLE.rstrip("\n")


def _table(name: str, tree: _Tree, tables: Mapping[str, Catalogued], source: Source, *, guessed: bool) -> Iterator[str]:
    table, parent = tables[name], tree.parents.get(name)
    yield f"  {dump_inline(name)}:"
    if name in tree.public:
        yield f"    key: {_listed(table.key)}"
        yield "    public:  # why it has nothing about people"
        return
    key = () if name in tree.keyless else table.key
    if key or parent is None:
        yield f"    key: {_listed(key)}{'' if key else '  # the columns that name a row'}"
    if name in tree.apart:
        yield "    parent: {table: , columns: []}"
        yield "    max_children:"
    if parent is not None:
        # In the order of the parent's key.
        ordered = [parent.columns[parent.referred.index(each)] for each in tables[parent.table].key]
        yield f"    parent: {{table: {dump_inline(parent.table)}, columns: {_listed(ordered)}}}"
        alone = any(found and set(found) <= set(parent.columns) for found in (table.key, *table.unique))
        yield f"    max_children: {'1' if alone else f' # of one row of {parent.table}'}"
    if lookups := tree.lookups.get(name, {}):
        shown = ", ".join(f"{dump_inline(column)}: {dump_inline(other)}" for column, other in lookups.items())
        yield f"    lookups: {{{shown}}}"
    if name in tree.keyless:
        yield f"    # Its key {_listed(table.key)} is left out: part of it refers to a public table, no table to it."
    taken = {*key, *(parent.columns if parent else ()), *lookups}
    ignored = set()
    for each in table.foreign:
        if each is parent or (len(each.columns) == 1 and lookups.get(each.columns[0]) == each.table):
            continue
        to = f"{_listed(each.columns)} refers to {each.table}"
        if each.table in tree.people:
            ignored |= set(each.columns) - taken
            yield f"    # {to}, whose rows are people by its name: left out, except for columns of keys."
            continue
        if each.table not in tree.private:
            yield f"    # {to}, which is not kept: synthetic rows may refer to none."
            continue
        ignored |= set(each.columns) - taken
        why = "the same table" if each.table == name else "private, and not the parent"
        yield f"    # {to}, {why}: left out, except for columns of keys."
    columns = [column for column in source.schema.names if column not in taken]
    yield "    columns:" if columns else "    columns: {}"
    for column in columns:
        if column in ignored:
            yield f"      {dump_inline(column)}: {{ignore: true}}"
        else:
            yield from draft_lines(source, [column], " " * 6)


def _listed(names: Sequence[str]) -> str:
    return f"[{', '.join(map(dump_inline, names))}]"
