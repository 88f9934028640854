"""Participants: sets of owners' fingerprints and their commitments.

What belongs here: set arithmetic on fingerprints in NumPy. What does not: what owners were charged (`standing`), the
database, and how fingerprints are made (`scrub`). Everything here is restricted: no function logs, prints or raises
anything that depends on the owners.

A set of participants is a sorted array of distinct 16-byte fingerprints, dtype `S16` (`scrub.fingerprints`). NumPy
drops trailing zero bytes of a single element of this type; nothing here reads one.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpsynth_platform.foundation.errors import LedgerError

FINGERPRINT_BYTES = 16
Participants: TypeAlias = NDArray[np.bytes_]

_DTYPE = np.dtype(f"S{FINGERPRINT_BYTES}")


def check_participants(participants: Participants) -> Participants:
    """Returns its argument. Raises `LedgerError` unless it is a sorted array of distinct fingerprints."""
    if participants.dtype != _DTYPE or participants.ndim != 1 or np.any(participants[:-1] >= participants[1:]):
        raise LedgerError("participants must be a sorted array of distinct 16-byte fingerprints (dtype S16)")
    return participants


def commitment(nonce: bytes, participants: Participants) -> str:
    """SHA-256 (hex) of a secret 256-bit nonce and the set: binding, and hides the set and its size."""
    digest = hashlib.sha256(nonce)
    digest.update(np.ascontiguousarray(check_participants(participants)).view(np.uint8).data)
    return digest.hexdigest()


def to_blob(participants: Participants) -> bytes:
    """The set as bytes, 16 for each owner."""
    return check_participants(participants).tobytes()


def from_blob(blob: bytes) -> Participants:
    """Reads `to_blob`. Raises `LedgerError` if the bytes are no such set."""
    if len(blob) % FINGERPRINT_BYTES:
        raise LedgerError("the stored participants are damaged")
    return check_participants(np.frombuffer(blob, dtype=_DTYPE))


def place_of(participants: Participants, others: Participants) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each participant its place among the others (both sorted; any place if absent), and whether it is there.

    Searches the first halves as numbers, which is several times as fast as comparing bytes. Where two others share a
    first half and it found the wrong one, it compares bytes.
    """
    if len(others) == 0:
        return np.zeros(len(participants), dtype=np.int64), np.zeros(len(participants), dtype=bool)
    first_halves = _first_halves(others)
    wanted = _first_halves(participants)
    place = np.minimum(np.searchsorted(first_halves, wanted), len(others) - 1)
    found: NDArray[np.bool_] = others[place] == participants
    unsure = np.flatnonzero(~found & (first_halves[place] == wanted))
    place[unsure] = np.minimum(np.searchsorted(others, participants[unsure]), len(others) - 1)
    found[unsure] = others[place[unsure]] == participants[unsure]
    return place, found


def contained(participants: Participants, others: Participants) -> NDArray[np.bool_]:
    """For each participant, whether it is among the others (both sorted)."""
    return place_of(participants, others)[1]


def joined(some: Participants, others: Participants) -> Participants:
    """The union of two sets."""
    new = others[~contained(others, some)]
    return np.insert(some, np.searchsorted(some, new), new) if len(new) else some


def _first_halves(participants: Participants) -> NDArray[np.uint64]:
    halves: NDArray[np.uint64] = np.ascontiguousarray(participants).view(">u8")[::2].astype(np.uint64)
    return halves
