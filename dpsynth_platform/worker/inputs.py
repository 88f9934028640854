"""The worker's checks before the mechanism may read: the one-time claim, and the owners of the input's records.

What belongs here: the claim, and the check of owners against the files of fingerprints. What does not: the grant's
signature (`ledger.grants`) and the order of the checks (`run`). Fingerprints are restricted; no message contains one.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import BoundingError, GrantRefused, StaleInput
from dpsynth_platform.foundation.storage import read_table, sync, table_schema
from dpsynth_platform.ledger.grants import Grant
from dpsynth_platform.scrub.fingerprints import (
    OWNER_COLUMN,
    OWNERS_COLUMN,
    Fingerprints,
    OwnerRefused,
    owner_column,
    record_counts,
)

CLAIM_FILE = "claim.json"
NO_CANARIES = canonical_digest([])
"""The digest of canaries in the claim of a model that was trained without canaries."""


class AlreadyClaimed(GrantRefused):
    """A worker already started in this model directory."""

    code = "claimed"


def claim(model: Path, grant: Grant) -> None:
    """Claims the model directory, atomically and durably, before the first record is read.

    The claim names the grant's entry, plan, canaries and data. The model's content hash, which the ledger stores,
    covers it, so that none of them can be exchanged afterwards.

    Raises:
        AlreadyClaimed: another worker claimed it.
    """
    claim_of(model, **_content(grant))


def claim_of(model: Path, *, entry: str, plan: str, canaries: str, data: str) -> None:
    """As `claim`, of what these digests and ids name; without `data` where no row is read here."""
    content = {"entry": entry, "plan": plan, "canaries": canaries, "data": data}
    try:
        descriptor = os.open(model / CLAIM_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise AlreadyClaimed("the grant was used before; a new attempt requires --spend-again") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content | {"at": dt.datetime.now(dt.UTC).isoformat()}, file)
        file.flush()
        os.fsync(file.fileno())
    sync(model)


def reclaim(model: Path, grant: Grant) -> None:
    """Checks that a worker may continue an interrupted one: with the same entry, plan, canaries and data.

    Raises:
        GrantRefused: the directory was not claimed, or for something else.
    """
    content = _read_claim(model)
    if not content:
        raise GrantRefused("the model directory has no readable claim; there is nothing to continue")
    if not _content(grant).items() <= content.items():
        raise GrantRefused("the model directory was claimed for another entry, plan, canaries or data")


def _content(grant: Grant) -> dict[str, str]:
    return {
        "entry": grant.entry_id,
        "plan": grant.plan_digest,
        "canaries": grant.canaries_digest,
        "data": grant.data_digest,
    }


def _read_claim(model: Path) -> dict[str, Any]:
    """The content of the claim; empty if there is no readable one."""
    try:
        content = json.loads((model / CLAIM_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def claimed_for(model: Path, *, canaries: str, data: str) -> bool:
    """Whether a model was claimed for these canaries and data, by their content hashes."""
    return {"canaries": canaries, "data": data}.items() <= _read_claim(model).items()


def claimed_canaries(model: Path) -> str:
    """Content hash of the canaries that a model was trained with, from its claim.

    Raises:
        StaleInput: the directory has no readable claim.
    """
    content = _read_claim(model)
    if "canaries" not in content:
        raise StaleInput("the model has no readable claim, so the canaries of its training are unknown")
    return str(content["canaries"])


def check_unowned(bounded: Path, allowed: Fingerprints, unit: str, bound: int) -> bool:
    """Whether a table has no owner column, as a plan whose units are rows allows; then there are no owners to check.

    Args:
        bounded: the Delta table.
        allowed: the reserved participants and the included canaries.
        unit: of the sealed plan.
        bound: b of the sealed plan.

    Raises:
        BoundingError: there is no owner column, but the plan or the participants require one.
    """
    if {OWNER_COLUMN, OWNERS_COLUMN} & set(table_schema(bounded).names):
        return False
    if unit != "example" or bound != 1 or allowed.size:
        raise BoundingError("the bounded data has no owners, but the plan's units are not single rows")
    return True


def check_owners(bounded: Path, allowed: Fingerprints, bound: int) -> None:
    """Checks that every owner of every record is allowed and that none has more than `bound` records.

    Args:
        bounded: Delta table with the column `_owner` (32 hex digits) or `_owners` (lists of them).
        allowed: the reserved participants and the included canaries, sorted.
        bound: b of the sealed plan.

    Raises:
        BoundingError: an owner is missing, unreadable, not allowed, or has too many records.
    """
    owners, problem = owner_column(table_schema(bounded)), ""
    try:
        records = record_counts(allowed, (_owned(batch.column(0)) for batch in read_table(bounded, columns=[owners])))
    except OwnerRefused as refused:
        problem = str(refused)
    if not problem and records.max(initial=0) > bound:
        problem = f"an owner with more than {bound} records"
    if problem:
        raise BoundingError(f"the bounded data holds {problem}")


def _owned(column: pa.Array) -> pa.Array:
    """The same column. Raises `OwnerRefused` if a record has no list of owners, or an empty one."""
    lengths = pc.list_value_length(column) if pa.types.is_list(column.type) else None
    if lengths is not None and (lengths.null_count or not pc.all(pc.greater(lengths, 0)).as_py()):
        raise OwnerRefused("a record without a readable owner")
    return column
