import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import replayed_migrations
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from ledger_cases import DELTA, KEYS, family, people, request
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from dpsynth_platform.foundation.errors import ConfigurationError, LedgerError
from dpsynth_platform.ledger import Ledger, database, schema
from dpsynth_platform.ledger.database import Database


def path_of(url):
    return Path(url.removeprefix("sqlite:///"))


def test_migrations_arrive_at_the_tables(url):
    Ledger(url)
    with create_engine(url).connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, schema.metadata) == []
        assert context.get_current_revision() == schema.SCHEMA_VERSION


def test_what_tests_replay_is_what_the_migrations_make(tmp_path, monkeypatch):
    def made(name):
        """All that a new ledger's file holds: tables and indices in whichever order, rows."""
        Database(f"sqlite:///{tmp_path / name / 'ledger.db'}")
        with closing(sqlite3.connect(tmp_path / name / "ledger.db")) as connection:
            return sorted(connection.iterdump())

    with monkeypatch.context() as patch:
        patch.setattr(database, "_upgrade", replayed_migrations._migrate)
        by_alembic = made("alembic")
    made("first")
    assert replayed_migrations._statements
    assert made("replayed") == by_alembic


def test_threads_that_open_ledgers_of_their_own_do_not_mix_their_migrations(tmp_path, monkeypatch):
    """Alembic's operations are of the whole process."""
    monkeypatch.setattr(database, "_upgrade", replayed_migrations._migrate)
    together = threading.Barrier(8)

    def opened(number):
        together.wait(120)
        return Ledger(f"sqlite:///{tmp_path / str(number) / 'ledger.db'}").verify().ok

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(opened, range(8))) == [True] * 8


def test_only_the_owner_can_read(url):
    old = os.umask(0)
    try:
        ledger = Ledger(url)
        ledger.record("noted", "x", {})
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in [path_of(url).parent, *path_of(url).parent.iterdir()]}
    finally:
        os.umask(old)
    assert modes.pop("ledger") == 0o700
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o750])
def test_what_was_open_to_others_is_closed(url, mode):
    """A ledger that was restored from a backup, or made by something else."""
    Ledger(url)
    kept = sqlite3.connect(path_of(url))  # so that there is a log beside the file
    kept.execute("BEGIN")
    kept.execute("SELECT count(*) FROM event").fetchone()
    Ledger(url).record("noted", "x", {})
    parts = [path_of(url).parent, *path_of(url).parent.iterdir()]
    assert len(parts) == 4
    for part in parts:
        part.chmod(mode if part.is_dir() else mode & 0o666)
    Ledger(url)
    assert [stat.S_IMODE(part.stat().st_mode) & 0o077 for part in parts] == [0] * len(parts)
    kept.close()


def test_a_relative_path_is_that_of_the_working_directory(tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.chdir(tmp_path / name)
        opened = Ledger("sqlite:///ledger.db")
        opened.open_account(family(name, mode="family"), KEYS)
        monkeypatch.chdir(tmp_path)
        assert [account.family for account in opened.accounts()] == [name]
        assert [account.family for account in Ledger(f"sqlite:///{tmp_path / name / 'ledger.db'}").accounts()] == [name]


def test_missing_parents_are_private(tmp_path):
    old = os.umask(0)
    try:
        Ledger(f"sqlite:///{tmp_path / 'a' / 'b' / 'ledger.db'}")
    finally:
        os.umask(old)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700] * 2


def test_a_directory_that_is_not_ours_to_close_is_refused(tmp_path):
    """As /tmp is: closing it would lock everybody else out."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(ConfigurationError, match="this user cannot close it; accepted: a directory of this user"):
        Ledger(f"sqlite:///{shared / 'ledger.db'}")
    assert (stat.S_IMODE(shared.stat().st_mode), list(shared.iterdir())) == (0o1777, [])


def test_opening_again_keeps_the_locks_of_this_process(url):
    """POSIX drops all of a process's locks on a file when any descriptor of it is closed."""
    ledger = Ledger(url)
    program = f"import sqlite3; c = sqlite3.connect({str(path_of(url))!r}, timeout=0); c.execute('BEGIN IMMEDIATE')"

    def other(connection):
        Ledger(url)
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    told = ledger._database.write(other)
    assert "database is locked" in told.stderr


