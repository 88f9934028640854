"""Directories of Parquet files: which files hold rows, and their common columns.

What belongs here: finding the files of a directory, and refusing what is ambiguous. What does not: tables with a log
(`delta`).

Rows are in files whose names end with `.parquet`, `.parq` or `.pq`, at any depth. Names that begin with `.` or `_` are
skipped, with everything below (`_temporary/`, `_SUCCESS`): writers keep unfinished files there. Other files are ignored
(`notes.txt`, `x.parquet.crc`, `x.parquet.part`), except that Parquet content under another name is refused, unless the
name marks a leftover.

Tables of other layouts (Delta, Hudi, Iceberg) inside the directory are refused: only their logs say which files count.

Each directory level named `column=value` is a column (hive partitioning): dates if it is declared so and all values are
(`2026-01-31`), integers if all values are written so without leading zeros, and text otherwise;
`__HIVE_DEFAULT_PARTITION__` is a missing value. Categories and ids have the type of their declaration whatever the
values are, since a release has it, too: integers if the listed values are, and text otherwise.

All files must have the same columns. Types may differ if one type holds all values: integers, floats, decimals, texts,
moments of one time zone, or only nulls. Moments of several units are read in microseconds at the finest, which every
step counts in: pandas 2 wrote nanoseconds, and pandas 3 writes microseconds. Anything else is refused, with the names
of two files that differ.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from dpsynth_platform.compute.plain_types import type_name
from dpsynth_platform.contracts.columns import CategoricalColumn, Column
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.files import FileTable, parquet_layout, partition_of
from dpsynth_platform.sources.packing import is_packed

if TYPE_CHECKING:
    import pyarrow.dataset as ds

PARQUET_NAMES = (".parquet", ".parq", ".pq")
PICTURE_NAMES = (".png", ".jpg", ".jpeg", ".webp", "metadata.csv")
_LEFTOVERS = (".part", ".partial", ".tmp", ".temp", ".inprogress", ".crc", ".bak", ".old", "~")
_NOT_READ = (".", "_")
_LOGS = ("_delta_log", ".hoodie", "metadata/*.metadata.json")
"""Logs of Delta, Hudi and Iceberg, whose files may hold deleted rows."""
_MAGIC = b"PAR1"
MOST_ENTRIES = 100_000
"""Limit of files and directories at any depth."""
_MOST_DIGITS = 38
"""Of a decimal number of 128 bits."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
_VALUE = re.compile("=[^/]+(?=/|$)")
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)


def check_no_part(path: Path) -> None:
    """Raises `SourceError` for a path inside a table with a log: some of its rows may be deleted."""
    for place in path.resolve().parents:
        if any(next(place.glob(log), None) for log in _LOGS):
            raise _refused(
                path,
                f"is part of the table {_shown(place)}, some of whose files may hold deleted rows; accepted: "
                "that table's own path, of a Delta table, or Parquet files that are no part of one",
            )


def open_directory(directory: Path, declared: Mapping[str, Column] | None = None) -> FileTable | None:
    """The table in a directory of Parquet files, or None if there is no such file; reads metadata only.

    Args:
        declared: the declared columns.

    Raises:
        SourceError: a file is ambiguous or damaged; names files and columns, no values.
    """
    import pyarrow.dataset as ds

    files = data_files(directory)
    if not files:
        return None
    layout, local = parquet_layout(), LocalFileSystem()
    places = [_partition(directory, path) for path in files]
    for path, place in zip(files, places, strict=True):
        if place.keys() != places[0].keys():
            raise _refused(directory, f"{_both(directory, files[0], path)} lie below directories of different columns")
    known = declared or {}
    partitions = pa.schema(
        [_partition_field(directory, name, [place[name] for place in places], known.get(name)) for name in places[0]]
    )
    schema = _unified(directory, files, [_stored(path, layout, local) for path in files])
    if repeated := [name for name in partitions.names if name in schema.names]:
        raise _refused(
            directory,
            f"column {repeated[0]!r} is in the files and in the names of directories; accepted: one of these",
        )
    schema = pa.schema([*schema, *partitions])
    fragments = [
        layout.make_fragment(str(path), local, partition_expression=partition_of(partitions, _typed(partitions, place)))
        for path, place in zip(files, places, strict=True)
    ]
    return FileTable(ds.FileSystemDataset(fragments, schema, layout, local))


