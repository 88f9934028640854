"""The published table, read without a Delta library: its log as JSON, its files by their Parquet footers.

What belongs here: the rows and columns of a release's table. What does not: hashes, or tables with a history; a release
is written by one commit and never changed, and every other table is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import VerificationFailed
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.regular_files import read_regular

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

_COMMIT = "_delta_log/00000000000000000000.json"


@dataclass(frozen=True)
class TableFacts:
    """Number of rows, and columns as name and Arrow type."""

    rows: int
    columns: tuple[tuple[str, str], ...]


def read_facts(data: Path, names: Collection[str]) -> TableFacts:
    """The facts of the table in `data`, a directory with the files `names`.

    Raises `VerificationFailed` unless it is a Delta table of one commit, whose log names exactly these files.
    """
    with _reading():
        footers = _footers(data, names)
        columns = {tuple((field.name, type_name(field.type)) for field in footer.schema_arrow) for footer in footers}
    if len(columns) != 1:
        raise VerificationFailed("the table's files do not have the same columns")
    return TableFacts(sum(footer.metadata.num_rows for footer in footers), *columns)


def read_rows(data: Path, names: Collection[str]) -> pa.Table:
    """The rows of the table in `data`; arguments and errors are those of `read_facts`."""
    import pyarrow as pa

    read_facts(data, names)
    with _reading():
        return pa.concat_tables([part.read() for part in _footers(data, names)])


def read_release(path: Path) -> tuple[Any, pa.Table]:
    """A release's dossier and its rows, without verification. Raises `VerificationFailed` if they cannot be read."""
    try:
        dossier = json.loads(read_regular(path / layout.DOSSIER))
    except (OSError, ValueError, RecursionError):
        raise VerificationFailed(f"{path}: {layout.DOSSIER} cannot be read") from None
    data = path / layout.DATA
    return dossier, read_rows(data, layout.regular_files(data))


def batches(data: Path, names: Collection[str], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """These columns of the table's rows, batch by batch; arguments and errors are those of `read_facts`."""
    with _reading():
        for part in _footers(data, names):
            lacking = set(columns) - set(part.schema_arrow.names)
            if lacking:
                raise VerificationFailed("the table lacks a column")
            yield from part.iter_batches(columns=list(columns))


def _footers(data: Path, names: Collection[str]) -> list[ParquetFile]:
    import pyarrow.parquet as pq

    parts = set(names) - {_COMMIT}
    if _COMMIT not in names or parts != set(_added(data / _COMMIT)):
        raise VerificationFailed("the table's log does not name exactly the files in its directory")
    return [pq.ParquetFile(data / name) for name in sorted(parts)]


@contextmanager
def _reading() -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        raise VerificationFailed(f"a file of the table is not a Parquet file ({reason_of(error)})") from None


def type_name(arrow_type: Any) -> str:
    """An Arrow type's name, without the name that its writer gave to list elements."""
    return re.sub(r"list<\w+: ", "list<", str(arrow_type))


def _added(commit: Path) -> list[str]:
    """Names of the files that the commit adds. It may contain no other action on data."""
    try:
        actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
        kinds = {kind for action in actions for kind in action}
        names = [unquote(action["add"]["path"]) for action in actions if "add" in action]
        plain = all(action["metaData"]["partitionColumns"] == [] for action in actions if "metaData" in action)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise VerificationFailed("the table's log cannot be read") from None
    inside = all(not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts for name in names)
    needed = {"add", "metaData", "protocol"}
    if not (plain and inside and needed <= kinds <= needed | {"commitInfo"}):
        raise VerificationFailed("the table's log must only add files of one unpartitioned table inside its directory")
    return names
