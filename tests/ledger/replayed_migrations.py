"""New ledgers without Alembic: the first of a process is migrated, and its statements make all later ones.

What belongs here: doing again what the migrations did. What does not: ledgers that hold anything, which Alembic brings
up to date as ever (`deploy/test_upgrade.py`), and PostgreSQL's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, event, inspect

from dpsynth_platform.ledger import database

_migrate = database._upgrade
_statements: list[tuple[str, Any]] = []


@contextmanager
def migrations_replayed() -> Iterator[None]:
    """An empty SQLite file becomes a ledger by the statements that made one of the first."""
    with patch.object(database, "_upgrade", _upgrade):
        yield


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name != "sqlite" or inspect(connection).get_table_names():
        _migrate(connection)
    elif _statements:
        for statement, parameters in _statements:
            connection.exec_driver_sql(statement, parameters)
    else:
        made: list[tuple[str, Any]] = []

        def recorded(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            if not statement.lstrip().startswith(("SELECT", "PRAGMA")):
                made.append((statement, parameters))

        event.listen(connection, "before_cursor_execute", recorded)
        _migrate(connection)
        event.remove(connection, "before_cursor_execute", recorded)
        _statements[:] = made  # only of migrations that came to their end
