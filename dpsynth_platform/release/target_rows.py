"""The rows of a published release, for comparing a target's with them, whatever their order.

What belongs here: rows as plain values. What does not: files (`target_files`).
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.release.target_files import SignedRelease

if TYPE_CHECKING:
    import pyarrow as pa

_MODULUS = 1 << 256


def signed_rows(release: SignedRelease) -> Iterator[tuple[Any, ...]]:
    """The rows of a release, each with its period and id, as a target's table has them."""
    for row in rows_of(read_table(release.data())):
        yield (*row, release.period, release.release_id)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """Rows as plain values."""
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def digest_of_rows(rows: Iterable[tuple[Any, ...]]) -> tuple[int, int]:
    """Number and sum of hashes, whatever the order."""
    count = total = 0
    for row in rows:
        count += 1
        plain = repr(tuple(value.astimezone(dt.UTC) if _zoned(value) else value for value in row))
        total += int.from_bytes(hashlib.sha256(plain.encode()).digest())
    return count, total % _MODULUS


def _zoned(value: Any) -> bool:
    return isinstance(value, dt.datetime) and value.tzinfo is not None
