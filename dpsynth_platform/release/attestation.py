"""The attestation: the signed statement about every file of a release.

What belongs here: in-toto statements (https://in-toto.io/Statement/v1) in DSSE envelopes
(https://github.com/secure-systems-lab/dsse, version 1), and the statement of a release. What does not: private keys
(the vault), single signatures (`signature`), and checking a release (`verify`).

Statement and envelope are accepted in canonical form only, so that every changed byte is found. The page of each
release says how to check the envelope without this library.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation import signature
from dpsynth_platform.foundation.digests import canonical_digest, canonical_json, digest_file
from dpsynth_platform.foundation.errors import VerificationFailed

STATEMENT = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
RELEASE = "urn:dpsynth-platform:release:1"


@dataclass(frozen=True)
class Envelope:
    """A signed statement: its bytes, the fingerprint of the key that claims to have signed (`keyid`), and 64 bytes."""

    payload: bytes
    key: str
    signature: bytes

    @classmethod
    def seal(cls, statement: Mapping[str, Any], key: Ed25519PrivateKey) -> Envelope:
        payload = canonical_json(statement).encode()
        return cls(payload, signature.fingerprint(key.public_key()), signature.sign(key, _signed_bytes(payload)))

    @classmethod
    def read(cls, content: bytes) -> Envelope:
        """Raises `VerificationFailed` for anything except what `to_bytes` writes."""
        try:
            document = json.loads(content)
            (signed,) = document["signatures"]
            decode = partial(base64.b64decode, validate=True)
            found = cls(decode(document["payload"]), signed["keyid"], decode(signed["sig"]))
            if found.to_bytes() != content:
                raise ValueError("not in canonical form")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise VerificationFailed("is not a DSSE envelope with one signature, in canonical form") from None
        return found

    def to_bytes(self) -> bytes:
        """Canonical JSON with one line feed at the end."""
        document = {
            "payload": base64.b64encode(self.payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": self.key, "sig": base64.b64encode(self.signature).decode()}],
        }
        return canonical_json(document).encode() + b"\n"

    def is_signed_by(self, key: Ed25519PublicKey) -> bool:
        return signature.is_valid(key, _signed_bytes(self.payload), self.signature)

    def statement(self) -> dict[str, Any]:
        """Raises `VerificationFailed` if the payload is not a JSON object in canonical form."""
        try:
            document = json.loads(self.payload)
            if isinstance(document, dict) and canonical_json(document).encode() == self.payload:
                return document
        except (ValueError, RecursionError):
            pass
        raise VerificationFailed("the signed payload is not a JSON object in canonical form")


def statement(predicate_type: str, subjects: Mapping[str, str], predicate: Mapping[str, Any]) -> dict[str, Any]:
    """An in-toto statement about files: SHA-256 (hex) by relative name."""
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": subjects[name]}} for name in sorted(subjects)],
        "predicateType": predicate_type,
        "predicate": dict(predicate),
    }


def release_statement(directory: Path, dossier: Mapping[str, Any]) -> dict[str, Any]:
    """The statement of a staged release: its files except the attestation, and its dossier's main facts.

    Each part of the dossier has its own digest, so that verification can name the changed part.
    """
    subjects = {
        name: digest_file(path) for name, path in layout.regular_files(directory).items() if name != layout.ATTESTATION
    }
    predicate = {
        "release": dossier["release"]["id"],
        "candidate": dossier["commitments"]["candidate"],
        "ledgerHead": dossier["ledger"]["head"],
        "dossier": {"format": dossier["format"], "sha256": subjects[layout.DOSSIER], "parts": part_digests(dossier)},
    }
    return statement(RELEASE, subjects, predicate)


def part_digests(dossier: Mapping[str, Any]) -> dict[str, str]:
    """Canonical digest of each top-level part of a dossier."""
    return {name: canonical_digest(part) for name, part in dossier.items()}


def _signed_bytes(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding, which the signature covers."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
