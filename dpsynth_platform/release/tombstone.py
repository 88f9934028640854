"""The tombstone: what is left to say in the directory of a release that was withdrawn.

What belongs here: its form, reading it, and telling whether a key signed it. What does not: withdrawing (`withdrawal`),
and judging the rest of the directory (`verify`). Little is imported: whoever verifies a release needs this module.

It stands in `tombstone.json`, its signature (64 raw bytes) beside it, so that other tools can check it too:

    openssl pkeyutl -verify -pubin -inkey public_key.pem -rawin -in tombstone.json -sigfile tombstone.sig
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpsynth_platform.errors import VerificationFailed, file_problem
from dpsynth_platform.people import visible
from dpsynth_platform.release import signature

FORMAT = "dpsynth-tombstone/1"
TOMBSTONE = "tombstone.json"
TOMBSTONE_SIGNATURE = "tombstone.sig"
FILES = frozenset({TOMBSTONE, TOMBSTONE_SIGNATURE})
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
        """The bytes that are signed: JSON, indented, with one line feed at the end."""
        document = {
            "format": FORMAT,
            "release": self.release,
            "withdrawn_at": self.withdrawn_at,
            "reason": self.reason,
            "contacts": list(self.contacts),
        }
        return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


@dataclass(frozen=True)
class SignedTombstone:
    """A tombstone as it was found."""

    tombstone: Tombstone
    signature: bytes

    def is_signed_by(self, key: Ed25519PublicKey) -> bool:
        """Whether the key signed exactly this."""
        return signature.is_valid(key, self.tombstone.to_bytes(), self.signature)


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
        signed = SignedTombstone(_parsed(json.loads(content)), _regular(directory / TOMBSTONE_SIGNATURE).read_bytes())
    except OSError as error:
        raise VerificationFailed(f"it or its signature cannot be read: {file_problem(error)}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise VerificationFailed(f"is not of the format {FORMAT}") from None
    if signed.tombstone.to_bytes() != content:
        raise VerificationFailed("is not in its canonical form")
    return signed


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
