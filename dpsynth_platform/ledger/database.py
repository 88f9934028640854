"""The ledger's database: opening, migrating, and transactions in which decisions are safe.

What belongs here: engines, isolation, durability, retries, and turning every database error into a safe one. What does
not: what is decided (`store`).

A writing transaction is serial with every other: `BEGIN IMMEDIATE` on SQLite (write-ahead log, synchronous=FULL, so
that what is committed survives a power cut), SERIALIZABLE under a table lock on PostgreSQL. Reading never blocks.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.foundation.permissions import closed_directory, make_private
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.ledger.schema import SCHEMA_VERSION

BUSY_SECONDS = 30
EMPTYING_SECONDS = 5
RETRIES = 10

_SIDE_FILES = ("-wal", "-shm")
_MIGRATIONS = Path(__file__).parent / "migrations"
_WRITING = "dpsynth_writing"
_MIGRATION_LOCK = 0x6470_7379  # any constant; one lock for all processes that migrate a PostgreSQL ledger
_MIGRATING = threading.Lock()  # Alembic runs one migration of a process at a time, whatever its database
_RETRY_STATES = ("40001", "40P01")  # serialization failure, deadlock

Guard = Literal["event", "lineage_event"]

_Result = TypeVar("_Result")


class Database:
    """A migrated ledger database, SQLite or PostgreSQL.

    Args:
        url: `sqlite:////absolute/path` or `postgresql+psycopg://...`.

    Raises:
        LedgerError: the URL is of another kind, or the database cannot be opened, is no ledger, or has a newer schema.
        ConfigurationError: the SQLite file's directory is open to others and not this user's to close.
    """

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        _tried(self._migrate)

    def read(self, work: Callable[[Connection], _Result]) -> _Result:
        """Runs `work` on one consistent snapshot; it may run more than once, as in `write`."""
        return _tried(lambda: self._read_once(work))

    def write(self, work: Callable[[Connection], _Result], *, guards: tuple[Guard, ...] = ("event",)) -> _Result:
        """Runs `work` in a serial transaction; durable when it returns, nothing changed when it raises.

        `work` may run more than once (PostgreSQL may ask for another try) and must have no other effect.

        Args:
            guards: PostgreSQL tables whose lock makes it serial with other writers: `event` for the ledger,
                `lineage_event` for lineage, which then delays no decision. Always in this order.
        """
        return _tried(lambda: self._write_once(work, guards))

    def erase_replaced(self) -> str | None:
        """Merges SQLite's write-ahead log into its file and empties it: overwritten rows are then gone.

        Returns:
            What may still hold them, in words, or None. No client can overwrite replaced rows of PostgreSQL.
        """
        if not self._is_sqlite:
            return (
                "PostgreSQL keeps replaced rows until it has vacuumed their tables (VACUUM FULL participants, standing "
                "does so at once), and in its write-ahead log and its archives"
            )
        with _safe_errors(), closing(self._engine.raw_connection()) as connection:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout = {EMPTYING_SECONDS * 1000:.0f}")
            try:
                (busy, *_) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.OperationalError as error:
                return _not_emptied(error.sqlite_errorname)
            return _not_emptied("SQLITE_BUSY") if busy else None

    @property
    def _is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def _read_once(self, work: Callable[[Connection], _Result]) -> _Result:
        with self._engine.connect() as connection:
            if not self._is_sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                return work(connection)

    def _write_once(self, work: Callable[[Connection], _Result], guards: tuple[Guard, ...]) -> _Result:
        with self._engine.connect() as connection:
            if self._is_sqlite:
                connection = connection.execution_options(**{_WRITING: True})
            else:
                # Under its lock a lineage writer sees all that others committed. It is not serialized, so that
                # PostgreSQL never aborts a decision of the ledger because of it.
                level = "SERIALIZABLE" if "event" in guards else "READ COMMITTED"
                connection = connection.execution_options(isolation_level=level)
            with connection.begin():
                if not self._is_sqlite:
                    # Taken before the snapshot, so that the snapshot holds all that earlier writers committed.
                    connection.execute(text(f"LOCK TABLE {', '.join(guards)} IN EXCLUSIVE MODE"))
                return work(connection)

    def _migrate(self) -> None:
        with self._engine.connect() as connection, connection.begin():
            if _current_version(connection) == SCHEMA_VERSION:
                return
        with self._engine.connect() as connection:
            connection = connection.execution_options(**{_WRITING: True})
            with connection.begin():
                if not self._is_sqlite:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
                with _MIGRATING:
                    _upgrade(connection)


class _TryAgain(Exception):
    """PostgreSQL could not serialize the transaction; nothing was changed."""


def _tried(once: Callable[[], _Result]) -> _Result:
    """Retries until PostgreSQL can serialize the work; every other error of the database is raised without data."""
    for attempt in range(RETRIES):
        try:
            with _safe_errors():
                return once()
        except _TryAgain:
            time.sleep(0.05 * 2**attempt)
    raise LedgerError("the ledger is too busy: every try conflicted with another writer; try again later")


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        dialect = parsed.get_backend_name()
        if dialect == "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise LedgerError("the ledger's SQLite URL names no file; accepted: sqlite:////absolute/path")
            # Absolute, since engines are kept: a relative path would stay that of the first working directory.
            parsed = parsed.set(database=str(Path(parsed.database).absolute()))
            _create_private_file(Path(str(parsed.database)))
        if dialect in ("sqlite", "postgresql"):
            return _engine_of(parsed)
    except (ArgumentError, NoSuchModuleError, ImportError):
        raise LedgerError("the ledger's URL cannot be used; accepted: sqlite:////path, postgresql+psycopg://") from None
    raise LedgerError(f"a ledger on {dialect!r} is not supported; accepted: sqlite, postgresql")


@lru_cache(maxsize=4)
def _engine_of(url: URL) -> Engine:
    """One engine a database: it keeps no connection, but every statement that it has compiled."""
    if url.get_backend_name() == "postgresql":
        return create_engine(url, poolclass=NullPool)
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _create_private_file(path: Path) -> None:
    try:
        closed_directory(path.parent)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        make_private(path)
        for suffix in _SIDE_FILES:
            with suppress(FileNotFoundError):  # they come and go with connections
                make_private(path.with_name(path.name + suffix))
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be opened for writing ({reason_of(error)})") from None


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says, not where the driver guesses
    # What is deleted or replaced is overwritten: fingerprints of earlier keys are meant to be gone.
    _write_ahead(connection)
    for pragma in ("synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _write_ahead(connection: Any) -> None:
    """Turns a new file to write-ahead logging. SQLite itself does not wait while another connection does the same."""
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _not_emptied(code: str) -> str:
    """The message about a write-ahead log that could not be emptied; `code` is SQLite's name for the reason."""
    in_use = code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    reason = "another process is using the ledger" if in_use else f"the ledger's log could not be emptied ({code})"
    return f"{reason}, so its files still hold replaced rows, until the last process that has it open closes it"


