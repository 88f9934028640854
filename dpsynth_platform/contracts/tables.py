"""Linked tables: one root whose rows or owners are the privacy units, and all that belongs to them by foreign keys.

What belongs here: the declaration, its faults, and what follows from it: the order of tables, the bound of each, and
the columns by which each is modelled (its *view*). What does not: choosing rows (`bounding.linked`) and the mechanism
(`synth.relational`). All of it is public.

    tables:
      patients:
        key: [patient_id]
        columns: {age: {type: integer, min: 0, max: 110}, sex: {type: categorical, values: [F, M]}}
      stays:
        key: [stay_id]
        parent: {table: patients, columns: [patient_id]}
        max_children: 4                     # of one patient: the bound
        order_by: [admitted]
        columns:
          admitted: {type: date, min: 2024-01-01, max: 2024-12-31}
          ward: {type: categorical, values: [A, B]}
        constraints: [{ascending: [previous.admitted, admitted]}]

Private tables form a tree, so that each row belongs to one owner by one path, and is counted once. A *view* of a table
has its own columns, how many children of each kind a row has, the parent's columns, and those of the row before it of
the same parent. Views are single tables, whose rows are bounded by the product of the bounds on the path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dpsynth_platform.contracts.base import ColumnName, NameOrNone, Part, Phrase, caseless, refuse, text_like
from dpsynth_platform.contracts.columns import (
    MODELLED_TYPES,
    RESERVED_COLUMNS,
    CategoricalColumn,
    Column,
    DateColumn,
    DatetimeColumn,
    IntegerColumn,
)
from dpsynth_platform.contracts.constraints import MOST_CONSTRAINTS, Constraint, unquoted
from dpsynth_platform.contracts.privacy import WeightingName

TableName = Annotated[
    str,
    text_like(
        r"^[A-Za-z][A-Za-z0-9_]{0,62}$",
        "a letter, then at most 62 letters, digits and _, such as Order_Details for `Order Details`",
    ),
]
MOST_TABLES = 50
MOST_CHILDREN = 1000
MOST_BOUND = 100_000
MOST_TYPES = 16
"""Hidden types of a parent's rows."""
GAP_TYPES = ("integer", "date", "datetime")
"""Types of columns whose values are drawn as steps after the row before: ones, days, seconds."""
PREVIOUS = "previous"
"""In constraints, the previous row of the same parent: `previous.admitted`."""
CHOSEN = "chosen"
"""The share of tables whose parts of the budget one selection decides about."""
POSITION = "row__number"
"""Of a row among those of its parent, from 1."""


_TAKEN = tuple(map(caseless, (PREVIOUS, f"{PREVIOUS}2", POSITION.partition("__")[0])))


def context_name(table: str, column: str) -> str:
    """An ancestor's column in a view."""
    return f"{table}__{column}"


def previous_name(column: str, lag: int) -> str:
    """The column of the row before (lag 1), or of the one before that (lag 2), in a view."""
    return f"{PREVIOUS}{lag if lag > 1 else ''}__{column}"


def children_name(table: str) -> str:
    """The number of a row's children in a table, in a view."""
    return f"{table}__rows"


def is_learned(column: Column | None) -> bool:
    """Whether the mechanism learns a column's values."""
    return isinstance(column, CategoricalColumn) and column.most_learned is not None


def unquoted_in_tables(tables: Any) -> Iterator[str]:
    """Faults of unquoted values in the constraints of unvalidated tables (`constraints.unquoted`)."""
    parts = {name: each for name, each in tables.items() if isinstance(each, dict)} if isinstance(tables, dict) else {}
    others = {
        f"{start}.{each}" for name, table in parts.items() for each in _texts(table) for start in (name, PREVIOUS)
    }
    for name, table in parts.items():
        found = unquoted(table.get("constraints"), others.union(_texts(table)))
        yield from (f"tables.{name}.constraints.{fault}" for fault in found)


def columns_named(table: Any) -> Iterator[str]:
    """Names of the columns that an unvalidated table declares, or that its keys have."""
    whole = table if isinstance(table, dict) else {}
    parent = whole.get("parent")
    parts: list[Any] = [whole.get(key) for key in ("columns", "lookups", "key")]
    parts.append(parent.get("columns") if isinstance(parent, dict) else None)
    yield from (name for part in parts if isinstance(part, dict | list) for name in part if isinstance(name, str))


