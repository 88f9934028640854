"""Parallel rounds: which records with several owners stay, so that no owner has more than *b* of them.

What belongs here: the choice in SQL, from ownerships alone. What does not: reading ownerships and using the choice
(`multi_owner`, `evaluation`), the sequential reference (`greedy`), an upper bound (`optimum`).

The rounds (Cohen-Addad et al. 2025): every owner with room left proposes its first remaining records, as many as it has
room for; a record is kept if all its owners propose it; a record that is not kept is dropped once one of its owners has
no room left. All owners propose in the same order of the records. The result is then exactly that of the sequential
greedy (Ganesh et al. 2025) in this order:

- An owner that proposed a record proposes it again in each round until it is decided: for each record that is kept
  after it, the owner had one more place. So an owner without room has all b kept records before any dropped one.
- Hence, by induction over the order, the rounds keep a record if and only if none of its owners has b kept records
  before it, which is the greedy's rule.

The first remaining record is first for all its owners, so each round decides at least one and the rounds end. Two rules
reduce their number without changing the result. An owner with room for all its remaining records never drops one, so it
proposes no more; a record without proposing owners is kept. And the greedy decides the rest in process if few
ownerships are left, or after many rounds (orders that are long chains).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

from dpsynth_platform.bounding.greedy import greedy
from dpsynth_platform.bounding.order import RANDOM, Order
from dpsynth_platform.bounding.output import check_bound, row_count
from dpsynth_platform.compute.engine import Engine

FINISH_EDGES = 100_000
"""The greedy decides at most so many ownerships in process, in a tenth of a second; a round in SQL takes as long."""
MAX_ROUNDS = 100
"""Random orders need few rounds (logarithmically many: Fischer & Noever 2018 for b = 1)."""

# Undecided owners and records get numbers, which take half the memory and are faster to compare. A number is the place
# in the order of a hash; the hash's first two digits make parts that are numbered in parallel.
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


@dataclass(frozen=True)
class Rounds:
    """The number of rounds in SQL, and of ownerships that the greedy decided in process afterwards."""

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
    """Chooses records to drop, so that no owner has more than b of the others.

    The choice is that of the sequential greedy in the given order, independent of the input's files and row order. Uses
    engine tables with names that begin with `bound_`.

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
    left = row_count(engine, "bound_open")
    while left > FINISH_EDGES and rounds < MAX_ROUNDS:
        _round(engine, by, f"bound_dropped_{rounds}")
        rounds += 1
        left = row_count(engine, "bound_open")
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


# Each order's rank of a record, and an ORDER BY without ties.
_RANKS = {
    "random": ("CAST(0 AS INTEGER) AS _rank", "_place"),
    "fewest-owners-first": ("count(*) AS _rank", "_rank, _place"),
    "weight": ("max(e._weight) AS _rank", "_rank DESC NULLS LAST, _place"),
}


def _number(engine: Engine, table: str, name: str, number: str, sql: str, parameters: Sequence[str | int]) -> None:
    """Makes `table` from a query with `name` and `_hash`: the names, their numbers, and a `_rank` of records."""
    engine.materialize(table, sql, parameters)
    columns = "_record, _rank" if name == "_record" else name
    engine.materialize(table, _NUMBER_SQL.format(table=table, columns=columns, name=name, number=number))


def _round(engine: Engine, by: str, dropped: str) -> None:
    """One round: keeps records that all their owners propose, and drops those with an owner without room."""
    engine.materialize("bound_chosen", _CHOSEN_SQL.format(order=by))
    engine.materialize("bound_used", _USED_SQL)
    engine.materialize(dropped, _DROPPED_SQL)
    engine.materialize("bound_open", _LEFT_SQL.format(dropped=dropped))
    engine.drop("bound_chosen")
    engine.drop("bound_used")


def _finish(engine: Engine, by: str) -> pa.Table:
    """Places of the undecided records that the greedy drops."""
    room: dict[int, int] = {}
    dropped = []
    for place, edges in groupby(_open_edges(engine, by), key=itemgetter(0)):
        owners = []
        for _, who, left in edges:
            room.setdefault(who, left)
            owners.append(who)
        (kept,) = greedy([owners], room)
        if not kept:
            dropped.append(place)
    return pa.table({"_place": pa.array(dropped, pa.int64())})


def _open_edges(engine: Engine, by: str) -> Iterator[tuple[int, int, int]]:
    """The undecided edges in the order of records: place, owner's number, owner's room after the rounds."""
    for batch in engine.stream(f"SELECT _place, _who, _room FROM bound_open ORDER BY {by}"):  # noqa: S608
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
