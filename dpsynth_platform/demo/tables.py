"""Writing a demonstration's source table, clearly marked and only when it is not there yet.

What belongs here: what the demonstrations share in putting a table in its place. What does not: their content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.foundation.errors import SourceError

MARK = "DEMONSTRATION DATA"

Progress = Callable[[int, int | None], None]
"""Called with what is done and the total, or None where the total is not known."""


def no_progress(done: int, total: int | None) -> None:
    """The progress callback of a caller that does not want one."""


def source_path(home: Path, name: str) -> Path:
    """Where a demonstration's source table lies: what `${DPSYNTH_HOME}/sources/<name>` means in its contract."""
    return home / "sources" / name


def keep_table(path: Path, table: pa.Table, *, key: Sequence[str], description: str) -> bool:
    """Puts `table` at `path` as a Delta table that is marked as a demonstration. Returns whether anything was written.

    A table of the same content is left as it is, so that its version, and with it everything derived from it, stays
    good. A demonstration table of other content gets a new version.

    Args:
        key: columns that identify a row; the comparison does not depend on the order of rows.

    Raises:
        SourceError: a table that is no demonstration lies there; it is never overwritten.
    """
    from deltalake import DeltaTable, write_deltalake

    marked = f"{MARK}. {description}"
    if DeltaTable.is_deltatable(str(path)):
        present = DeltaTable(str(path))
        if not (present.metadata().description or "").startswith(MARK):
            raise SourceError(f"{path}: a table that is not a demonstration lies here; move it or use another home")
        if _same(present.to_pyarrow_table(), table, key):
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
