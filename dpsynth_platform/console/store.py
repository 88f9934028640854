"""The console's own database: its users and sessions.

What belongs here: the file, its tables, and transactions. What does not: their content (`users`, `sessions`, `oidc`).
It is separate from the ledger's database: it holds no evidence, and readers of the ledger need no password hashes. One
console at a time uses it, with commands beside it; each machine needs its own.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partialmethod
from pathlib import Path

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.permissions import closed_directory, make_private, private_files
from dpsynth_platform.foundation.redaction import reason_of

BUSY_SECONDS = 10
_VERSION = 1
_TABLES = (
    """CREATE TABLE user (
        key TEXT PRIMARY KEY, name TEXT NOT NULL, roles TEXT NOT NULL, password TEXT NOT NULL, changed TEXT NOT NULL
    ) STRICT""",
    """CREATE TABLE session (
        token TEXT PRIMARY KEY, key TEXT NOT NULL, name TEXT NOT NULL, roles TEXT NOT NULL, how TEXT NOT NULL,
        began REAL NOT NULL, seen REAL NOT NULL
    ) STRICT""",
    """CREATE TABLE departure (
        state TEXT PRIMARY KEY, browser TEXT NOT NULL, nonce TEXT NOT NULL, verifier TEXT NOT NULL, next TEXT NOT NULL,
        began REAL NOT NULL
    ) STRICT""",
)


class Store:
    """The file `console.db` in `home`, which is created if missing; only this user may read it.

    Raises:
        ConfigurationError: it cannot be opened, is of a newer version, or its directory is open to others.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / "console.db"
        try:
            closed_directory(home)
            with private_files(), suppress(FileExistsError):
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            make_private(self._path)
        except OSError as error:
            raise self._unusable(reason_of(error)) from None
        with self.write() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise self._unusable(f"it was made by a newer version of dpsynth ({version})")
            if version == 0:
                for table in _TABLES:
                    connection.execute(table)
                connection.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def _connected(self, kind: str) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
                for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
                    connection.execute(f"PRAGMA {pragma}")
                connection.execute(f"BEGIN {kind}")
                yield connection
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._unusable(reason_of(error)) from None

    read = partialmethod(_connected, "DEFERRED")
    """A connection for reading. Errors of the database become `ConfigurationError`."""
    write = partialmethod(_connected, "IMMEDIATE")
    """A serialized transaction: durable at its end, rolled back if it raises."""

    def _unusable(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"{self._path}: the console's database cannot be used: {why}")
