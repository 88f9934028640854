"""Bounding of linked tables: from the rows of all private tables to one bounded view of each.

What belongs here: choosing rows from the root downwards, and writing what a table's rows depend on beside them. What
does not: the declaration and the columns of a view (`contracts.tables`), fingerprints (`scrub`), the mechanism.

Rows are kept from the root downwards:

- of the root: at most `max_children` rows of each participant, by a keyed hash. Without an owner column the owner
  is the key; rows with the same key are then one owner's, of which one stays;
- of a child: at most `max_children` rows of each kept row of the parent, the first by `order_by`, with nulls last. Ties
  are broken by the keyed hash, which is the whole order where none is declared.

The hash is SHA-256(key || record), where the record is the text of a row's foreign key, its key and its columns. Rows
with the same record are copies, and have the same parent. Where a table has no key, or fractions, which have no text
that all engines share, copies are numbered and hashed again as in `copies`. Otherwise a row that is like another one
would come just after it, and would be kept with it: rows would agree with the ones before them more than with others.

Rows carry the owner's number in the order of fingerprints, not the fingerprint: of 100 million rows, each text of 32
characters is 5 GB that sorts and joins would spill.

A foreign key joins where all of its columns equal those of the parent's key; null joins nothing. So a row whose key
holds a null stays, and has no children. A row of the root without an owner (a null in the owner column, or in the key
where there is no such column) belongs to nobody and is left out.

Stability (add-or-remove and zero-out adjacency, of one owner with all that belongs to them): a key of a table with
children is distinct among *all* of its rows, or bounding is refused. So each row joins at most one row of its parent,
and, since the tables form a tree, at most one owner by one path. Which rows of a parent's are kept, their order, their
number, the rows before them and their ancestors depend on that owner's rows and the key alone. So adding or removing an
owner changes no row of another one in any view, and adds or removes at most `bound` rows. By induction: the root has at
most `max_children` rows of an owner, and each row at most `max_children` children. The refusal itself depends on
all rows: what it shows is outside of the guarantee, as is any failure of a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.bounding.copies import RECORD_SQL, copy_sql
from dpsynth_platform.bounding.output import check_written
from dpsynth_platform.compute.engine import Engine, quoted, whole_table
from dpsynth_platform.compute.plain_types import is_text, plain, type_name
from dpsynth_platform.contracts.base import caseless
from dpsynth_platform.contracts.tables import (
    POSITION,
    LinkedTables,
    children_name,
    context_name,
    gap_name,
    previous_name,
)
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.foundation.storage import count_rows, read_table, table_schema
from dpsynth_platform.scrub.fingerprints import (
    FINGERPRINT_DTYPE,
    OWNER_COLUMN,
    RECORD_COLUMN,
    Fingerprints,
    distinct_owners,
)
from dpsynth_platform.sources.delta_types import kept, kept_type

ID_COLUMN = "_id"
"""Of `owners`: the text of an owner's id in the root (`root_ids`)."""

# Names with two signs _ in a row are free: no declared column has one.
_SIBLINGS = "siblings__"
_NUMBER = "number__"
"""Of an owner, in the order of fingerprints."""
_OWN_NAMES = (OWNER_COLUMN, RECORD_COLUMN, "_copy")
_FARTHEST = 2**61
"""Of numbers whose difference is computed: that of two has 64 bits."""
_EXACT_TEXT = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, pa.types.is_decimal)

# The parameters are the key (hex) and the most rows of one parent.
_CHOICE_SQL = """
WITH identified AS (
    SELECT {given}, {parent}, substr(sha2(? || {record}, 256), 1, 32) AS _record
    FROM given JOIN {kept_parent} ON {link}
),{numbered}
ranked AS (
    SELECT {columns},
        row_number() OVER (PARTITION BY {path} ORDER BY {order}) AS {place},
        count(*) OVER (PARTITION BY {path}) AS siblings__{previous}
    FROM {identified}
)
SELECT {columns}, {place}, siblings__{previous_names} FROM ranked WHERE {place} <= ?
"""
_NUMBERED_SQL = """
numbered AS (
    SELECT *, {copy} FROM identified
),
distinguished AS (
    SELECT {columns}, {identity} FROM numbered
),"""
_REPEATED_SQL = """
SELECT count(*) AS number FROM (
    SELECT {columns} FROM given WHERE {known} GROUP BY {columns} HAVING count(*) > 1
) AS repeated
"""


