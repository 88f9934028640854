"""Where the tables of a run are: files in a directory, tables of one database file, or tables in memory.

What belongs here: finding tables by name. What does not: reading a database (`sources.database_files`) or a file
(`sources.table_files`), and what is declared of tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.contracts.columns import Column
from dpsynth_platform.foundation.errors import SourceError, file_problem
from dpsynth_platform.sources.database_files import DatabaseFile, open_database, plain_name
from dpsynth_platform.sources.directories import PARQUET_NAMES
from dpsynth_platform.sources.packing import is_packed
from dpsynth_platform.sources.table_files import check_exists
from dpsynth_platform.sources.tables import is_delta

CSV_NAMES = (".csv", ".tsv")
_NAMES = (*PARQUET_NAMES, *CSV_NAMES)
Tables = Mapping[str, Path | pa.Table]

ACCEPTED = (
    f"a directory with a file for each table ({', '.join((*PARQUET_NAMES, *CSV_NAMES))}), or with a Delta table or a "
    "directory of Parquet files, named as the table; or a database file of SQLite or DuckDB"
)
"""What is accepted as the place of tables."""


def tables_at(data: Path | Tables) -> Tables:
    """The tables of a directory, of a database file, or in memory, by name; opens no file of a directory.

    Names have letters, digits and single signs `_` (`plain_name`). Names that begin with `.` or `_`, and files of other
    kinds, are no tables.

    Args:
        data: a mapping is returned as it is.

    Raises:
        SourceError: nothing is there, there is no table, two have one name, one is compressed, or a database cannot be
            read.
    """
    if isinstance(data, Mapping):
        return data
    check_exists(data, ACCEPTED)
    if not data.is_dir():
        return open_database(data)
    if is_delta(data):
        raise SourceError(f"{data}: it is one Delta table; accepted: {ACCEPTED}")
    problem = None
    found: dict[str, Path] = {}
    try:
        for place in sorted(data.iterdir()):
            if place.name.startswith((".", "_")):
                continue
            if is_packed(place.name) and Path(place.stem).suffix.lower() in _NAMES:
                raise SourceError(
                    f"{data}: {place.name} is compressed as a whole and cannot be read; accepted: the unpacked file, "
                    "such as by gunzip; Parquet, which is compressed inside; or, if it is no table, a name that begins "
                    "with _"
                )
            if not _is_table(place):
                continue
            name = plain_name(place.name if place.is_dir() else place.stem)
            if name in found:
                raise SourceError(
                    f"{data}: {found[name].name} and {place.name} are both the table {name!r}; accepted: one of them"
                )
            found[name] = place
    except OSError as error:
        problem = file_problem(error)
    if problem or not found:
        raise SourceError(f"{data}: {problem or 'there is no table'}; accepted: {ACCEPTED}")
    return found


def place_of(
    tables: Tables,
    name: str,
    unread: Collection[str] = (),
    declared: Mapping[str, Column] | None = None,
    *,
    rows: bool = True,
) -> Path | pa.Table:
    """Where a table is; of a database, its rows.

    Args:
        unread: columns that are not read from a database.
        declared: declarations of columns, by which texts of a database are read.
        rows: False: no row of a database is read.

    Raises:
        SourceError: there is no such table, or a database cannot be read.
    """
    if name not in tables:
        raise SourceError(f"there is no such table; accepted: {', '.join(tables) or 'none'}")
    if not isinstance(tables, DatabaseFile):
        return tables[name]
    return tables.read(name, unread, declared) if rows else tables.described(name, declared)


def is_csv(place: Path | pa.Table) -> bool:
    """Whether a table is a CSV file."""
    return isinstance(place, Path) and place.suffix.lower() in CSV_NAMES


def _is_table(place: Path) -> bool:
    if place.is_dir():
        return is_delta(place) or any(next(place.rglob(f"*{end}"), None) for end in PARQUET_NAMES)
    return place.suffix.lower() in _NAMES
