"""CSV files: their columns by the first line and the declarations, and their rows.

What belongs here: opening files of one dialect, and streaming their rows. What does not: the dialect itself
(`dialect`), and the values of fields (`csv_texts`).

Columns have their declared types, or text. No type is inferred from values, and each value is read separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.contracts.columns import CategoricalColumn, Column, TimeColumn
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.reading import Span, selected
from dpsynth_platform.sources.csv_texts import MOMENT, values_of
from dpsynth_platform.sources.dialect import Dialect

_BLOCK_BYTES = 1 << 25
"""Block size of reading; no row may be longer."""
_RAGGED = re.compile(r"CSV parse error: (Row #[0-9]+: )?Expected [0-9]+ columns")
"""How Arrow's error of a row with too few or too many fields begins; the rest of it quotes the row."""
_TYPES = {
    "integer": pa.int64(),
    "float": pa.float64(),
    "date": pa.date32(),
    "datetime": MOMENT,
    "boolean": pa.bool_(),
}


def text_schema(names: Sequence[str], declared: Mapping[str, Column]) -> pa.Schema:
    """The columns of a format of texts, with their declared types, or text."""
    types = {name: _TYPES.get(column.type, pa.string()) for name, column in declared.items()}
    return pa.schema([pa.field(name, types.get(name, pa.string())) for name in names])


@dataclass(frozen=True)
class CsvTable:
    """A table in CSV files with the same first line.

    Attributes:
        schema: all columns, in the order of the first line.
        declared: declarations of columns, by their names.
        copied: whether the file is a copy of a database's rows, which nobody named or can change.
    """

    files: tuple[Path, ...]
    schema: pa.Schema
    dialect: Dialect
    declared: Mapping[str, Column]
    copied: bool = False

    def batches(
        self, columns: Sequence[str] | None = None, *, span: Span | None = None, most_rows: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows; see `files.FileTable.batches`.

        Raises:
            SourceError: a value cannot be read as its column's type; text is not in the declared encoding.
            pyarrow.ArrowException, OSError, UnicodeError: a file is missing or damaged. The text may quote data.
        """
        schema = selected(self.schema, columns)
        for path in self.files:
            self.dialect.check_quotes(path)
            for texts in self._texts(path):
                fields = [texts.column(self.schema.get_field_index(item.name)) for item in schema]
                arrays = [self._read(path, array, item) for array, item in zip(fields, schema, strict=True)]
                batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
                if span is not None:
                    batch = batch.filter(span.mask(batch))
                yield from parts(batch, most_rows)

    def _texts(self, path: Path) -> Iterator[pa.RecordBatch]:
        """All unchanged fields of a file, as bytes."""
        from pyarrow import csv

        reading, parsing = self.dialect.options(_BLOCK_BYTES)
        names = self.dialect.raw_names(path)
        texts = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()))
        try:
            with csv.open_csv(path, reading, parsing, texts) as reader:
                if reader.schema.names != names:
                    raise SourceError(f"{path}: its header is more than one line; accepted: names without line breaks")
                yield from reader
            return
        except pa.ArrowInvalid as error:
            if not _RAGGED.match(str(error)):
                raise
        # Raised outside, so that the error's context holds nothing of the row, which Arrow quotes.
        raise SourceError(
            f"{path}: a row has fewer or more fields than there are columns, {len(names)} (neither the row nor its "
            "number is shown); accepted: as many fields in every row, with quotes around those that hold the separator"
        )

    def _decoded(self, path: Path, fields: pa.Array, name: str) -> pa.Array:
        try:
            return self.dialect.fields(fields.cast(pa.string()))
        except pa.ArrowInvalid:
            pass  # its text may quote the data
        raise SourceError(
            f"{path}: column {name!r} holds text that is not UTF-8; accepted: --csv-encoding with the file's, "
            "such as cp1252, latin-1 or utf-16"
        )

    def _read(self, path: Path, fields: pa.Array, item: pa.Field) -> pa.Array:
        texts = self._decoded(path, fields, item.name)
        found = declared_values(texts, item, self.declared.get(item.name), self.dialect.decimal)
        if found is None:
            place, comma, others = f"{path}: ", "; with a decimal comma by --csv-decimal", "another type"
            if self.copied:
                place, comma, others = "", "", "others by a query (CAST, NULLIF), or another type"
            raise SourceError(
                f"{place}column {item.name!r} is declared to hold {item.type}, and some of its values cannot be read "
                f"so; accepted: numbers (whole ones below 2^53, if written with a point{comma}), dates as 2026-01-31, "
                f"true or false; or {others}"
            )
        return found


def open_csv(
    files: Sequence[Path], declared: Mapping[str, Column], dialect: Dialect, known: Sequence[str] = ()
) -> CsvTable:
    """The table in CSV files; reads their first lines.

    Args:
        known: further known names: a first line with one of these or of the declared names is a header.

    Raises:
        SourceError: a file cannot be read or has no declared header, or two files have other ones.
    """
    names = dialect.names(files[0], {*declared, *known})
    for path in files[1:]:
        if dialect.names(path, names) != names:
            raise SourceError(
                f"{path}: its first line differs from that of {files[0].name}; accepted: files with the same columns "
                "in the same order"
            )
    return CsvTable(tuple(files), text_schema(names, declared), dialect, declared)


def declared_values(texts: pa.Array, item: pa.Field, declared: Column | None, decimal: str = ".") -> pa.Array | None:
    """The values of a column of texts; None: one of them is no value of its type."""
    if isinstance(declared, CategoricalColumn):
        if declared.whole_numbers and decimal != ".":
            texts = pc.replace_substring_regex(texts, rf"^(\s*-?[0-9]+){decimal}(0*\s*)$", r"\1.\2")
    elif isinstance(declared, TimeColumn):
        texts = pc.utf8_trim_whitespace(texts)
    try:
        return values_of(texts, item.type, decimal)
    except pa.ArrowInvalid:
        return None  # its text quotes the data


def parts(batch: pa.RecordBatch, most_rows: int | None) -> Iterator[pa.RecordBatch]:
    """A batch in parts of at most so many rows."""
    for start in range(0, batch.num_rows, most_rows or max(batch.num_rows, 1)):
        yield batch.slice(start, most_rows)
