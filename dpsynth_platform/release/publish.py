"""Publication: everything staged out of sight, signed, announced, and shown by one rename.

What belongs here: writing a release's files in the public zone. What does not: whether it may be published (the caller
has checked the evidence, and checks the decisions again when it is told that all is ready) and what the dossier says. A
reader sees a whole release or none; a publication that was interrupted leaves a hidden directory that the next one
removes.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
from dpsynth_platform.release.verify import verify_release

_STAGING = ".staging-"


@dataclass(frozen=True)
class Published:
    """A release that is there for everyone.

    Attributes:
        path: its directory, `<target>/<release id>`.
        size, file_count: of the files of its Delta table.
        reused: it had been published before; nothing was written.
    """

    release_id: str
    path: Path
    rows: int
    size: int
    file_count: int
    key_fingerprint: str
    reused: bool


def publish(
    evidence: Evidence,
    synthetic_batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    target: Path,
    signing_key: Ed25519PrivateKey,
    *,
    announce: Callable[[], object],
) -> Published:
    """Publishes a candidate below `target`, once.

    Args:
        evidence: of the candidate that was checked and approved.
        synthetic_batches: the synthetic rows; read only if the candidate is not published yet.
        schema: their Arrow schema.
        announce: is called when everything is staged and just before it is shown, to record the publication; where it
            raises, nothing is shown. Also for a release that is there already, so that none stays unrecorded.

    Raises:
        ReleaseRefused: this candidate's release is there already but does not verify under this key.
    """
    directory = target / evidence.release_id
    with only_one(target):
        if not directory.exists():
            _stage_and_show(evidence, synthetic_batches, schema, directory, signing_key, announce)
            return _published(directory, signing_key, reused=False)
        found = _published(directory, signing_key, reused=True)
        announce()
        return found


@contextmanager
def only_one(target: Path) -> Iterator[None]:
    """One publication at a time below a target; whatever an earlier one left half done is removed."""
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
    """Makes a directory and its missing parents, readable by others whatever the umask, as what is published is."""
    for one in reversed((directory, *directory.parents)):
        if not one.exists():
            with suppress(FileExistsError):  # another publication was first
                one.mkdir()
                one.chmod(0o755)


def _stage_and_show(
    evidence: Evidence,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    directory: Path,
    signing_key: Ed25519PrivateKey,
    announce: Callable[[], object],
) -> None:
    stage = directory.with_name(_STAGING + secrets.token_hex(8))
    stage.mkdir(mode=0o700)
    try:
        profile = Profiler(evidence.contract)
        rows = write_table(stage / layout.DATA, schema, (profile.add(batch) for batch in batches))
        files = [
            PublishedFile(name, digest_file(path), path.stat().st_size)
            for name, path in layout.regular_files(stage).items()
        ]
        _write_documents(stage, build_dossier(evidence, schema, rows, profile, files), signing_key)
        _settle(stage)
        announce()
        _show(stage, directory)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise


def _show(stage: Path, directory: Path) -> None:
    """Opens it to everyone and gives it its name: from here on it is public."""
    stage.chmod(0o755)
    stage.rename(directory)
    sync(directory.parent)


def _write_documents(stage: Path, dossier: dict[str, Any], signing_key: Ed25519PrivateKey) -> None:
    """Dossier, its schema, page and cards, and last the attestation, which vouches for all before it."""
    dossier = json.loads(json.dumps(dossier, ensure_ascii=False, allow_nan=False))  # as a reader will have it
    name = schemas.DOSSIERS[dossier["format"]]
    for breach in schemas.breaches(dossier, name):
        raise ReleaseRefused(f"the dossier is not as its schema asks: at {breach.where} it {breach.message}")
    public_key = signing_key.public_key()
    documents = {
        layout.DOSSIER: json.dumps(dossier, indent=2, ensure_ascii=False) + "\n",
        layout.SCHEMA: schemas.text(name),
        layout.PAGE: render(dossier, signature.fingerprint(public_key)),
        layout.CROISSANT: json.dumps(cards.croissant(dossier), indent=2, ensure_ascii=False) + "\n",
        layout.CARD: cards.dataset_card(dossier, signature.fingerprint(public_key)),
        layout.PUBLIC_KEY: signature.public_pem(public_key).decode(),
    }
    for file, content in documents.items():
        (stage / file).write_text(content, encoding="utf-8")
    envelope = Envelope.seal(release_statement(stage, dossier), signing_key)
    (stage / layout.ATTESTATION).write_bytes(envelope.to_bytes())


def _settle(stage: Path) -> None:
    """Readable by everyone once its directory is, whatever the umask, and on disk before the release is shown."""
    for path in stage.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        sync(path)
    sync(stage)


def _published(directory: Path, signing_key: Ed25519PrivateKey, *, reused: bool) -> Published:
    """Verifies what is there now, as any reader would."""
    report = verify_release(directory, signature.public_pem(signing_key.public_key()))
    if report.problems:
        raise ReleaseRefused(f"{directory}: the release there does not verify: {report.problems[0]}")
    if report.withdrawn is not None:
        raise ReleaseRefused(f"{directory}: the release there was withdrawn meanwhile")
    data = layout.regular_files(directory / layout.DATA).values()
    return Published(
        release_id=directory.name,
        path=directory,
        rows=report.rows or 0,
        size=sum(path.stat().st_size for path in data),
        file_count=len(data),
        key_fingerprint=report.key_fingerprint or "",
        reused=reused,
    )
