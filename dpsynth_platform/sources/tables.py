"""A table at a path: a Delta table, a Parquet file, or a directory of Parquet files.

What belongs here: finding which of these it is. What does not: reading each (`delta`, `directories`), and text files
(`quality.files`, `table_files`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.contracts.columns import Column
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.delta import DeltaProblem, NoDeltaTable, open_delta
from dpsynth_platform.sources.directories import check_no_part, open_directory
from dpsynth_platform.sources.files import FileTable, one_file


def is_delta(path: Path) -> bool:
    """Whether a path has a Delta log."""
    return (path / "_delta_log").is_dir()


def open_table(path: Path, declared: Mapping[str, Column] | None = None, *, also: str = "") -> FileTable:
    """A Delta table (at its newest version), a Parquet file, or a directory of Parquet files.

    Args:
        declared: the declared columns, for the values in the names of directories.
        also: what else the caller accepts, for the text of a refusal.

    Raises:
        SourceError: there is none that can be read.
    """
    accepted = f"; accepted: a Delta table, a Parquet file, a directory of them{also}"
    problem = "there is no table at this path"
    try:
        if is_delta(path):
            return open_delta(str(path)).table
        check_no_part(path)
        if path.is_file():
            return one_file(path)
        if path.is_dir() and (table := open_directory(path, declared)) is not None:
            return table
    except NoDeltaTable:
        pass
    except DeltaProblem as refusal:
        problem, accepted = str(refusal), ""
    except (OSError, ValueError, pa.ArrowException) as error:
        # Only the error's type is shown: the library's text may quote statistics of the data.
        problem = f"the table cannot be read ({reason_of(error)})"
    raise SourceError(f"{path}: {problem}{accepted}")
