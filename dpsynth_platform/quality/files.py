"""Tables from files, for comparing them outside of any deployment: Parquet, CSV, JSON lines and Delta.

What belongs here: reading one, and saying what is wrong with it without quoting it. What does not: comparing
(`columns`).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.foundation.errors import SourceError, file_problem
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.regular_files import check_regular
from dpsynth_platform.sources.table_files import OR_CSV
from dpsynth_platform.sources.tables import open_table

OR_OTHERS = f"{OR_CSV}, a file of JSON lines (.jsonl)"


def read_file(path: Path, *, without: Collection[str] = (), like: pa.Schema | None = None) -> pa.Table:
    """The table at a path: a Delta table, a Parquet file, a directory of those, a CSV file with a header, JSON lines.

    Args:
        without: columns that are left out where they are there.
        like: of another table; what is text there is text in a CSV file, too, whatever it looks like.

    Raises:
        SourceError: there is none that can be read.
    """
    kind = path.suffix.lower()
    table = _csv(path, like) if kind == ".csv" else _json_lines(path) if kind == ".jsonl" else _columnar(path)
    return table.select([place for place, name in enumerate(table.column_names) if name not in without])


def _columnar(path: Path) -> pa.Table:
    dataset = open_table(path, also=OR_OTHERS)
    try:
        return dataset.to_table()
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = reason_of(error)  # the library's own text may quote the data
    raise SourceError(f"{path}: a file of the table is missing, damaged or of another type ({problem})")


def _csv(path: Path, like: pa.Schema | None) -> pa.Table:
    from pyarrow import csv

    accepted = "accepted: CSV in UTF-8 with a header, comma-separated, as many fields in every row"
    try:
        check_regular(path)
        # Types follow from the first block alone, so it is large.
        table = csv.read_csv(path, csv.ReadOptions(block_size=1 << 28), convert_options=_conversion(like))
    except OSError as error:
        problem = file_problem(error)
    except (ValueError, pa.ArrowException) as error:
        problem = f"the table cannot be read ({reason_of(error)})"
    else:
        if not any(looks_like_data(name) for name in table.column_names):
            return pa.table([_without_empty(column) for column in table.columns], names=table.column_names)
        # A first row that is no header must not be quoted in what is said of columns.
        problem = "the first line has empty or numeric names, so it is no header"
    raise SourceError(f"{path}: {problem}; {accepted}")


def _json_lines(path: Path) -> pa.Table:
    """One object a line; a name that an object lacks is missing there. Nothing is taken for a date or a number."""
    try:
        check_regular(path)
        lines = path.read_text(encoding="utf-8").split("\n")  # other ends of lines may stand inside of a text
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
        raise SourceError(f"{path}: line {number} is no JSON object; accepted: one object a line")
    return found


def _column(path: Path, name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        problem = "holds values of different types"  # the library's own text quotes one
    raise SourceError(f"{path}: column {name!r} {problem}")


def _conversion(like: pa.Schema | None) -> object:
    from pyarrow import csv

    texts = {item.name: pa.large_string() for item in like or () if is_text(item.type)}
    # Only an empty field is a missing text: "NA" and the like may be somebody's code. Of numbers, Arrow knows them all.
    return csv.ConvertOptions(column_types=texts)


def _without_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not is_text(column.type):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def is_text(type_: pa.DataType) -> bool:
    """Whether a column of this type holds text, perhaps as codes of a dictionary."""
    values = type_.value_type if pa.types.is_dictionary(type_) else type_
    return bool(pa.types.is_string(values) or pa.types.is_large_string(values))


def looks_like_data(name: str) -> bool:
    """Whether a column's name is empty or a number, so that the line which it stands in is no header."""
    try:
        float(name)
    except ValueError:
        return not name.strip()
    return True
