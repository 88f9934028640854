"""How many records of a table each contribution bound keeps, so that a person can choose one.

What belongs here: running the choice on a table's ownerships for several bounds, and counting. What does not: reading
tables (`ownership`), showing (`bound_command`), learning a bound with a guarantee (`quantile`).

All numbers are exact functions of the data: for operators only, never public. The guarantee does not cover a bound that
was chosen by these numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpsynth_platform.bounding.optimum import Codes, UpperBound, refusal, upper_bound
from dpsynth_platform.bounding.order import Order
from dpsynth_platform.bounding.output import check_bound, row_count
from dpsynth_platform.bounding.ownership import WEIGHT_COLUMN, Listed, write_ownership
from dpsynth_platform.bounding.rounds import bound_edges
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.sources.files import FileTable

KEY = bytes(32)
"""Fixed and public, so that evaluations are reproducible. The asset line orders records by a secret key."""

_PAIRS = pa.schema([("_record", pa.string()), ("_owner", pa.string())])

_EDGES_SQL = """
SELECT CAST(_record AS STRING) AS _record, _owner, max({weight}) AS _weight FROM listed GROUP BY _record, _owner
"""
_BUSY_SQL = """
SELECT e._record, e._owner
FROM edges e JOIN (SELECT _owner FROM edges GROUP BY _owner HAVING count(*) > ?) b ON b._owner = e._owner
"""
_MOST_SQL = """
SELECT max(_records) AS number FROM (SELECT count(*) AS _records FROM edges GROUP BY _owner) counted
"""
_ABOVE_SQL = """
WITH kept AS (
    SELECT e._owner FROM edges e LEFT JOIN dropped d ON d._record = e._record WHERE d._record IS NULL
),
above AS (SELECT _owner FROM kept GROUP BY _owner HAVING count(*) > ?)
SELECT count(*) AS number FROM above
"""


@dataclass(frozen=True)
class BoundEvaluation:
    """The records that one bound keeps.

    Attributes:
        max_contributions: the bound b.
        kept: records that stay.
        kept_share: of the records that have an owner.
        owners_above: owners with more than b of the records that stay: must be 0.
        rounds: rounds in SQL.
        finished: ownerships that were decided in process after the rounds.
        seconds: wall time of the choice.
        upper_bound: no choice keeps more records; None if unknown, with `upper_bound_reason`.
    """

    max_contributions: int
    kept: int
    kept_share: float
    owners_above: int
    rounds: int
    finished: int
    seconds: float
    upper_bound: int | None = None
    upper_bound_share: float | None = None
    upper_bound_reason: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """Facts of a table's ownerships, and the records that each bound keeps.

    Attributes:
        records: rows of the table.
        records_without_owner: rows without an owner; no bound keeps them.
        null_owners: owners that are null or empty.
        repeated_owners: repetitions of an owner on the same record.
        owners: distinct owners.
        edges: distinct ownerships.
        most_records: the largest number of records of an owner.
        reading_seconds: wall time of reading the table and its ownerships.
        peak_memory_bytes: of this process (Spark's own are not included), before the linear program.
    """

    records: int
    records_without_owner: int
    null_owners: int
    repeated_owners: int
    owners: int
    edges: int
    most_records: int
    order: str
    reading_seconds: float
    peak_memory_bytes: int
    bounds: tuple[BoundEvaluation, ...]


def evaluate(
    table: FileTable,
    owner_columns: Sequence[str],
    *,
    engine: Engine,
    workspace: Path,
    contributions: Sequence[int],
    order: Order,
    separate: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> Evaluation:
    """Applies each of several bounds to a table's ownerships; writes no table of records.

    Args:
        table: see `sources.tables.open_table`.
        owner_columns, separate: see `ownership.write_ownership`.
        engine: an open engine without tables.
        workspace: a private directory, for a file of all ownerships; the caller removes it.
        contributions: the bounds b.
        progress: called with the next stage.

    Raises:
        SourceError: the table or its owners cannot be used.
        BoundingError: a bound is below 1, or the order is not one of the table's columns.
        EngineError: the SQL engine stopped.
    """
    for b in contributions:
        check_bound(b)
    if order.name == "weight":
        order.weight_sql(table.schema)  # refuses a column whose values have no order
    began = time.perf_counter()
    progress("reading who owns what")
    listed = _read_edges(table, owner_columns, order, separate, engine, workspace)
    reading = time.perf_counter() - began
    owned = listed.records - listed.without_owner
    edges = row_count(engine, "edges")
    bounds = []
    for b in contributions:
        progress(f"choosing records for a bound of {b}")
        bounds.append(_choose(engine, b, order, owned))
    peak = peak_memory()
    for place, bound in enumerate(bounds):
        progress(f"solving the linear program for a bound of {bound.max_contributions}")
        bounds[place] = _with_upper_bound(engine, bound, owned)
    return Evaluation(
        records=listed.records,
        records_without_owner=listed.without_owner,
        null_owners=listed.null_owners,
        repeated_owners=listed.pairs - edges,
        owners=int(engine.scalar("SELECT count(DISTINCT _owner) AS number FROM edges")),
        edges=edges,
        most_records=int(engine.scalar(_MOST_SQL) or 0),
        order=str(order),
        reading_seconds=reading,
        peak_memory_bytes=peak,
        bounds=tuple(bounds),
    )


def peak_memory() -> int:
    """Peak memory of this process, in bytes. That of `getrusage` may be of the parent process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _read_edges(
    table: FileTable, owner_columns: Sequence[str], order: Order, separate: bool, engine: Engine, workspace: Path
) -> Listed:
    """Makes the engine's table `edges` of distinct ownerships."""
    import pyarrow.dataset as ds

    file = workspace / "ownership.parquet"
    listed = write_ownership(table, owner_columns, order.column, file, separate=separate)
    pairs = ds.dataset(file, format="parquet")
    weight = Order("weight", WEIGHT_COLUMN).weight_sql(pairs.schema)
    engine.register("listed", pairs)
    engine.materialize("edges", _EDGES_SQL.format(weight=weight))
    engine.drop("listed")
    file.unlink()
    return listed


def _choose(engine: Engine, b: int, order: Order, owned: int) -> BoundEvaluation:
    began = time.perf_counter()
    rounds = bound_edges(engine, "edges", "dropped", max_contributions=b, key=KEY, order=order)
    seconds = time.perf_counter() - began
    kept = owned - row_count(engine, "dropped")
    return BoundEvaluation(
        max_contributions=b,
        kept=kept,
        kept_share=_share(kept, owned),
        owners_above=int(engine.scalar(_ABOVE_SQL, [b])),
        rounds=rounds.rounds,
        finished=rounds.finished,
        seconds=seconds,
    )


def _with_upper_bound(engine: Engine, bound: BoundEvaluation, owned: int) -> BoundEvaluation:
    best = _upper_bound(engine, bound.max_contributions, owned)
    share = None if best.records is None else _share(best.records, owned)
    return replace(bound, upper_bound=best.records, upper_bound_share=share, upper_bound_reason=best.reason)


def _upper_bound(engine: Engine, b: int, owned: int) -> UpperBound:
    engine.materialize("busy", _BUSY_SQL, [b])
    refused = refusal(row_count(engine, "busy"))
    if refused is not None:
        return refused
    pairs = pa.Table.from_batches(engine.stream("SELECT _record, _owner FROM busy"), schema=_PAIRS)
    engine.drop("busy")
    return upper_bound(_codes(pairs["_record"]), _codes(pairs["_owner"]), owned, b)


def _codes(names: pa.ChunkedArray) -> Codes:
    encoded = names.combine_chunks().dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def _share(records: int, of: int) -> float:
    return records / of if of else 1.0