def test_commits_are_durable(url):
    Ledger(url)
    told = Database(url).read(
        lambda connection: [
            connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    )
    assert told == ["wal", 2, 1]


def test_a_newer_schema_is_named(url):
    Ledger(url)
    with sqlite3.connect(path_of(url)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(LedgerError, match="schema '9999', made by a newer version"):
        Ledger(url)


def test_an_older_schema_is_brought_up_to_date(ledger, url):
    """The first schema had no costs: they are computed from what was recorded, and decisions go on from there."""
    for count in range(6):
        name = ("everyone", "each")[count % 2]
        entry = ledger.reserve(
            name, f"k{count}", request(0.03, plan=f"{count}"), people(count, 9), "compose", key_ids=KEYS
        )
        if count > 1:
            ledger.start(entry.entry_id)
    left = ledger.left("everyone", DELTA)
    with sqlite3.connect(path_of(url)) as connection:
        for table in ("outbox", "lease", "edge", "access", "node", "event"):
            connection.execute(f"DROP TABLE lineage_{table}")
        connection.execute("DROP TABLE standing")
        connection.execute("DROP INDEX ix_entry_family_state")
        connection.execute("ALTER TABLE entry DROP COLUMN cost")
        connection.execute("ALTER TABLE account DROP COLUMN settled")
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    again = Ledger(url)
    assert again.verify().ok
    assert again.left("everyone", DELTA) == left
    with create_engine(url).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []


def test_other_files_are_not_ledgers(tmp_path):
    path = tmp_path / "ledger.db"
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    with pytest.raises(LedgerError, match="damaged or not a ledger"):
        Ledger(f"sqlite:///{path}")


def test_lost_tables_are_named(ledger, url):
    with sqlite3.connect(path_of(url)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("DROP TABLE participants")
        connection.execute("DROP TABLE entry")
    with pytest.raises(LedgerError, match="tables are missing"):
        ledger.entries()


def test_a_read_only_ledger_is_named(ledger, url, monkeypatch):
    def refuse(*_):
        raise OperationalError("statement", {}, sqlite3.OperationalError("attempt to write a readonly database"))

    with pytest.raises(LedgerError, match="read-only; make its file"):
        Database(url).write(refuse)
    directory = path_of(url).parent
    monkeypatch.setattr(database.os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "denied")))
    with pytest.raises(LedgerError, match=r"cannot be opened for writing \(permission denied\)"):
        Ledger(f"sqlite:///{directory / 'other.db'}")


@pytest.mark.parametrize(
    ("pragma", "told"),
    [
        ("query_only = ON", "read-only; make its file"),
        ("max_page_count = {pages}", "disk is full; nothing was changed"),
    ],
)
def test_a_database_that_takes_no_more_is_named_and_nothing_is_half_done(ledger, url, monkeypatch, pragma, told):
    """SQLite itself refuses here: a file that cannot be written, and one that cannot grow."""
    with sqlite3.connect(path_of(url)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    prepare = database._prepare_sqlite

    def limited(connection, record):
        prepare(connection, record)
        connection.execute(f"PRAGMA {pragma.format(pages=pages)}")

    monkeypatch.setattr(database, "_prepare_sqlite", limited)
    database._engine_of.cache_clear()
    stopped = Ledger(url)
    before = ledger.head()
    with pytest.raises(LedgerError, match=told):
        for count in range(50):
            stopped.reserve(
                "each", f"k{count}", request(0.001, plan=f"{count}"), people(*range(300)), "compose", key_ids=KEYS
            )
    report = ledger.verify()
    assert report.ok, report.problems
    assert report.entries == len(ledger.entries()) == report.events - before.sequence
    assert ledger.reserve("each", "later", request(), people(1), "compose", key_ids=KEYS).state == "reserved"


def test_of_a_disk_that_fails_nothing_is_claimed(url):
    """A commit may be on disk before the disk fails: SQLite says the same of both."""

    def fails(*_):
        raise OperationalError("statement", {}, sqlite3.OperationalError("disk I/O error"))

    with pytest.raises(LedgerError, match="could not be written or read") as failed:
        Database(url).write(fails)
    assert "nothing was changed" not in str(failed.value)


@pytest.mark.parametrize(
    "bad", ["sqlite://", "sqlite:///:memory:", "mysql://host/db", "oracle+nothing://host/db", "no url at all", ""]
)
def test_unusable_urls_are_refused(bad):
    with pytest.raises(LedgerError):
        Ledger(bad)


def test_an_unreachable_server_is_named_without_its_password():
    with pytest.raises(LedgerError) as refused:
        Ledger("postgresql+psycopg://user:hunter2@127.0.0.1:1/none?connect_timeout=2")
    assert "hunter2" not in str(refused.value)
    assert "cannot be reached" in str(refused.value)


def test_database_errors_do_not_quote_parameters(url):
    ledger = Ledger(url)
    with pytest.raises(LedgerError) as refused:
        ledger._database.write(
            lambda connection: connection.execute(
                schema.account.insert(), {"family": "f", "terms": None, "opened_at": "SECRET-VALUE"}
            )
        )
    assert "SECRET" not in str(refused.value)
    assert refused.value.__suppress_context__


def test_a_failed_transaction_leaves_nothing(url):
    ledger = Ledger(url)

    def work(connection):
        connection.execute(schema.account.insert(), {"family": "f", "terms": "{}", "opened_at": "now"})
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        ledger._database.write(work)
    assert ledger.accounts() == []


def test_serialization_failures_are_tried_again(url, monkeypatch):
    monkeypatch.setattr(database, "time", SimpleNamespace(**vars(time) | {"sleep": lambda _: None}))
    tries = []

    class Conflict(sqlite3.OperationalError):
        sqlstate = "40001"

    def work(_):
        tries.append(1)
        if len(tries) < 4:
            raise OperationalError("statement", {}, Conflict("could not serialize"))
        return "done"

    opened = Database(url)
    for transaction in (opened.write, opened.read):
        tries.clear()
        assert transaction(work) == "done"
        assert len(tries) == 4

    def never(_):
        raise OperationalError("statement", {}, Conflict("could not serialize"))

    for transaction in (opened.write, opened.read):
        with pytest.raises(LedgerError, match="too busy"):
            transaction(never)
    monkeypatch.setattr(Database, "_migrate", never)
    with pytest.raises(LedgerError, match="too busy"):
        Database(url)


def test_the_package_gives_the_ledger_on_demand():
    program = "import sys, dpsynth_platform.ledger as l; a = 'sqlalchemy' in sys.modules; l.Ledger; print(a)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
    import dpsynth_platform.ledger

    with pytest.raises(AttributeError):
        _ = dpsynth_platform.ledger.nothing


def test_a_log_that_cannot_be_emptied_is_told_with_what_is_known_of_it(ledger, monkeypatch):
    """Not every failure is another process: a disk's is not."""

    class Failing:
        def cursor(self):
            return self

        def execute(self, sql):
            if "wal_checkpoint" in sql:
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorname = "SQLITE_IOERR_WRITE"
                raise error
            return self

        def close(self):
            pass

    monkeypatch.setattr(ledger._database._engine, "raw_connection", Failing)
    told = ledger.erase_replaced()
    assert told.startswith("the ledger's log could not be emptied (SQLITE_IOERR_WRITE), so its files still hold")
    assert "another process is using" not in told
