"""One table in files: its columns, a name of its content, and its rows.

What belongs here: opening a Parquet file (or a directory of them), a Delta table or a CSV file, and streaming rows of
the types that its columns have, as plain values (`compute.plain_types`). What does not: what is declared of the columns
(`declaration`), how a CSV file is written (`dialect`), and any change to rows.

Parquet and Delta say in their metadata which types columns have. A CSV file does not: its columns have the types that
are declared for them, and what is not declared is text. Nothing is inferred from values, and each is read by itself
(`texts`). Only who reads domains off the data has types guessed from it, too (`guessed`).

Columns in files may have any name, those of a contract may not: in between, `Source.names` says what each is called.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import plain, plain_schema
from dpsynth_platform.contracts.columns import RESERVED_COLUMNS, CategoricalColumn, Column, TimeColumn
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.storage import digest_directory, digest_files
from dpsynth_platform.sources.csv_texts import MOMENT, values_of
from dpsynth_platform.sources.delta import open_delta
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.directories import data_files
from dpsynth_platform.sources.tables import is_delta, open_table

OR_CSV = ", a CSV file (.csv)"
Format = Literal["parquet", "csv", "delta"]

_LONGEST_NAME = 100
_BLOCK_BYTES = 1 << 25
"""Of a CSV file, read at once; no row may be longer."""
_GUESSED_BYTES = 1 << 28
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
        schema: columns that are read, with the names and types that they have in the file.
        dialect: of a CSV file.
        declared: what is declared of columns, by their names in the file.
        found: names of all columns in the file, those that are ignored among them.
    """

    path: Path
    format: Format
    schema: pa.Schema
    dialect: Dialect = field(default_factory=Dialect)
    declared: Mapping[str, Column] = field(default_factory=dict)
    found: tuple[str, ...] = ()

    @cached_property
    def version(self) -> str:
        """A name of the content: two tables share it only if they hold the same. A function of the data: restricted."""
        if self.format == "delta":
            return self._delta_versions[0]
        return digest_files(self.path, data_files(self.path)) if self.path.is_dir() else digest_file(self.path)

    @property
    def versions(self) -> tuple[str, ...]:
        """All names that the content may have had, `version` first.

        A Delta table's versions that hold the same rows; a directory with what lies beside its files of rows, unless
        leftovers were once read as rows.
        """
        if self.format == "delta":
            return self._delta_versions
        if self.path.is_dir() and data_files(self.path) == sorted(self.path.rglob("*.parquet")):
            return self.version, digest_directory(self.path)
        return (self.version,)

    @cached_property
    def _delta_versions(self) -> tuple[str, ...]:
        found = open_delta(str(self.path))
        return tuple(f"{found.table_id}@{number}" for number in range(found.log.same_since, found.version + 1))

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

    def without(self, names: Collection[str]) -> Source:
        """The same table without some columns, which are not read."""
        return replace(self, schema=pa.schema([item for item in self.schema if item.name not in names]))

    @property
    def plain_schema(self) -> pa.Schema:
        """The rows as they are read: a contract's names, and plain values of what is dictionary-encoded."""
        return plain_schema(self.own_schema)

    def batches(self, columns: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, as `plain_schema` says.

        Args:
            columns: those that are wanted, by a contract's names, in the table's order; None: all.

        Raises:
            SourceError: a file is missing or damaged, a CSV column cannot be read as its type, or there is no row.
        """
        items = [item for item in self.schema if columns is None or self.names[item.name] in columns]
        wanted, empty, problem = self.plain_schema, True, None
        wanted = pa.schema([wanted.field(self.names[item.name]) for item in items])
        try:
            for batch in self._csv(items) if self.format == "csv" else self._columnar(items):
                empty = empty and not batch.num_rows
                yield pa.RecordBatch.from_arrays([plain(column) for column in batch.columns], schema=wanted)
        except UnicodeError:
            problem = f"it is not in {self.dialect.encoding} throughout"
        except (OSError, ValueError, pa.ArrowException) as error:
            # The library's own text may quote the data, so its type must do.
            problem = f"a file of the table is missing or damaged ({reason_of(error)})"
        if problem or empty:
            accepted = self.dialect.accepted if self.format == "csv" else "a table with rows"
            raise SourceError(f"{self.path}: {problem or 'the table has no rows'}; accepted: {accepted}")

    def _columnar(self, items: Sequence[pa.Field]) -> Iterator[pa.RecordBatch]:
        yield from open_table(self.path).batches([item.name for item in items])

    def _csv(self, items: Sequence[pa.Field]) -> Iterator[pa.RecordBatch]:
        self.dialect.check_quotes(self.path)
        for batch in self._texts():
            columns = [self._read(batch.column(self.found.index(item.name)), item) for item in items]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(items))

    def _texts(self) -> Iterator[pa.RecordBatch]:
        """All fields of a CSV file as they stand there, in bytes."""
        from pyarrow import csv

        reading, parsing = self.dialect.options(_BLOCK_BYTES)
        names = self.dialect.raw_names(self.path)
        texts = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()))
        with csv.open_csv(self.path, reading, parsing, texts) as reader:
            if reader.schema.names != names:
                raise SourceError(f"{self.path}: its header is more than one line; accepted: names without line breaks")
            yield from reader

    def _decoded(self, fields: pa.Array, name: str) -> pa.Array:
        try:
            return self.dialect.fields(fields.cast(pa.string()))
        except pa.ArrowInvalid:
            pass  # its text may quote the data
        raise SourceError(
            f"{self.path}: column {name!r} holds text that is not UTF-8; accepted: --csv-encoding with the file's, "
            "such as cp1252, latin-1 or utf-16"
        )

    def _read(self, fields: pa.Array, item: pa.Field) -> pa.Array:
        texts, declared = self._decoded(fields, item.name), self.declared.get(item.name)
        if isinstance(declared, CategoricalColumn):
            texts = self._categories(texts, declared)
        elif isinstance(declared, TimeColumn):
            texts = pc.utf8_trim_whitespace(texts)
        try:
            return values_of(texts, item.type, self.dialect.decimal)
        except pa.ArrowInvalid:
            pass  # its text quotes the data
        raise SourceError(
            f"{self.path}: column {item.name!r} is declared to hold {item.type}, and some of its values cannot be read "
            "so; accepted: numbers (whole ones below 2^53, if written with a point; with a decimal comma by "
            "--csv-decimal), dates as 2026-01-31, true or false; or another type"
        )

    def _categories(self, texts: pa.Array, declared: CategoricalColumn) -> pa.Array:
        """Texts of a column with listed values, whole numbers with a point."""
        if declared.whole_numbers and self.dialect.decimal != ".":
            texts = pc.replace_substring_regex(texts, rf"^(\s*-?[0-9]+){self.dialect.decimal}(0*\s*)$", r"\1.\2")
        return texts


def open_source(
    path: Path, declared: Mapping[str, Column], dialect: Dialect | None = None, named: Collection[str] = ()
) -> Source:
    """The table at a path; reads metadata only, of a CSV file its first line. What is ignored is no part of its schema.

    Args:
        declared: columns of which something is declared; only a CSV file's types follow from it.
        dialect: of a CSV file; None: the usual one.
        named: names of columns that somebody gives beside those that are declared: a CSV file's first line with one of
            these or those is a header.

    Raises:
        SourceError: there is no table that can be read, two columns have the same name, or nobody says that a CSV file
            has a header.
        ContractError: a dialect is declared of a table that is no CSV file.
    """
    if path.suffix.lower() == ".csv":
        dialect = dialect or Dialect()
        names = dialect.names(path, {*declared, *named})
        schema = pa.schema([pa.field(name, _csv_type(declared.get(name))) for name in names])
        source = Source(path, "csv", schema, dialect, declared, tuple(names))
    else:
        if dialect is not None and (dialect.declared or dialect != Dialect()):
            raise ContractError(f"--csv-...: {path} is no CSV file (.csv); accepted: those options for one that is")
        schema = open_table(path, also=OR_CSV).schema
        source = Source(
            path,
            "delta" if is_delta(path) else "parquet",
            schema,
            declared=declared,
            found=tuple(schema.names),
        )
    twice = sorted({name for name in source.found if source.found.count(name) > 1})
    if twice:
        raise SourceError(f"{path}: column {twice[0]!r} stands in the table more than once; accepted: distinct names")
    return source.without([name for name, column in declared.items() if column.type == "ignored"])


def guessed(source: Source) -> pa.Table:
    """All rows by the names in the file, of a CSV file with the types that all of its values together suggest.

    For reading domains off the data alone, which no guarantee covers.

    Raises:
        SourceError: the rows cannot be read.
    """
    if source.format == "csv":
        return _guessed_csv(source)
    return pa.Table.from_batches(source.batches()).rename_columns(source.schema.names)


def _guessed_csv(source: Source) -> pa.Table:
    from pyarrow import csv

    # Types follow from the first block alone, so it is large.
    reading, parsing = source.dialect.options(_GUESSED_BYTES)
    converting = csv.ConvertOptions(decimal_point=source.dialect.decimal)
    try:
        source.dialect.check_quotes(source.path)
        table = csv.read_csv(source.path, reading, parsing, converting).rename_columns(list(source.found))
        return pa.table({name: _guessed(source, table[name].combine_chunks()) for name in source.schema.names})
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = reason_of(error)  # the library's own text may quote the data
    raise SourceError(f"{source.path}: the table cannot be read ({problem}); accepted: {source.dialect.accepted}")


def _guessed(source: Source, column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        return column
    texts = source.dialect.fields(column)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)


def _csv_type(declared: Column | None) -> pa.DataType:
    return _CSV_TYPES.get(declared.type if declared else "", pa.string())
