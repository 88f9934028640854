"""A backup's manifest: what is in it, of which moment, signed by the deployment.

What belongs here: the document, its signature, and checking files against it. What does not: what the files hold
(`taking`, `restoring`). The signature is Ed25519 over "FORMAT DIGEST", with the SHA-256 (hex) of everything else as
canonical JSON: whoever can write a backup but has no key cannot make the budget look less spent.
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

FORMAT = "dpsynth-backup-1"
NAME = "manifest.json"
LEDGER = "ledger.db"
BESIDE = (REGISTER, ERASED)
"""Directories of the restricted zone that a ledger cannot do without: where releases were shown, who was erased."""
_LONGEST = 64 * 1024 * 1024


@dataclass(frozen=True)
class Manifest:
    """What a backup says of itself.

    Attributes:
        taken_at: ISO 8601, UTC; of the ledger's snapshot, by this machine's clock.
        head: the chain's last link in it.
        entries: how many ledger entries it has.
        lineage_events: how many lineage events it has.
        schema: version of the ledger's tables.
        key_ids: names of the fingerprint keys that its accounts depend on. The keys themselves are in the vault alone.
        signed_by: fingerprint of the deployment's public key.
        files: SHA-256 (hex) of every other file by its name relative to the backup.
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
        """The document's text."""
        content = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        return json.dumps({**content, "signature": sign(key, _signed_bytes(content)).hex()}, indent=1, sort_keys=True)


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 (hex) of every file of a backup but the manifest; links are not followed."""
    return {name: digest_file(path) for name, path in regular_files(directory).items() if name != NAME}


def read_manifest(directory: Path, key: Ed25519PublicKey) -> Manifest:
    """A backup's manifest, which the key must have signed, and whose files must be there as they were written.

    Raises:
        BackupRefused: it is none, damaged, incomplete, or another deployment's.
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
        whole = is_valid(key, _signed_bytes({"format": FORMAT, **document}), signature)
    except OSError as error:
        raise BackupRefused(f"{path} cannot be read: {file_problem(error)}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BackupRefused(f"{path} is damaged, or no manifest of a backup of the format {FORMAT!r}") from None
    if manifest.signed_by != fingerprint(key):
        raise BackupRefused(
            f"{path} is signed by key {manifest.signed_by}, and this deployment's is {fingerprint(key)}: a backup of "
            "another deployment, or this one's vault has not been put back"
        )
    if not whole:
        raise BackupRefused(f"{path} is not what its key signed: it was damaged or changed")
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
