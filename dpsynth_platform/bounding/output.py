"""The results of bounding: the table's schema, its canaries, the check of the written table, and the report.

What belongs here: what bounding of records with one owner and with several owners share. What does not: the choice
(`single_owner`, `multi_owner`). The check is independent of the SQL that chose.
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
    OwnerRefused,
    distinct,
    hex_column,
    record_counts,
)

INCLUDED_COLUMN = "included"
_PART_OWNERS = 1_000_000


@dataclass(frozen=True)
class BoundingReport:
    """The result of bounding in exact numbers: for operators only, never public.

    Attributes:
        rows_before: rows of the scrubbed table.
        repeated_keys: rows whose source key an earlier record of the same owners has; they stay, and count towards
            the bound (`copies`).
        rows: rows kept, canaries included.
        owners: owners that keep at least one row, without canaries.
        canary_rows: kept rows of included canaries.
        max_contributions: the bound b, checked on the written table.
    """

    rows_before: int
    repeated_keys: int
    rows: int
    owners: int
    canary_rows: int
    max_contributions: int


@dataclass(frozen=True)
class Counted:
    """Contents of a bounded table: owners without canaries, and records of canaries."""

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
    """The included canaries, with the columns and types of the scrubbed rows.

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


def check_fictional_owners(canary_owners: Fingerprints, participants: Fingerprints) -> None:
    """Refuses canaries that bear a participant's fingerprint. Raises `BoundingError`."""
    if np.isin(canary_owners, participants).any():
        raise BoundingError("a canary bears the fingerprint of a participant; materialize the canaries again")


def register_owners(engine: Engine, name: str, owners: Fingerprints) -> None:
    """Registers a set of owners as the table `name`, in hex."""
    parts = (owners[start : start + _PART_OWNERS] for start in range(0, len(owners), _PART_OWNERS))
    texts = pa.chunked_array([hex_column(part) for part in parts], pa.string())
    engine.register(name, pa.table({OWNER_COLUMN: texts}))


def row_count(engine: Engine, table: str) -> int:
    """Number of rows of an engine's table. Raises `EngineError`."""
    return int(engine.scalar(f"SELECT count(*) AS number FROM {table}"))  # noqa: S608 - names of our own


def check_written(
    owners: Iterable[pa.Array], participants: Fingerprints, canary_owners: Fingerprints, max_contributions: int
) -> Counted:
    """Counts the records of each owner in the written table.

    Args:
        owners: arrays of fingerprints in hex, one entry for each owner of each record.
        participants: fingerprints of shape (owners,).
        canary_owners: of the included canaries. Shape (owners,).
        max_contributions: b.

    Raises:
        BoundingError: an owner has more than b records, is no participant, or cannot be read.
    """
    allowed = distinct(np.concatenate([participants, canary_owners]))
    problem = ""
    try:
        records = record_counts(allowed, owners)
    except OwnerRefused as refused:
        problem = str(refused)
    if problem:
        raise BoundingError(f"the bounded table holds {problem}; nothing may use it")
    if records.max(initial=0) > max_contributions:
        raise BoundingError(f"an owner has more than {max_contributions} records after bounding; nothing may use them")
    is_canary = np.isin(allowed, canary_owners)
    return Counted(
        owners=int(np.count_nonzero(records[~is_canary])),
        canary_rows=int(records[is_canary].sum()),
    )
