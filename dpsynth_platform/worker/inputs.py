"""What the worker checks before the mechanism may read: the claim, and whose records the input holds.

What belongs here: the one-time claim, and the check of owners against the files of fingerprints. What does not: the
grant's signature (`ledger.grants`) and the order of the checks (`run`). Fingerprints are restricted, and no message
holds one.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import BoundingError, GrantRefused, StaleInput
from dpsynth_platform.foundation.storage import read_table, sync, table_schema
from dpsynth_platform.ledger.grants import Grant
from dpsynth_platform.scrub.fingerprints import (
    FINGERPRINT_BYTES,
    OWNER_COLUMN,
    OWNERS_COLUMN,
    Fingerprints,
    flat_owners,
    owner_column,
)

CLAIM_FILE = "claim.json"
NO_CANARIES = canonical_digest([])
"""What the claim of a model says that was trained without canaries."""


class AlreadyClaimed(GrantRefused):
    """A worker started in this model directory before."""

    code = "claimed"


def claim(model: Path, grant: Grant) -> None:
    """Marks the model directory as taken, atomically and durably, before the first record is read.

    The claim names the grant's entry, plan, canaries and data. It is part of the model's content hash, which the ledger
    keeps, so that none of them can be exchanged afterwards.

    Raises:
        AlreadyClaimed: it is taken.
    """
    try:
        descriptor = os.open(model / CLAIM_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise AlreadyClaimed("the grant was used before; a new attempt needs an explicit word") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(_named(grant) | {"at": dt.datetime.now(dt.UTC).isoformat()}, file)
        file.flush()
        os.fsync(file.fileno())
    sync(model)


def reclaim(model: Path, grant: Grant) -> None:
    """Lets a worker go on where another one ended: for the same entry, plan, canaries and data, and no others.

    Raises:
        GrantRefused: the directory was not claimed, or for something else.
    """
    try:
        named = json.loads((model / CLAIM_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise GrantRefused("the model holds no readable claim; there is nothing to go on with") from None
    if not isinstance(named, dict) or not _named(grant).items() <= named.items():
        raise GrantRefused("the model was claimed for another entry, plan or data; it cannot go on with these")


def _named(grant: Grant) -> dict[str, str]:
    """What a claim says of its grant."""
    return {
        "entry": grant.entry_id,
        "plan": grant.plan_digest,
        "canaries": grant.canaries_digest,
        "data": grant.data_digest,
    }


def claimed_for(model: Path, *, canaries: str, data: str) -> bool:
    """Whether a model was claimed for these canaries and data, by their content hashes."""
    try:
        named = json.loads((model / CLAIM_FILE).read_text(encoding="utf-8"))
        return bool(named["canaries"] == canaries and named["data"] == data)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def claimed_canaries(model: Path) -> str:
    """Content hash of the canaries that a model was trained with, from its claim.

    Raises:
        StaleInput: the directory holds no readable claim.
    """
    try:
        return str(json.loads((model / CLAIM_FILE).read_text(encoding="utf-8"))["canaries"])
    except (OSError, ValueError, KeyError, TypeError):
        raise StaleInput("the model holds no readable claim; it cannot be told what it was trained with") from None


def check_unowned(bounded: Path, allowed: Fingerprints, unit: str, bound: int) -> bool:
    """Whether a table has no owners, of which each row is a unit by its sealed plan: then there is nobody to check.

    Args:
        bounded: the Delta table.
        allowed: the reserved participants and the included canaries.
        unit: of the sealed plan.
        bound: its b.

    Raises:
        BoundingError: there are no owners, and the plan or the participants say that there must be.
    """
    if {OWNER_COLUMN, OWNERS_COLUMN} & set(table_schema(bounded).names):
        return False
    if unit != "example" or bound != 1 or allowed.size:
        raise BoundingError("the bounded data has no owners, and the plan is not of rows that are units of their own")
    return True


def check_owners(bounded: Path, allowed: Fingerprints, bound: int) -> None:
    """Checks that every owner of every record is allowed and that none has more than `bound` records.

    Args:
        bounded: Delta table with the column `_owner` (32 hex digits) or `_owners` (a list of them).
        allowed: the reserved participants and the included canaries, sorted.
        bound: b of the sealed plan.

    Raises:
        BoundingError: an owner is missing, unreadable, not allowed, or has too many records.
    """
    records = np.zeros(allowed.size, dtype=np.int64)
    for batch in read_table(bounded, columns=[owner_column(table_schema(bounded))]):
        owners = owner_fingerprints(batch.column(0))
        if not owners.size:
            continue
        places = np.searchsorted(allowed, owners)
        if not allowed.size or np.any(allowed[np.minimum(places, allowed.size - 1)] != owners):
            raise BoundingError("the bounded data holds records of owners outside the reserved participants")
        records += np.bincount(places, minlength=allowed.size)
    if records.size and records.max() > bound:
        raise BoundingError(f"the bounded data holds an owner with more than {bound} records")


def owner_fingerprints(column: pa.Array) -> Fingerprints:
    """Hex digits to 16-byte fingerprints, in the records' order. Raises `BoundingError` for anything else."""
    texts = flat_owners(column).to_pylist()
    unowned = pa.types.is_list(column.type) and not pc.all(pc.greater(pc.list_value_length(column), 0)).as_py()
    if unowned or column.null_count or any(text is None or len(text) != 2 * FINGERPRINT_BYTES for text in texts):
        raise BoundingError("the bounded data holds a record without a readable owner")
    try:
        return np.frombuffer(bytes.fromhex("".join(texts)), dtype=f"S{FINGERPRINT_BYTES}")
    except ValueError:
        raise BoundingError("the bounded data holds a record without a readable owner") from None
