"""Verifying what a deployment has written: its ledger and its releases.

What belongs here: finding the release that somebody names, the deployment's own key, and the heads that the ledger is
held against. What does not: the checks themselves (`release.verify`, `ledger.verification`).
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
from dpsynth_platform.release.heads import WITHDRAWN, KnownChain
from dpsynth_platform.release.tombstone import is_withdrawn
from dpsynth_platform.release.verify import VerificationReport, verify_release, verify_releases
from dpsynth_platform.reviewing import accounts, releases
from dpsynth_platform.reviewing.kept import Kept, state_of, tree_state
from dpsynth_platform.secrets.vault import SIGNING_KEY, Vault

if TYPE_CHECKING:
    from dpsynth_platform.reviewing.chronicle import Chronicle


@dataclass(frozen=True)
class Checked:
    """A verification of a release, with when its files were read for it (ISO 8601, UTC)."""

    report: VerificationReport
    at: str


_CHECKED: Kept[Checked] = Kept(4000)
_READ: Kept[Checked] = Kept(4000)
_PUBLIC: Kept[tuple[str, str] | None] = Kept(10)


@dataclass(frozen=True)
class LedgerVerification:
    """What was found in a deployment's ledger.

    Attributes:
        events: how many the chain has.
        entries: how many there are.
        dossiers: how many published ones the chain was held against.
        last_at: when the last event was, ISO 8601, UTC; None where there is none.
        problems: what does not fit; empty if the ledger is as it was written.
    """

    events: int
    entries: int
    dossiers: int
    last_at: str | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def verify_ledger(
    settings: Settings, url: str | None = None, known: Sequence[Head] = (), beside: Sequence[Path] = ()
) -> LedgerVerification:
    """Recomputes the chain and holds it against all that survives of what it led to: published dossiers, runs' records.

    Args:
        settings: the deployment.
        url: of another ledger that is to be this deployment's, as from a backup.
        known: further heads that must be in the chain.
        beside: further places where releases were shown.

    Raises:
        StaleInput: a step's record is damaged.
    """
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.reviewing.ledger_witnesses import head_of, missing_from

    store = accounts.ledger(settings) if url is None else Ledger(url)
    heads = {path: head_of(path) for path in releases.published(settings, beside)}
    published = [head for head in heads.values() if head is not None]
    unknown = missing_from(settings, store, LineageStore(url or settings.ledger_url))
    report = store.verify([*published, *known])
    unreadable = [
        f"{path}: its dossier cannot be read, so the chain is not held against the head in it"
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
    """Verifies releases given by directory, id or dataset, and that their heads can be of one chain.

    Without a key they are taken for this deployment's own, where it has one; then, and without an export, the heads
    must stand in its ledger, and what that says was withdrawn must say so itself.

    Raises:
        VerificationFailed: there is no such release, or key or export cannot be read.
    """
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
        chain = chain or _own_chain(settings)
    return verify_releases(paths, key, chain=chain, expected=expected)


def checked(settings: Settings, now: Chronicle, path: Path, *, rows: bool = True, anew: bool = False) -> Checked:
    """The verification of one release of this deployment, as long as no file of it and nothing about it changes.

    Args:
        settings: the deployment.
        now: its ledger, as it was read a moment ago.
        path: the release's directory, which is called as the release is.
        rows: whether the table's files are read, too; else only whether each is there.
        anew: read everything again all the same.

    Raises:
        VerificationFailed: there is no such directory.
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


def _own_chain(settings: Settings) -> KnownChain | None:
    if not settings.has_ledger:
        return None
    events = accounts.ledger(settings).history()
    return KnownChain(
        "this deployment's ledger",
        {event.sequence: event.hash for event in events},
        frozenset(event.subject for event in events if event.kind == WITHDRAWN),
    )


def public_key(settings: Settings) -> tuple[str, str]:
    """The deployment's public key (PEM) and its fingerprint. Makes none: only what signs does.

    Raises:
        ConfigurationError: there is none, as where nothing has been run yet.
    """
    own = _own_key(settings)
    if own is None:
        raise ConfigurationError(
            f"DPSYNTH_HOME: {settings.home} holds no signing key, so no deployment that has made a model; accepted: "
            "the home of one that has. A deployment is made where DPSYNTH_HOME says by its first run: "
            "dpsynth run DATASET (or `make demo`)"
        )
    return own


def _own_key(settings: Settings) -> tuple[str, str] | None:
    """The same, or None where there is no key; asked for again where none was, or where the vault's files changed.

    Raises:
        ConfigurationError: the vault's keeper fails.
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
    """The directory of a release by its path, its id, or its dataset's name (the newest that is not withdrawn).

    Raises:
        VerificationFailed: there is none.
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
