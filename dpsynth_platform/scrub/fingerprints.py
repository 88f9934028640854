"""Keyed fingerprints of owners and of records.

What belongs here: the normalized text of an id, the fingerprint of an owner, the id of a record, and the forms of a set
of owners (hex text in tables, sorted 16-byte values in memory and in files). What does not: where keys are stored
(`vault`) and which records are used (`bounding`).

An owner's fingerprint is HMAC-SHA256(k2, HMAC-SHA256(k1, id)), cut to 16 bytes; k1 belongs to the identity namespace,
and both keys are needed. Two of n owners share a fingerprint with probability below n^2/2^129.

Ids are not stored, so keys are rotated by nesting: with a further key k3 a fingerprint f becomes HMAC-SHA256(k3, f),
cut to 16 bytes. Stored fingerprints are converted (`rotated`), and new ones need all keys in order, so that the earlier
keys alone can make none that is in use.

One person must be one owner, so the *text* of an id counts, not its storage type: the integer 7 and the text "7" are
the same id, "007" is another one. Texts with equal Unicode normalization (NFC) are equal. Case and surrounding spaces
count unless the contract's `owner_normalization` removes them.
"""

from __future__ import annotations

import binascii
import datetime as dt
import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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
"""Replaces `_owner` if a record may have several: a list of distinct fingerprints, sorted, never empty."""
RECORD_COLUMN = "_record"
FINGERPRINT_BYTES = 16

# Fixed width, so that numpy can sort and search. Read single elements with `fingerprint_hex`, since numpy removes their
# trailing zero bytes.
FINGERPRINT_DTYPE = np.dtype("S16")
Fingerprints = npt.NDArray[np.bytes_]
Keyed = Callable[[Iterable[bytes]], Iterator[bytes]]
"""A keyed hash, of many messages."""


class OwnerRefused(Exception):
    """The owner of a record is not among those expected, or unreadable. Its text says which, and no more."""


@dataclass(frozen=True, repr=False)
class FingerprintKeys:
    """The keys of an identity namespace (32 bytes each). Losing one freezes the accounts that depend on it.

    `inner` (k1) is used first and never rotated; `outer` are at least one, in the order of their use.
    """

    inner: bytes
    outer: tuple[bytes, ...]

    @cached_property
    def hashes(self) -> tuple[Keyed, ...]:
        """The keyed hashes, in the order of their use."""
        return tuple(map(keyed, (self.inner, *self.outer)))


def keyed(key: bytes) -> Keyed:
    """HMAC-SHA256 (RFC 2104) of many messages under one key; `hmac.digest` takes four times as long."""
    padded = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    begun = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded)).copy
    ended = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded)).copy

    def digests(messages: Iterable[bytes]) -> Iterator[bytes]:
        for message in messages:
            inner, outer = begun(), ended()
            inner.update(message)
            outer.update(inner.digest())
            yield outer.digest()

    return digests


def holdout_mask(fingerprints: Fingerprints, key: bytes, share: float) -> npt.NDArray[np.bool_]:
    """The owners that are held out from the mechanism for the quality report: about `share` of them.

    Each owner's membership is a function of the key and that owner alone: the first 64 bits of SHA-256(key || "holdout"
    || fingerprint), as a fraction, lie below `share`.
    """
    threshold = int(share * 2.0**64)
    width = fingerprints.dtype.itemsize
    raw = np.ascontiguousarray(fingerprints).tobytes()
    keyed = hashlib.sha256(key + b"holdout")

    def place(start: int) -> int:
        digest = keyed.copy()
        digest.update(raw[start : start + width])
        return int.from_bytes(digest.digest()[:8], "big")

    return np.fromiter((place(start) < threshold for start in range(0, len(raw), width)), np.bool_, len(fingerprints))


def canonical_text(value: Any, normalization: Sequence[str] = ()) -> str | None:
    """The normalized text of an id (an integer, text or date), or None for null or an empty text.

    `normalization` are `trim` and `casefold` in the contract's order.
    """
    if value is None:
        return None
    text = value.isoformat() if isinstance(value, dt.date) else str(value)
    for step in normalization:
        text = text.strip() if step == "trim" else unicodedata.normalize("NFC", text).casefold()
    return unicodedata.normalize("NFC", text) or None


def canonical_texts(column: pa.Array, normalization: Sequence[str] = ()) -> list[str | None]:
    """The `canonical_text` of each id in a column."""
    if not normalization and (pa.types.is_integer(column.type) or _is_ascii(column)):
        return [text or None for text in column.cast(pa.string()).to_pylist()]
    return [canonical_text(value, normalization) for value in column.to_pylist()]


def _is_ascii(column: pa.Array) -> bool:
    texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return texts and bool(pc.all(pc.string_is_ascii(column)).as_py())


def owner_fingerprint(text: str, keys: FingerprintKeys) -> str:
    """The fingerprint (32 hex characters) of an owner's canonical text."""
    return str(owner_fingerprints([text], keys)[0])


def owner_fingerprints(texts: Sequence[str | None], keys: FingerprintKeys) -> pa.Array:
    """The fingerprints of owners' canonical texts as a column of hex texts; null for null."""
    first, *others = keys.hashes
    found = first((text or "").encode("utf-8", "surrogatepass") for text in texts)
    for under_key in others:
        found = _cut(under_key(found))
    column = hex_column(_joined(found))
    if None not in texts:
        return column
    return pc.if_else(pa.array([text is not None for text in texts]), column, pa.scalar(None, pa.string()))


def _cut(digests: Iterable[bytes]) -> Iterator[bytes]:
    return (digest[:FINGERPRINT_BYTES] for digest in digests)