@dataclass(frozen=True)
class TableRows:
    """The rows of one private table.

    Attributes:
        read: all.
        orphans: those without a row of the parent; of the root, those without an owner.
        not_taking_part: of the root, those of owners who do not take part, such as held-out ones; of other tables 0,
            since what belongs to such owners is without a kept parent.
        without_kept_parent: those whose parent's row was left out; of the root 0.
        over_bound: those left out as their parent keeps others.
        kept: the rest.
    """

    read: int
    orphans: int
    not_taking_part: int
    without_kept_parent: int
    over_bound: int
    kept: int


@dataclass(frozen=True)
class LinkedReport:
    """The result of bounding in exact numbers: for operators only, never public.

    Attributes:
        tables: the rows of each private table.
        owners: owners that keep at least one row of the root.
    """

    tables: Mapping[str, TableRows]
    owners: int


def root_ids(tables: LinkedTables, root: Path | pa.Table) -> Iterator[pa.Array]:
    """The owners' ids in the rows of the root, as texts: one array for each batch, null where a row has no owner.

    The id is the owner column's text or, without one, the key's: of several columns, each text after its length, so
    that ("ab", "c") and ("a", "bc") differ.

    Raises:
        BoundingError: a column is missing or no text.
    """
    columns = _owner_columns(tables)
    _check_columns(tables.root, _schema(root), columns, columns)
    batches = root.select(columns).to_batches() if isinstance(root, pa.Table) else read_table(root, columns=columns)
    for batch in batches:
        yield key_texts(batch.columns)


def key_texts(columns: Sequence[pa.Array]) -> pa.Array:
    """The columns of a key as one text for each row, null where one of them is: equal texts mean equal values."""
    texts = [plain(column).cast(pa.string()) for column in columns]
    if len(texts) == 1:
        return texts[0]
    lengths = [pc.utf8_length(text).cast(pa.string()) for text in texts]
    parts = [pc.binary_join_element_wise(*part, ":") for part in zip(lengths, texts, strict=True)]
    return pc.binary_join_element_wise(*parts, "|")


def write_linked(
    tables: LinkedTables,
    read: Mapping[str, Path | pa.Table],
    target: Path,
    *,
    engine: Engine,
    owners: pa.Table,
    key: bytes,
) -> LinkedReport:
    """Bounds all private tables, and writes the view of each as a Delta table below the new directory `target`.

    A view has the columns of `LinkedTables.view`, of the types that were read (`sources.delta_types`) or int32 for
    numbers of rows, and `_owner`. It is ordered by owner, and then by the places of a row and its ancestors: the same
    inputs give the same rows, up to 65,536 of them also in the same order (a Delta table keeps none between batches).

    Args:
        read: each private table's own columns, key and foreign key, and the root's owner column, in memory or as a
            Delta table. Keys and owners are texts.
        engine: an open engine; its tables `given`, `parents`, `owners`, `kept_N` and `children_N` are used.
        owners: of the participants, `_id` (text, distinct, as in `root_ids`) and `_owner` (the fingerprint in 32 hex
            characters). Several ids may have one owner.
        key: the secret that orders rows.

    Raises:
        BoundingError: a table or column is missing or of another type, a key of a table with children is repeated, the
            target exists, an id has two owners, or an owner in a view has more rows than the bound, or does not take
            part.
        EngineError: the SQL engine stopped.
    """
    if target.exists():
        raise BoundingError(f"{target} exists; accepted: a new directory")
    if missing := [name for name in tables.private if name not in read]:
        raise BoundingError(f"tables: {', '.join(missing)}: not among the tables that were read; read them too")
    participants = _participants(engine, owners)
    with whole_table(target) as partial:
        bounding = _Bounding(tables, read, partial, engine, participants, key)
        bounding.descend(tables.root)
    engine.drop("owners")
    return LinkedReport(tables=bounding.rows, owners=bounding.owners)


