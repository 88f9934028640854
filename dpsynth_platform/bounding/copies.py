"""Records that share an id: their numbering and their count.

What belongs here: SQL that numbers records with equal source keys, and counting them. What does not: ids themselves
(`scrub.fingerprints.record_id`) and the choice of records.

A key that does not identify records is a fault of the contract or of the source. All of these records stay, each counts
towards the bound, and their number is reported. None is merged or removed, since a choice between them would depend on
the data.

An id comes from a record's owners and its other key columns only, so records share one only with records of the same
owners. The number of a copy depends on these records alone: adding or removing an owner changes no other owner's ids.
Copies that are equal in all ordering columns are interchangeable.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpsynth_platform.compute.engine import Engine, quoted
from dpsynth_platform.foundation.storage import count_rows
from dpsynth_platform.scrub.fingerprints import RECORD_COLUMN

RECORD_SQL = """CASE WHEN _copy = 1 THEN _record
    ELSE substr(sha2(_record || ':' || CAST(_copy AS STRING), 256), 1, 32) END AS _record"""
"""The id of a record that has a `_copy`."""


def copy_sql(columns: Sequence[str], *, before: Sequence[str] = ()) -> str:
    """The number `_copy` of a record among those that share its id: 1, 2, ... in the order of contents.

    Args:
        columns: the modelled columns, whose values are the contents.
        before: SQL expressions that order records before contents do.
    """
    order = ", ".join(f"{sql} NULLS FIRST" for sql in (*before, *map(quoted, columns)))
    return f"row_number() OVER (PARTITION BY _record ORDER BY {order}) AS _copy"


def count_records(engine: Engine, table: Path) -> tuple[int, int]:
    """Rows of a scrubbed table, and those among them whose id an earlier one has. Raises `EngineError`."""
    rows = count_rows(table)
    engine.register_delta("record_ids", table, columns=[RECORD_COLUMN])
    distinct = int(engine.scalar("SELECT count(DISTINCT _record) AS number FROM record_ids"))
    engine.drop("record_ids")
    return rows, rows - distinct
