"""Bounding where each record has one owner: each owner keeps the first *b* records in an order.

What belongs here: the choice of records in SQL, and the hold-out share of owners. What does not: records with several
owners (`multi_owner`), and the check of the result (`output`).

Stability (Ponomareva et al. 2026, section 7.2; add-or-remove and zero-out adjacency): the choice of an owner's records
depends on the key and on these records alone, so adding or removing an owner changes at most *b* rows of the result,
all of that owner. Exclusion, hold-out and canaries come before the choice and apply to whole owners.

The order is that of SHA-256(key || record id), or of a declared column and then that; see `order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.bounding.copies import RECORD_SQL, copy_sql, count_records
from dpsynth_platform.bounding.order import RANDOM, Order
from dpsynth_platform.bounding.output import (
    BoundingReport,
    check_bound,
    check_fictional_owners,
    check_written,
    included_canaries,
    output_schema,
    register_owners,
)
from dpsynth_platform.compute.engine import Engine, quoted
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.foundation.storage import read_table, table_schema
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, Fingerprints, distinct_owners

# The two parameters are the key (hex) and b.
_BOUND_SQL = """
WITH united AS (
    SELECT {columns}, _owner, _record FROM scrubbed WHERE _owner IN (SELECT _owner FROM participants)
    UNION ALL
    SELECT {columns}, _owner, _record FROM canaries
),
numbered AS (
    SELECT *, {copy} FROM united
),
identified AS (
    SELECT {columns}, _owner, {record} FROM numbered
),
ranked AS (
    SELECT *, row_number() OVER (PARTITION BY _owner ORDER BY {weight}sha2(? || _record, 256), _record) AS _rank
    FROM identified
)
SELECT {columns}, _owner, _record, _rank FROM ranked WHERE _rank <= ?
"""
_ORDERED_SQL = "SELECT {columns}, _owner, _record FROM bounded ORDER BY _owner, _rank"


def write_bounded(
    scrubbed: Path,
    target: Path,
    *,
    engine: Engine,
    columns: Sequence[str],
    participants: Fingerprints,
    max_contributions: int,
    key: bytes,
    canaries: pa.Table | None = None,
    order: Order = RANDOM,
) -> BoundingReport:
    """Bounds the Delta table `scrubbed` into the new Delta table `target`, and checks the written table.

    The result holds `columns`, `_owner` and `_record`, of the types that the scrubbed table has, ordered by owner and
    by the owner's order: the same inputs give the same rows, up to 65,536 of them also in the same order (a Delta
    table keeps none between batches).

    Args:
        engine: an open engine; its tables `record_ids`, `scrubbed`, `canaries`, `participants` and `bounded` are used.
        columns: the modelled columns.
        participants: owners that may take part: excluded and held-out owners are not among them. Shape (owners,).
        max_contributions: b.
        key: the secret that orders records.
        canaries: rows of fictional owners with `columns`, `_owner`, `_record` and `included`; those not included
            stay out.
        order: of an owner's records.

    Raises:
        BoundingError: a column is missing, a canary bears a participant's fingerprint, the order is not one of these
            columns, or an owner in the result has more than b records or is no participant.
        EngineError: the SQL engine stopped.
    """
    check_bound(max_contributions)
    schema = output_schema(table_schema(scrubbed), columns)
    sql = _choice_sql(schema, columns, order)
    included = included_canaries(canaries, schema)
    canary_owners = distinct_owners(included.to_batches())
    check_fictional_owners(canary_owners, participants)
    rows_before, repeated_keys = count_records(engine, scrubbed)
    engine.register_delta("scrubbed", scrubbed, columns=schema.names)
    engine.register("canaries", included)
    register_owners(engine, "participants", participants)
    engine.materialize("bounded", sql, [key.hex(), max_contributions])
    names = ", ".join(map(quoted, columns))
    rows = engine.write_delta(target, schema, _ORDERED_SQL.format(columns=names))
    written = (batch.column(OWNER_COLUMN) for batch in read_table(target, columns=[OWNER_COLUMN]))
    counted = check_written(written, participants, canary_owners, max_contributions)
    return BoundingReport(
        rows_before=rows_before,
        repeated_keys=repeated_keys,
        rows=rows,
        owners=counted.owners,
        canary_rows=counted.canary_rows,
        max_contributions=max_contributions,
    )


def _choice_sql(schema: pa.Schema, columns: Sequence[str], order: Order) -> str:
    if order.name == "fewest-owners-first":
        raise BoundingError(f"order {order}: each record has one owner; accepted: random, weight:COLUMN")
    weight = "" if order == RANDOM else f"{order.weight_sql(schema)} DESC NULLS LAST, "
    names = ", ".join(map(quoted, columns))
    return _BOUND_SQL.format(columns=names, copy=copy_sql(columns), record=RECORD_SQL, weight=weight)
