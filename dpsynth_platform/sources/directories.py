"""Directories of Parquet files: which files hold rows, which columns they have together.

What belongs here: what is read of a directory, and what is refused since it could be read in two ways. What does not:
tables with a log of their own (`delta`).

Rows are in files whose names end with `.parquet`, `.parq` or `.pq`, at any depth. What begins with `.` or `_` is not
read, nor what lies below (`_temporary/`, `_SUCCESS`): writers keep there what they have not finished. Other files are
left alone (`notes.txt`, `x.parquet.crc`, `x.parquet.part`); one that is Parquet by its content is refused all the same,
unless its name says that it is a leftover.

Tables of other layouts (Delta, Hudi, Iceberg) below are refused: of their files, only a log says which hold rows.

Directories named `column=value` give a column each (hive partitioning): whole numbers where all values are written as
such, without leading zeros, and text otherwise; `__HIVE_DEFAULT_PARTITION__` is a missing value.

All files have the same columns. Types may differ where all values fit into one: whole numbers, real numbers, texts, or
nothing but nulls. Anything else is refused, with two files that differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import LocalFileSystem

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.files import FileTable

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_NAMES = (".parquet", ".parq", ".pq")
_LEFTOVERS = (".part", ".partial", ".tmp", ".temp", ".inprogress", ".crc", ".bak", ".old", "~")
_NOT_READ = (".", "_")
_LOGS = ("_delta_log", ".hoodie", "metadata/*.metadata.json")
"""What Delta, Hudi and Iceberg keep beside files of which some hold no rows any more."""
_MAGIC = b"PAR1"
MOST_ENTRIES = 100_000
"""Of a directory, at any depth: more is a file system rather than a table."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
_VALUE = re.compile("=[^/]+(?=/|$)")
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)


def check_no_part(path: Path) -> None:
    """Refuses files and directories that are part of a table with a log of its own: some of their rows may be gone.

    Raises:
        SourceError: it lies inside of such a table.
    """
    for place in path.resolve().parents:
        if any(next(place.glob(log), None) for log in _LOGS):
            raise _refused(
                path,
                f"is part of the table {_shown(place)}, some of whose files may hold no rows any more; accepted: "
                "that table's own path, of a Delta table, or Parquet files that are no part of one",
            )


def open_directory(directory: Path) -> FileTable | None:
    """The table in a directory of Parquet files, or None if there is no such file; reads metadata only.

    Raises:
        SourceError: what is there could be read in two ways, or is damaged; names files and columns, no values.
    """
    files = data_files(directory)
    return _table(directory, files) if files else None


def data_files(directory: Path) -> list[Path]:
    """The files of a directory that hold rows, in the order of their names.

    Raises:
        SourceError: a file or directory could be meant to be read, and is not.
    """
    found: list[Path] = []
    entries = 0
    for place, inner, names in os.walk(directory, onerror=_unreadable):
        here = Path(place)
        entries += len(inner) + len(names)
        if entries > MOST_ENTRIES:
            raise _refused(
                directory, f"has more than {MOST_ENTRIES:,} files and directories; accepted: the directory of one table"
            )
        if log := next((log for log in _LOGS if next(here.glob(log), None)), None):
            raise _refused(
                here,
                f"has a {log}, so it is a table of another layout, some of whose files may hold no rows any more; "
                "accepted: the path of a Delta table, or a directory of Parquet files alone",
            )
        if any((here / name).is_symlink() for name in inner):
            raise _refused(here, "has links to directories, which are not followed; accepted: directories and files")
        inner[:] = sorted(name for name in inner if not name.startswith(_NOT_READ))
        found += [here / name for name in names if not name.startswith(_NOT_READ) and _holds_rows(here / name)]
    return sorted(found)


def _unreadable(error: OSError) -> None:
    raise error


def _holds_rows(path: Path) -> bool:
    name = path.name.casefold()
    if name.endswith(_NAMES):
        if path.is_file():
            return True
        raise _refused(path, "has a name of data and is no file; accepted: files, or this elsewhere")
    if name.endswith(_LEFTOVERS) or not path.is_file():
        return False
    # Some files of the system wait for a reader's next message.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return False
    raise _refused(path, f"is Parquet by its content and not by its name; accepted: {', '.join(_NAMES)}, or elsewhere")


