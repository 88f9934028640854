"""Ed25519 signatures, and the public keys that check them.

What belongs here: signing, checking, and naming a public key. What does not: storage of private keys (the vault), and
what is signed (`release.attestation`, the ledger's export). A signature is the 64 raw bytes of RFC 8032.
"""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from dpsynth_platform.foundation.errors import VerificationFailed

RAW_BYTES = 32


def sign(key: Ed25519PrivateKey, content: bytes) -> bytes:
    """An Ed25519 signature, 64 bytes."""
    return key.sign(content)


def is_valid(key: Ed25519PublicKey, content: bytes, signature: bytes) -> bool:
    """Whether the signature is valid for the content."""
    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def public_pem(key: Ed25519PublicKey) -> bytes:
    """The public key as PEM text."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_public_key(content: bytes) -> Ed25519PublicKey:
    """A public key from PEM text, or from its 32 raw bytes.

    Raises:
        VerificationFailed: it is neither.
    """
    if len(content) == RAW_BYTES:
        return Ed25519PublicKey.from_public_bytes(content)
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise VerificationFailed("the public key is not an Ed25519 key in PEM form")
    return key


def fingerprint(key: Ed25519PublicKey) -> str:
    """SHA-256 (hex) of the key's 32 raw bytes, to be compared over another channel."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()
