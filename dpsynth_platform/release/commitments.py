"""Hiding commitments to restricted content, so that a public dossier can name it without revealing it.

What belongs here: committing, the restricted file of nonces, and opening a commitment. What does not: deciding what is
committed to. A plain hash of restricted content would confirm guesses about the data. A hash with 256 secret random
bits reveals nothing and still binds: a holder of the nonce can prove later which content was meant.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import VerificationFailed
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.storage import write_durably

NONCE_BYTES = 32
_DOMAIN = b"dpsynth commitment v1\x00"


def commit(value: str, nonce: bytes) -> str:
    """SHA-256 (hex) over a fixed prefix, a nonce of 32 bytes and the value.

    Hiding while the nonce is secret, and binding by collision resistance. Raises ValueError for another nonce length,
    since only a fixed length makes the encoding unambiguous.
    """
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes")
    return hashlib.sha256(_DOMAIN + nonce + value.encode()).hexdigest()


def check(commitment: str, value: str, nonce: bytes) -> bool:
    """Whether a commitment was made to this value with this nonce."""
    return hmac.compare_digest(commitment, commit(value, nonce))


class NonceBook:
    """Restricted files of values and nonces, one per set of values.

    Nonces are durable before a commitment is returned, and the same values get the same commitments again, so that a
    repeated publication names the same release.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def commit_all(self, values: Mapping[str, str], *, edition: int = 1) -> dict[str, str]:
        """Commitments to labelled values, by label. Those of different editions differ and cannot be linked."""
        path = self._path(values, edition)
        if not path.is_file():
            fresh = {
                label: {"value": value, "nonce": secrets.token_hex(NONCE_BYTES)} for label, value in values.items()
            }
            write_durably(path, json.dumps(fresh, indent=1, sort_keys=True))
        return {
            label: commit(entry["value"], bytes.fromhex(entry["nonce"])) for label, entry in self._read(path).items()
        }

    def open(self, values: Mapping[str, str], label: str, *, edition: int = 1) -> tuple[str, bytes]:
        """Value and nonce of one commitment. Raises `VerificationFailed` if there is none or the file is damaged."""
        entry = self._read(self._path(values, edition)).get(label)
        if entry is None:
            raise VerificationFailed(f"no commitment with the label {label!r} was made to these values")
        return entry["value"], bytes.fromhex(entry["nonce"])

    def _read(self, path: Path) -> dict[str, dict[str, str]]:
        try:
            entries: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise VerificationFailed("nothing was committed to under these values") from None
        except (OSError, ValueError) as error:
            raise VerificationFailed(f"the nonces {path.name} cannot be read ({reason_of(error)})") from None
        return entries

    def _path(self, values: Mapping[str, str], edition: int) -> Path:
        suffix = "" if edition == 1 else f".{edition}"
        return self._directory / f"{canonical_digest(dict(values))}{suffix}.json"
