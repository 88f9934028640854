"""Keyed fingerprints of owners and of records.

What belongs here: the normalized text of an id, the fingerprint of an owner, the id of a record, and the forms of a set
of owners (hex text in tables, sorted 16-byte values in memory and in files). What does not: where keys are kept
(`vault`) and which records stay (`bounding`).

An owner's fingerprint is HMAC-SHA256(k2, HMAC-SHA256(k1, id)), cut to 16 bytes: k1 belongs to the identity namespace,
and whoever has only one of the two keys can make no fingerprint. Two of n owners share a fingerprint with probability
below n^2/2^129.

Ids are not kept, so keys are rotated by nesting: under a further key k3 a fingerprint f becomes HMAC-SHA256(k3, f), cut
to 16 bytes. What is stored can be carried over (`rotated`), new fingerprints need all keys in order, and whoever has
the earlier keys only can make none that is in use.

One person must be one owner, so the *text* of an id counts and not its storage type: the integer 7 and the text "7" are
the same id (an id is often a number in one source and text in another), "007" is another one. Texts that Unicode holds
equal (NFC) are equal. Case and blanks count unless the contract's `owner_normalization` says otherwise.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import write_durably

OWNER_COLUMN = "_owner"
OWNERS_COLUMN = "_owners"
"""In place of `_owner` where a record may have several: a list of distinct fingerprints, sorted, never empty."""
RECORD_COLUMN = "_record"
FINGERPRINT_BYTES = 16

# Fixed width, so that numpy can sort and search; a single element must be read through `fingerprint_hex`, since numpy
# takes trailing zero bytes off an element of this type.
FINGERPRINT_DTYPE = np.dtype("S16")
Fingerprints = npt.NDArray[np.bytes_]


@dataclass(frozen=True, repr=False)
class FingerprintKeys:
    """The keys of an identity namespace (32 bytes each). Losing one freezes the accounts that depend on it.

    Attributes:
        inner: k1, hashed with first and never rotated.
        outer: the outer keys in the order of their use, at least one; each rotation adds one.
    """

    inner: bytes
    outer: tuple[bytes, ...]


def canonical_text(value: Any, normalization: Sequence[str] = ()) -> str | None:
    """The text of an id that counts, or None where there is no id: null, or nothing left after normalization.

    Args:
        value: an integer, text, date or None.
        normalization: `trim` and `casefold`, applied in this order of the contract.
    """
    if value is None:
        return None
    text = value.isoformat() if isinstance(value, dt.date) else str(value)
    for step in normalization:
        text = text.strip() if step == "trim" else unicodedata.normalize("NFC", text).casefold()
    return unicodedata.normalize("NFC", text) or None


def owner_fingerprint(text: str, keys: FingerprintKeys) -> str:
    """The fingerprint (32 hex characters) of an owner's canonical text."""
    value = hmac.digest(keys.inner, text.encode("utf-8", "surrogatepass"), hashlib.sha256)
    for key in keys.outer:
        value = hmac.digest(key, value, hashlib.sha256)[:FINGERPRINT_BYTES]
    return value.hex()


def rotated(fingerprints: Fingerprints, key: bytes) -> Fingerprints:
    """The same owners' fingerprints under one more outer key, in the given order (not sorted any more).

    About a second for a million of them.

    Args:
        fingerprints: whole fingerprints, shape (owners,), dtype `S16`.
        key: the new outer key, which follows those that the fingerprints were made with.
    """
    keyed = hmac.new(key, digestmod=hashlib.sha256)
    raw = np.ascontiguousarray(fingerprints, FINGERPRINT_DTYPE).tobytes()

    def under_key(start: int) -> bytes:
        digest = keyed.copy()
        digest.update(raw[start : start + FINGERPRINT_BYTES])
        return digest.digest()[:FINGERPRINT_BYTES]

    return np.fromiter(map(under_key, range(0, len(raw), FINGERPRINT_BYTES)), FINGERPRINT_DTYPE, len(fingerprints))


def record_id(owner: str, key_values: Sequence[str | None], key: bytes) -> str:
    """The id (32 hex characters) of a record, from its owner's fingerprint and its other key columns only.

    It depends on no position and on no other owner's data, so that one owner more or less changes no other owner's
    records. Records that share all key columns share the id; `bounding` tells them apart inside their owner.

    Args:
        key_values: canonical texts of the contract's key columns that are not owner columns, in the declared order.
    """
    # Lengths make the joined text unambiguous: ("ab", "c") and ("a", "bc") differ, null and "" differ.
    parts = [owner] + ["-" if value is None else f"{len(value)}:{value}" for value in key_values]
    message = "|".join(parts).encode("utf-8", "surrogatepass")
    return hmac.digest(key, message, hashlib.sha256)[:FINGERPRINT_BYTES].hex()


def owner_column(schema: pa.Schema) -> str:
    """Which column of a scrubbed or bounded table, or of canaries, holds the owners."""
    return OWNERS_COLUMN if OWNERS_COLUMN in schema.names else OWNER_COLUMN


def flat_owners(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Every owner of every record of an owner column, record by record."""
    return pc.list_flatten(column) if pa.types.is_list(column.type) else column


def distinct_owners(batches: Iterable[pa.RecordBatch]) -> Fingerprints:
    """All owners of the batches: sorted, distinct, shape (owners,), dtype `S16`."""
    parts = [
        np.unique(fingerprints_from_hex(flat_owners(batch.column(owner_column(batch.schema))).to_pylist()))
        for batch in batches
    ]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, FINGERPRINT_DTYPE)


def fingerprints_from_hex(texts: Iterable[str]) -> Fingerprints:
    """Fingerprints as fixed-width bytes, in the given order. Raises `ValueError` for text that is no fingerprint."""
    raw = [bytes.fromhex(text) for text in texts]
    if any(len(value) != FINGERPRINT_BYTES for value in raw):
        raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes")
    return np.frombuffer(b"".join(raw), FINGERPRINT_DTYPE)


def fingerprint_hex(fingerprints: Fingerprints) -> list[str]:
    """Fingerprints as 32 hex characters each, in the given order."""
    text = np.ascontiguousarray(fingerprints).tobytes().hex()
    width = 2 * FINGERPRINT_BYTES
    return [text[start : start + width] for start in range(0, len(text), width)]


def write_fingerprints(path: Path, fingerprints: Fingerprints) -> None:
    """Writes a set of fingerprints: distinct, sorted, 16 bytes each, nothing between. Mode 0600, atomic."""
    write_durably(path, np.unique(np.asarray(fingerprints, FINGERPRINT_DTYPE)).tobytes())


def read_fingerprints(path: Path) -> Fingerprints:
    """Reads `write_fingerprints` back: sorted, distinct. Raises `StaleInput` if the file is not of that form."""
    try:
        content = path.read_bytes()
    except OSError:
        raise StaleInput("a file of fingerprints is missing; materialize scrubbed again") from None
    if len(content) % FINGERPRINT_BYTES:
        raise StaleInput("a file of fingerprints is damaged; materialize scrubbed again")
    found: Fingerprints = np.frombuffer(content, FINGERPRINT_DTYPE)
    if np.any(found[1:] <= found[:-1]):
        raise StaleInput("a file of fingerprints is not sorted; materialize scrubbed again")
    return found
