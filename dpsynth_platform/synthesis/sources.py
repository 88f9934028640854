"""One table in files: its columns, a name of its content, and its rows.

What belongs here: opening a Parquet file (or a directory of them), a Delta table or a CSV file, and streaming rows of
the types that its columns have. What does not: what is declared of the columns (`declaration`), and any change to rows.

Parquet and Delta say in their metadata which types columns have. A CSV file does not: its columns have the types that
are declared for them, and what is not declared is text. Nothing is inferred from values.

Columns in files may have any name, those of a contract may not: in between, `Source.names` says what each is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.bounding.ownership import open_table
from dpsynth_platform.compute.reading import read_batches
from dpsynth_platform.contracts import RESERVED_COLUMNS, Column
from dpsynth_platform.errors import SourceError, file_problem
from dpsynth_platform.quality.files import OR_CSV, looks_like_data, read_file
from dpsynth_platform.storage import digest_directory, digest_file

Format = Literal["parquet", "csv", "delta"]

_LONGEST_NAME = 100
_LARGEST_EXACT = 2**53

_CSV_TYPES = {
    "integer": pa.int64(),
    "float": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "boolean": pa.bool_(),
}


@dataclass(frozen=True)
class Source:
    """A table at a path.

    Attributes:
        schema: columns with the names and types that they have in the file.
    """

    path: Path
    format: Format
    schema: pa.Schema

    @cached_property
    def version(self) -> str:
        """A name of the content: two tables share it only if they hold the same. A function of the data: restricted."""
        if self.format == "delta":
            from deltalake import DeltaTable

            table = DeltaTable(str(self.path))
            return f"{table.metadata().id}@{table.version()}"
        return digest_directory(self.path) if self.path.is_dir() else digest_file(self.path)

    @cached_property
    def names(self) -> dict[str, str]:
        """What a contract calls each column, by its name in the file: the same where it can be."""
        found: dict[str, str] = {}
        for name in self.schema.names:
            plain = re.sub(r"[^A-Za-z0-9_\-]+", "_", name)
            plain = (plain if re.match("[A-Za-z]", plain) else f"column_{plain}")[:_LONGEST_NAME]
            taken = {other.casefold() for other in found.values()} | set(RESERVED_COLUMNS)
            options = (plain, *(f"{plain}_{number}" for number in range(2, len(taken) + 3)))
            found[name] = next(option for option in options if option.casefold() not in taken)
        return found

    @property
    def own_schema(self) -> pa.Schema:
        """The file's types under a contract's names."""
        return pa.schema([item.with_name(self.names[item.name]) for item in self.schema])

    @property
    def plain_schema(self) -> pa.Schema:
        """The rows as they are read: a contract's names, and plain values of what is dictionary-encoded."""
        return pa.schema([item.with_type(plain_type(item.type)) for item in self.own_schema])

    def rows(self) -> int | None:
        """How many rows its metadata say that it has; None where it has none. An exact count: for progress only."""
        return None if self.format == "csv" else open_table(self.path).count_rows()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, as `plain_schema` says.

        Raises:
            SourceError: a file is missing or damaged, a CSV column cannot be read as its type, or there is no row.
        """
        wanted, empty, problem = self.plain_schema, True, None
        try:
            for batch in self._read():
                empty = empty and not batch.num_rows
                columns = [
                    _cast(self.path, batch.column(given), given, item.type)
                    for given, item in zip(self.schema.names, wanted, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=wanted)
        except (OSError, ValueError, pa.ArrowException) as error:
            # The library's own text may quote the data, so its type must do.
            problem = f"a file of the table is missing or damaged ({type(error).__name__})"
        if problem or empty:
            raise SourceError(f"{self.path}: {problem or 'the table has no rows'}; accepted: a table with rows")

    def _read(self) -> Iterator[pa.RecordBatch]:
        if self.format != "csv":
            return read_batches(open_table(self.path))
        table = read_file(self.path, like=self.schema)
        if table.column_names != self.schema.names:
            raise SourceError(f"{self.path}: its header is more than one line; accepted: names without line breaks")
        return iter(table.to_batches())


def open_source(path: Path, declared: Mapping[str, Column]) -> Source:
    """The table at a path; reads metadata only, of a CSV file its first line.

    Args:
        declared: columns of which something is declared; only a CSV file's types follow from it.

    Raises:
        SourceError: there is no table that can be read, or two columns have the same name.
    """
    if path.suffix.lower() == ".csv":
        fields = [pa.field(name, _csv_type(declared.get(name))) for name in _csv_header(path)]
        source = Source(path, "csv", pa.schema(fields))
    else:
        dataset = open_table(path, also=OR_CSV)
        source = Source(path, "delta" if (path / "_delta_log").is_dir() else "parquet", dataset.schema)
    names = source.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SourceError(f"{path}: column {twice[0]!r} stands in the table more than once; accepted: distinct names")
    return source


def guessed_types(source: Source) -> pa.Schema:
    """The types that a CSV file's values suggest; of other files their own. Reads all values of a CSV file."""
    if source.format == "csv":
        return read_file(source.path).schema
    return pa.schema([item.with_type(plain_type(item.type)) for item in source.schema])


def _csv_header(path: Path) -> list[str]:
    from pyarrow import csv

    problem = "the file is empty"
    try:
        with path.open("rb") as file:
            header = file.readline()
        if header.strip():
            names = list(csv.read_csv(pa.BufferReader(header)).column_names)
            if not any(map(looks_like_data, names)):
                return names
            # A first row that is no header must not be quoted in what is said of columns.
            problem = "the first line has empty or numeric names, so it is no header"
    except OSError as error:
        problem = file_problem(error)
    except (ValueError, pa.ArrowException) as error:
        problem = f"its first line cannot be read ({type(error).__name__})"
    raise SourceError(f"{path}: {problem}; accepted: CSV in UTF-8 with a header, comma-separated")


def _csv_type(declared: Column | None) -> pa.DataType:
    return _CSV_TYPES.get(declared.type if declared else "", pa.string())


def _cast(path: Path, column: pa.Array, name: str, wanted: pa.DataType) -> pa.Array:
    problem = f"column {name!r} is declared to hold {wanted}, and some of its values cannot be read so"
    try:
        if _exact(column, wanted):
            # Where only the date of a moment is declared, its time of day goes.
            return column.cast(wanted, safe=not pa.types.is_timestamp(column.type))
        problem += ": whole numbers beyond 2^53 beside some with a decimal point, which rounds all of them"
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    raise SourceError(f"{path}: {problem}; accepted: numbers, dates as 2026-01-31, true or false; or another type")


def _exact(column: pa.Array, wanted: pa.DataType) -> bool:
    """Whether whole numbers are still what they were.

    One row's decimal point makes a CSV file's column one of double precision. If that could round the other rows'
    values, one person would change what everybody else is counted for.
    """
    if not (pa.types.is_floating(column.type) and pa.types.is_integer(wanted)):
        return True
    ends = pc.min_max(pc.abs(column))
    return ends["max"].as_py() is None or ends["max"].as_py() < _LARGEST_EXACT


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type of a column's values, where they are dictionary-encoded."""
    return type_.value_type if pa.types.is_dictionary(type_) else type_
