"""Writes a demonstration's source table, marked as such and only if it changed.

What belongs here: places and writing of tables. What does not: their content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.storage import read_table, table_schema

MARK = "DEMONSTRATION DATA"

Progress = Callable[[int, int | None], None]
"""Called with the steps done and their total, or None where the total is unknown."""


def no_progress(done: int, total: int | None) -> None:
    """The progress callback of a caller that does not want one."""


def source_path(home: Path, name: str) -> Path:
    """The source table of a demonstration: `${DPSYNTH_HOME}/sources/<name>` in its contract."""
    return home / "sources" / name


def keep_table(path: Path, table: pa.Table, *, key: Sequence[str], description: str) -> bool:
    """Writes a Delta table with the mark of a demonstration. Returns whether anything was written.

    Leaves a table with the same content as it is, so that its version, and all that derives from it, stays valid. A
    demonstration table with other content gets a new version.

    Args:
        key: columns that identify a row; the comparison ignores the order of rows.

    Raises:
        SourceError: a table without the mark is there; it is never overwritten.
    """
    from deltalake import DeltaTable, write_deltalake

    marked = f"{MARK}. {description}"
    if DeltaTable.is_deltatable(str(path)):
        present = DeltaTable(str(path))
        if not (present.metadata().description or "").startswith(MARK):
            raise SourceError(f"{path}: a table that is not a demonstration lies here; move it or use another home")
        if _same(pa.Table.from_batches(read_table(path), table_schema(path)), table, key):
            return False
        write_deltalake(str(path), table, mode="overwrite", schema_mode="overwrite", description=marked)
    else:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_deltalake(str(path), table, mode="error", name=path.name, description=marked)
    path.with_name(f"{path.name}.DEMO.txt").write_text(f"{MARK}\n\n{description}\n", encoding="utf-8")
    return True


def _same(present: pa.Table, wanted: pa.Table, key: Sequence[str]) -> bool:
    if present.column_names != wanted.column_names or present.num_rows != wanted.num_rows:
        return False
    try:
        present = present.cast(wanted.schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return False
    order = [(name, "ascending") for name in key]
    return bool(present.sort_by(order).equals(wanted.sort_by(order)))
