"""Bounding where records have several owners: a record stays only if each of its owners has room for it.

What belongs here: making the bounded table of the scrubbed one. What does not: the choice between records (`rounds`),
records with one owner (`single_owner`), the check of the result (`output`).

Stability: only under the adjacency `fixed-graph`. Neighbours then have the same records, owners and order, so the same
records are kept. An additional owner, in contrast, takes up room on shared records and so changes the records that
others keep, through the whole graph. Everything else that decides is therefore part of the graph and not protected: the
columns that make the record ids, and a weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    row_count,
)
from dpsynth_platform.bounding.rounds import bound_edges
from dpsynth_platform.compute.engine import Engine, quoted
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.foundation.storage import read_table, table_schema
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, OWNERS_COLUMN, Fingerprints, distinct_owners

# Copies of a record are numbered in the order of owners, then of weights, then of contents. So contents decide only
# between records of the same owners and weight, which the choice treats alike: contents of one person change no place
# in the order, and so no record of others. Engines write NULL in a list in different case, hence `lower`.
_BEFORE_CONTENTS = ("lower(CAST(_owners AS STRING))", "_weight")
_IDENTIFIED_SQL = """
WITH united AS (
    SELECT {columns}, _record, _owners, {weight} AS _weight FROM scrubbed
    UNION ALL
    SELECT {columns}, _record, _owners, NULL AS _weight FROM canaries
),
numbered AS (
    SELECT *, {copy} FROM united
)
SELECT {columns}, _weight, _owners AS _listed, {record} FROM numbered
"""
_LISTED_SQL = "SELECT _record, _weight, explode(_listed) AS _owner FROM identified"
_EDGES_SQL = (
    "SELECT _record, _owner, max(_weight) AS _weight FROM listed WHERE _owner IS NOT NULL GROUP BY _record, _owner"
)
_EXCLUDED_SQL = """
SELECT DISTINCT e._record FROM edges e LEFT JOIN participants p ON p._owner = e._owner WHERE p._owner IS NULL
"""
_CLEARED_SQL = """
SELECT e._record, e._owner, e._weight FROM edges e LEFT JOIN excluded x ON x._record = e._record WHERE x._record IS NULL
"""
_KEPT_SQL = """
SELECT e._record, array_sort(array_agg(e._owner)) AS _owners
FROM edges e LEFT JOIN dropped d ON d._record = e._record WHERE d._record IS NULL GROUP BY e._record
"""
_WRITTEN_SQL = """
SELECT {columns}, k._owners, i._record FROM identified i JOIN kept k ON k._record = i._record ORDER BY i._record
"""


@dataclass(frozen=True)
class MultiOwnerReport(BoundingReport):
    """The result of bounding where records have several owners; for operators only.

    Attributes:
        rows_excluded: rows removed because one of their owners does not take part.
        rows_without_owner: rows removed because they have no owner.
        null_owners: nulls in lists of owners.
        repeated_owners: repetitions in lists of owners.
        rounds: rounds in SQL.
    """

    rows_excluded: int
    rows_without_owner: int
    null_owners: int
    repeated_owners: int
    rounds: int


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
) -> MultiOwnerReport:
    """Bounds the Delta table `scrubbed`, whose records have lists of owners, into the new Delta table `target`.

    The result holds `columns`, `_owners` (sorted, distinct, not empty) and `_record`, of the types that the scrubbed
    table has, ordered by record id. A record with an owner who does not take part is removed as a whole, and so is one
    without an owner. The written table is checked independently of the SQL that chose.

    Args:
        engine: an open engine without tables.
        columns: the modelled columns.
        participants: owners that may take part: excluded and held-out owners are not among them. Shape (owners,).
        max_contributions: b.
        key: the secret that orders records.
        canaries: rows of fictional owners with `columns`, `_owner` (one each), `_record` and `included`; those not
            included stay out.
        order: which records come first. A weight is a column of the scrubbed table, preferably none of `columns`: it
            is part of the fixed graph and not protected. Canaries have none; no record competes with theirs.

    Raises:
        BoundingError: a column or the weight is missing, a canary bears a participant's fingerprint, or an owner in the
            result has more than b records or is no participant.
        EngineError: the SQL engine stopped.
    """
    check_bound(max_contributions)
    found_schema = table_schema(scrubbed)
    schema = output_schema(found_schema, columns, OWNERS_COLUMN)
    weight = order.weight_sql(found_schema) if order.name == "weight" else "CAST(0 AS INTEGER)"
    included = _with_owners(canaries, schema)
    canary_owners = distinct_owners(included.to_batches())
    check_fictional_owners(canary_owners, participants)
    rows_before, repeated_keys = count_records(engine, scrubbed)
    read = [*schema.names, *({order.column} - set(schema.names) if order.column else ())]
    engine.register_delta("scrubbed", scrubbed, columns=read)
    engine.register("canaries", included.drop_columns([OWNER_COLUMN]))
    register_owners(engine, "participants", np.concatenate([participants, canary_owners]))
    names = ", ".join(map(quoted, columns))
    copy = copy_sql(columns, before=_BEFORE_CONTENTS)
    identified = _IDENTIFIED_SQL.format(columns=names, copy=copy, record=RECORD_SQL, weight=weight)
    engine.materialize("identified", identified)
    found = _cleared_edges(engine)
    rounds = bound_edges(engine, "edges", "dropped", max_contributions=max_contributions, key=key, order=order)
    engine.materialize("kept", _KEPT_SQL)
    qualified = ", ".join(f"i.{quoted(name)}" for name in columns)
    rows = engine.write_delta(target, schema, _WRITTEN_SQL.format(columns=qualified))
    counted = check_written(_written_owners(target), participants, canary_owners, max_contributions)
    return MultiOwnerReport(
        rows_before=rows_before,
        repeated_keys=repeated_keys,
        rows=rows,
        owners=counted.owners,
        canary_rows=counted.canary_rows,
        max_contributions=max_contributions,
        rounds=rounds.rounds,
        **found,
    )


def _cleared_edges(engine: Engine) -> dict[str, int]:
    """Makes the table `edges` of the records that may take part, and counts the others."""
    engine.materialize("listed", _LISTED_SQL)
    engine.materialize("edges", _EDGES_SQL)
    engine.materialize("excluded", _EXCLUDED_SQL)
    listed, pairs = row_count(engine, "listed"), row_count(engine, "edges")
    nulls = int(engine.scalar("SELECT count(*) AS number FROM listed WHERE _owner IS NULL"))
    owned = int(engine.scalar("SELECT count(DISTINCT _record) AS number FROM edges"))
    engine.drop("listed")
    engine.materialize("edges", _CLEARED_SQL)
    return {
        "rows_excluded": row_count(engine, "excluded"),
        "rows_without_owner": row_count(engine, "identified") - owned,
        "null_owners": nulls,
        "repeated_owners": listed - nulls - pairs,
    }


def _with_owners(canaries: pa.Table | None, schema: pa.Schema) -> pa.Table:
    """The included canaries with their owner as a value and as a list."""
    single = pa.schema(
        [pa.field(OWNER_COLUMN, pa.string()), *(field for field in schema if field.name != OWNERS_COLUMN)]
    )
    included = included_canaries(canaries, single)
    owners = included[OWNER_COLUMN].combine_chunks()
    lists = pa.ListArray.from_arrays(np.arange(len(owners) + 1, dtype=np.int32), owners)
    return included.append_column(OWNERS_COLUMN, lists.cast(schema.field(OWNERS_COLUMN).type))


def _written_owners(table: Path) -> Iterator[pa.Array]:
    for batch in read_table(table, columns=[OWNERS_COLUMN]):
        lists = batch.column(OWNERS_COLUMN)
        if lists.null_count or pc.min(pc.list_value_length(lists)).as_py() == 0:
            raise BoundingError("the bounded table holds a record without an owner; nothing may use it")
        yield lists.flatten()
