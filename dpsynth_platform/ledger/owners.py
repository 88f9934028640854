"""Participants: sets of owners' fingerprints, their commitments, and who among them can still be charged.

What belongs here: set arithmetic on fingerprints in NumPy. What does not: the database, and how fingerprints are made
(`scrub`). Everything here is restricted: no function logs, prints or raises anything that depends on the owners.

A set of participants is a sorted array of distinct 16-byte fingerprints, dtype `S16`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpsynth_platform.errors import LedgerError

FINGERPRINT_BYTES = 16
Participants: TypeAlias = NDArray[np.bytes_]

_DTYPE = np.dtype(f"S{FINGERPRINT_BYTES}")
_ROUND_UP = 1 + 1e-11


def participants_from_hex(fingerprints: Iterable[str]) -> Participants:
    """The set of fingerprints given as 32 hex digits each, in any order and with repetitions.

    Raises:
        LedgerError: one of them is not 32 hex digits.
    """
    try:
        raw = bytes.fromhex("".join(fingerprints))
        texts_fit = len(raw) % FINGERPRINT_BYTES == 0
    except (ValueError, TypeError):
        texts_fit = False
    if not texts_fit:
        raise LedgerError("a fingerprint is not 32 hex digits")
    return np.unique(np.frombuffer(raw, dtype=_DTYPE))


def participants_to_hex(participants: Participants) -> list[str]:
    """The fingerprints as 32 hex digits each, in order (NumPy itself would drop trailing zero bytes)."""
    text = check_participants(participants).tobytes().hex()
    width = 2 * FINGERPRINT_BYTES
    return [text[start : start + width] for start in range(0, len(text), width)]


def check_participants(participants: Participants) -> Participants:
    """Passes on what is a sorted array of distinct fingerprints.

    Raises:
        LedgerError: it is not.
    """
    if participants.dtype != _DTYPE or participants.ndim != 1 or np.any(participants[:-1] >= participants[1:]):
        raise LedgerError("participants must be a sorted array of distinct 16-byte fingerprints (dtype S16)")
    return participants


def participants_digest(participants: Participants) -> str:
    """SHA-256 (hex) of the set. A function of the data: for the restricted zone only."""
    return hashlib.sha256(check_participants(participants).tobytes()).hexdigest()


def commitment(nonce: bytes, participants: Participants) -> str:
    """SHA-256 (hex) of a secret 256-bit nonce and the set: binds to the set and tells nothing of it, not its size."""
    return hashlib.sha256(nonce + check_participants(participants).tobytes()).hexdigest()


def to_blob(participants: Participants) -> bytes:
    """The set as bytes, 16 an owner."""
    return check_participants(participants).tobytes()


def from_blob(blob: bytes) -> Participants:
    """Reads `to_blob`. Raises `LedgerError` if the bytes are no such set."""
    if len(blob) % FINGERPRINT_BYTES:
        raise LedgerError("the stored participants are damaged")
    return check_participants(np.frombuffer(blob, dtype=_DTYPE))


def contained(participants: Participants, others: Participants) -> NDArray[np.bool_]:
    """For each participant, whether it is among the others (both sorted)."""
    if len(others) == 0:
        return np.zeros(len(participants), dtype=bool)
    place = np.minimum(np.searchsorted(others, participants), len(others) - 1)
    found: NDArray[np.bool_] = others[place] == participants
    return found


def affordable(
    participants: Participants,
    history: Sequence[tuple[Participants, Sequence[float]]],
    cost: Sequence[float],
    limits: Sequence[float],
) -> NDArray[np.bool_]:
    """For each participant, whether its own history and `cost` together stay within the limit of some order.

    Individual filters (Feldman & Zrnic 2021, section 5): valid if whoever does not fit is left out silently. Owners
    with the same history form a class, and sums are taken once a class.

    Args:
        participants: whom the new entry would cost.
        history: for each earlier entry its participants and its cost at each sealed order.
        cost: the new entry's cost at each sealed order, shape (orders,).
        limits: the account's limit at each sealed order, shape (orders,).
    """
    packed = np.zeros((len(participants), len(history) // 8 + 1), dtype=np.uint8)
    for index, (members, _) in enumerate(history):
        packed[:, index // 8] |= contained(participants, members).astype(np.uint8) << np.uint8(index % 8)
    if len(participants) == 0:
        return np.zeros(0, dtype=bool)
    classes, of_owner = np.unique(packed, axis=0, return_inverse=True)
    bits = np.unpackbits(classes, axis=1, bitorder="little")[:, : len(history)].astype(np.float64)
    costs = np.array([spent for _, spent in history], dtype=np.float64).reshape(len(history), len(cost))
    sums = (bits @ costs + np.asarray(cost)) * _ROUND_UP
    fits: NDArray[np.bool_] = (sums <= np.asarray(limits)).any(axis=1)
    return fits[of_owner.reshape(-1)]
