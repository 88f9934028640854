"""Canaries of linked tables: fictional owners with rows in every table, which join by made-up keys.

What belongs here: drawing families from declarations, tossing their coins, storage, and their views. What does not:
canaries of one table, whose choice of values is used here (`canaries`), attacks, and anything that reads data.

A *family* is one owner with as many rows of the root as the bound allows, and rows of every other table below each of
them. All rows of a family in a table have equal modelled values, and all its rows of the parent have equally many
children. An owner's rows weigh one row together in a view, so one cell gets all of the weight: that moves the counts of
a set of columns as far as an owner can. Equal values keep any declared order (`order_by`), with gaps of zero. Only
where a row is the first one do its number and the row before differ.

How many children a row has is a column of the parent's view, whose values are balanced over the families like others,
from 1 to the bound: each view shall hold every family. A family has at most `MOST_ROWS` rows; where bounds allow more,
all tables have as many as fit together. By weights, more rows would add nothing to a count; by a mechanism that forgets
them, a family adds as many times what it should as it has rows in the view.

Values of columns are independent of each other, and balanced over the declared cells. Learned values are missing;
values that refer to a public table are among its keys.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.audit.canaries import (
    INCLUDED,
    OWNER,
    RESERVED_PREFIX,
    balanced,
    balanced_cells,
    values_of,
)
from dpsynth_platform.bounding.linked import ID_COLUMN, root_ids, write_linked
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.scrub.fingerprints import Fingerprints, distinct_owners
from dpsynth_platform.synth.tabular.domain import Codes, Domain, declared_domain

MOST_ROWS = 50
"""Of one family in all tables, unless there are more tables."""
TABLES, OWNERS = "table", "owners"
"""Names below the directory of stored families."""

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FamilySet:
    """All families of one run; restricted, like `canaries.CanarySet`.

    Attributes:
        declared: the linked tables.
        tables: all rows of each private table, by the columns of the scrubbed one.
        owners: one row a family: `_id` (`bounding.linked.root_ids`), `_owner` and `included`, sorted by `_owner`. The
            other properties have this order.
    """

    declared: LinkedTables
    tables: Mapping[str, pa.Table]
    owners: pa.Table

    @property
    def included(self) -> npt.NDArray[np.bool_]:
        """The coin of each family, shape (families,)."""
        return np.asarray(self.owners[INCLUDED].to_numpy(zero_copy_only=False), dtype=bool)

    @property
    def fingerprints(self) -> Fingerprints:
        """Of the owners of included families, sorted."""
        return _fingerprints(self.owners)

    @property
    def most_rows(self) -> int:
        """The most rows that a family has."""
        return int(np.bincount(np.concatenate(list(self._families.values()))).max())

    @property
    def joining(self) -> tuple[dict[str, pa.Table], pa.Table]:
        """What is added to the data: the tables' rows of included families, and their `_id` and `_owner`."""
        included = self.included
        tables = {name: table.filter(pa.array(included[self._families[name]])) for name, table in self.tables.items()}
        return tables, self.owners.filter(pa.array(included)).select([ID_COLUMN, OWNER])

    def views(self, engine: Engine, key: bytes, target: Path) -> dict[str, pa.Table]:
        """The view of each private table on all families, written below the new directory `target`.

        What a view has of an owner depends on that owner's rows and on the key: so these are the rows that a mechanism
        with the same key reads of an included family.
        """
        owners = self.owners.select([ID_COLUMN, OWNER])
        write_linked(self.declared, self.tables, target, engine=engine, owners=owners, key=key)
        return {name: pa.Table.from_batches(read_table(target / name)) for name in self.declared.private}

    @cached_property
    def _families(self) -> dict[str, Places]:
        """The family of each row, by following the keys."""
        tables, found = self.declared, dict[str, Places]()
        known = {id_: place for place, id_ in enumerate(self.owners[ID_COLUMN].to_pylist())}
        for name in tables.private:
            parent, rows = tables.tables[name].parent, self.tables[name]
            if parent is None:
                ids = pa.chunked_array(list(root_ids(tables, rows))).to_pylist()
                found[name] = np.array([known[id_] for id_ in ids], dtype=np.int64)
                continue
            above = zip(
                _tuples(self.tables[parent.table], tables.tables[parent.table].key), found[parent.table], strict=True
            )
            family = dict(above)
            found[name] = np.array([family[own] for own in _tuples(rows, parent.columns)], dtype=np.int64)
        return found