class _Bounding:
    """The choice of rows, table after table: a table, all that belongs to it, and then the view of the table.

    So the engine holds kept rows of the tables on one path only.
    """

    def __init__(
        self,
        tables: LinkedTables,
        read: Mapping[str, Path | pa.Table],
        target: Path,
        engine: Engine,
        participants: Fingerprints,
        key: bytes,
    ) -> None:
        self._tables = tables
        self._read = read
        self._target = target
        self._engine = engine
        self._participants = participants
        self._key = key
        self._schemas = {name: self._stored(name) for name in tables.private}
        self.rows: dict[str, TableRows] = {}
        self.owners = 0
        for name in tables.private:
            _check_columns(name, self._schemas[name], self._given(name), self._key_columns(name))

    def descend(self, name: str) -> None:
        """Chooses a table's rows and all that belongs to them, and writes their views."""
        children = self._tables.children(name)
        if children:
            self._refuse_repeated_keys(name)
        self._choose(name)
        for child in children:
            self.descend(child)
        self._write(name)
        self._engine.materialize(
            self._counted(name),
            f"SELECT {_list(self._path(name)[:-1])}, {self._siblings(name)} AS rows__ "  # noqa: S608 - our own names
            f"FROM {self._kept(name)} WHERE {self._place(name)} = 1",
        )
        for done in (self._kept(name), *map(self._counted, children)):
            self._engine.drop(done)

    def _refuse_repeated_keys(self, name: str) -> None:
        key = self._tables.tables[name].key
        self._register("given", name, key)
        known = " AND ".join(f"{quoted(column)} IS NOT NULL" for column in key)
        if self._number(_REPEATED_SQL.format(columns=_list(map(quoted, key)), known=known)):
            raise BoundingError(
                f"tables.{name}.key: the same {', '.join(key)} stands in several rows, so that rows of "
                f"{', '.join(self._tables.children(name))} would belong to all of them; accepted: a key that is "
                "distinct for each row; name further columns in key and in the children's parent.columns, or remove "
                "repeated rows from the source"
            )

    def _choose(self, name: str) -> None:
        table, own = self._tables.tables[name], self._tables.own_columns(name)
        link, given = self._link(name), self._given(name)
        needed = list(dict.fromkeys([*own, *(table.key if self._tables.children(name) else ())]))
        above = self._path(name)[:-1]
        carried = [*above, *([OWNER_COLUMN] if table.parent is None else [])]
        types = self._schemas[name]
        fractions = [column for column in needed if pa.types.is_floating(types.field(column).type)]
        columns = _list([*map(quoted, needed), *carried])
        copied = bool(fractions) or not table.key
        copy = copy_sql(fractions, before=["_record"])
        order = ", ".join([*(f"{quoted(column)} NULLS LAST" for column in table.order_by), "_record"])
        previous = {
            previous_name(column, lag): f"lag({quoted(column)}, {lag})"
            for lag in range(1, self._tables.lags(name) + 1)
            for column in self._tables.passed_on(name)
        }
        sql = _CHOICE_SQL.format(
            given=_list(f"{self._value(name, column)} AS {quoted(column)}" for column in needed),
            parent=_list(f"{self._kept_parent(name)}.{column} AS {column}" for column in carried),
            kept_parent=self._kept_parent(name),
            record=self._record(name),
            link=link,
            numbered=_NUMBERED_SQL.format(copy=copy, columns=columns, identity=RECORD_SQL) if copied else "",
            identified="distinguished" if copied else "identified",
            columns=columns,
            path=_list(above),
            order=order,
            place=self._place(name),
            previous="".join(
                f",\n        {sql} OVER (PARTITION BY {_list(above)} ORDER BY {order}) AS {quoted(column)}"
                for column, sql in previous.items()
            ),
            previous_names="".join(f", {quoted(column)}" for column in previous),
        )
        self._register("given", name, given)
        self._engine.materialize(self._kept(name), sql, [self._key.hex(), self._bound(name)])
        self._engine.drop("given")
        whole = f"SELECT sum(siblings__) AS number FROM {self._kept(name)} WHERE {self._place(name)} = 1"  # noqa: S608
        candidates = self._number(whole)
        rows = self._number(f"SELECT count(*) AS number FROM {self._kept(name)}")  # noqa: S608
        read = self._rows_read(name)
        parent = None if table.parent is None else self.rows[table.parent.table]
        joined = candidates if parent is not None and parent.kept == parent.read else self._joined(name)
        left_out = joined - candidates
        self.rows[name] = TableRows(
            read=read,
            orphans=read - joined,
            not_taking_part=left_out if table.parent is None else 0,
            without_kept_parent=0 if table.parent is None else left_out,
            over_bound=candidates - rows,
            kept=rows,
        )

    def _joined(self, name: str) -> int:
        """The number of rows that have a row of the parent; of the root, an owner."""
        parent = self._tables.tables[name].parent
        if parent is None:
            columns = _owner_columns(self._tables)
            self._register("given", name, columns)
            known = " AND ".join(f"{quoted(column)} IS NOT NULL" for column in columns)
            return self._number(f"SELECT count(*) AS number FROM given WHERE {known}")  # noqa: S608
        self._register("given", name, parent.columns)
        self._register("parents", parent.table, self._tables.tables[parent.table].key)
        joined = self._number(f"SELECT count(*) AS number FROM given JOIN parents ON {self._link(name, 'parents')}")  # noqa: S608
        self._engine.drop("parents")
        return joined

    def _write(self, name: str) -> None:
        """Writes a table's view, and checks it."""
        rows, own = self._kept(name), self._tables.own_columns(name)
        types = self._schemas[name]
        # Each column's SQL and type, in the order of the declaration.
        view = {column: (f"{rows}.{quoted(column)}", types.field(column).type) for column in own}
        joins = []
        for child in self._tables.children(name):
            counted = self._counted(child)
            joins.append(f"LEFT JOIN {counted} ON {_same(self._path(name), rows, counted)}")
            view[children_name(child)] = (f"coalesce({counted}.rows__, 0)", pa.int32())
        known, root = self._tables.siblings(name), self._tables.root
        above = [*(table for table, _ in self._tables.context(name)), *known, root]
        for other in dict.fromkeys(each for each in above if each != name):
            joins.append(f"JOIN {self._kept(other)} ON {_same(self._path(other), rows, self._kept(other))}")
        evidence = {
            context_name(other, column): (
                f"{self._kept(other)}.{quoted(column)}",
                self._schemas[other].field(column).type,
            )
            for other, column in self._tables.context(name)
        }
        evidence[POSITION] = (f"{rows}.{self._place(name)}", pa.int32())
        evidence |= {children_name(each): (self._siblings(each), pa.int32()) for each in known}
        for lag in range(1, self._tables.lags(name) + 1):
            for column in self._tables.passed_on(name):
                before = previous_name(column, lag)
                evidence[before] = (f"{rows}.{quoted(before)}", types.field(column).type)
        if (ordered := self._tables.gap(name)) is not None:
            last = f"{rows}.{quoted(previous_name(ordered, 1))}"
            in_days = self._tables.tables[name].columns[ordered].type == "date"
            steps = _steps(f"{rows}.{quoted(ordered)}", last, types.field(ordered).type, in_days=in_days)
            view[gap_name(ordered)] = (steps, pa.int64())
        wanted = set(self._tables.evidence(name))
        view |= {column: found for column, found in evidence.items() if column in wanted}
        view[OWNER_COLUMN] = (f"{self._kept(root)}.{OWNER_COLUMN}", pa.string())
        schema = pa.schema([(column, type_) for column, (_, type_) in view.items()])
        selected = _list(f"{sql} AS {quoted(column)}" for column, (sql, _) in view.items())
        by = _list(f"{rows}.{column}" for column in self._path(name))
        self._engine.write_delta(
            self._target / name,
            schema,
            f"SELECT {selected} FROM {rows} {' '.join(joins)} ORDER BY {by}",  # noqa: S608 - quoted and our own names
        )
        written = (batch.column(OWNER_COLUMN) for batch in read_table(self._target / name, columns=[OWNER_COLUMN]))
        nobody = np.empty(0, FINGERPRINT_DTYPE)
        checked = check_written(written, self._participants, nobody, self._tables.bound(name))
        self.owners = checked.owners  # the root is the last

    def _given(self, name: str) -> list[str]:
        """The columns that bounding reads."""
        return list(dict.fromkeys([*self._tables.own_columns(name), *self._key_columns(name)]))

    def _key_columns(self, name: str) -> list[str]:
        """Columns of keys, and of owners."""
        return list(dict.fromkeys([*self._tables.tables[name].key, *self._link_columns(name)]))

    def _link_columns(self, name: str) -> list[str]:
        """The columns by which a row belongs to another one; of the root, to an owner."""
        parent = self._tables.tables[name].parent
        return _owner_columns(self._tables) if parent is None else list(parent.columns)

    def _link(self, name: str, kept_parent: str | None = None) -> str:
        """The condition that a row belongs to one of the parent."""
        other = kept_parent or self._kept_parent(name)
        columns = [f"given.{quoted(column)}" for column in self._link_columns(name)]
        parent = self._tables.tables[name].parent
        if parent is None:
            id_ = columns[0] if len(columns) == 1 else " || '|' || ".join(map(_with_length, columns))
            return f"{id_} = {other}.{ID_COLUMN}"
        key = self._tables.tables[parent.table].key
        return " AND ".join(f"{a} = {other}.{quoted(b)}" for a, b in zip(columns, key, strict=True))

    def _record(self, name: str) -> str:
        """What a row is, as a text: a function of that row alone; equal texts mean equal values, but for fractions."""
        parts = []
        for column in dict.fromkeys([*self._link_columns(name), *self._given(name)]):
            type_, sql = self._schemas[name].field(column).type, f"given.{quoted(column)}"
            if pa.types.is_timestamp(type_):
                sql = f"CAST(unix_micros(CAST({sql} AS TIMESTAMP)) AS STRING)"
            elif any(fits(type_) for fits in _EXACT_TEXT):
                sql = f"CAST({sql} AS STRING)"
            elif not is_text(type_):
                continue
            parts.append(f"CASE WHEN {sql} IS NULL THEN '-' ELSE {_with_length(sql)} END")
        return " || '|' || ".join(parts) or "''"

    def _value(self, name: str, column: str) -> str:
        """A column as it is kept: 0.0 and -0.0 are one value."""
        sql = f"given.{quoted(column)}"
        return f"{sql} + 0.0" if pa.types.is_floating(self._schemas[name].field(column).type) else sql

    def _siblings(self, name: str) -> str:
        """The number of kept rows of one parent."""
        return f"least({self._kept(name)}.{_SIBLINGS}, {self._bound(name)})"

    def _bound(self, name: str) -> int:
        """The most rows of one parent; of the root, of one owner."""
        return self._tables.most(name)

    def _path(self, name: str) -> list[str]:
        """The columns that identify a kept row: its owner's number, and the places of its ancestors and its own."""
        return [_NUMBER, *(f"place__{depth}" for depth in range(len(self._tables.ancestors(name)) + 1))]

    def _place(self, name: str) -> str:
        return self._path(name)[-1]

    def _kept(self, name: str) -> str:
        return f"kept_{self._tables.private.index(name)}"

    def _counted(self, name: str) -> str:
        return f"children_{self._tables.private.index(name)}"

    def _kept_parent(self, name: str) -> str:
        parent = self._tables.tables[name].parent
        return "owners" if parent is None else self._kept(parent.table)

    def _register(self, sql_name: str, name: str, columns: Sequence[str]) -> None:
        source = self._read[name]
        if isinstance(source, Path):
            self._engine.register_delta(sql_name, source, columns=columns)
            return
        schema = pa.schema([self._schemas[name].field(column) for column in columns])
        stored = [kept(source[column], codes=self._has_codes(name, column)) for column in columns]
        self._engine.register(sql_name, pa.table(stored, schema=schema))

    def _stored(self, name: str) -> pa.Schema:
        """A table's types as Delta tables have them."""
        schema = _schema(self._read[name])
        return pa.schema([(item.name, kept_type(item.type, codes=self._has_codes(name, item.name))) for item in schema])

    def _has_codes(self, name: str, column: str) -> bool:
        """Whether a column's values are distinct categories, whatever their type."""
        declared = self._tables.tables[name].columns.get(column)
        return declared is None or declared.type == "categorical"

    def _rows_read(self, name: str) -> int:
        source = self._read[name]
        return count_rows(source) if isinstance(source, Path) else source.num_rows

    def _number(self, sql: str) -> int:
        return int(self._engine.scalar(sql) or 0)


