"""Bounding where records have several owners: a record stays only if each of its owners still has room for it.

What belongs here: the parallel rounds in SQL, and the bounded table that they make. What does not: records with one
owner (`single_owner`), the sequential reference (`greedy`), the best possible (`optimum`).

The rounds (Cohen-Addad et al. 2025): every owner with room left proposes its first remaining records, as many as it has
room for; a record is kept when all its owners propose it; the others' records leave once an owner of theirs has no room
left. All owners propose by one order of the records, and then the result is exactly that of the sequential greedy
(Ganesh et al. 2025) in this order:

- A record that an owner proposes once is proposed by that owner until it is decided: for each record that is kept
  behind it the owner had a place to spare. So an owner who runs out of room has all b kept records before any that it
  drops.
- Hence, going through the order: a record is kept by the rounds if and only if none of its owners has b kept records
  before it, which is the greedy's rule.

The first remaining record is first for all its owners, so each round decides at least one and the rounds end. Two
things keep them few, and change nothing of the result. An owner with room for all its remaining records never drops
one, so it is not asked any more; a record that nobody is asked about is kept. And the greedy finishes in process what
few ownerships are left, or whatever is left after many rounds (orders that are long chains).

Stability: only under the adjacency `fixed-graph`. Records, owners and order are then the same for neighbours, so the
records that are kept are the same too. One owner more, in contrast, takes up room on shared records and so changes what
others keep, on and on through the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.bounding.greedy import greedy
from dpsynth_platform.bounding.order import RANDOM, Order, quoted
from dpsynth_platform.bounding.written import (
    BoundingReport,
    check_bound,
    check_strangers,
    check_written,
    included_canaries,
    output_schema,
    register_owners,
)
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.errors import BoundingError
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, Fingerprints, distinct_owners
from dpsynth_platform.storage import read_table, table_schema

OWNERS_COLUMN = "_owners"
WEIGHT_COLUMN = "_weight"

FINISH_EDGES = 100_000
"""So many ownerships the greedy decides in process, in a tenth of a second; a round in SQL takes as long or longer."""
MAX_ROUNDS = 100
"""Random orders need a few rounds only (their number grows with the logarithm: Fischer & Noever 2018 for b = 1)."""

# Owners and records that anything has to be decided about get numbers: half the memory, and faster to compare. Each
# number is the place in the order of a hash; the hash's first two digits make parts that are numbered side by side.
_NUMBER_SQL = """
WITH parts AS (SELECT substr(_hash, 1, 2) AS _part, count(*) AS _size FROM {table} GROUP BY substr(_hash, 1, 2)),
offsets AS (SELECT _part, CAST(sum(_size) OVER (ORDER BY _part) - _size AS BIGINT) AS _before FROM parts)
SELECT {columns}, _before + row_number() OVER (PARTITION BY _part ORDER BY _hash, {name}) AS {number}
FROM {table} JOIN offsets ON _part = substr(_hash, 1, 2)
"""
_BUSY_SQL = """
SELECT _owner, sha2(_owner, 256) AS _hash FROM {edges} GROUP BY _owner HAVING count(*) > ?
"""
_CONTESTED_SQL = """
SELECT e._record, {rank}, sha2(? || e._record, 256) AS _hash
FROM {edges} e LEFT JOIN bound_owners o ON o._owner = e._owner
GROUP BY e._record HAVING count(o._owner) > 0
"""
_OPEN_SQL = """
SELECT r._place, o._who, r._rank, CAST(? AS INTEGER) AS _room
FROM {edges} e JOIN bound_owners o ON o._owner = e._owner JOIN bound_records r ON r._record = e._record
"""
_CHOSEN_SQL = """
WITH proposed AS (
    SELECT _place, _room - row_number() OVER (PARTITION BY _who ORDER BY {order}) AS _to_spare FROM bound_open
)
SELECT _place FROM proposed GROUP BY _place HAVING min(_to_spare) >= 0
"""
_USED_SQL = """
SELECT o._who, count(*) AS _used FROM bound_open o JOIN bound_chosen c ON c._place = o._place GROUP BY o._who
"""
_DROPPED_SQL = """
SELECT DISTINCT o._place
FROM bound_open o JOIN bound_used u ON u._who = o._who LEFT JOIN bound_chosen c ON c._place = o._place
WHERE o._room = u._used AND c._place IS NULL
"""
_LEFT_SQL = """
WITH remaining AS (
    SELECT o._place, o._who, o._rank, CAST(o._room - coalesce(u._used, 0) AS INTEGER) AS _room
    FROM bound_open o
    LEFT JOIN bound_used u ON u._who = o._who
    LEFT JOIN bound_chosen c ON c._place = o._place
    LEFT JOIN {dropped} d ON d._place = o._place
    WHERE c._place IS NULL AND d._place IS NULL
),
counted AS (SELECT *, count(*) OVER (PARTITION BY _who) AS _records FROM remaining)
SELECT _place, _who, _rank, _room FROM counted WHERE _records > _room
"""

# Records that share an id are told apart by a running number in the order of their owners first and of their contents
# then, so that contents decide only between records of the very same owners. Unlike texts of lists with nulls are made
# alike by `lower`.
_IDENTIFIED_SQL = """
WITH united AS (
    SELECT {columns}, _record, _owners FROM scrubbed
    UNION ALL
    SELECT {columns}, _record, _owners FROM canaries
),
numbered AS (
    SELECT *, row_number() OVER (
        PARTITION BY _record ORDER BY lower(CAST(_owners AS STRING)) NULLS FIRST, {content}) AS _copy
    FROM united
)
SELECT {columns}, _owners AS _listed,
    CASE WHEN _copy = 1 THEN _record
         ELSE substr(sha2(_record || ':' || CAST(_copy AS STRING), 256), 1, 32) END AS _record