def _texts(table: Mapping[str, Any]) -> set[str]:
    """Names of an unvalidated table's columns of texts; those of lookups hold keys as texts."""
    columns, lookups = table.get("columns"), table.get("lookups")
    named = columns.items() if isinstance(columns, dict) else ()
    texts = {str(name) for name, each in named if isinstance(each, dict) and each.get("type") == "categorical"}
    return texts.union(map(str, lookups if isinstance(lookups, dict) else ()))


def gap_name(column: str) -> str:
    """How far a row's value is from that of the row before, in a view."""
    return f"{column}__gap"


class Parent(Part):
    """The table whose rows have these ones as children."""

    table: TableName = Field(description="Its name.")
    columns: list[ColumnName] = Field(min_length=1, max_length=16, description="The foreign key, in the key's order.")


class LinkedTable(Part):
    """One table of several."""

    key: list[ColumnName] = Field(
        default_factory=list, max_length=16, description="Distinct for each row. Synthetic rows have new ones."
    )
    parent: Parent | None = Field(default=None, description="None for the root, and for public tables.")
    max_children: int | None = Field(
        default=None,
        ge=1,
        le=MOST_CHILDREN,
        description="Of one row of the parent; of the root, of one owner. Others are left out: the first are kept by "
        "`order_by`, or random ones.",
    )
    order_by: list[ColumnName] = Field(default_factory=list, max_length=4, description="The order of children.")
    lags: int | None = Field(
        default=None,
        ge=0,
        le=2,
        description="How many previous rows of the same parent a row depends on; by default 1 where a parent may have "
        "several.",
    )
    types: int | None = Field(
        default=None,
        ge=2,
        le=MOST_TYPES,
        exclude_if=lambda types: types is None,
        description="Without `order_by`: how many hidden types a row of the parent may have, on which all of its rows "
        "here depend; by default none. They follow from what is measured anyway, at no cost.",
    )
    context: list[str] | None = Field(
        default=None,
        max_length=200,
        description="Columns of ancestors that a row depends on, as `table.column`; by default all of the parent.",
    )
    share: Annotated[float, Field(gt=0, le=1000)] | Literal["chosen"] | None = Field(
        default=None,
        description="Of the budget, beside those of other tables; by default its columns. `chosen`, of all private "
        "tables: by `aim`, whose rounds then choose among the columns of all tables.",
    )
    public: Phrase | None = Field(
        default=None, description="Why the table is public. It is released as it is; the private ones may refer to it."
    )
    lookups: dict[ColumnName, TableName] = Field(
        default_factory=dict, description="Columns that hold the key of a row in a public table."
    )
    columns: dict[NameOrNone, Column] = Field(
        default_factory=dict, description="All columns but keys, as in a contract."
    )
    constraints: list[Constraint] = Field(
        default_factory=list,
        max_length=MOST_CONSTRAINTS,
        description="On rows; those of the parent and the previous row are `table.column` and `previous.column`.",
    )

    @property
    def modelled(self) -> list[str]:
        """Names of the declared columns that the mechanism models; `lookups` are further ones."""
        return [name for name, column in self.columns.items() if column.type in MODELLED_TYPES]

    @property
    def keys(self) -> list[str]:
        """Names of the columns of keys, each once."""
        named = [*self.key, *(self.parent.columns if self.parent else [])]
        return list(dict.fromkeys(named))

    def _role(self, name: str) -> str:
        return "a lookup of a public table" if name in self.lookups else "a key, whose values are made anew"

    def _way_out(self, name: str) -> str:
        """How the values of a column of the key can be modelled nevertheless."""
        if name in self.lookups or (self.parent and name in self.parent.columns):
            return ""
        return (
            "; where its values matter, such as a year's: leave out `key`, which a table without children does not "
            "need, or copy the column under another name in the source"
        )

    def faults(self) -> Iterator[str]:
        """What contradicts itself within the table."""
        if self.public is not None:
            for name in ("parent", "max_children", "lags", "types", "context", "share"):
                if getattr(self, name) is not None:
                    yield f"{name}: of a public table, which is released as it is; accepted: leave it out"
            for name in ("columns", "order_by", "lookups", "constraints"):
                if getattr(self, name):
                    yield f"{name}: of a public table, which is released as it is; accepted: its key alone"
            if len(self.key) != 1:
                yield f"key: {len(self.key)} columns of a public table; accepted: one, which other tables refer to"
            return
        if self.parent is None:
            for name in ("lags", "types", "context"):
                if getattr(self, name) is not None:
                    yield f"{name}: of a table without a parent; accepted: a parent, or leave it out"
            if self.order_by or not self.key:
                yield "key: missing" if not self.key else "order_by: of a table without a parent; accepted: none"
        elif self.max_children is None:
            yield "max_children: missing; accepted: the most rows that are kept of each row of the parent"
        for name in self.order_by:
            if name not in self.modelled:
                way = self._way_out(name) if name in self.key else ""
                yield f"order_by: {name!r} is no modelled column; accepted: {', '.join(self.modelled) or 'none'}{way}"
        for name in (*self.keys, *self.lookups):
            if name in self.columns:
                yield f"columns.{name}: is {self._role(name)}; accepted: leave out the declaration{self._way_out(name)}"
        if twice := [name for name in self.lookups if name in self.keys]:
            yield f"lookups.{twice[0]}: is a part of a key of private tables; accepted: another column"
        seen: dict[str, str] = {}
        for name in (*self.columns, *self.keys, *self.lookups):
            if seen.setdefault(caseless(name), name) != name:
                yield f"columns: {seen[caseless(name)]!r} and {name!r} differ in case only; accepted: distinct names"
            if name in self.columns and self.columns[name].type == "ignored":
                continue  # it is not read, but a contract declares every column of its source
            if not name:
                yield "columns: a column has an empty name; accepted: '': {ignore: true}, or a name in the source"
            if caseless(name) in RESERVED_COLUMNS:
                yield f"columns: {name!r} is reserved by the platform; accepted: another name"
            if "__" in name:
                yield f"columns: {name!r}: two signs _ in a row are for columns of other rows; accepted: another name"


