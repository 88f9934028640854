"""Bounding where each record has one owner: each owner keeps the *b* records that come first in a keyed random order.

What belongs here: the choice of records in SQL, the check of its result, and the hold-out share of owners. What does
not: records with several owners.

Stability (Ponomareva et al. 2026, section 7; add-or-remove and zero-out adjacency): which of an owner's records are
kept depends on the key and on that owner's records alone, so one owner more or less changes at most *b* rows of the
result, and nobody else's. Exclusion, hold-out and canaries come before the choice and work by whole owners.

The order is that of SHA-256(key || record id), which every engine computes alike; the key is a bound parameter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.compute.duckdb_engine import DuckDBEngine
from dpsynth_platform.errors import BoundingError
from dpsynth_platform.scrub.fingerprints import (
    OWNER_COLUMN,
    RECORD_COLUMN,
    Fingerprints,
    distinct_owners,
    fingerprint_hex,
    fingerprints_from_hex,
)
from dpsynth_platform.storage import read_table, table_schema, write_table

INCLUDED_COLUMN = "included"

# Double quotes name identifiers; on Spark that takes `spark.sql.ansi.doubleQuotedIdentifiers`. The two parameters are
# the key (hex) and b. Records of one owner that share an id are told apart by a running number in the order of their
# contents; where even those are equal it does not matter which is which.
_BOUND_SQL = """
CREATE TEMPORARY TABLE bounded AS
WITH united AS (
    SELECT {columns}, _owner, _record FROM scrubbed WHERE _owner IN (SELECT _owner FROM participants)
    UNION ALL
    SELECT {columns}, _owner, _record FROM canaries
),
numbered AS (
    SELECT *, row_number() OVER (PARTITION BY _owner, _record ORDER BY {content}) AS _copy FROM united
),
identified AS (
    SELECT {columns}, _owner,
        CASE WHEN _copy = 1 THEN _record
             ELSE substr(sha2(_record || ':' || CAST(_copy AS VARCHAR), 256), 1, 32) END AS _record
    FROM numbered
),
ranked AS (
    SELECT *, row_number() OVER (PARTITION BY _owner ORDER BY sha2(? || _record, 256), _record) AS _rank FROM identified
)
SELECT {columns}, _owner, _record, _rank FROM ranked WHERE _rank <= ?
"""
_ORDERED_SQL = "SELECT {columns}, _owner, _record FROM bounded ORDER BY _owner, _rank"


@dataclass(frozen=True)
class BoundingReport:
    """What bounding did, in exact numbers: for the operator's eyes, never for a public place.

    Attributes:
        rows_before: rows of the scrubbed table.
        rows: rows kept, canaries included.
        owners: owners that keep at least one row, canaries not counted.
        canary_rows: rows of included canaries among the rows kept.
        max_contributions: the bound b, checked on what was written.
    """

    rows_before: int
    rows: int
    owners: int
    canary_rows: int
    max_contributions: int


def holdout_mask(fingerprints: Fingerprints, key: bytes, share: float) -> npt.NDArray[np.bool_]:
    """Which owners are held out from the mechanism, as tests of quality need it: about `share` of them.

    Each owner's place is a function of the key and that owner alone: the first 64 bits of SHA-256(key || "holdout" ||
    fingerprint), as a fraction, lie below `share`.
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


