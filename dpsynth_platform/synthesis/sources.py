"""One table in files: its columns, a name of its content, and its rows.

What belongs here: opening a Parquet file (or a directory of them), a Delta table or a CSV file, and streaming rows of
the types that its columns have. What does not: what is declared of the columns (`declaration`), and any change to rows.

Parquet and Delta say in their metadata which types columns have. A CSV file does not: its columns have the types that
are declared for them, and what is not declared is text. Nothing is inferred from values, and each is read by itself
(`texts`). Only who reads domains off the data has types guessed from it, too (`guessed`).

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

from dpsynth_platform.bounding.ownership import open_table
from dpsynth_platform.compute.reading import read_batches
from dpsynth_platform.contracts import RESERVED_COLUMNS, Column
from dpsynth_platform.digests import digest_file
from dpsynth_platform.errors import SourceError, file_problem
from dpsynth_platform.lineage.redaction import reason_of
from dpsynth_platform.quality.files import OR_CSV, looks_like_data, read_file
from dpsynth_platform.storage import digest_directory
from dpsynth_platform.synthesis.texts import MOMENT, values_of

Format = Literal["parquet", "csv", "delta"]

_LONGEST_NAME = 100
_BLOCK_BYTES = 1 << 25
"""Of a CSV file, read at once; no row may be longer."""
_OF_CSV = "CSV in UTF-8 with a header, comma-separated, as many fields in every row"

_CSV_TYPES = {
    "integer": pa.int64(),
    "float": pa.float64(),
    "date": pa.date32(),
    "datetime": MOMENT,
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

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, as `plain_schema` says.

        Raises:
            SourceError: a file is missing or damaged, a CSV column cannot be read as its type, or there is no row.
        """
        wanted, empty, problem = self.plain_schema, True, None
        try:
            for batch in self._csv() if self.format == "csv" else self._columnar():
                empty = empty and not batch.num_rows
                yield pa.RecordBatch.from_arrays(batch.columns, schema=wanted)
        except (OSError, ValueError, pa.ArrowException) as error:
            # The library's own text may quote the data, so its type must do.
            problem = f"a file of the table is missing or damaged ({reason_of(error)})"
        if problem or empty:
            accepted = _OF_CSV if self.format == "csv" else "a table with rows"
            raise SourceError(f"{self.path}: {problem or 'the table has no rows'}; accepted: {accepted}")

    def _columnar(self) -> Iterator[pa.RecordBatch]:
        for batch in read_batches(open_table(self.path)):
            columns = [column.cast(plain_type(column.type)) for column in batch.columns]
            yield pa.RecordBatch.from_arrays(columns, names=self.schema.names)

    def _csv(self) -> Iterator[pa.RecordBatch]:
        from pyarrow import csv

        texts = csv.ConvertOptions(column_types=dict.fromkeys(self.schema.names, pa.string()))
        # With line breaks in values, rows are told apart before blocks are: where one ends hangs on no other row.
        parsing, reading = csv.ParseOptions(newlines_in_values=True), csv.ReadOptions(block_size=_BLOCK_BYTES)
        with csv.open_csv(self.path, reading, parsing, texts) as reader:
            if reader.schema.names != self.schema.names:
                raise SourceError(f"{self.path}: its header is more than one line; accepted: names without line breaks")
            for batch in reader:
                columns = [self._read(column, item) for column, item in zip(batch.columns, self.schema, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _read(self, texts: pa.Array, item: pa.Field) -> pa.Array:
        try:
            return values_of(texts, item.type)
        except pa.ArrowInvalid:
            pass  # its text quotes the data
        raise SourceError(
            f"{self.path}: column {item.name!r} is declared to hold {item.type}, and some of its values cannot be read "
            "so; accepted: numbers (whole ones below 2^53, if written with a point), dates as 2026-01-31, true or "
            "false; or another type"
        )


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


def guessed(source: Source) -> pa.Table:
    """All rows by the names in the file, of a CSV file with the types that all of its values together suggest.

    For reading domains off the data alone, which no guarantee covers.

    Raises:
        SourceError: the rows cannot be read.
    """
    if source.format == "csv":
        return read_file(source.path)
    return pa.Table.from_batches(source.batches()).rename_columns(source.schema.names)


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
        problem = f"its first line cannot be read ({reason_of(error)})"
    raise SourceError(f"{path}: {problem}; accepted: CSV in UTF-8 with a header, comma-separated")


def _csv_type(declared: Column | None) -> pa.DataType:
    return _CSV_TYPES.get(declared.type if declared else "", pa.string())


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type of a column's values, where they are dictionary-encoded."""
    return type_.value_type if pa.types.is_dictionary(type_) else type_
