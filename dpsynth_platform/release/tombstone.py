"""The tombstone: what is left to say in the directory of a release that was withdrawn.

What belongs here: its form, reading it, and telling whether a key signed it. What does not: withdrawing (`withdrawal`),
and judging the rest of the directory (`verify`). Little is imported: whoever verifies a release needs this module.

It stands in `tombstone.json`, where people can read it, and beside it `tombstone.dsse.json` vouches for it as the
release's attestation does for the release: an in-toto statement in a DSSE envelope (`attestation`). What the page of a
release says of checking the one with other tools holds for the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
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
    """What the public is told of a withdrawal, and no more.

    Attributes:
        release: id of the release.
        withdrawn_at: when, ISO 8601, UTC.
        reason: one sentence.
        contacts: people to ask. Like the reason on one line, without control characters.
    """

    release: str
    withdrawn_at: str
    reason: str
    contacts: tuple[str, ...]

    @property
    def words(self) -> str:
        """The same as a sentence."""
        return (
            f"withdrawn on {self.withdrawn_at[:10]}: {self.reason}{'' if self.reason.endswith('.') else '.'} Its rows "
            f"were deleted; whoever has a copy is asked to delete it. Questions: {', '.join(self.contacts)}"
        )

    def to_bytes(self) -> bytes:
        """Its file: JSON, indented, with one line feed at the end."""
        document = {
            "format": FORMAT,
            "release": self.release,
            "withdrawn_at": self.withdrawn_at,
            "reason": self.reason,
            "contacts": list(self.contacts),
        }
        return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"

    def statement(self) -> dict[str, Any]:
        """What is signed: that these very bytes are the tombstone of this release."""
        return statement(
            WITHDRAWAL, {TOMBSTONE: hashlib.sha256(self.to_bytes()).hexdigest()}, {"release": self.release}
        )

    def seal(self, key: Ed25519PrivateKey) -> bytes:
        """The file that vouches for it."""
        return Envelope.seal(self.statement(), key).to_bytes()


@dataclass(frozen=True)
class SignedTombstone:
    """A tombstone as it was found."""

    tombstone: Tombstone
    envelope: Envelope

    def is_signed_by(self, key: Ed25519PublicKey) -> bool:
        """Whether the key signed exactly this."""
        said = canonical_json(self.tombstone.statement()).encode()
        named = self.envelope.key == signature.fingerprint(key)
        return named and self.envelope.payload == said and self.envelope.is_signed_by(key)


def is_withdrawn(directory: Path) -> bool:
    """Whether a tombstone stands in a release's directory, whatever it says."""
    return os.path.lexists(directory / TOMBSTONE)


def read_tombstone(directory: Path) -> SignedTombstone | None:
    """The tombstone in a release's directory, or None where the release was not withdrawn. Checks no signature.

    Raises:
        VerificationFailed: there is one that cannot be read, or that is not of the form that `Tombstone` writes.
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
    words = (document["release"], document["withdrawn_at"], document["reason"], *document["contacts"])
    if document["format"] != FORMAT or not all(isinstance(item, str) and visible(item) == item for item in words):
        raise ValueError("another format")
    release, withdrawn_at, reason, *contacts = words
    return Tombstone(release, withdrawn_at, reason, tuple(contacts))


def _regular(path: Path) -> Path:
    if path.is_symlink() or not path.is_file():
        raise FileNotFoundError
    return path
