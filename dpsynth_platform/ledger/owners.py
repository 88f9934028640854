"""Participants: sets of owners' fingerprints, their commitments, and who among them can still be charged.

What belongs here: set arithmetic on fingerprints in NumPy. What does not: the database, and how fingerprints are made
(`scrub`). Everything here is restricted: no function logs, prints or raises anything that depends on the owners.

A set of participants is a sorted array of distinct 16-byte fingerprints, dtype `S16` (`scrub.fingerprints`). NumPy
drops trailing zero bytes when it hands out a single element of this type; nothing here asks for one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpsynth_platform.errors import LedgerError
from dpsynth_platform.ledger.filter import Cost, within

FINGERPRINT_BYTES = 16
Participants: TypeAlias = NDArray[np.bytes_]

_DTYPE = np.dtype(f"S{FINGERPRINT_BYTES}")


def check_participants(participants: Participants) -> Participants:
    """Passes on what is a sorted array of distinct fingerprints.

    Raises:
        LedgerError: it is not.
    """
    if participants.dtype != _DTYPE or participants.ndim != 1 or np.any(participants[:-1] >= participants[1:]):
        raise LedgerError("participants must be a sorted array of distinct 16-byte fingerprints (dtype S16)")
    return participants


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
    history: Sequence[tuple[Participants, Cost]],
    cost: Cost,
    limits: Sequence[float],
) -> NDArray[np.bool_]:
    """For each participant, whether its own history and `cost` together stay under the cap.

    Individual filters (Feldman & Zrnic 2021, section 5): valid if whoever does not fit is left out silently. Owners
    with the same history form a class, and sums are taken once a class.

    Args:
        participants: whom the new entry would cost.
        history: for each earlier entry its participants and its cost (`RenyiFilter.cost`).
        cost: the new entry's cost.
        limits: the account's (`RenyiFilter.limits`).
    """
    if len(participants) == 0:
        return np.zeros(0, dtype=bool)
    packed = np.zeros((len(participants), len(history) // 8 + 1), dtype=np.uint8)
    for index, (members, _) in enumerate(history):
        packed[:, index // 8] |= contained(participants, members).astype(np.uint8) << np.uint8(index % 8)
    classes, class_of = np.unique(packed, axis=0, return_inverse=True)
    took_part = np.unpackbits(classes, axis=1, bitorder="little")[:, : len(history)].astype(np.float64)
    costs = np.array([spent for _, spent in history], dtype=np.float64).reshape(len(history), len(cost))
    return within(took_part @ costs + np.asarray(cost), limits)[class_of.reshape(-1)]
