"""What bounding leaves behind, whoever the owners: the table's schema, the canaries in it, the check, the report.

What belongs here: what bounding with one owner a record and with several share, around the choice. What does not: the
choice (`single_owner`, `multi_owner`). The check knows nothing of the SQL that chose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.scrub.fingerprints import (
    OWNER_COLUMN,
    RECORD_COLUMN,
    Fingerprints,
    fingerprint_hex,
    fingerprints_from_hex,
)

INCLUDED_COLUMN = "included"
# As Python's texts, owners take three times the memory that they take in Arrow: only so many at a time are.
_PART_OWNERS = 100_000


@dataclass(frozen=True)
class BoundingReport:
    """What bounding did, in exact numbers: for the operator's eyes, never for a public place.

    Attributes:
        rows_before: rows of the scrubbed table.
        repeated_keys: those among them whose source key another record of the same owners has already; they stay, and
            count towards the bound (`copies`).
        rows: rows kept, canaries included.
        owners: owners that keep at least one row, canaries not counted.
        canary_rows: rows of included canaries among the rows kept.
        max_contributions: the bound b, checked on what was written.
    """

    rows_before: int
    repeated_keys: int
    rows: int
    owners: int
    canary_rows: int
    max_contributions: int


@dataclass(frozen=True)
class Counted:
    """What was found in a bounded table: people who keep a record, and records of canaries."""

    owners: int
    canary_rows: int


def check_bound(max_contributions: int) -> None:
    """Refuses a bound below 1. Raises `BoundingError`."""
    if max_contributions < 1:
        raise BoundingError(f"max_contributions: {max_contributions}; accepted: 1 or more")


def output_schema(scrubbed: pa.Schema, columns: Sequence[str], owner_column: str = OWNER_COLUMN) -> pa.Schema:
    """`columns`, owners and record id, of the scrubbed table's types. Raises `BoundingError` if one is missing."""
    wanted = [*columns, owner_column, RECORD_COLUMN]
    missing = [name for name in wanted if name not in scrubbed.names]
    if missing:
        raise BoundingError(f"the scrubbed table has no column {', '.join(missing)}; materialize it again")
    return pa.schema([pa.field(name, scrubbed.field(name).type) for name in wanted])


def included_canaries(canaries: pa.Table | None, schema: pa.Schema) -> pa.Table:
    """The canaries whose coin says so, with the columns and types of the scrubbed rows.

    Raises:
        BoundingError: they have other columns or types.
    """
    if canaries is None:
        return schema.empty_table()
    missing = [name for name in (*schema.names, INCLUDED_COLUMN) if name not in canaries.column_names]
    if missing:
        raise BoundingError(f"the canaries have no column {', '.join(missing)}; materialize them again")
    try:
        return canaries.filter(canaries[INCLUDED_COLUMN]).select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        problem = "the canaries' types are not those of the scrubbed table; materialize them again"
    raise BoundingError(problem)


def check_strangers(bait: Fingerprints, participants: Fingerprints) -> None:
    """Refuses canaries that bear a participant's fingerprint. Raises `BoundingError`."""
    if np.isin(bait, participants).any():
        raise BoundingError("a canary bears the fingerprint of a participant; materialize the canaries again")


def register_owners(engine: Engine, name: str, owners: Fingerprints) -> None:
    """Makes a set of owners readable as the table `name`, in hex."""
    parts = (owners[start : start + _PART_OWNERS] for start in range(0, len(owners), _PART_OWNERS))
    texts = pa.chunked_array([pa.array(fingerprint_hex(part), pa.string()) for part in parts], pa.string())
    engine.register(name, pa.table({OWNER_COLUMN: texts}))


def row_count(engine: Engine, table: str) -> int:
    """Number of rows of an engine's table. Raises `EngineError`."""
    return int(engine.scalar(f"SELECT count(*) AS number FROM {table}"))  # noqa: S608 - names of our own


def check_written(
    owners: Iterable[pa.Array], participants: Fingerprints, bait: Fingerprints, max_contributions: int
) -> Counted:
    """Counts the records of each owner in what was written.

    Args:
        owners: arrays of fingerprints in hex, one entry for each owner of each record.
        participants: who may take part. Shape (owners,).
        bait: the included canaries. Shape (owners,).
        max_contributions: b.

    Raises:
        BoundingError: an owner has more than b records, or takes part unasked, or cannot be read.
    """
    allowed = np.unique(np.concatenate([participants, bait]))
    records = np.zeros(allowed.size, dtype=np.int64)
    for part in owners:
        if not len(part):
            continue
        found = _fingerprints(part)
        places = np.searchsorted(allowed, found)
        if not allowed.size or np.any(allowed[np.minimum(places, allowed.size - 1)] != found):
            raise BoundingError("the bounded table holds an owner who is no participant; nothing may use it")
        records += np.bincount(places, minlength=allowed.size)
    if records.max(initial=0) > max_contributions:
        raise BoundingError(f"an owner has more than {max_contributions} records after bounding; nothing may use them")
    is_bait = np.isin(allowed, bait)
    return Counted(
        owners=int(np.count_nonzero(records[~is_bait])),
        canary_rows=int(records[is_bait].sum()),
    )


def _fingerprints(column: pa.Array) -> Fingerprints:
    try:
        return fingerprints_from_hex(column.to_pylist())
    except (TypeError, ValueError):
        problem = "the bounded table holds a record without a readable owner; nothing may use it"
    raise BoundingError(problem)
