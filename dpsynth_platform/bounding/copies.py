"""Records that share an id: what tells them apart, and how many there are.

What belongs here: a number for each of the records that the source's key does not tell apart, in SQL, and counting
them. What does not: ids themselves (`scrub.fingerprints.record_id`) and which records stay.

A key that does not identify records is a fault of the contract or of the source, and has one outcome: all of the
records stay, each counts towards the bound like any other, and their number is reported. None is merged or taken for a
mistake, since a guess which of two records is right would be a choice that looks at the data.

An id comes from a record's owners and its other key columns only, so records share one only with records of the very
same owners. Which number a copy gets depends on these records alone: one owner more or less changes nobody else's ids.
Where two copies are equal in all that orders them it does not matter which is which.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpsynth_platform.bounding.order import quoted
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.scrub.fingerprints import RECORD_COLUMN

RECORD_SQL = """CASE WHEN _copy = 1 THEN _record
    ELSE substr(sha2(_record || ':' || CAST(_copy AS STRING), 256), 1, 32) END AS _record"""
"""The id of a record that has a `_copy`."""


def copy_sql(columns: Sequence[str], *, before: Sequence[str] = ()) -> str:
    """The number `_copy` of a record among those that share its id: 1, 2, ... in the order of contents.

    Args:
        columns: the modelled columns, whose values are the contents.
        before: SQL of what decides before contents do.
    """
    order = ", ".join(f"{sql} NULLS FIRST" for sql in (*before, *map(quoted, columns)))
    return f"row_number() OVER (PARTITION BY _record ORDER BY {order}) AS _copy"


def count_records(engine: Engine, table: Path) -> tuple[int, int]:
    """Rows of a scrubbed table, and those among them whose id an earlier one has. Raises `EngineError`."""
    engine.register_delta("record_ids", table, columns=[RECORD_COLUMN])
    rows = int(engine.scalar("SELECT count(*) AS number FROM record_ids"))
    distinct = int(engine.scalar("SELECT count(DISTINCT _record) AS number FROM record_ids"))
    engine.drop("record_ids")
    return rows, rows - distinct
