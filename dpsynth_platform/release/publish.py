"""Publication: a release is staged in a hidden directory, signed, announced, and shown by one rename.

What belongs here: writing a release's files in the public zone. What does not: whether it may be published (the caller
checks evidence, and decisions again in `announce`), and the dossier's content. Readers see a whole release or none. The
next publication removes the hidden directory of an interrupted one.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation import signature
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.storage import sync, write_table
from dpsynth_platform.release import cards
from dpsynth_platform.release import schema as schemas
from dpsynth_platform.release.attestation import Envelope, release_statement
from dpsynth_platform.release.dossier import Evidence, PublishedFile, build_dossier
from dpsynth_platform.release.page import render
from dpsynth_platform.release.profile import Profiler
from dpsynth_platform.release.verify import VerificationReport, verify_release

_STAGING = ".staging-"


@dataclass(frozen=True)
class TableRows:
    """The rows of one table of a candidate; batches are read once."""

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class Published:
    """A published release: its directory `<target>/<release id>`, and bytes and number of its Delta tables' files.

    `rows` is their number of synthetic rows, `tables` that of each table, public ones included. `reused` if it had been
    published before, and nothing was written.
    """

    release_id: str
    path: Path
    rows: int
    tables: Mapping[str, int]
    size: int
    file_count: int
    key_fingerprint: str
    reused: bool


def publish(
    evidence: Evidence,
    tables: Mapping[str, TableRows],
    target: Path,
    signing_key: Ed25519PrivateKey,
    *,
    announce: Callable[[], object],
) -> Published:
    """Publishes a candidate below `target`, once.

    Args:
        evidence: checked and approved.
        tables: by name, a single one by `layout.SINGLE`; read only if the candidate is not published yet.
        announce: records the publication. It is called after staging, just before the release is shown; if it raises,
            nothing is shown. Also called for a release that exists already, so that every release is recorded.

    Raises `ReleaseRefused` if this candidate's release exists, but does not verify with this key, or would not verify,
    such as linked tables that do not join; then nothing is shown.
    """
    directory = target / evidence.release_id
    with only_one(target):
        if not directory.exists():
            report = _stage_and_show(evidence, tables, directory, signing_key, announce)
            return _published(directory, report, reused=False)
        found = _published(directory, _verified(directory, signing_key, f"{directory}: the release there"), reused=True)
        announce()
        return found


@contextmanager
def only_one(target: Path) -> Iterator[None]:
    """Locks a target for one publication, and removes what interrupted ones left."""
    _make_readable(target)
    lock = os.open(target / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in target.glob(f"{_STAGING}*"):
            shutil.rmtree(leftover)
        yield
    finally:
        os.close(lock)


def _make_readable(directory: Path) -> None:
    """Makes a directory and its missing parents, readable by all under any umask."""
    for path in reversed((directory, *directory.parents)):
        if not path.exists():
            with suppress(FileExistsError):  # another publication was first
                path.mkdir()
                path.chmod(0o755)


def _stage_and_show(
    evidence: Evidence,
    tables: Mapping[str, TableRows],
    directory: Path,
    signing_key: Ed25519PrivateKey,
    announce: Callable[[], object],
) -> VerificationReport:
    stage = directory.with_name(_STAGING + secrets.token_hex(8))
    stage.mkdir(mode=0o700)
    try:
        profile = Profiler(evidence.contract, evidence.measured)
        rows = {
            name: write_table(
                stage / layout.DATA / name, table.schema, map(partial(profile.add, table=name), table.batches)
            )
            for name, table in tables.items()
        }
        schemas = {name: table.schema for name, table in tables.items()}
        files = [
            PublishedFile(name, digest_file(path), path.stat().st_size)
            for name, path in layout.regular_files(stage).items()
        ]
        if profile.sample is not None:
            (stage / layout.SAMPLE).write_text(_indented(profile.sample), encoding="utf-8")
        if profile.pictures is not None:
            (stage / layout.SHEET).write_bytes(profile.pictures.sheet())
        _write_documents(stage, build_dossier(evidence, schemas, rows, profile, files), signing_key)
        _settle(stage)
        report = _verified(stage, signing_key, f"{directory.name}: the release")
        announce()
        _show(stage, directory)
        return report
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise


def _show(stage: Path, directory: Path) -> None:
    stage.chmod(0o755)
    stage.rename(directory)  # from here on it is public
    sync(directory.parent)


def _write_documents(stage: Path, dossier: dict[str, Any], signing_key: Ed25519PrivateKey) -> None:
    """Writes dossier, schema, page and cards, and last the attestation of all of them."""
    dossier = json.loads(json.dumps(dossier, ensure_ascii=False, allow_nan=False))  # as readers will parse it
    name = schemas.DOSSIERS[dossier["format"]]
    for breach in schemas.breaches(dossier, name):
        raise ReleaseRefused(f"the dossier does not match its schema: at {breach.where} it {breach.message}")
    public_key = signing_key.public_key()
    documents = {
        layout.DOSSIER: _indented(dossier),
        layout.SCHEMA: schemas.text(name),
        layout.PAGE: render(dossier, signature.fingerprint(public_key)),
        layout.CROISSANT: _indented(cards.croissant(dossier)),
        layout.CARD: cards.dataset_card(dossier, signature.fingerprint(public_key)),
        layout.PUBLIC_KEY: signature.public_pem(public_key).decode(),
    }
    for file, content in documents.items():
        (stage / file).write_text(content, encoding="utf-8")
    envelope = Envelope.seal(release_statement(stage, dossier), signing_key)
    (stage / layout.ATTESTATION).write_bytes(envelope.to_bytes())


def _indented(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _settle(stage: Path) -> None:
    """Makes the files readable by all under any umask, and flushes them to disk before the release is shown."""
    for path in stage.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        sync(path)
    sync(stage)


def _verified(path: Path, signing_key: Ed25519PrivateKey, what: str) -> VerificationReport:
    report = verify_release(path, signature.public_pem(signing_key.public_key()))
    if report.problems:
        raise ReleaseRefused(f"{what} does not verify: {report.problems[0]}")
    if report.withdrawn is not None:
        raise ReleaseRefused(f"{what} was withdrawn meanwhile")
    return report


def _published(directory: Path, report: VerificationReport, *, reused: bool) -> Published:
    data = layout.regular_files(directory / layout.DATA).values()
    return Published(
        release_id=directory.name,
        path=directory,
        rows=report.rows or 0,
        tables=report.tables,
        size=sum(path.stat().st_size for path in data),
        file_count=len(data),
        key_fingerprint=report.key_fingerprint or "",
        reused=reused,
    )