def _participants(engine: Engine, owners: pa.Table) -> Fingerprints:
    """Registers the participants, and gives their fingerprints."""
    _check_columns("owners", owners.schema, [ID_COLUMN, OWNER_COLUMN], [ID_COLUMN, OWNER_COLUMN], ())
    try:
        participants = distinct_owners(owners.select([OWNER_COLUMN]).to_batches())
    except ValueError:
        participants = None
    if participants is None:
        raise BoundingError("owners: an entry of _owner is no fingerprint; accepted: 32 hex characters")
    numbers = pc.rank(owners[OWNER_COLUMN], tiebreaker="dense").cast(pa.int64())
    engine.register("owners", owners.select([ID_COLUMN, OWNER_COLUMN]).append_column(_NUMBER, numbers))
    repeated = "SELECT count(*) - count(DISTINCT _id) AS number FROM owners"
    if engine.scalar(repeated):
        raise BoundingError("owners: an entry of _id is null or stands there twice; accepted: each id once")
    return participants


def _check_columns(
    table: str, schema: pa.Schema, columns: Sequence[str], texts: Sequence[str], reserved: Sequence[str] = _OWN_NAMES
) -> None:
    """Refuses a table without the columns that bounding reads, or with types that it cannot order alike."""
    if missing := [name for name in columns if name not in schema.names]:
        raise BoundingError(f"{table}: there is no column {', '.join(missing)}; it has {', '.join(schema.names)}")
    if taken := [name for name in columns if caseless(name) in map(caseless, reserved)]:
        raise BoundingError(f"{table}: column {', '.join(taken)}: bounding uses the name; rename the column")
    for name in columns:
        type_ = schema.field(name).type
        if name in texts and not is_text(type_):
            raise BoundingError(f"{table}: key column {name!r} is of type {type_name(type_)}; accepted: texts")
        known = (*_EXACT_TEXT, pa.types.is_floating, pa.types.is_timestamp, is_text)
        if not any(fits(type_) for fits in known):
            raise BoundingError(
                f"{table}: column {name!r} is of type {type_name(type_)}; accepted: texts, numbers, truth values, "
                "dates and moments"
            )