FROM numbered
"""
_LISTED_SQL = "SELECT _record, {weight} AS _weight, explode(_listed) AS _owner FROM identified"
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
class Rounds:
    """How the choice went: rounds in SQL, and ownerships that the greedy decided in process at the end."""

    rounds: int
    finished: int


def bound_edges(
    engine: Engine,
    edges: str,
    dropped: str,
    *,
    max_contributions: int,
    key: bytes,
    order: Order = RANDOM,
) -> Rounds:
    """Chooses the records that leave, so that no owner has more than b of those that stay.

    The choice is that of the sequential greedy in the given order, whatever the order and the files of the input. The
    engine's tables whose names begin with `bound_` are used on the way.

    Args:
        engine: an open engine.
        edges: name of a table of distinct, complete pairs `_record`, `_owner` (texts), with `order` by weight also
            `_weight`, the same on all of a record's rows.
        dropped: name of the table to make, of `_record`.
        max_contributions: b.
        key: the secret that orders records.
        order: which records come first.

    Raises:
        BoundingError: b is below 1.
        EngineError: the SQL engine stopped.
    """
    check_bound(max_contributions)
    rank, by = _RANKS[order.name]
    _number(engine, "bound_owners", "_owner", "_who", _BUSY_SQL.format(edges=edges), [max_contributions])
    contested = _CONTESTED_SQL.format(edges=edges, rank=rank)
    _number(engine, "bound_records", "_record", "_place", contested, [key.hex()])
    engine.materialize("bound_open", _OPEN_SQL.format(edges=edges), [max_contributions])
    engine.drop("bound_owners")
    rounds = 0
    left = _number_of(engine, "bound_open")
    while left > FINISH_EDGES and rounds < MAX_ROUNDS:
        _round(engine, by, f"bound_dropped_{rounds}")
        rounds += 1
        left = _number_of(engine, "bound_open")
    engine.register("bound_rest", _finish(engine, by))
    parts = [f"bound_dropped_{number}" for number in range(rounds)] + ["bound_rest"]
    union = " UNION ALL ".join(f"SELECT _place FROM {part}" for part in parts)  # noqa: S608 - names of our own
    engine.materialize(
        dropped,
        f"SELECT r._record FROM bound_records r JOIN ({union}) d ON d._place = r._place",  # noqa: S608
    )
    for name in (*parts, "bound_records", "bound_open"):
        engine.drop(name)
    return Rounds(rounds, left)


# Each order's rank of a record, and the ORDER BY that makes of it an order without ties.
_RANKS = {
    "random": ("CAST(0 AS INTEGER) AS _rank", "_place"),
    "fewest-owners-first": ("count(*) AS _rank", "_rank, _place"),
    "weight": ("max(e._weight) AS _rank", "_rank DESC NULLS LAST, _place"),
}


def _number(engine: Engine, table: str, name: str, number: str, sql: str, parameters: Sequence[str | int]) -> None:
    """Makes `table` of a query with a `name` and a `_hash`: the names, their numbers, and a `_rank` if there is one."""
    engine.materialize(table, sql, parameters)
    columns = "_record, _rank" if name == "_record" else name
    engine.materialize(table, _NUMBER_SQL.format(table=table, columns=columns, name=name, number=number))


def _round(engine: Engine, by: str, dropped: str) -> None:
    """All owners propose; what they agree on stays, what has an owner without room leaves."""
    engine.materialize("bound_chosen", _CHOSEN_SQL.format(order=by))
    engine.materialize("bound_used", _USED_SQL)
    engine.materialize(dropped, _DROPPED_SQL)
    engine.materialize("bound_open", _LEFT_SQL.format(dropped=dropped))
    engine.drop("bound_chosen")
    engine.drop("bound_used")


def _finish(engine: Engine, by: str) -> pa.Table:
    """Places of the records that the greedy drops of those that are still open."""
    room: dict[int, int] = {}
    places: list[int] = []

    def records() -> Iterator[list[int]]:
        for place, edges in groupby(_open_edges(engine, by), key=itemgetter(0)):
            owners = []
            for _, who, left in edges:
                room.setdefault(who, left)
                owners.append(who)
            places.append(place)
            yield owners

    dropped = [places[-1] for kept in greedy(records(), room) if not kept]
    return pa.table({"_place": pa.array(dropped, pa.int64())})


def _open_edges(engine: Engine, by: str) -> Iterator[tuple[int, int, int]]:
    """The open edges, record by record in their order: place, owner's number, owner's room when the rounds ended."""
    for batch in engine.stream(f"SELECT _place, _who, _room FROM bound_open ORDER BY {by}"):  # noqa: S608
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


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
    """Bounds the Delta table `scrubbed`, whose records have lists of owners, into the new Delta table `target`.

    The result holds `columns`, `_owners` (sorted, distinct, not empty) and `_record`, of the types that the scrubbed
    table has, ordered by record id. A record with an owner who takes no part leaves as a whole, and so does one without
    an owner. What was written is checked apart from the SQL that chose.

    Args:
        engine: an open engine; it must hold no tables yet.
        columns: the modelled columns.
        participants: owners that may take part: excluded and held-out owners are not among them. Shape (owners,).
        max_contributions: b.
        key: the secret that orders records.
        canaries: rows of fictional owners with `columns`, `_owner` (one each), `_record` and `included`; those not
            included stay out.
        order: which records come first. A weight counts as part of the fixed graph: it is not protected.

    Raises:
        BoundingError: a column is missing, a canary bears a participant's fingerprint, the weight is not one of these
            columns, or an owner in the result has more than b records or takes part unasked.
        EngineError: the SQL engine stopped.
    """
    check_bound(max_contributions)
    schema = output_schema(table_schema(scrubbed), columns, OWNERS_COLUMN)
    weight = order.weight_sql(schema) if order.name == "weight" else "CAST(0 AS INTEGER)"
    bait = _with_owners(canaries, schema)
    bait_owners = distinct_owners(bait.to_batches())
    check_strangers(bait_owners, participants)
    engine.register_delta("scrubbed", scrubbed)
    engine.register("canaries", bait.drop_columns([OWNER_COLUMN]))
    register_owners(engine, "participants", np.concatenate([participants, bait_owners]))
    names = ", ".join(map(quoted, columns))
    content = ", ".join(f"{quoted(name)} NULLS FIRST" for name in columns)
    engine.materialize("identified", _IDENTIFIED_SQL.format(columns=names, content=content))
    found = _cleared_edges(engine, weight)
    rounds = bound_edges(engine, "edges", "dropped", max_contributions=max_contributions, key=key, order=order)
    engine.materialize("kept", _KEPT_SQL)
    qualified = ", ".join(f"i.{quoted(name)}" for name in columns)
    rows = engine.write_delta(target, schema, _WRITTEN_SQL.format(columns=qualified))
    counted = check_written(_written_owners(target), participants, bait_owners, max_contributions)
    return BoundingReport(
        rows_before=_number_of(engine, "scrubbed"),
        rows=rows,
        owners=counted.owners,
        canary_rows=counted.canary_rows,
        max_contributions=max_contributions,
        rounds=rounds.rounds,
        **found,
    )


def _cleared_edges(engine: Engine, weight: str) -> dict[str, int]:
    """Makes the table `edges` of the records that may take part, and counts what was left out."""
    engine.materialize("listed", _LISTED_SQL.format(weight=weight))
    engine.materialize("edges", _EDGES_SQL)
    engine.materialize("excluded", _EXCLUDED_SQL)
    listed, pairs = _number_of(engine, "listed"), _number_of(engine, "edges")
    nulls = int(engine.scalar("SELECT count(*) AS number FROM listed WHERE _owner IS NULL"))
    owned = int(engine.scalar("SELECT count(DISTINCT _record) AS number FROM edges"))
    engine.drop("listed")
    engine.materialize("edges", _CLEARED_SQL)
    return {
        "rows_excluded": _number_of(engine, "excluded"),
        "rows_without_owner": _number_of(engine, "identified") - owned,
        "null_owners": nulls,
        "repeated_owners": listed - nulls - pairs,
    }


def _number_of(engine: Engine, table: str) -> int:
    return int(engine.scalar(f"SELECT count(*) AS number FROM {table}"))  # noqa: S608 - names of our own


def _with_owners(canaries: pa.Table | None, schema: pa.Schema) -> pa.Table:
    """The included canaries with their owner both by itself and as a list."""
    single = pa.schema(
        [pa.field(OWNER_COLUMN, pa.string()), *(field for field in schema if field.name != OWNERS_COLUMN)]
    )
    bait = included_canaries(canaries, single)
    owners = bait[OWNER_COLUMN].combine_chunks()
    lists = pa.ListArray.from_arrays(np.arange(len(owners) + 1, dtype=np.int32), owners)
    return bait.append_column(OWNERS_COLUMN, lists.cast(schema.field(OWNERS_COLUMN).type))


def _written_owners(table: Path) -> Iterator[pa.Array]:
    for batch in read_table(table, columns=[OWNERS_COLUMN]):
        lists = batch.column(OWNERS_COLUMN)
        if lists.null_count or pc.min(pc.list_value_length(lists)).as_py() == 0:
            raise BoundingError("the bounded table holds a record without an owner; nothing may use it")
        yield lists.flatten()
