"""A backup's manifest: its content and moment, signed by the deployment.

What belongs here: the document, its signature, and checking files against it. What does not: the content of files
(`taking`, `restoring`). The signature is Ed25519 over "FORMAT DIGEST", where DIGEST is the SHA-256 (hex) of all other
fields as canonical JSON. Only a holder of the key can make a backup in which less of the budget is spent.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.errors import BackupRefused, file_problem
from dpsynth_platform.foundation.release_layout import regular_files
from dpsynth_platform.foundation.signature import fingerprint, is_valid, sign
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.lifecycle.erasure import DIRECTORY as ERASED
from dpsynth_platform.release.register import NAME as REGISTER
from dpsynth_platform.reviewing.discussion import NAME as DISCUSSION

FORMAT = "dpsynth-backup-1"
NAME = "manifest.json"
LEDGER = "ledger.db"
DIRECTORIES = (REGISTER, ERASED, DISCUSSION)
"""Directories of the restricted zone that belong to a ledger: places of releases, erased owners, and remarks."""
_LONGEST = 64 * 1024 * 1024


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest.

    Attributes:
        taken_at: time of the snapshot by this machine's clock, ISO 8601, UTC.
        head: the chain's last link in it.
        entries, lineage_events: their numbers.
        schema: version of the ledger's tables.
        key_ids: names of the fingerprint keys of its accounts. Only the vault has the keys.
        signed_by: fingerprint of the deployment's public key.
        files: SHA-256 (hex) of every other file by its relative name.
    """

    taken_at: str
    head: Head
    entries: int
    lineage_events: int
    schema: str
    key_ids: tuple[str, ...]
    signed_by: str
    files: dict[str, str]

    def signed(self, key: Ed25519PrivateKey) -> str:
        """The signed document as JSON."""
        content = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        return json.dumps({**content, "signature": sign(key, _signed_bytes(content)).hex()}, indent=1, sort_keys=True)


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 (hex) of every file of a backup except the manifest; links are not followed."""
    return {name: digest_file(path) for name, path in regular_files(directory).items() if name != NAME}


def read_manifest(directory: Path, key: Ed25519PublicKey) -> Manifest:
    """Reads a manifest, and checks its signature and its files.

    Raises:
        BackupRefused: the backup is damaged, incomplete, another deployment's, or not a backup.
    """
    path = directory / NAME
    try:
        if path.stat().st_size > _LONGEST:
            raise ValueError
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        signature = bytes.fromhex(document.pop("signature"))
        if document.pop("format") != FORMAT:
            raise ValueError
        manifest = Manifest(
            **{**document, "head": Head(**document["head"]), "key_ids": tuple(document["key_ids"])},
        )
        valid = is_valid(key, _signed_bytes({"format": FORMAT, **document}), signature)
    except OSError as error:
        raise BackupRefused(f"{path} cannot be read: {file_problem(error)}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BackupRefused(f"{path} is damaged, or not a manifest of the format {FORMAT!r}") from None
    if manifest.signed_by != fingerprint(key):
        raise BackupRefused(
            f"{path} is signed by key {manifest.signed_by}, and this deployment's is {fingerprint(key)}: it is a "
            "backup of another deployment, or this deployment's vault is not restored"
        )
    if not valid:
        raise BackupRefused(f"{path} does not match its signature: it was damaged or changed")
    _check_files(directory, manifest)
    return manifest


def _check_files(directory: Path, manifest: Manifest) -> None:
    try:
        found = digests(directory)
    except OSError as error:
        raise BackupRefused(f"{directory} cannot be read: {file_problem(error)}") from None
    wrong = sorted(name for name in found.keys() | manifest.files.keys() if found.get(name) != manifest.files.get(name))
    if wrong:
        what = "missing" if wrong[0] not in found else "changed" if wrong[0] in manifest.files else "not of this backup"
        raise BackupRefused(f"{directory / wrong[0]} is {what}: the backup is damaged; take another one")


def _signed_bytes(content: dict[str, Any]) -> bytes:
    return f"{FORMAT} {canonical_digest(content)}".encode()