def _owner_columns(tables: LinkedTables) -> list[str]:
    """The columns of the root that name the owner of a row."""
    return [tables.owner] if tables.owner is not None else list(tables.tables[tables.root].key)


def _schema(source: Path | pa.Table) -> pa.Schema:
    return table_schema(source) if isinstance(source, Path) else source.schema


def _with_length(sql: str) -> str:
    """A text after its length: several of them in a row stay apart."""
    return f"CAST(length({sql}) AS STRING) || ':' || {sql}"


def _steps(value: str, before: str, type_: pa.DataType, *, in_days: bool) -> str:
    """How far a value is from another one: in ones, days or whole seconds (`LinkedTables.gap`).

    Days are the declaration's (`in_days`): the source of a declared date may have moments, of which days count.
    No value stops the run, or one person's row could: numbers beyond 2^61 count as that, and NaN as missing.
    """
    if not pa.types.is_temporal(type_):
        return " - ".join(_whole(each, real=pa.types.is_floating(type_)) for each in (value, before))
    micros = [f"unix_micros(CAST({each} AS TIMESTAMP))" for each in (value, before)]
    if in_days:
        return " - ".join(f"CAST(floor({each} / 86400000000) AS BIGINT)" for each in micros)
    return f"CAST(floor(({' - '.join(micros)}) / 1000000) AS BIGINT)"


def _whole(value: str, *, real: bool) -> str:
    # `least` and `greatest` ignore nulls.
    known = f"{value} IS NOT NULL AND NOT isnan({value})" if real else f"{value} IS NOT NULL"
    low, high = (f"CAST({sign}{_FARTHEST} AS DOUBLE)" if real else f"{sign}{_FARTHEST}" for sign in ("-", ""))
    return f"CASE WHEN {known} THEN CAST(greatest(least({value}, {high}), {low}) AS BIGINT) END"


def _same(columns: Sequence[str], one: str, other: str) -> str:
    return " AND ".join(f"{one}.{column} = {other}.{column}" for column in columns)


def _list(sql: Iterator[str] | Sequence[str]) -> str:
    return ", ".join(sql)