def write_bounded(
    scrubbed: Path,
    target: Path,
    *,
    columns: Sequence[str],
    participants: Fingerprints,
    max_contributions: int,
    key: bytes,
    spill: Path,
    canaries: pa.Table | None = None,
    memory_limit: str = "2GB",
    threads: int | None = None,
) -> BoundingReport:
    """Bounds the Delta table `scrubbed` into the new Delta table `target`, and checks what was written.

    The result holds `columns`, `_owner` and `_record`, of the types that the scrubbed table has, ordered by owner and
    by the owner's keyed order: the same inputs give the same rows, up to 65,536 of them also in the same order (a Delta
    table keeps none between batches).

    Args:
        columns: the modelled columns.
        participants: owners that may take part: excluded and held-out owners are not among them. Shape (owners,).
        max_contributions: b.
        key: the secret that orders records.
        spill: directory of the restricted zone for the engine's temporary files.
        canaries: rows of fictional owners with `columns`, `_owner`, `_record` and `included`; those not included
            stay out.
        memory_limit, threads: limits of the SQL engine, see `DuckDBEngine`.

    Raises:
        BoundingError: a column is missing, a canary bears a participant's fingerprint, or an owner in the result has
            more than b records or takes part unasked.
        EngineError: the SQL engine stopped.
    """
    if max_contributions < 1:
        raise BoundingError(f"max_contributions: {max_contributions}; accepted: 1 or more")
    schema = _output_schema(table_schema(scrubbed), columns)
    bait = _included(canaries, schema)
    bait_owners = distinct_owners(bait.to_batches())
    if np.isin(bait_owners, participants).any():
        raise BoundingError("a canary bears the fingerprint of a participant; materialize the canaries again")
    with DuckDBEngine(spill, memory_limit=memory_limit, threads=threads) as engine:
        engine.register_delta("scrubbed", scrubbed)
        engine.register("canaries", bait)
        engine.register("participants", pa.table({OWNER_COLUMN: pa.array(fingerprint_hex(participants), pa.string())}))
        rows_before = int(engine.scalar("SELECT count(*) FROM scrubbed"))
        write_table(target, schema, _bounded_rows(engine, schema, columns, max_contributions, key))
    return _check(target, participants, bait_owners, max_contributions, rows_before)


def _bounded_rows(
    engine: DuckDBEngine, schema: pa.Schema, columns: Sequence[str], max_contributions: int, key: bytes
) -> Iterator[pa.RecordBatch]:
    """Makes the choice at once, so that its errors show before anything is written, and streams it in order."""
    names = ", ".join(_quoted(name) for name in columns)
    content = ", ".join(f"{_quoted(name)} NULLS FIRST" for name in columns)
    engine.execute(_BOUND_SQL.format(columns=names, content=content), [key.hex(), max_contributions])
    return (batch.cast(schema) for batch in engine.stream(_ORDERED_SQL.format(columns=names)))


def _check(
    bounded: Path, participants: Fingerprints, bait_owners: Fingerprints, max_contributions: int, rows_before: int
) -> BoundingReport:
    """Counts what was written, apart from the SQL that chose it."""
    parts = [
        fingerprints_from_hex(batch.column(OWNER_COLUMN).to_pylist())
        for batch in read_table(bounded, columns=[OWNER_COLUMN])
    ]
    rows = np.concatenate(parts) if parts else fingerprints_from_hex([])
    owners, counts = np.unique(rows, return_counts=True)
    is_bait = np.isin(owners, bait_owners)
    if counts.max(initial=0) > max_contributions:
        raise BoundingError(f"an owner has more than {max_contributions} records after bounding; nothing may use them")
    if not np.isin(owners[~is_bait], participants).all():
        raise BoundingError("the bounded table holds an owner who is no participant; nothing may use it")
    return BoundingReport(
        rows_before=rows_before,
        rows=len(rows),
        owners=int((~is_bait).sum()),
        canary_rows=int(counts[is_bait].sum()),
        max_contributions=max_contributions,
    )


def _output_schema(scrubbed: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    wanted = [*columns, OWNER_COLUMN, RECORD_COLUMN]
    missing = [name for name in wanted if name not in scrubbed.names]
    if missing:
        raise BoundingError(f"the scrubbed table has no column {', '.join(missing)}; materialize it again")
    return pa.schema([pa.field(name, scrubbed.field(name).type) for name in wanted])


def _included(canaries: pa.Table | None, schema: pa.Schema) -> pa.Table:
    """The canaries whose coin says so, with the columns and types of the scrubbed rows."""
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


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
