"""A table at a path: a Delta table, a Parquet file, or a directory of Parquet files.

What belongs here: telling which of these it is. What does not: how each is read (`delta`, `directories`), and files of
text (`quality.files`, `synthesis.sources`).
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.delta import DeltaProblem, NoDeltaTable, open_delta
from dpsynth_platform.sources.directories import check_no_part, open_directory
from dpsynth_platform.sources.files import FileTable


def is_delta(path: Path) -> bool:
    """Whether there is a Delta table at a path."""
    return (path / "_delta_log").is_dir()


def open_table(path: Path, *, also: str = "") -> FileTable:
    """A Delta table (at its newest version), a Parquet file, or a directory of Parquet files.

    Args:
        also: what else the caller accepts, for the words of a refusal.

    Raises:
        SourceError: there is none that can be read.
    """
    import pyarrow.dataset as ds

    accepted = f"; accepted: a Delta table, a Parquet file, a directory of them{also}"
    problem = "there is no table at this place"
    try:
        if is_delta(path):
            return open_delta(str(path)).table
        check_no_part(path)
        if path.is_file():
            return FileTable(ds.dataset(str(path), format="parquet"))
        if path.is_dir() and (table := open_directory(path)) is not None:
            return table
    except NoDeltaTable:
        pass
    except DeltaProblem as refusal:
        problem, accepted = str(refusal), ""
    except (OSError, ValueError, pa.ArrowException) as error:
        # The library's own text may quote statistics of the data, so its type must do.
        problem = f"the table cannot be read ({reason_of(error)})"
    raise SourceError(f"{path}: {problem}{accepted}")