def make_families(
    tables: LinkedTables, lookups: Mapping[str, list[str]], schemas: Mapping[str, pa.Schema], count: int
) -> FamilySet:
    """Draws `count` families from the declarations, never from data.

    Args:
        lookups: the keys of each public table.
        schemas: of the scrubbed private tables; keys and owners are texts.

    Raises:
        SourceError: a schema lacks a column, has another one, or its type cannot hold the declared domain.
    """
    generator = np.random.default_rng(secrets.randbits(256))
    most = family_sizes(tables)
    owner = _random_texts(count)
    found: dict[str, pa.Table] = {}
    families: dict[str, Places] = {}
    keys: dict[str, dict[str, pa.Array]] = {}
    for name in tables.private:
        table = tables.tables[name]
        known: dict[str, pa.Array] = {}
        if table.parent is None:
            families[name] = np.repeat(np.arange(count), most[name])
            if tables.owner is not None:
                known[tables.owner] = owner.take(pa.array(families[name]))
        else:
            above = families[table.parent.table]
            numbers = _numbers(most[name], count)[above]
            rows = np.repeat(np.arange(above.size), numbers)
            families[name] = above[rows]
            refers_to = tables.tables[table.parent.table].key
            for column, other in zip(table.parent.columns, refers_to, strict=True):
                known[column] = keys[table.parent.table][other].take(pa.array(rows))
        size = families[name].size
        keys[name] = known | {each: _random_texts(size) for each in table.key if each not in known}
        domain = _domain(tables, name, lookups)
        _check_schema(name, schemas[name], (*keys[name], *domain.names))
        cells = [balanced_cells(column, count) for column in domain]
        values = values_of(f"tables.{name}", domain, schemas[name], cells, generator) if domain.names else None
        of_family = pa.array(families[name])
        found[name] = pa.table(
            [
                keys[name][item.name].cast(item.type)
                if values is None or item.name in keys[name]
                else values[item.name].combine_chunks().take(of_family)
                for item in schemas[name]
            ],
            schema=schemas[name],
        )
    ids = pa.chunked_array(list(root_ids(tables, found[tables.root]))).unique()
    owners = {
        ID_COLUMN: ids,
        OWNER: [RESERVED_PREFIX + secrets.token_hex(8) for _ in range(count)],
        INCLUDED: [bool(secrets.randbits(1)) for _ in range(count)],
    }
    return FamilySet(tables, found, pa.table(owners).sort_by(OWNER))


def trial_families(tables: LinkedTables, count: int) -> Codes:
    """What families may have: cells of each table's own columns but lookups, and numbers of children; one row each."""
    most = family_sizes(tables)
    columns = []
    for name in tables.private:
        columns += [balanced_cells(column, count) for column in _domain(tables, name, None)]
        if name != tables.root:
            columns.append(_numbers(most[name], count))
    return np.stack([np.zeros(count, dtype=np.int32), *columns], axis=1)


def family_sizes(tables: LinkedTables) -> dict[str, int]:
    """The most rows under one row of the parent, of the root under the owner, so that a family has at most `MOST_ROWS`.

    All tables grow in turn, from one row each, up to their bounds.
    """
    found = dict.fromkeys(tables.private, 1)
    growing = list(tables.private)
    while growing:
        for name in list(growing):
            more = found | {name: found[name] + 1}
            rows = sum(math.prod(more[each] for each in (one, *tables.ancestors(one))) for one in tables.private)
            if more[name] <= tables.most(name) and rows <= MOST_ROWS:
                found = more
            else:
                growing.remove(name)
    return found


def own_domain(tables: LinkedTables, name: str, lookups: Mapping[str, list[str]]) -> Domain:
    """The cells of a table's own columns, without those of learned values."""
    domain = _domain(tables, name, lookups)
    return Domain(tuple(column for column in domain if column.most is None))


def write_families(families: FamilySet, directory: Path) -> int:
    """Writes all families with their coins below a directory; returns the number of rows in all tables."""
    write_table(directory / OWNERS, families.owners.schema, families.owners.to_batches())
    return sum(
        write_table(directory / TABLES / name, table.schema, table.to_batches())
        for name, table in families.tables.items()
    )


def read_families(directory: Path, tables: LinkedTables) -> FamilySet:
    """Reads what `write_families` wrote."""
    found = {name: pa.Table.from_batches(read_table(directory / TABLES / name)) for name in tables.private}
    return FamilySet(tables, found, _read_owners(directory))


def joining_fingerprints(directory: Path) -> Fingerprints:
    """Of the owners of included families, sorted, as `write_families` wrote them."""
    return _fingerprints(_read_owners(directory))


def _read_owners(directory: Path) -> pa.Table:
    return pa.Table.from_batches(read_table(directory / OWNERS)).sort_by(OWNER)


def _fingerprints(owners: pa.Table) -> Fingerprints:
    return distinct_owners(owners.filter(owners[INCLUDED]).select([OWNER]).to_batches())


def _domain(tables: LinkedTables, name: str, lookups: Mapping[str, list[str]] | None) -> Domain:
    """The cells of a table's own columns; without lookups where the keys of public tables are not known."""
    if lookups is None:
        table = tables.tables[name]
        return declared_domain(table.columns, table.modelled, coarse=False)
    declared = tables.declared(name, lookups)
    return declared_domain(declared, tables.own_columns(name), coarse=False)


def _numbers(most: int, count: int) -> Codes:
    """For each family, how many children a row of the parent has."""
    return balanced(np.arange(1, most + 1, dtype=np.int32), count)


def _check_schema(name: str, schema: pa.Schema, columns: tuple[str, ...]) -> None:
    if differing := set(schema.names) ^ set(columns):
        raise SourceError(
            f"tables.{name}: the scrubbed table has the columns {', '.join(schema.names)}, and the declaration "
            f"{', '.join(columns)}; accepted: the same ones (not so: {', '.join(sorted(differing))})"
        )


def _random_texts(count: int) -> pa.Array:
    return pa.array([secrets.token_hex(16) for _ in range(count)], pa.string())


def _tuples(table: pa.Table, columns: list[str]) -> list[tuple[str, ...]]:
    texts = [pc.cast(table[column], pa.string()).to_pylist() for column in columns]
    return list(zip(*texts, strict=True))
