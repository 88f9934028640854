"""The ledger's and the graph's rows from one database into another, SQLite or PostgreSQL alike.

What belongs here: the order of tables and rows, and what PostgreSQL must be told afterwards. What does not:
transactions (the caller's), and whether what was copied is sound (`ledger.verification`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Column, Connection, Table, cast, func, insert, select
from sqlalchemy.dialects.postgresql import REGCLASS

from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.ledger import schema

_AT_ONCE = 500
# An entry may name one that it replaces, and is written after it.
_ORDER: dict[str, Sequence[Column[object]]] = {
    schema.entry.name: (schema.entry.c.reserved_at, schema.entry.c.run_key, schema.entry.c.attempt)
}
# Who delivers lineage events at this moment; it holds for a process that is not there where the copy is used.
_LEFT_OUT = (tables.lease,)


def copied() -> list[Table]:
    """All tables that a backup holds, each after those that it refers to."""
    return [table for table in schema.metadata.sorted_tables if table not in _LEFT_OUT]


def is_empty(connection: Connection) -> bool:
    """Whether a database holds nothing of what a backup holds."""
    return all(connection.execute(select(table).limit(1)).first() is None for table in copied())


def copy_rows(source: Connection, target: Connection) -> None:
    """Copies every row, as it is. Both have the present schema, and the target is empty."""
    for table in copied():
        query = select(table).order_by(*_ORDER.get(table.name, table.primary_key.columns))
        found = source.execute(query, execution_options={"yield_per": _AT_ONCE})
        for part in found.mappings().partitions():
            target.execute(insert(table), [dict(row) for row in part])
        column = table.autoincrement_column
        if target.dialect.name == "postgresql" and column is not None:
            # Rows that PostgreSQL numbers itself go on after those that came with a number.
            counter = cast(func.pg_get_serial_sequence(table.name, column.name), REGCLASS)
            target.execute(select(func.setval(counter, select(func.max(column)).scalar_subquery())))