def data_files(directory: Path, names: tuple[str, ...] = PARQUET_NAMES) -> list[Path]:
    """The files of a directory that hold rows, in the order of their names.

    Args:
        names: the ends of their names.

    Raises:
        SourceError: it is unclear whether a file or directory belongs to the table.
    """
    found: list[Path] = []
    entries = 0
    for place, inner, files in os.walk(directory, onerror=_unreadable):
        here = Path(place)
        shown = directory if names == PICTURE_NAMES else here
        entries += len(inner) + len(files)
        if entries > MOST_ENTRIES:
            raise _refused(
                directory, f"has more than {MOST_ENTRIES:,} files and directories; accepted: the directory of one table"
            )
        if log := next((log for log in _LOGS if next(here.glob(log), None)), None):
            raise _refused(
                shown,
                f"has a {log}, so it is a table of another layout, some of whose files may hold deleted rows; "
                "accepted: the path of a Delta table, or a directory of Parquet files alone",
            )
        if any((here / name).is_symlink() for name in inner):
            raise _refused(shown, "has links to directories, which are not followed; accepted: directories and files")
        if names == PICTURE_NAMES:
            _check_all_are_read(directory, inner, files)
        inner[:] = sorted(name for name in inner if not name.startswith(_NOT_READ))
        if names != PARQUET_NAMES and any("=" in name for name in inner):
            raise _refused(
                shown, "has directories named column=..., whose values only Parquet files get; accepted: other names"
            )
        for name in files:
            if not name.startswith(_NOT_READ) and _holds_rows(here / name, names, directory):
                found.append(here / name)
    return sorted(found)


def _check_all_are_read(directory: Path, inner: list[str], files: list[str]) -> None:
    """Refuses pictures and folders that would be passed over for their names: a class would be lost."""
    passed = any(name.startswith(_NOT_READ) for name in inner)
    if passed or any(name.startswith(_NOT_READ) and name.casefold().endswith(PICTURE_NAMES) for name in files):
        raise _picture_refused(
            directory,
            "a picture or folder whose name begins with . or _, as what is not read; accepted: another name, or this "
            "elsewhere",
            "-name '[._]*'",
        )


def _unreadable(error: OSError) -> None:
    raise error


def _holds_rows(path: Path, names: tuple[str, ...], directory: Path) -> bool:
    name, pictures = path.name.casefold(), names == PICTURE_NAMES
    if name.endswith(names):
        if pictures and path.is_symlink():
            raise _picture_refused(
                directory, "a link, which is not followed; accepted: files in this directory", "-type l"
            )
        if path.is_file():
            return True
        if pictures:
            raise _picture_refused(
                directory,
                "something that has the name of a picture and is no file; accepted: files",
                "! -type f ! -type d",
            )
        raise _refused(path, "has the name of a data file and is none; accepted: files, or this elsewhere")
    if name.endswith(_LEFTOVERS) or not path.is_file():
        return False
    if names != PARQUET_NAMES:
        if name.endswith(".md"):
            return False
        packed = " (compressed files are not read: unpack it)" if is_packed(name) else ""
        if pictures:
            raise _picture_refused(
                directory,
                f"a file that is no picture by its name{packed}; accepted: {', '.join(names)}; move others elsewhere",
                "-type f" + "".join(f" ! -iname '*{end}'" for end in names),
            )
        raise _refused(
            path,
            f"is in the directory of a table, and is no file of it by its name{packed}; accepted: {', '.join(names)}",
        )
    # Opening a pipe would block.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return False
    raise _refused(path, f"has Parquet content under another name; accepted: {', '.join(names)}, or elsewhere")


def _stored(path: Path, layout: ds.ParquetFileFormat, local: LocalFileSystem) -> pa.Schema:
    try:
        return layout.inspect(str(path), local)
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = reason_of(error)  # the library's own text may quote the data
    raise _refused(path, f"a data file is missing or damaged ({problem}); accepted: whole Parquet files")


