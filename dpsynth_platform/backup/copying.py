"""Copies rows of ledger and graph between databases, SQLite or PostgreSQL.

What belongs here: the order of tables and rows, and PostgreSQL's sequences. What does not: transactions (the caller's),
and verifying the copy (`ledger.verification`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Column, Connection, Table, cast, func, insert, select
from sqlalchemy.dialects.postgresql import REGCLASS

from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.ledger import schema

_AT_ONCE = 500
# An entry may refer to one that it replaces, and must follow it.
_ORDER: dict[str, Sequence[Column[object]]] = {
    schema.entry.name: (schema.entry.c.reserved_at, schema.entry.c.run_key, schema.entry.c.attempt)
}
# The lease of a process that delivers lineage events now; it means nothing in the copy.
_LEFT_OUT = (tables.lease,)


def copied() -> list[Table]:
    """All tables of a backup, each after those that it refers to."""
    return [table for table in schema.metadata.sorted_tables if table not in _LEFT_OUT]


def is_empty(connection: Connection) -> bool:
    """Whether all tables of a backup are empty."""
    return all(connection.execute(select(table).limit(1)).first() is None for table in copied())


def copy_rows(source: Connection, target: Connection) -> None:
    """Copies every row unchanged. Both have the current schema, and the target is empty."""
    for table in copied():
        query = select(table).order_by(*_ORDER.get(table.name, table.primary_key.columns))
        found = source.execute(query, execution_options={"yield_per": _AT_ONCE})
        for part in found.mappings().partitions():
            target.execute(insert(table), [dict(row) for row in part])
        column = table.autoincrement_column
        if target.dialect.name == "postgresql" and column is not None:
            # New rows continue the numbers of the copied rows.
            counter = cast(func.pg_get_serial_sequence(table.name, column.name), REGCLASS)
            target.execute(select(func.setval(counter, select(func.max(column)).scalar_subquery())))
