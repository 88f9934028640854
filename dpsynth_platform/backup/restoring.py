"""Restores a backup as a deployment's ledger, or refuses it.

What belongs here: checking a backup, comparing it with all surviving records, and writing it in one transaction that is
checked before the commit. What does not: taking one (`taking`), and keys.

An outdated ledger would grant again what was spent since. So anything that proves later events refuses a backup: a
published dossier, a run's record, a notice, a lineage event, a kept export or number of events. No option overrides it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import Connection, select
from sqlalchemy.engine import make_url

from dpsynth_platform.backup.copying import copy_rows, is_empty
from dpsynth_platform.backup.files import copy_missing
from dpsynth_platform.backup.manifest import DIRECTORIES, LEDGER, Manifest, read_manifest
from dpsynth_platform.foundation.errors import BackupRefused, ConfigurationError, LedgerError, file_problem
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.settings import Settings, embedded_ledger
from dpsynth_platform.foundation.signature import read_public_key
from dpsynth_platform.foundation.storage import HeldByAnother, held
from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.ledger import verification
from dpsynth_platform.ledger.database import Database
from dpsynth_platform.ledger.records import Account, Head
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle.owner_keys import keys_in_use
from dpsynth_platform.lineage import outbox
from dpsynth_platform.lineage.record import JsonLines
from dpsynth_platform.release.register import Register
from dpsynth_platform.reviewing.verification import LedgerVerification, verify_ledger
from dpsynth_platform.secrets.vault import SIGNING_KEY, Vault

_SIDE_FILES = ("-wal", "-shm", "-journal")


@dataclass(frozen=True)
class Restored:
    """A backup that was checked or restored.

    Attributes:
        report: verification of the backup and of this deployment's other records.
        frozen: families whose fingerprint keys are missing from the vault.
    """

    manifest: Manifest
    report: LedgerVerification
    frozen: tuple[str, ...]


def check(
    settings: Settings,
    directory: Path,
    *,
    public_key: bytes | None = None,
    known: Sequence[Head] = (),
    at_least: int = 0,
) -> Restored:
    """Checks a backup against its manifest and against this deployment's records; writes only temporary files.

    Args:
        settings: the deployment to restore into.
        directory: the backup.
        public_key: the deployment's key (PEM or 32 raw bytes) where its vault is lost.
        known: heads of the chain that were kept elsewhere.
        at_least: a known earlier number of the chain's events.

    Raises:
        BackupRefused: it is damaged, another deployment's, or outdated.
        ConfigurationError: there is no key to check it with, or another process is restoring.
        VerificationFailed: `public_key` is not a key.
    """
    with _staged(settings, directory, _key(settings, public_key)) as (manifest, staged):
        return _checked(settings, manifest, staged, known, at_least)


def restore(
    settings: Settings,
    directory: Path,
    *,
    public_key: bytes | None = None,
    known: Sequence[Head] = (),
    at_least: int = 0,
) -> Restored:
    """As `check`, and then atomically makes it the deployment's ledger and graph; durable on return.

    Raises:
        BackupRefused: see `check`; or a ledger exists.
        ConfigurationError, VerificationFailed: see `check`.
        LedgerError: the new ledger cannot be written.
    """
    with _staged(settings, directory, _key(settings, public_key)) as (manifest, staged):
        found = _checked(settings, manifest, staged, known, at_least)
        source, target = Database(embedded_ledger(staged)), _vacant(settings)

        def work(connection: Connection) -> None:
            if not is_empty(connection):
                raise BackupRefused(_ledger_exists(settings))
            source.read(lambda kept: copy_rows(kept, connection))
            report = verification.verify(connection, [manifest.head])
            if not report.ok or report.head != manifest.head:
                raise BackupRefused("the written ledger differs from the backup; nothing was changed")

        target.write(work, guards=("event", "lineage_event"))
        for name in DIRECTORIES:  # existing files are as new or newer
            copy_missing(staged / name, settings.restricted / name)
        _put_back_record(settings, target)
    return found


def _key(settings: Settings, given: bytes | None) -> Ed25519PublicKey:
    """The key that must have signed the backup. Never makes one."""
    if given is not None:
        return read_public_key(given)
    if not Vault(settings.vault).has(SIGNING_KEY):
        raise ConfigurationError(
            f"{settings.vault} holds no signing key to check the backup with. Restore the vault first, from its "
            "separate backup; where the vault is lost, give the deployment's public key with --public-key"
        )
    return Vault(settings.vault).signing_key().public_key()


@contextmanager
def _staged(settings: Settings, directory: Path, key: Ed25519PublicKey) -> Iterator[tuple[Manifest, Path]]:
    """A private copy of a backup, checked against its manifest; the backup itself is never opened as a database."""
    home = private_directory(settings.home / "restoring")
    staged = home / "copy"
    try:
        with held(home):
            try:
                shutil.rmtree(staged, ignore_errors=True)  # left by a killed restore
                _copy(directory, private_directory(staged))
                yield read_manifest(staged, key), staged
            finally:
                shutil.rmtree(home, ignore_errors=True)
    except HeldByAnother:
        raise ConfigurationError("another process is restoring into this deployment; wait for it") from None


def _copy(directory: Path, staged: Path) -> None:
    if not directory.is_dir():
        raise BackupRefused(f"{directory} cannot be read: there is no such directory")
    try:
        copy_missing(directory, staged)
    except OSError as error:
        raise BackupRefused(f"{directory} cannot be copied to {staged}: {file_problem(error)}") from None


def _checked(settings: Settings, manifest: Manifest, staged: Path, known: Sequence[Head], at_least: int) -> Restored:
    if not (staged / LEDGER).is_file():
        raise BackupRefused(f"the backup holds no {LEDGER}")
    shown = Register(staged).directories()
    report = verify_ledger(settings, embedded_ledger(staged), [manifest.head, *known], shown)
    problems = list(report.problems)
    if report.events < at_least:
        problems.append(f"the chain had {at_least} events, and has {report.events} in the backup")
    if problems:
        raise BackupRefused(
            f"this backup of {manifest.taken_at} does not agree with the deployment's other records:\n"
            + "\n".join(f"  {problem}" for problem in problems)
            + "\nIf restored, it would grant again what was spent since. Nothing was changed. Accepted: a later backup"
        )
    accounts = Ledger(embedded_ledger(staged)).accounts()
    return Restored(manifest, report, tuple(item.family for item in accounts if not _has_keys(settings, item)))


def _has_keys(settings: Settings, account: Account) -> bool:
    try:
        keys_in_use(Vault(settings.vault), account)
    except (ConfigurationError, LedgerError):
        return False
    return True


def _vacant(settings: Settings) -> Database:
    """The database to restore into, which must not contain a ledger."""
    url = make_url(settings.ledger_url)
    if url.get_backend_name() == "sqlite" and url.database:
        path = Path(url.database)
        left = [name for name in (path.name + suffix for suffix in _SIDE_FILES) if (path.parent / name).exists()]
        if left and not path.exists():
            raise BackupRefused(f"{path.parent / left[0]} belongs to another ledger; move it away (and keep it)")
    try:
        return Database(settings.ledger_url)
    except LedgerError as error:
        raise LedgerError(f"{error}. To restore into its place, {_move_away(settings)}") from None


def _ledger_exists(settings: Settings) -> str:
    return f"a ledger exists already and is never overwritten; {_move_away(settings)}. Nothing was changed"


def _move_away(settings: Settings) -> str:
    if settings.ledger_url_is_configured:
        return "keep it, and name a new, empty database in DPSYNTH_LEDGER_URL"
    return f"move {settings.ledger} away as it is, and keep it: it may have later events than the backup"


def _put_back_record(settings: Settings, database: Database) -> None:
    """Writes the file of own lineage events again, unless it has content: the events delivered to it."""
    record = JsonLines(settings.lineage_file)
    if record.has_content():
        return
    box, event = tables.outbox.c, tables.event.c
    waiting = select(box.sequence).where(
        box.target == outbox.FILE, box.delivered_at.is_(None) | box.refused.is_not(None)
    )
    query = select(event.payload).where(event.origin == "own", event.sequence.not_in(waiting)).order_by(event.sequence)
    payloads = database.read(lambda connection: list(connection.execute(query).scalars()))
    with record.locked() as descriptor:
        for payload in payloads:
            record.append(descriptor, json.loads(payload))
