"""Masks under which vectors travel to the aggregator, and which cancel in their sum.

What belongs here: the pads of Bonawitz et al. 2017 (section 4), from keys to numbers modulo 2^bits. What does not: how
keys are exchanged and vouched for, and how those of participants that drop out are shared and recovered.

Each pair of participants agrees on a secret (X25519), which HKDF-SHA256 turns into a key of AES-256 in counter mode;
one adds the stream, the other subtracts it. A participant's own pad, from 32 bytes of its own, protects its vector also
where the pairs' secrets are recovered because it was taken for dropped out. A party that lacks one of the secrets of a
vector sees numbers that it cannot distinguish from uniform ones.

A pad hides one vector. So `context` names the plan's digest and a round that is never repeated.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpsynth_platform.federation.sums import Coded
from dpsynth_platform.foundation.errors import AccountingError

SECRET_BYTES = 32


def pair_mask(private: X25519PrivateKey, other: X25519PublicKey, context: bytes, length: int, bits: int) -> Coded:
    """What this participant adds for one other one; both add up to 0 modulo 2^bits. Shape (length,).

    The smaller public key adds the stream. Both keys are part of the derivation, so that no other pair has its pad.

    Raises:
        AccountingError: the other's key is the own one.
        ValueError: the other's key is of small order, and its secret therefore known to all (RFC 7748, section 6.1).
    """
    own, theirs = private.public_key().public_bytes_raw(), other.public_bytes_raw()
    if own == theirs:
        raise AccountingError("a participant's key is that of another; accepted: keys that differ")
    pad = _pad(private.exchange(other), b"pair", context, min(own, theirs) + max(own, theirs), length, bits)
    return pad if own < theirs else (~pad + np.uint64(1)) & np.uint64(2**bits - 1)


def own_mask(secret: bytes, context: bytes, length: int, bits: int) -> Coded:
    """What this participant adds by itself, and the aggregator takes off once it is known to have finished.

    Args:
        secret: 32 fresh bytes, for one round.

    Raises:
        AccountingError: a secret of another length.
    """
    if len(secret) != SECRET_BYTES:
        raise AccountingError(f"a secret of {len(secret)} bytes; accepted: {SECRET_BYTES}")
    return _pad(secret, b"own", context, b"", length, bits)


def _pad(secret: bytes, kind: bytes, context: bytes, keys: bytes, length: int, bits: int) -> Coded:
    # Lengths go first, so that no two sets of parts are written alike.
    info = b"".join(len(part).to_bytes(4, "big") + part for part in (b"dpsynth-mask-1", kind, context, keys))
    key = HKDF(SHA256(), SECRET_BYTES, salt=None, info=info).derive(secret)
    words = np.zeros(length, dtype="<u8")
    place = words.view(np.uint8).data
    Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update_into(place, place)
    return words.astype(np.uint64) & np.uint64(2**bits - 1)
