"""Column lineage of linked tables: as `columns`, with columns named `table.column`.

What belongs here: the descent of the columns of all tables of a step. What does not: one table (`columns`).

Scrubbed tables, canaries and views have plain names of columns, source and release those of the source. A view's column
also comes from other tables: the parent's columns, the row before, numbers of children.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.linked_contract import dotted
from dpsynth_platform.contracts.tables import (
    POSITION,
    LinkedTables,
    children_name,
    context_name,
    gap_name,
    previous_name,
)
from dpsynth_platform.lineage.columns import (
    AS_IT_IS,
    CLEARED,
    FRESH_IDS,
    HASHED,
    JOINTLY,
    LEFT_EMPTY,
    MODELLED,
    ORDERED,
    OWNED,
    WEIGHED,
    ColumnDescent,
    ColumnOrigin,
)
from dpsynth_platform.lineage.naming import DatasetName

Names = Mapping[str, Mapping[str, str]]
"""The source's names of columns, by table and plain name."""


def plain_tables(contract: DataContract, names: Names) -> LinkedTables:
    """The tables by plain names of columns."""
    given = {table: {shown: plain for plain, shown in found.items()} for table, found in names.items()}
    return contract.linked.renamed(given)


def scrubbed(contract: DataContract, source: DatasetName, names: Names) -> ColumnDescent:
    """Of scrubbed tables, from the source's: values as they are, keys as hashes."""
    tables = plain_tables(contract, names)
    origins = {}
    for table in tables.private:
        for plain in tables.own_columns(table):
            origins[dotted(table, plain)] = (ColumnOrigin(source, dotted(table, names[table][plain])),)
        for plain in _ids(tables, table):
            column = dotted(table, names[table][plain])
            origins[dotted(table, plain)] = (ColumnOrigin(source, column, "TRANSFORMATION", True, HASHED),)
    owners = (ColumnOrigin(source, name, "FILTER", description=OWNED) for name in contract.privacy.owner_columns)
    return ColumnDescent(origins, rows=tuple(owners))


def bounded(
    contract: DataContract, before: DatasetName, canaries: DatasetName, names: Names, columns: Iterable[str]
) -> ColumnDescent:
    """Of views, from the scrubbed tables and the canaries."""
    tables = plain_tables(contract, names)
    origins: dict[str, tuple[ColumnOrigin, ...]] = {}
    for column in columns:
        table, _, name = column.partition(".")
        known = _of_view(tables, table).get(name, [])
        subtype = "IDENTITY" if name in tables.own_columns(table) else "TRANSFORMATION"
        origins[column] = tuple(ColumnOrigin(place, each, subtype) for each in known for place in (before, canaries))
    root = tables.root
    owner = tables.owner or tables.tables[root].key[0]
    rows = [ColumnOrigin(before, dotted(root, owner), "FILTER", description=CLEARED)]
    rows += [
        ColumnOrigin(before, dotted(table, each), "SORT", description=ORDERED)
        for table in tables.private
        for each in tables.tables[table].order_by
    ]
    # The owner's fingerprint in each view is made from the owner's column.
    found = {name: listed or _owned(before, canaries, dotted(root, owner)) for name, listed in origins.items()}
    return ColumnDescent(found, rows=tuple(rows))


def synthetic(contract: DataContract, before: DatasetName, source: DatasetName, names: Names) -> ColumnDescent:
    """Of released tables: through the models of the views, from those; keys are fresh, public tables as they are."""
    tables = plain_tables(contract, names)
    origins, without = {}, {}
    conditional = []
    for table in tables.private:
        for plain, shown in names[table].items():
            column = dotted(table, shown)
            if plain in tables.own_columns(table):
                modelled = ColumnOrigin(before, dotted(table, plain), "AGGREGATION", True, MODELLED)
                origins[column] = (modelled,)
                conditional.append(
                    ColumnOrigin(before, dotted(table, plain), "CONDITIONAL", masking=True, description=JOINTLY)
                )
            else:
                without[column] = FRESH_IDS if plain in _ids(tables, table) else LEFT_EMPTY
    for table in tables.lookups:
        for shown in names[table].values():
            origins[dotted(table, shown)] = (ColumnOrigin(source, dotted(table, shown), description=AS_IT_IS),)
    root = dotted(tables.root, tables.owner or tables.tables[tables.root].key[0])
    weighed = [ColumnOrigin(before, root, "GROUP_BY", masking=True, description=WEIGHED)]
    return ColumnDescent(origins, without, (*conditional, *(weighed if tables.weighting == "owners" else ())))


def _owned(before: DatasetName, canaries: DatasetName, owner: str) -> tuple[ColumnOrigin, ...]:
    return tuple(ColumnOrigin(place, owner, "TRANSFORMATION", True) for place in (before, canaries))


def _ids(tables: LinkedTables, name: str) -> list[str]:
    owner = [tables.owner] if tables.owner is not None and name == tables.root else []
    return [*tables.tables[name].keys, *owner]


def _of_view(tables: LinkedTables, name: str) -> dict[str, list[str]]:
    """The scrubbed columns that each column of a view comes from."""

    def links(table: str) -> list[str]:
        parent = tables.tables[table].parent
        return [] if parent is None else [dotted(table, column) for column in parent.columns]

    def columns() -> Iterator[tuple[str, list[str]]]:
        for column in tables.own_columns(name):
            yield column, [dotted(name, column)]
            for lag in range(1, tables.lags(name) + 1):
                yield previous_name(column, lag), [dotted(name, column)]
        for table, column in tables.context(name):
            yield context_name(table, column), [dotted(table, column)]
        for each in (*tables.children(name), *tables.siblings(name)):
            yield children_name(each), links(each)
        yield POSITION, [dotted(name, column) for column in tables.tables[name].order_by]
        if (gap := tables.gap(name)) is not None:
            yield gap_name(gap), [dotted(name, gap)]

    return dict(columns())
