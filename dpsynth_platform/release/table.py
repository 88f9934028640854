"""The published tables, read without a Delta library: a log as JSON, files by their Parquet footers.

What belongs here: the rows and columns of a release's tables, and whether they join. What does not: hashes, or tables
with a history; a release is written by one commit and never changed, and every other table is refused.
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

_KINDS = {
    "boolean": "bool",
    "byte": "int8",
    "date": "date32[day]",
    "double": "double",
    "float": "float",
    "integer": "int32",
    "long": "int64",
    "short": "int16",
    "string": "string",
    "timestamp": "timestamp[us, tz=UTC]",
    "timestamp_ntz": "timestamp[us]",
}
"""Arrow's names of Delta's types."""


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
        if not footers:
            return TableFacts(0, _columns_in(data / _COMMIT))
        columns = {tuple((field.name, type_name(field.type)) for field in footer.schema_arrow) for footer in footers}
    if len(columns) != 1:
        raise VerificationFailed("the table's files do not have the same columns")
    return TableFacts(sum(footer.metadata.num_rows for footer in footers), *columns)


def read_rows(data: Path, names: Collection[str]) -> pa.Table:
    """The rows of the table in `data`; arguments and errors are those of `read_facts`."""
    import pyarrow as pa

    columns = read_facts(data, names).columns
    with _reading():
        parts = [part.read() for part in _footers(data, names)]
        return pa.concat_tables(parts) if parts else _empty(columns)


def read_release(path: Path) -> tuple[Any, dict[str, pa.Table]]:
    """A release's dossier and its tables, without verification. Raises `VerificationFailed` if they cannot be read.

    A single table is `layout.SINGLE`.
    """
    try:
        dossier = json.loads(read_regular(path / layout.DOSSIER))
    except (OSError, ValueError, RecursionError):
        raise VerificationFailed(f"{path}: {layout.DOSSIER} cannot be read") from None
    files = layout.regular_files(path)
    names = [table["name"] for table in dossier["synthetic"].get("tables", [])] or [layout.SINGLE]
    data = path / layout.DATA
    return dossier, {name: read_rows(data / name, layout.table_files(files, name)) for name in names}


def repeated(key: pa.Table) -> int:
    """How many rows of a key's columns have a missing value, or repeat another row."""
    return int(key.num_rows - key.drop_null().group_by(key.column_names).aggregate([]).num_rows)


def without_row(child: pa.Table, other: pa.Table, *, may_miss: bool) -> int:
    """How many rows of a foreign key have no row with this key.

    Args:
        child: the columns of the foreign key.
        other: those of the key, in the same order.
        may_miss: whether rows without a value refer to none.
    """
    whole = child.drop_null()
    missing = 0 if may_miss else child.num_rows - whole.num_rows
    names = [str(place) for place in range(child.num_columns)]
    mine, theirs = whole.rename_columns(names), other.rename_columns(names)
    for place, name in enumerate(names):
        if mine.schema.field(name).type != theirs.schema.field(name).type:  # such as int32 and int64
            mine, theirs = (_as_text(each, place) for each in (mine, theirs))
    return int(missing + mine.join(theirs, keys=names, join_type="left anti").num_rows)


def _as_text(table: pa.Table, place: int) -> pa.Table:
    import pyarrow as pa

    name = table.schema.names[place]
    return table.set_column(place, name, table.column(place).cast(pa.string()))


def read_columns(data: Path, names: Collection[str], columns: Sequence[str]) -> pa.Table:
    """These columns of all rows, in this order; arguments and errors are those of `batches`."""
    import pyarrow as pa

    found = list(batches(data, names, columns))
    return (pa.Table.from_batches(found) if found else _empty(read_facts(data, names).columns)).select(list(columns))


def _empty(columns: Sequence[tuple[str, str]]) -> pa.Table:
    """A table without rows."""
    import pyarrow as pa

    types = {"timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"), "date32[day]": pa.date32()}
    for plain in ("bool", "int8", "int16", "int32", "int64", "float", "double", "timestamp[us]"):
        types[plain] = pa.type_for_alias(plain)
    return pa.table({name: pa.array([], types.get(kind, pa.string())) for name, kind in columns})


def _columns_in(commit: Path) -> tuple[tuple[str, str], ...]:
    """The columns of a table without files, by its log."""
    try:
        found = next(
            json.loads(line)["metaData"] for line in commit.read_text("utf-8").splitlines() if "metaData" in line
        )
        fields = json.loads(found["schemaString"])["fields"]
        return tuple((field["name"], _KINDS.get(kind, kind)) for field in fields if (kind := str(field["type"])))
    except (OSError, ValueError, TypeError, KeyError, StopIteration, RecursionError):
        raise VerificationFailed("the table's log does not name its columns") from None


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
    needed = {"metaData", "protocol"}  # without rows there is no file
    if not (plain and inside and needed <= kinds <= needed | {"add", "commitInfo"}):
        raise VerificationFailed("the table's log must only add files of one unpartitioned table inside its directory")
    return names