def _current_version(connection: Connection) -> str | None:
    from alembic.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    current = _current_version(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise LedgerError(
            f"the ledger has schema {current!r}, made by a newer version of dpsynth; this one knows {SCHEMA_VERSION!r}"
        )
    command.upgrade(config, "head")


@contextmanager
def _safe_errors() -> Iterator[None]:
    """Replaces the text of a database error, which may quote parameters."""
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) in _RETRY_STATES:
            raise _TryAgain from None
        raise LedgerError(_explain(error)) from None
    except UnicodeEncodeError:
        raise LedgerError("the ledger records text only; half a character (a lone surrogate) is not accepted") from None
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise LedgerError(f"the ledger's database failed ({type(error).__name__})") from None


def _explain(error: DBAPIError) -> str:
    if isinstance(error, IntegrityError):
        return "the ledger refused a record that contradicts another; verify it with `dpsynth ledger verify`"
    message = str(error.orig).lower()
    for signs, explanation in _EXPLANATIONS.items():
        if any(sign in message for sign in signs):
            return explanation.format(seconds=BUSY_SECONDS)
    return f"the ledger's database failed ({type(error.orig).__name__})"


# By texts of the databases' messages, of which the first that matches counts.
_EXPLANATIONS = {
    ("locked", "busy"): "the ledger is locked by another process for more than {seconds} s; try again",
    ("readonly", "read-only"): "the ledger is read-only; make its file and directory writable for this user",
    ("is full", "no space left"): "the ledger's disk is full; nothing was changed. Make room and try again",
    # A commit may have reached the disk before it failed.
    ("disk i/o",): "the ledger's disk could not be written or read. Check that it has room and works",
    ("not a database", "malformed"): "the ledger's file is damaged or not a ledger; restore it from its backup",
    ("no such table", "does not exist"): "the ledger's tables are missing; restore it from its backup",
    # SQLite writes beside its file even to read it.
    ("unable to open",): (
        "the ledger's file cannot be opened: its disk is read-only or full, too many files are open, or this user "
        "lacks the right; make its directory writable and try again"
    ),
    ("connect",): "the ledger's database cannot be reached; check DPSYNTH_LEDGER_URL",
}
