"""Takes a backup while other processes run, spend and approve.

What belongs here: one consistent, verified snapshot of ledger and graph. What does not: where and how long backups are
kept. A backup is a directory: `ledger.db`, always a SQLite ledger, so that a ledger's checks apply to it; `releases/`,
the places of releases; `erased-owners/`; and the signed `manifest.json`, written last.

One read transaction reads all rows (`Database.read`: a write-ahead snapshot of SQLite, REPEATABLE READ on PostgreSQL),
so it blocks no writer. Rows are copied, not the file: its free pages may contain fingerprints under earlier keys.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, func, select

from dpsynth_platform.backup.copying import copy_rows
from dpsynth_platform.backup.files import copy_missing
from dpsynth_platform.backup.manifest import DIRECTORIES, NAME, Manifest, digests
from dpsynth_platform.foundation.errors import BackupRefused, ConfigurationError, file_problem
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.settings import Settings, embedded_ledger
from dpsynth_platform.foundation.signature import fingerprint
from dpsynth_platform.foundation.storage import sync, write_durably
from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.ledger.database import Database
from dpsynth_platform.ledger.schema import SCHEMA_VERSION
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle.erasure import erased_owners, erasure_of
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.secrets.vault import Vault


def take(settings: Settings, out: Path) -> Manifest:
    """Atomically writes a backup of ledger and lineage into a new directory (mode 0700); durable on return.

    Raises:
        ConfigurationError: there is no ledger; the directory exists or cannot be written; or the list of erased owners
            is incomplete, as during a rotation of keys.
        BackupRefused: the ledger fails verification; the directory is not made.
        LedgerError: the ledger cannot be read, or its disk is full.
    """
    accounts.ledger(settings)  # refuses where there is none
    key = Vault(settings.vault).signing_key()
    with _new_directory(out) as directory:
        url = embedded_ledger(directory)
        source, copy = Database(settings.ledger_url), Database(url)
        taken_at = dt.datetime.now(dt.UTC)
        source.read(lambda live: copy.write(lambda kept: copy_rows(live, kept)))
        copy.erase_replaced()  # its log becomes part of its file
        report = Ledger(url).verify()
        if not report.ok:
            raise BackupRefused(
                f"the ledger fails verification ({report.problems[0]}); see: dpsynth ledger verify. No backup was "
                "made: keep the last one"
            )
        _copy_directories(settings, directory, Ledger(url))
        manifest = Manifest(
            taken_at=taken_at.isoformat(timespec="seconds"),
            head=report.head,
            entries=report.entries,
            lineage_events=copy.read(_lineage_events),
            schema=SCHEMA_VERSION,
            key_ids=tuple(sorted({name for account in Ledger(url).accounts() for name in account.key_ids})),
            signed_by=fingerprint(key.public_key()),
            files=digests(directory),
        )
        for name in manifest.files:
            sync(directory / name)
        write_durably(directory / NAME, manifest.signed(key))
    return manifest


def _lineage_events(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(tables.event)).scalar_one())


def _copy_directories(settings: Settings, directory: Path, ledger: Ledger) -> None:
    """Runs after the ledger's copy: releases are registered before publication, owners listed before they count."""
    for name in DIRECTORIES:
        copy_missing(settings.restricted / name, directory / name)
    for account in ledger.accounts():
        erased_owners(directory, erasure_of(ledger, account.namespace), account)


@contextmanager
def _new_directory(out: Path) -> Iterator[Path]:
    """A directory beside `out`, renamed to `out` at the end; removed if the block fails."""
    place = out.absolute()
    if os.path.lexists(place):
        raise ConfigurationError(f"--out {out}: exists already; accepted: a new directory")
    partial = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        private_directory(partial)
        with private_files():
            yield partial
        partial.rename(place)
        sync(place.parent)
    except OSError as error:
        raise ConfigurationError(f"--out {out}: cannot be written: {file_problem(error)}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