def _table(directory: Path, files: Sequence[Path]) -> FileTable:
    import pyarrow.dataset as ds

    layout, local = ds.ParquetFileFormat(), LocalFileSystem()
    places = [_partition(directory, path) for path in files]
    for path, place in zip(files, places, strict=True):
        if place.keys() != places[0].keys():
            raise _refused(directory, f"{_apart(directory, files[0], path)} lie below directories of different columns")
    partitions = pa.schema([_partition_field(name, [place[name] for place in places]) for name in places[0]])
    stored = [_stored(path, layout, local) for path in files]
    schema = _unified(directory, files, stored)
    for name in partitions.names:
        if name in schema.names:
            raise _refused(
                directory,
                f"column {name!r} stands in the files and in the names of directories; accepted: one of these",
            )
    schema = pa.schema([*schema, *partitions])
    fragments = [
        layout.make_fragment(str(path), local, partition_expression=_expression(partitions, place))
        for path, place in zip(files, places, strict=True)
    ]
    return FileTable(ds.FileSystemDataset(fragments, schema, layout, local))


def _stored(path: Path, layout: ds.ParquetFileFormat, local: LocalFileSystem) -> pa.Schema:
    try:
        return layout.inspect(str(path), local)
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = reason_of(error)  # the library's own text may quote the data
    raise _refused(path, f"a data file is missing or damaged ({problem}); accepted: whole Parquet files")


def _partition(directory: Path, path: Path) -> dict[str, str | None]:
    """What the names of directories say of all rows of a file."""
    found: dict[str, str | None] = {}
    for part in path.relative_to(directory).parts[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            found[unquote(name)] = None if value == _NULL else unquote(value)
    return found


def _partition_field(name: str, values: Sequence[str | None]) -> pa.Field:
    there = [value for value in values if value is not None]
    whole = bool(there) and all(_WHOLE.fullmatch(value) for value in there)
    return pa.field(name, pa.int64() if whole else pa.string())


def _expression(partitions: pa.Schema, place: dict[str, str | None]) -> pc.Expression:
    expression = pc.scalar(True)
    for item in partitions:
        value, column = place[item.name], pc.field(item.name)
        if value is None:
            expression = expression & column.is_null()
        else:
            expression = expression & (column == pa.scalar(int(value) if pa.types.is_integer(item.type) else value))
    return expression


def _unified(directory: Path, files: Sequence[Path], schemas: Sequence[pa.Schema]) -> pa.Schema:
    """One schema for all files, in the first one's order.

    Raises:
        SourceError: names two files and the columns by which they differ.
    """
    first = schemas[0]
    types = dict(zip(first.names, first.types, strict=True))
    # The file that each type is of.
    brought = dict.fromkeys(types, files[0])
    for path, schema in zip(files, schemas, strict=True):
        if len(set(schema.names)) != len(schema.names):
            if schema.names == first.names:
                continue  # whoever opens the table says so
            raise _refused(directory, f"{_apart(directory, files[0], path)} have other columns")
        if others := sorted(set(schema.names) ^ types.keys()):
            raise _refused(
                directory,
                f"{_apart(directory, files[0], path)} do not have the same columns: {', '.join(map(repr, others))} "
                f"in one of them only; accepted: the same columns in each file",
            )
        for item in schema:
            both = _common(types[item.name], item.type)
            if both is None:
                raise _refused(
                    directory,
                    f"{_apart(directory, brought[item.name], path)} have column {item.name!r} as {types[item.name]} "
                    f"and {item.type}; accepted: one type, or types of which one holds all values",
                )
            if both != types[item.name]:
                types[item.name], brought[item.name] = both, path
    if len(types) != len(first):
        return first
    return pa.schema([item.with_type(types[item.name]) for item in first])


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both, or None."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    kinds = (_kind(one), _kind(other))
    if kinds[0] != kinds[1]:
        return None
    if kinds[0] == "integer":
        return None if pa.uint64() in (one, other) else pa.int64()
    if kinds[0] == "float":
        return max(one, other, key=lambda type_: type_.bit_width)
    return pa.large_string() if kinds[0] == "text" else None


def _kind(type_: pa.DataType) -> str | None:
    values = type_.value_type if pa.types.is_dictionary(type_) else type_
    if pa.types.is_integer(type_):
        return "integer"
    if pa.types.is_floating(type_):
        return "float"
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return "text" if any(check(values) for check in texts) else None


def _apart(directory: Path, *files: Path) -> str:
    return " and ".join(_shown(path.relative_to(directory)) for path in files)


def _refused(place: Path, why: str) -> SourceError:
    return SourceError(f"{_shown(place)}: {why}")


def _shown(path: Path) -> str:
    """A path without what directories say of rows: `year=2023` is a value of the data."""
    return _VALUE.sub("=...", path.as_posix())