def _partition(directory: Path, path: Path) -> dict[str, str | None]:
    """The partition values in a file's path."""
    found: dict[str, str | None] = {}
    for part in path.relative_to(directory).parts[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            found[unquote(name)] = None if value == _NULL else unquote(value)
    return found


def _partition_field(directory: Path, name: str, values: Sequence[str | None], declared: Column | None) -> pa.Field:
    present = [value for value in values if value is not None]
    kind = None if declared is None else declared.type
    if kind == "date" and all(_DAY.fullmatch(value) and _day(value) for value in present):
        return pa.field(name, pa.date32())
    whole = all(_WHOLE.fullmatch(value) for value in present)
    if isinstance(declared, CategoricalColumn) and declared.whole_numbers:
        if not whole:
            raise _refused(
                directory,
                f"directories of column {name!r} are no whole numbers, and its declared values are; accepted: whole "
                "numbers without leading zeros in the names of all of them, or other declared values",
            )
        return pa.field(name, pa.int64())
    whole = whole and bool(present) and kind not in ("categorical", "identifier")
    return pa.field(name, pa.int64() if whole else pa.string())


def _day(value: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(value)
    except ValueError:
        return None


def _typed(partitions: pa.Schema, place: dict[str, str | None]) -> dict[str, str | int | dt.date | None]:
    def typed(name: str, value: str) -> str | int | dt.date | None:
        type_ = partitions.field(name).type
        return int(value) if pa.types.is_integer(type_) else _day(value) if pa.types.is_date(type_) else value

    return {name: None if value is None else typed(name, value) for name, value in place.items()}


def _unified(directory: Path, files: Sequence[Path], schemas: Sequence[pa.Schema]) -> pa.Schema:
    """One schema for all files, in the first one's order.

    Raises:
        SourceError: names two files and the columns by which they differ.
    """
    first = schemas[0]
    types = dict(zip(first.names, first.types, strict=True))
    source_of_type = dict.fromkeys(types, files[0])
    for path, schema in zip(files, schemas, strict=True):
        if len(set(schema.names)) != len(schema.names):
            if schema.names == first.names:
                continue  # the caller refuses repeated names
            raise _refused(directory, f"{_both(directory, files[0], path)} have other columns")
        if others := sorted(set(schema.names) ^ types.keys()):
            raise _refused(
                directory,
                f"{_both(directory, files[0], path)} do not have the same columns: {', '.join(map(repr, others))} "
                f"in one of them only; accepted: the same columns in each file",
            )
        for item in schema:
            both = _common(types[item.name], item.type)
            if both is None:
                kinds = f"{type_name(types[item.name])} and {type_name(item.type)}"
                raise _refused(
                    directory,
                    f"{_both(directory, source_of_type[item.name], path)} have column {item.name!r} as {kinds}; "
                    "accepted: one type, or types of which one holds all values",
                )
            if both != types[item.name]:
                types[item.name], source_of_type[item.name] = both, path
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
    if kinds[0] == "moment":
        units = ("s", "ms", "us")
        finest = max(units.index(type_.unit) if type_.unit in units else 2 for type_ in (one, other))
        return pa.timestamp(units[finest], one.tz) if one.tz == other.tz else None
    if kinds[0] == "decimal":
        scale, whole = max(one.scale, other.scale), max(one.precision - one.scale, other.precision - other.scale)
        return pa.decimal128(whole + scale, scale) if whole + scale <= _MOST_DIGITS else None
    if kinds[0] == "float":
        return max(one, other, key=lambda type_: type_.bit_width)
    return pa.large_string() if kinds[0] == "text" else None


def _kind(type_: pa.DataType) -> str | None:
    values = type_.value_type if pa.types.is_dictionary(type_) else type_
    if pa.types.is_integer(type_):
        return "integer"
    if pa.types.is_floating(type_):
        return "float"
    if pa.types.is_timestamp(type_):
        return "moment"
    if pa.types.is_decimal(type_):
        return "decimal"
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return "text" if any(check(values) for check in texts) else None


def _both(directory: Path, *files: Path) -> str:
    return " and ".join(_shown(path.relative_to(directory)) for path in files)


def _picture_refused(directory: Path, what: str, tests: str) -> SourceError:
    """A refusal that names no file: names of pictures are values of `file_name`. `tests` are those of find(1)."""
    return _refused(
        directory, f"holds {what}. Its name may be personal and is not shown: find {quote(str(directory))} {tests}"
    )


def _refused(place: Path, why: str) -> SourceError:
    return SourceError(f"{_shown(place)}: {why}")


def _shown(path: Path) -> str:
    """A path without partition values, such as 2023 in `year=2023`: they are data."""
    return _VALUE.sub("=...", path.as_posix())