class LinkedTables(Part):
    """A database: the root, and what belongs to its rows."""

    tables: dict[TableName, LinkedTable] = Field(
        min_length=1, max_length=MOST_TABLES, description="By their names, which are those of files."
    )
    owner: ColumnName | None = Field(
        default=None, description="The root's column that names the owner of a row; by default each row is an owner."
    )

    @model_validator(mode="after")
    def _valid(self) -> LinkedTables:
        refuse(self._faults())
        return self

    def _faults(self) -> Iterator[str]:
        own = [f"tables.{name}.{fault}" for name, table in self.tables.items() for fault in table.faults()]
        yield from own
        seen: dict[str, str] = {}
        for name in self.tables:
            if caseless(name) in _TAKEN:
                yield f"tables.{name}: the name has another meaning in constraints; accepted: another name"
            if seen.setdefault(caseless(name), name) != name:
                yield f"tables: {seen[caseless(name)]!r} and {name!r} differ in case only; accepted: distinct names"
        roots = [name for name, table in self.tables.items() if table.public is None and table.parent is None]
        if len(roots) != 1:
            shown = ", ".join(roots) or "none"
            yield (
                f"tables: without a parent: {shown}; accepted: exactly one root, whose rows or owners are protected; "
                "a parent for each other table, or public: WHY where it has no private rows"
            )
            return
        if own:
            return
        for name, table in self.tables.items():
            if table.parent is not None:
                yield from self._parent_faults(name, table, table.parent)
            for column, other in table.lookups.items():
                if other not in self.tables or self.tables[other].public is None:
                    accepted = ", ".join(each for each, found in self.tables.items() if found.public) or "none yet"
                    yield f"tables.{name}.lookups.{column}: {other!r} is no public table; accepted: {accepted}"
        most = self.tables[roots[0]].max_children
        if (self.owner is None) != (most is None):
            yield (
                f"tables.{roots[0]}.max_children: {'missing' if most is None else most}, the rows of one owner; "
                "accepted: with a column that names the owner of a row, and left out where each row is an owner's own"
            )
        if self.owner is not None and self.owner in (*self.tables[roots[0]].columns, *self.tables[roots[0]].lookups):
            yield f"owner: {self.owner!r} is declared in columns; accepted: leave out the declaration"
        parents = [table.parent.table for table in self.tables.values() if table.parent is not None]
        if any(each not in self.tables or self.tables[each].public is not None for each in parents):
            return  # a fault of its own
        lost = [name for name, table in self.tables.items() if table.public is None and not self._reaches(name)]
        if lost:
            yield f"tables: {', '.join(lost)}: their parents form a cycle; accepted: a path of parents to {roots[0]}"
            return
        chosen = [name for name in self.private if self.tables[name].share == CHOSEN]
        if chosen and len(chosen) < len(self.private):
            others = next(name for name in self.private if name not in chosen)
            yield f"tables.{others}.share: that of {chosen[0]} is {CHOSEN}; accepted: {CHOSEN} of all tables or none"
        for name in self.private:
            if (bound := self.bound(name)) > MOST_BOUND:
                yield (
                    f"tables.{name}: one owner may have {bound} rows by the bounds on the path; accepted: at most "
                    f"{MOST_BOUND}; declare smaller max_children"
                )
            yield from self._context_faults(name)
            if self.tables[name].types is not None:
                yield from self._types_faults(name)

    def _parent_faults(self, name: str, table: LinkedTable, parent: Parent) -> Iterator[str]:
        private = [each for each, found in self.tables.items() if found.public is None and each != name]
        if parent.table not in private:
            yield f"tables.{name}.parent.table: {parent.table!r}; accepted: {', '.join(private) or 'none yet'}"
            return
        key = self.tables[parent.table].key
        if len(key) != len(parent.columns):
            yield (
                f"tables.{name}.parent.columns: {len(parent.columns)}, and the key of {parent.table} has {len(key)}; "
                f"accepted: the columns that refer to {', '.join(key) or 'its key, which is not declared'}"
            )

    def _types_faults(self, name: str) -> Iterator[str]:
        place = f"tables.{name}.types: {self.tables[name].types}"
        if not self.lags(name) or self.most(name) == 1:
            yield (
                f"{place}, but rows do not depend on those before; accepted: lags 1 or 2 and max_children above 1, or "
                "leave it out"
            )
        if self.tables[name].order_by:
            # By the row before alone, a lasting type cannot be distinguished from a memory of one row.
            yield f"{place}, but rows have an order; accepted: no order_by, or leave it out"
        if not self.passed_on(name):
            yield (
                f"{place}, but no column tells them; accepted: a modelled column with declared values, or leave it out"
            )

    def _context_faults(self, name: str) -> Iterator[str]:
        table = self.tables[name]
        known = [f"{other}.{column}" for other in self.ancestors(name) for column in self.passed_on(other)]
        for each in table.context or ():
            if each not in known:
                yield f"tables.{name}.context: {each!r}; accepted: {', '.join(known)}"
        names = self.constraint_names(name)
        for number, constraint in enumerate(table.constraints):
            for column in constraint.columns:
                if column not in names:
                    accepted = ", ".join(names)
                    yield f"tables.{name}.constraints.{number}: {column!r} is no modelled column; accepted: {accepted}"

    def _reaches(self, name: str) -> bool:
        seen: set[str] = set()
        while (parent := self.tables[name].parent) is not None:
            if name in seen or parent.table not in self.tables:
                return False
            seen.add(name)
            name = parent.table
        return True

    def renamed(self, names: Mapping[str, Mapping[str, str]]) -> LinkedTables:
        """The same tables with columns under other names, by table, and in the order of `names`.

        Names that are not in `names` stay, at the end.
        """

        def of(table: str, column: str) -> str:
            return names.get(table, {}).get(column, column)

        def dotted(name: str, each: str) -> str:
            table, _, column = each.partition(".")
            known = name if table == PREVIOUS else table
            return f"{table}.{of(known, column)}" if column and (known in self.tables) else of(name, each)

        def part(name: str, table: LinkedTable) -> LinkedTable:
            mine = {each: of(name, each) for each in (*table.columns, *table.keys, *table.lookups)}
            order = list(dict.fromkeys((*names.get(name, {}), *mine)))

            def ordered(part: Mapping[str, Any]) -> list[tuple[str, Any]]:
                return sorted(part.items(), key=lambda item: order.index(item[0]))

            changed: dict[str, Any] = {
                "key": [mine[each] for each in table.key],
                "order_by": [mine[each] for each in table.order_by],
                "lookups": {mine[each]: other for each, other in ordered(table.lookups)},
                "columns": {mine[each]: column for each, column in ordered(table.columns)},
                "context": None if table.context is None else [dotted(name, each) for each in table.context],
                "constraints": [
                    each.renamed({column: dotted(name, column) for column in each.columns})
                    for each in table.constraints
                ],
            }
            if table.parent is not None:
                changed["parent"] = Parent(
                    table=table.parent.table, columns=[mine[each] for each in table.parent.columns]
                )
            return table.model_copy(update=changed)

        tables = {name: part(name, table) for name, table in self.tables.items()}
        owner = None if self.owner is None else of(self.root, self.owner)
        return LinkedTables(tables=tables, owner=owner)

    def as_modelled(self) -> LinkedTables:
        """The same tables without what changes no model: reasons, and declared values that are the default."""

        def part(name: str, table: LinkedTable) -> LinkedTable:
            if table.public is not None:
                return table.model_copy(update={"public": "public"})
            bare = table.model_copy(update={"lags": None, "context": None, "share": None})
            usual = self.model_copy(update={"tables": dict(self.tables) | {name: bare}})
            changed: dict[str, Any] = {}
            for key in ("lags", "context", "share"):
                if getattr(self, key)(name) != getattr(usual, key)(name) or getattr(table, key) == CHOSEN:
                    changed[key] = getattr(table, key)
            return bare.model_copy(update=changed)

        return self.model_copy(update={"tables": {name: part(name, table) for name, table in self.tables.items()}})

    @property
    def root(self) -> str:
        return next(name for name, table in self.tables.items() if table.public is None and table.parent is None)

    @cached_property
    def private(self) -> list[str]:
        """Names of all private tables, parents before children."""
        found = [self.root]
        for name in found:  # grows
            found += self.children(name)
        return found

    @property
    def lookups(self) -> list[str]:
        """Names of the public tables."""
        return [name for name, table in self.tables.items() if table.public is not None]

    def children(self, name: str) -> list[str]:
        """Sorted, so that the order of a file's keys decides nothing."""
        found = [each for each, table in self.tables.items() if table.parent and table.parent.table == name]
        return sorted(found)

    def ancestors(self, name: str) -> list[str]:
        """The tables above, the parent first."""
        found = []
        while (parent := self.tables[name].parent) is not None:
            found.append(name := parent.table)
        return found

    def bound(self, name: str) -> int:
        """The most rows of one owner: the product of the bounds on the path, since there is one path."""
        return math.prod(self.most(each) for each in (name, *self.ancestors(name)))

    def most(self, name: str) -> int:
        """The most rows of one row of the parent; of the root, of one owner."""
        return self.tables[name].max_children or 1

    @cached_property
    def rows_of_owner(self) -> int:
        """The most rows of one owner in all tables."""
        return sum(map(self.bound, self.private))

    @property
    def weighting(self) -> WeightingName:
        """What counts are of: owners, whose rows in a view weigh one row together; with one row each, rows."""
        return "owners" if self.rows_of_owner > 1 else "rows"

    def lags(self, name: str) -> int:
        table = self.tables[name]
        if table.parent is None:
            return 0
        return table.lags if table.lags is not None else int(self.most(name) > 1)

    def own_columns(self, name: str) -> list[str]:
        """Names of a table's modelled columns, with those that refer to public tables."""
        return [*self.tables[name].modelled, *self.tables[name].lookups]

    def passed_on(self, name: str) -> list[str]:
        """Names of the columns that other rows may depend on: those whose values are known beforehand."""
        columns = self.tables[name].columns
        return [each for each in self.own_columns(name) if not is_learned(columns.get(each))]

    def gap(self, name: str) -> str | None:
        """The first column of a table's order, if a row's value follows from the row before and a gap; else None."""
        order = self.tables[name].order_by
        if not order or not self.lags(name) or self.tables[name].columns[order[0]].type not in GAP_TYPES:
            return None
        return order[0]

    def context(self, name: str) -> list[tuple[str, str]]:
        """The columns of ancestors in a table's view, as (table, column)."""
        table = self.tables[name]
        if table.parent is None:
            return []
        if table.context is None:
            return [(table.parent.table, column) for column in self.passed_on(table.parent.table)]
        return [(each.split(".", 1)[0], each.split(".", 1)[1]) for each in table.context]

    def constraint_names(self, name: str) -> dict[str, str]:
        """The columns of a view, by their names in constraints."""
        own = self.own_columns(name)
        previous = (
            {f"{PREVIOUS}.{each}": previous_name(each, 1) for each in self.passed_on(name)} if self.lags(name) else {}
        )
        context = {f"{table}.{each}": context_name(table, each) for table, each in self.context(name)}
        return {each: each for each in own} | previous | context

    def evidence(self, name: str) -> list[str]:
        """Names of a view's columns that are known before a row of the table is drawn."""
        context = [context_name(*each) for each in self.context(name)]
        if self.tables[name].parent is None:
            return context
        siblings = [children_name(each) for each in self.siblings(name)]
        position = [POSITION] if self.tables[name].order_by and self._several(name) else []
        lags = range(1, self.lags(name) + 1)
        return [
            *context,
            *siblings,
            *position,
            *(previous_name(each, lag) for lag in lags for each in self.passed_on(name)),
        ]

    def view(self, name: str, values: Mapping[str, Sequence[str]]) -> dict[str, Column]:
        """The declarations of a view's columns: its own, the numbers of children, and the evidence.

        Args:
            values: the keys of each public table.
        """
        own = self.declared(name, values)
        counts: dict[str, Column] = {children_name(child): self._count(child) for child in self.children(name)}
        found: dict[str, Column] = {**own, **counts}
        if (column := self.gap(name)) is not None:
            found[gap_name(column)] = _gap(self.tables[name].columns[column])
        for table, column in self.context(name):
            found[context_name(table, column)] = self.declared(table, values)[column]
        if POSITION in self.evidence(name):
            found[POSITION] = IntegerColumn(type="integer", min=1, max=self.most(name))
        for each in self.siblings(name):
            found[children_name(each)] = self._count(each)
        for lag in range(1, self.lags(name) + 1):
            for column in self.passed_on(name):
                found[previous_name(column, lag)] = own[column].model_copy(update={"nullable": True})
        return found

    def declared(self, name: str, values: Mapping[str, Sequence[str]]) -> dict[str, Column]:
        """The declarations of a table's own modelled columns."""
        table = self.tables[name]
        lookups: dict[str, Column] = {
            column: CategoricalColumn(type="categorical", values=list(values[other]))
            for column, other in table.lookups.items()
        }
        return {column: table.columns[column] for column in table.modelled} | lookups

    def constraints(self, name: str) -> list[dict[str, Any]]:
        """`view_constraints` as in a contract."""
        return [each.model_dump(mode="json") for each in self.view_constraints(name)]

    def view_constraints(self, name: str) -> list[Constraint]:
        """A table's constraints, by the names of its view; and that a row after another has a gap."""
        names = self.constraint_names(name)
        found = [each.renamed(names) for each in self.tables[name].constraints]
        if (column := self.gap(name)) is not None:
            before, gap, missing = previous_name(column, 1), gap_name(column), [None]
            declared = self.tables[name].columns[column]
            every = _range(declared)
            allowed: list[dict[str, Any]] = [
                {before: every, column: every, gap: _range(_gap(declared))},
                {before: missing, gap: missing},
            ]
            if declared.nullable:
                allowed.append({column: missing, gap: missing})
            found.append(Constraint(only=allowed))
        return found

    def share(self, name: str) -> float:
        """A table's part of the budget, beside the other tables': declared, or its modelled columns and counts."""
        declared = self.tables[name].share
        if isinstance(declared, float):
            return declared
        return len(self.own_columns(name)) + len(self.children(name))

    @property
    def shares_chosen(self) -> bool:
        """Whether one selection over all tables decides about their parts of the budget."""
        return self.tables[self.root].share == CHOSEN

    def siblings(self, name: str) -> list[str]:
        """The table and its ancestors, where a row may have several siblings: their numbers are known.

        Owners weigh the same, so that a row of many weighs little: given all numbers on the path, that is undone.
        """
        return [each for each in (name, *self.ancestors(name)) if self._several(each)]

    def _several(self, name: str) -> bool:
        """Whether a row of the parent may have several; an owner's rows of the root are drawn one by one."""
        return self.tables[name].parent is not None and self.most(name) > 1

    def _count(self, child: str) -> IntegerColumn:
        return IntegerColumn(type="integer", min=0, max=self.most(child))


def _range(column: Any) -> dict[str, Any]:
    """All values of an ordered column, as in a constraint."""
    low, high = column.min, column.max
    return {"min": low, "max": high} if isinstance(low, int) else {"min": low.isoformat(), "max": high.isoformat()}


def _gap(column: Column) -> IntegerColumn:
    """Steps after the row before, in cells that are fine near zero; missing for the first row."""
    if isinstance(column, IntegerColumn):
        longest = column.max - column.min
    elif isinstance(column, DateColumn):
        longest = (column.max - column.min).days
    else:
        assert isinstance(column, DatetimeColumn)  # noqa: S101  (`LinkedTables.gap` asks)
        longest = int((column.max - column.min).total_seconds())
    longest = max(1, longest)
    edges = sorted({round(2 ** (half / 2)) for half in range(2 * longest.bit_length())})
    return IntegerColumn(
        type="integer", min=0, max=longest, bins=[edge for edge in edges if 0 < edge <= longest], nullable=True
    )
