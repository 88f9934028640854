"""Tables from Parquet, CSV, JSON lines and Delta files, for comparisons outside of a deployment.

What belongs here: reading one, with errors that do not quote its values. What does not: comparing (`columns`).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import is_text
from dpsynth_platform.foundation.errors import SourceError, file_problem
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.regular_files import check_regular
from dpsynth_platform.sources.structs import flat_table
from dpsynth_platform.sources.tables import open_table

OR_OTHERS = ", a CSV file (.csv), a file of JSON lines (.jsonl)"


def read_file(path: Path, *, without: Collection[str] = (), like: pa.Schema | None = None) -> pa.Table:
    """The table at a path: a Delta table, a Parquet file, a directory of those, a CSV file with a header, JSON lines.

    The fields of structs are columns (`sources.structs`).

    Args:
        without: columns that are not read.
        like: another table's schema; its text columns are read as text from a CSV file.

    Raises `SourceError` if no table can be read.
    """
    kind = path.suffix.lower()
    table = _csv(path, like) if kind == ".csv" else _json_lines(path) if kind == ".jsonl" else _columnar(path)
    return flat_without(table, without)


def flat_without(table: pa.Table, names: Collection[str]) -> pa.Table:
    """A table with the fields of structs as columns, without some columns, which may be structs or fields of them.

    Raises `SourceError` where two columns would have one name.
    """
    return _without(flat_table(_without(table, names)), names)


def _without(table: pa.Table, names: Collection[str]) -> pa.Table:
    return table.select([place for place, name in enumerate(table.column_names) if name not in names])


def _columnar(path: Path) -> pa.Table:
    dataset = open_table(path, also=OR_OTHERS)
    try:
        return dataset.to_table()
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = reason_of(error)  # the library's message may quote the data
    raise SourceError(f"{path}: a file of the table is missing, damaged or of another type ({problem})")


def _csv(path: Path, like: pa.Schema | None) -> pa.Table:
    from pyarrow import csv

    accepted = "accepted: CSV in UTF-8 with a header, comma-separated, the same number of fields in every row"
    texts = {item.name: pa.large_string() for item in like or () if is_text(item.type)}
    try:
        check_regular(path)
        # Arrow infers types from the first block, so it is large. Only an empty field is a missing text: "NA" may be a
        # code. For numbers Arrow knows all usual spellings of missing values.
        options = csv.ConvertOptions(column_types=texts)
        table = csv.read_csv(path, csv.ReadOptions(block_size=1 << 28), convert_options=options)
    except OSError as error:
        problem = file_problem(error)
    except (ValueError, pa.ArrowException) as error:
        problem = f"the table cannot be read ({reason_of(error)})"
    else:
        if not any(_looks_like_data(name) for name in table.column_names):
            return pa.table([_without_empty(column) for column in table.columns], names=table.column_names)
        # Without this check, later errors about columns would quote a row.
        problem = "the first line has empty or numeric names, so it is not a header"
    raise SourceError(f"{path}: {problem}; {accepted}")


def _json_lines(path: Path) -> pa.Table:
    """One object per line; a missing member is a missing value. No text is parsed as a date or a number."""
    try:
        check_regular(path)
        lines = path.read_text(encoding="utf-8").split("\n")  # a text may contain other line separators
    except (OSError, UnicodeDecodeError) as error:
        problem = file_problem(error)
    else:
        rows = [_object(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: _column(path, name, [row.get(name) for row in rows]) for name in names})
    raise SourceError(f"{path}: {problem}; accepted: JSON lines in UTF-8")


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SourceError(f"{path}: line {number} is not a JSON object; accepted: one object per line")
    return found


def _column(path: Path, name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        problem = "holds values of different types"  # the library's message quotes one
    raise SourceError(f"{path}: column {name!r} {problem}")


def _without_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not is_text(column.type):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def _looks_like_data(name: str) -> bool:
    """Whether a column's name is empty or a number, as in a file without a header."""
    try:
        float(name)
    except ValueError:
        return not name.strip()
    return True