def _joined(values: Iterable[bytes]) -> Fingerprints:
    return np.frombuffer(b"".join(values), FINGERPRINT_DTYPE)


def rotated(fingerprints: Fingerprints, key: bytes) -> Fingerprints:
    """The owners' fingerprints (shape (owners,), dtype `S16`) with one more outer key, in the given order.

    The result is not sorted. A million fingerprints take about two seconds.
    """
    under_key, width = keyed(key), FINGERPRINT_BYTES
    raw = np.ascontiguousarray(fingerprints, FINGERPRINT_DTYPE).tobytes()
    return _joined(_cut(under_key(raw[start : start + width] for start in range(0, len(raw), width))))


def record_ids(owners: Iterable[str], key_values: Sequence[Iterable[str | None]], under_key: Keyed) -> pa.Array:
    """The ids of records (a column of 32 hex characters), from their owners' fingerprints and their other key columns.

    An id depends on no position and on no other owner's data, so that adding an owner changes no other owner's records.
    Records with the same key columns share the id; `bounding` distinguishes them within their owner.

    Args:
        owners: of each record, their fingerprints in hex, joined by commas.
        key_values: the texts of each other key column.
        under_key: the hash under the key of records.
    """
    # Lengths make the joined text unambiguous: ("ab", "c") and ("a", "bc") differ, null and "" differ.
    parts = (("-" if value is None else f"{len(value)}:{value}" for value in column) for column in key_values)
    messages = map("|".join, zip(owners, *parts, strict=True))
    ids = under_key(message.encode("utf-8", "surrogatepass") for message in messages)
    return hex_column(_joined(_cut(ids)))


def owner_column(schema: pa.Schema) -> str:
    """The owner column of a scrubbed or bounded table, or of canaries."""
    return OWNERS_COLUMN if OWNERS_COLUMN in schema.names else OWNER_COLUMN


def flat_owners(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """All owners in an owner column, record by record."""
    return pc.list_flatten(column) if pa.types.is_list(column.type) else column


def distinct_owners(batches: Iterable[pa.RecordBatch]) -> Fingerprints:
    """All owners of the batches: sorted, distinct, shape (owners,), dtype `S16`."""
    parts = [distinct(fingerprints_of(batch.column(owner_column(batch.schema)))) for batch in batches]
    return distinct(np.concatenate(parts)) if parts else np.empty(0, FINGERPRINT_DTYPE)


def distinct(fingerprints: Fingerprints) -> Fingerprints:
    """The same fingerprints sorted, each once; six times as fast as `np.unique`, which hashes texts."""
    found = np.sort(fingerprints)
    first = np.ones(found.size, np.bool_)
    first[1:] = found[1:] != found[:-1]
    return found[first]


def fingerprints_of(column: pa.Array | pa.ChunkedArray) -> Fingerprints:
    """The fingerprints in an owner column, record by record. Raises `ValueError` for other values and for null."""
    texts = flat_owners(column)
    texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    width = 2 * FINGERPRINT_BYTES
    if texts.null_count or pc.any(pc.not_equal(pc.binary_length(texts), width)).as_py():
        raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes")
    stored = texts.cast(pa.binary()).cast(pa.binary(width))
    raw = binascii.unhexlify(stored.buffers()[1][width * stored.offset : width * (stored.offset + len(stored))])
    return np.frombuffer(raw, FINGERPRINT_DTYPE)


def record_counts(owners: Fingerprints, columns: Iterable[pa.Array]) -> npt.NDArray[np.int64]:
    """Records of each owner, shape (owners,), in owner columns.

    Args:
        owners: sorted, distinct.

    Raises:
        OwnerRefused: a record has another owner, or no readable one.
    """
    counts = np.zeros(owners.size, dtype=np.int64)
    for column in columns:
        try:
            found = np.sort(fingerprints_of(column))  # neighbours are found faster
        except (TypeError, ValueError):
            found = None
        if found is None:
            raise OwnerRefused("a record without a readable owner")
        if not found.size:
            continue
        places = np.searchsorted(owners, found)
        if not owners.size or np.any(owners[np.minimum(places, owners.size - 1)] != found):
            raise OwnerRefused("an owner who is no participant")
        counts += np.bincount(places, minlength=owners.size)
    return counts


def fingerprints_from_hex(texts: Iterable[str]) -> Fingerprints:
    """Fingerprints as fixed-width bytes, in the given order. Raises `ValueError` for other texts."""
    return fingerprints_of(pa.array(list(texts), pa.string()))


def hex_column(fingerprints: Fingerprints) -> pa.Array:
    """Fingerprints as a column of texts of 32 hex characters, in the given order."""
    texts = binascii.hexlify(np.ascontiguousarray(fingerprints).tobytes())
    offsets = np.arange(0, len(texts) + 1, 2 * FINGERPRINT_BYTES, dtype=np.int32)
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(texts))


def fingerprint_hex(fingerprints: Fingerprints) -> list[str]:
    """Fingerprints as 32 hex characters each, in the given order."""
    text = np.ascontiguousarray(fingerprints).tobytes().hex()
    width = 2 * FINGERPRINT_BYTES
    return [text[start : start + width] for start in range(0, len(text), width)]


def write_fingerprints(path: Path, fingerprints: Fingerprints) -> None:
    """Writes a set of fingerprints atomically with mode 0600: distinct, sorted, 16 bytes each."""
    write_durably(path, distinct(np.asarray(fingerprints, FINGERPRINT_DTYPE)).tobytes())


def read_fingerprints(path: Path) -> Fingerprints:
    """Reads a file of `write_fingerprints`. Raises `StaleInput` if it is missing or not in that format."""
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
