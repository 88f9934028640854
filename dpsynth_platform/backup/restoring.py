"""Putting a backup back in a ledger's place, or refusing to.

What belongs here: checking a backup, holding it against all that survived the ledger it is of, and writing it in one
transaction that is checked before it is committed. What does not: taking one (`taking`), and keys.

A ledger older than what it led to would grant a second time what was spent since. So a backup is refused if anything
proves that it is not the latest state: a published dossier, a run's record, a notice, a lineage event, an export or a
number of events that somebody kept. There is no option to put it back all the same.
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
from dpsynth_platform.backup.manifest import BESIDE, LEDGER, Manifest, read_manifest
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
    """What was checked, or put back.

    Attributes:
        manifest: the backup's own.
        report: what was found in it, and beside it in this deployment.
        frozen: families whose fingerprint keys the vault does not have.
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
    """Checks a backup against itself and against all that this deployment knows; writes nothing that stays.

    Args:
        settings: the deployment that it would be put back in.
        directory: the backup.
        public_key: the deployment's key (PEM or 32 raw bytes) where its vault is lost.
        known: heads of the chain that somebody kept elsewhere.
        at_least: how many events the chain is known to have had.

    Raises:
        BackupRefused: it is damaged, another deployment's, or older than what is known.
        ConfigurationError: there is no key to check it with, or another process is restoring.
        VerificationFailed: the given key is none.
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
    """`check`, and then makes it the deployment's ledger and graph, whole or not at all; durable on return.

    Raises:
        BackupRefused: see `check`; or there is a ledger in its place already.
        ConfigurationError: see `check`.
        LedgerError: the new ledger cannot be written.
    """
    with _staged(settings, directory, _key(settings, public_key)) as (manifest, staged):
        found = _checked(settings, manifest, staged, known, at_least)
        source, target = Database(embedded_ledger(staged)), _vacant(settings)

        def work(connection: Connection) -> None:
            if not is_empty(connection):
                raise BackupRefused(_in_the_way(settings))
            source.read(lambda kept: copy_rows(kept, connection))
            report = verification.verify(connection, [manifest.head])
            if not report.ok or report.head != manifest.head:
                raise BackupRefused("what was written is not what the backup holds; nothing was changed")

        target.write(work, guards=("event", "lineage_event"))
        for name in BESIDE:  # what is there already is no older
            copy_missing(staged / name, settings.restricted / name)
        _put_back_record(settings, target)
    return found


def _key(settings: Settings, given: bytes | None) -> Ed25519PublicKey:
    """The key that must have signed the backup. None is made: a new one has signed nothing."""
    if given is not None:
        return read_public_key(given)
    if not Vault(settings.vault).has(SIGNING_KEY):
        raise ConfigurationError(
            f"{settings.vault} holds no signing key, so nothing tells whose backup it is. Put the vault back first, "
            "from its own backup; or give the deployment's public key with --public-key, where the vault is lost"
        )
    return Vault(settings.vault).signing_key().public_key()


@contextmanager
def _staged(settings: Settings, directory: Path, key: Ed25519PublicKey) -> Iterator[tuple[Manifest, Path]]:
    """A private copy of a backup, checked against its manifest: the backup itself is not opened, nor written to."""
    home = private_directory(settings.home / "restoring")
    staged = home / "copy"
    try:
        with held(home):
            try:
                shutil.rmtree(staged, ignore_errors=True)  # of a restore that was killed
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
            f"this backup of {manifest.taken_at} is not what the deployment's ledger came to:\n"
            + "\n".join(f"  {problem}" for problem in problems)
            + "\nPut back, it would grant again what was spent since. Nothing was changed. Accepted: a later backup"
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
    """The database that the ledger goes to, which must hold none."""
    url = make_url(settings.ledger_url)
    if url.get_backend_name() == "sqlite" and url.database:
        path = Path(url.database)
        left = [name for name in (path.name + suffix for suffix in _SIDE_FILES) if (path.parent / name).exists()]
        if left and not path.exists():
            raise BackupRefused(f"{path.parent / left[0]} is of another ledger; move it away (and keep it)")
    try:
        return Database(settings.ledger_url)
    except LedgerError as error:
        raise LedgerError(f"{error}. To restore into its place, {_move_away(settings)}") from None


def _in_the_way(settings: Settings) -> str:
    return f"there is a ledger already, which is never overwritten; {_move_away(settings)}. Nothing was changed"


def _move_away(settings: Settings) -> str:
    if settings.ledger_url_is_configured:
        return "keep it, and name a new, empty database in DPSYNTH_LEDGER_URL"
    return f"move {settings.ledger} away as it is, and keep it: it may know more than the backup"


def _put_back_record(settings: Settings, database: Database) -> None:
    """Our own events as a file of lines, unless there is one: those that had been delivered to it."""
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
