"""Verifying what a deployment has written: its ledger and its releases.

What belongs here: finding a release by name, the deployment's own key, and the heads with which the ledger is compared.
What does not: the checks themselves (`release.verify`, `ledger.verification`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_platform.foundation.errors import ConfigurationError, VerificationFailed, file_problem
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.release_layout import ATTESTATION
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.release.heads import KnownChain
from dpsynth_platform.release.tombstone import is_withdrawn
from dpsynth_platform.release.verify import VerificationReport, verify_release, verify_releases
from dpsynth_platform.reviewing import accounts, releases
from dpsynth_platform.reviewing.file_cache import FileCache, state_of, tree_state
from dpsynth_platform.secrets.vault import SIGNING_KEY, Vault

if TYPE_CHECKING:
    from dpsynth_platform.reviewing.chronicle import Chronicle


@dataclass(frozen=True)
class Checked:
    """A verification of a release, and when its files were read (ISO 8601, UTC)."""

    report: VerificationReport
    at: str


_CHECKED: FileCache[Checked] = FileCache(4000)
_READ: FileCache[Checked] = FileCache(4000)
_PUBLIC: FileCache[tuple[str, str] | None] = FileCache(10)


@dataclass(frozen=True)
class LedgerVerification:
    """The result of checking a deployment's ledger, compared with a number of published dossiers.

    `last_at` is the time of the last event (ISO 8601, UTC); without problems the ledger is as it was written.
    """

    events: int
    entries: int
    dossiers: int
    last_at: str | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def verify_ledger(
    settings: Settings, url: str | None = None, known: Sequence[Head] = (), beside: Sequence[Path] = ()
) -> LedgerVerification:
    """Recomputes the chain and compares it with what proves its events: published dossiers and records of runs.

    Args:
        url: of another ledger that is to replace this deployment's, for example from a backup.
        known: further heads that must be in the chain.
        beside: further places where releases were shown.

    Raises `StaleInput` if a step's record is damaged.
    """
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.reviewing.ledger_witnesses import head_of, missing_from

    store = accounts.ledger(settings) if url is None else Ledger(url)
    heads = {path: head_of(path) for path in releases.published(settings, beside)}
    published = [head for head in heads.values() if head is not None]
    unknown = missing_from(settings, store, LineageStore(url or settings.ledger_url))
    report = store.verify([*published, *known])
    unreadable = [
        f"{path}: its dossier cannot be read, so the chain is not compared with the head in it"
        for path, head in heads.items()
        if head is None
    ]
    last = store.history(after=report.head.sequence - 1) if report.ok else []
    return LedgerVerification(
        events=report.events,
        entries=report.entries,
        dossiers=len(published),
        last_at=last[0].at if last else None,
        problems=(*report.problems, *unreadable, *(f"{item}: the ledger is older, or was cut" for item in unknown)),
    )


def verify(settings: Settings, release: str, public_key: Path | None = None) -> VerificationReport:
    """Verifies one release; see `verify_all`."""
    (report,) = verify_all(settings, [release], public_key)
    return report


def verify_all(
    settings: Settings, names: Sequence[str], public_key: Path | None = None, ledger_export: Path | None = None
) -> tuple[VerificationReport, ...]:
    """Verifies releases by directory, id or dataset, and that their heads can belong to one chain.

    Without a key they must be this deployment's own, if it has a key. Then, without an export, the heads must be in its
    ledger, and releases that it records as withdrawn must say so. Raises `VerificationFailed` if there is no such
    release, or key or export cannot be read.
    """
    from dpsynth_platform.reviewing.chronicle import Chronicle

    paths = [find_release(settings, name) for name in names]
    expected = {path: path.name for name, path in zip(names, paths, strict=True) if not Path(name).is_dir()}
    key, chain = None, KnownChain.of_export(ledger_export) if ledger_export else None
    if public_key is not None:
        try:
            key = read_regular(public_key)
        except OSError as error:
            raise VerificationFailed(f"{public_key}: the key cannot be read: {file_problem(error)}") from None
    elif (own := _own_key(settings)) is not None:
        key = own[0].encode()
        if chain is None and settings.has_ledger:
            chain = Chronicle(events=tuple(accounts.ledger(settings).history())).known_chain
    return verify_releases(paths, key, chain=chain, expected=expected)


def checked(settings: Settings, now: Chronicle, path: Path, *, rows: bool = True, anew: bool = False) -> Checked:
    """The verification of one release of this deployment, cached until one of its files or its records changes.

    Args:
        now: the present chronicle of its ledger.
        rows: read the table's files, too; else only check that each exists.
        anew: ignore the cache.

    Raises `VerificationFailed` if there is no such directory.
    """
    kept = _READ if rows else _CHECKED
    known = now.known_chain if settings.has_ledger else None
    own = _own_key(settings)
    state = (tree_state(path), own, now.readings, path.name in now.known_chain.withdrawn)
    if anew:
        kept.forget(path)

    def make() -> Checked:
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        key = own[0].encode() if own else None
        report = verify_release(path, key, chain=known if key else None, rows=rows, release=path.name)
        return Checked(report, at)

    return kept.get(path, state, make)


def public_key(settings: Settings) -> tuple[str, str]:
    """The deployment's public key (PEM) and its fingerprint. Raises `ConfigurationError` if there is none yet."""
    own = _own_key(settings)
    if own is None:
        raise ConfigurationError(
            f"DPSYNTH_HOME: {settings.home} holds no signing key, so no deployment has made a model there; accepted: "
            "the home of one that has. The first run creates a deployment in DPSYNTH_HOME: dpsynth run DATASET (or "
            "`make demo`)"
        )
    return own


def _own_key(settings: Settings) -> tuple[str, str] | None:
    """The same, or None without a key; read again until there is one, and after changes of the vault's files.

    Raises `ConfigurationError` if the vault's keeper fails.
    """
    from dpsynth_platform.foundation.signature import fingerprint, public_pem

    vault = Vault(settings.vault)

    def read() -> tuple[str, str] | None:
        if not vault.has(SIGNING_KEY):
            return None
        key = vault.signing_key().public_key()
        return public_pem(key).decode(), fingerprint(key)

    return _PUBLIC.get(settings.vault, state_of(vault.files), read)


def find_release(settings: Settings, release: str) -> Path:
    """A release's directory by its path, its id, or its dataset's name (the newest that is not withdrawn).

    Raises `VerificationFailed` if there is none.
    """
    if Path(release).is_dir():
        if not (Path(release) / ATTESTATION).exists():
            raise VerificationFailed(f"{release}: {ATTESTATION} is missing; accepted: the directory of one release")
        return Path(release)
    published = releases.published(settings)
    named = [path for path in published if path.name == release]
    of_dataset = [path for path in published if path.parent.name == release]
    found = named or sorted(of_dataset, key=lambda path: (not is_withdrawn(path), path.stat().st_mtime))
    if not found:
        known = ", ".join(path.name for path in published) or "none is published"
        raise VerificationFailed(f"{release}: no such directory, release or dataset; accepted: {known}")
    return found[-1]
