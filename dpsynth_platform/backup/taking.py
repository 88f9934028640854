"""Taking a backup while others run, spend and approve.

What belongs here: one consistent snapshot of ledger and graph, checked before it counts as a backup. What does not:
where backups are kept and for how long. A backup is a directory of its own: `ledger.db`, a SQLite ledger whatever the
deployment's is, so that the very checks of a ledger apply to it; `releases/`, where each release was shown;
`erased-owners/`, who must never come back; and the signed `manifest.json`, written last.

All rows are read in one read transaction (`Database.read`: a write-ahead snapshot of SQLite, REPEATABLE READ on
PostgreSQL), so a backup is of one moment and nobody waits for it. Rows are copied and not the file: free pages of a
file may hold fingerprints of earlier keys.
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
from dpsynth_platform.backup.manifest import BESIDE, NAME, Manifest, digests
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
    """Writes a backup of ledger and lineage into a new directory (mode 0700), whole or not at all; durable on return.

    Raises:
        ConfigurationError: there is no ledger, or the directory is there already or cannot be written; or the list of
            erased owners is not whole, as while keys are rotated.
        BackupRefused: what was read is not sound; the directory is not made.
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
                f"the ledger is not as it was written ({report.problems[0]}); see: dpsynth ledger verify. A backup of "
                "it was not made: keep the last one that was"
            )
        _copy_beside(settings, directory, Ledger(url))
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


def _copy_beside(settings: Settings, directory: Path, ledger: Ledger) -> None:
    """Copied after the ledger: a release is registered before it is shown, an owner listed before they are counted."""
    for name in BESIDE:
        copy_missing(settings.restricted / name, directory / name)
    for account in ledger.accounts():
        erased_owners(directory, erasure_of(ledger, account.namespace), account)


@contextmanager
def _new_directory(out: Path) -> Iterator[Path]:
    """A directory beside `out` that becomes `out` at the end; removed again if the block fails."""
    place = out.absolute()
    if os.path.lexists(place):
        raise ConfigurationError(f"--out {out}: is there already; accepted: a new directory")
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
