"""The tombstone: the signed notice in the directory of a withdrawn release.

What belongs here: its format, reading it, and checking its signature. What does not: withdrawing (`withdrawal`), and
checking the rest of the directory (`verify`). Imports are few, since offline verification needs this module.

`tombstone.json` is the readable notice. `tombstone.dsse.json` is its attestation, an in-toto statement in a DSSE
envelope (`attestation`); other tools check it as they check a release's attestation.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpsynth_platform.foundation import signature
from dpsynth_platform.foundation.digests import canonical_json
from dpsynth_platform.foundation.errors import VerificationFailed, file_problem
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.release.attestation import Envelope, statement

FORMAT = "dpsynth-tombstone/1"
TOMBSTONE = "tombstone.json"
ATTESTATION = "tombstone.dsse.json"
WITHDRAWAL = "urn:dpsynth-platform:withdrawal:1"
FILES = frozenset({TOMBSTONE, ATTESTATION})
"""Files that come into a release's directory after it was signed."""


@dataclass(frozen=True)
class Tombstone:
    """All that is published about a withdrawal, at an ISO 8601 time in UTC. Texts have no control characters."""

    release: str
    withdrawn_at: str
    reason: str
    contacts: tuple[str, ...]

    @property
    def words(self) -> str:
        return (
            f"withdrawn on {self.withdrawn_at[:10]}: {self.reason}{'' if self.reason.endswith('.') else '.'} Its rows "
            "were deleted; counts of them stay in its dossier. Please delete all copies. "
            f"Questions: {', '.join(self.contacts)}"
        )

    def to_bytes(self) -> bytes:
        """Indented JSON with one line feed at the end."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False).encode() + b"\n"

    def statement(self) -> dict[str, Any]:
        """The signed statement: these bytes are the tombstone of this release."""
        return statement(
            WITHDRAWAL, {TOMBSTONE: hashlib.sha256(self.to_bytes()).hexdigest()}, {"release": self.release}
        )

    def seal(self, key: Ed25519PrivateKey) -> bytes:
        """The content of its attestation file."""
        return Envelope.seal(self.statement(), key).to_bytes()


@dataclass(frozen=True)
class SignedTombstone:
    """A tombstone with its attestation, not checked yet."""

    tombstone: Tombstone
    envelope: Envelope

    def is_signed_by(self, key: Ed25519PublicKey) -> bool:
        """Whether the key signed exactly this tombstone."""
        payload = canonical_json(self.tombstone.statement()).encode()
        named = self.envelope.key == signature.fingerprint(key)
        return named and self.envelope.payload == payload and self.envelope.is_signed_by(key)


def is_withdrawn(directory: Path) -> bool:
    """Whether a release's directory contains a tombstone, valid or not."""
    return os.path.lexists(directory / TOMBSTONE)


def read_tombstone(directory: Path) -> SignedTombstone | None:
    """The tombstone of a release, or None if it was not withdrawn. Checks no signature.

    Raises `VerificationFailed` if it cannot be read, or is not in the format that `Tombstone` writes.
    """
    if not is_withdrawn(directory):
        return None
    try:
        content = _regular(directory / TOMBSTONE).read_bytes()
        envelope = _regular(directory / ATTESTATION).read_bytes()
        found = _parsed(json.loads(content))
    except OSError as error:
        raise VerificationFailed(f"it or its signature cannot be read: {file_problem(error)}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise VerificationFailed(f"is not of the format {FORMAT}") from None
    if found.to_bytes() != content:
        raise VerificationFailed("is not in its canonical form")
    return SignedTombstone(found, Envelope.read(envelope))


def _parsed(document: dict[str, Any]) -> Tombstone:
    texts = (document["release"], document["withdrawn_at"], document["reason"], *document["contacts"])
    if document["format"] != FORMAT or not all(isinstance(item, str) and visible(item) == item for item in texts):
        raise ValueError("another format")
    release, withdrawn_at, reason, *contacts = texts
    return Tombstone(release, withdrawn_at, reason, tuple(contacts))


def _regular(path: Path) -> Path:
    if path.is_symlink() or not path.is_file():
        raise FileNotFoundError
    return path
