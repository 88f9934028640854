"""One table in files or in memory: its columns, a name of its content, and its rows.

What belongs here: opening a Parquet file (or a directory of them), a Delta table, a CSV file or an Arrow table, and
streaming its rows as plain values (`compute.plain_types`), with the fields of structs as columns (`structs`). What does
not: declarations of columns (`one_table.declaration`), the dialect of a CSV file (`dialect`), and any change to rows.

Parquet, Delta and Arrow metadata give the types of columns. Columns of a CSV file have their declared types, or text.
No type is inferred from values, and each value is read separately (`csv_files`). Only `guessed`, for reading domains
from the data, infers types.

The contract of one table has plain names of letters, digits, `_` and `-`: `Source.names` maps them.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import plain, plain_schema
from dpsynth_platform.contracts.columns import RESERVED_COLUMNS, Column
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.storage import digest_directory, digest_files
from dpsynth_platform.sources.csv_files import CsvTable, open_csv, text_schema
from dpsynth_platform.sources.delta import open_delta
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.directories import data_files
from dpsynth_platform.sources.packing import check_unpacked
from dpsynth_platform.sources.structs import FlatTable, flat_schema, flat_table, shape_of
from dpsynth_platform.sources.tables import is_delta, open_table

_CSV_NAMES = (".csv", ".tsv")
_CSV_FILE = f"CSV file ({', '.join(_CSV_NAMES)})"
Format = Literal["parquet", "csv", "delta"]
Layout = Literal[Format, "memory"]

IN_MEMORY = Path("the table")
"""The name of a table in memory in messages."""

_LONGEST_NAME = 100
_BATCH_ROWS = 1 << 17
_GUESSED_BYTES = 1 << 28
_CODE = r"^\s*-?0[0-9]"


@dataclass(frozen=True)
class Source:
    """A table at a path, or in memory.

    Attributes:
        schema: the columns that are read, with their names and types in the file.
        dialect: of a CSV file.
        declared: declared columns, by their names in the file.
        found: names of all columns in the file, also of ignored ones.
        table: a table in memory; its path is only a name.
        shape: `structs.shape_of` the file; None: there are no structs whose fields are columns.
        may_be_empty: whether a table without rows is read as such, and not refused.
    """

    path: Path
    format: Layout
    schema: pa.Schema
    dialect: Dialect = field(default_factory=Dialect)
    declared: Mapping[str, Column] = field(default_factory=dict)
    found: tuple[str, ...] = ()
    table: pa.Table | None = field(default=None, repr=False, compare=False)
    shape: pa.Schema | None = None
    may_be_empty: bool = False

    @cached_property
    def version(self) -> str:
        """A name of the content: equal only for equal tables. It depends on the data, so it is restricted."""
        if self.table is not None:
            return table_digest(self.table)
        if self.format == "delta":
            return self._delta_versions[0]
        return digest_files(self.path, data_files(self.path)) if self.path.is_dir() else digest_file(self.path)

    @property
    def versions(self) -> tuple[str, ...]:
        """All names that the content may have had, `version` first.

        For a Delta table its versions with the same rows. For a directory also its former name, which covered all its
        files, unless former versions read other files as rows.
        """
        if self.format == "delta":
            return self._delta_versions
        if self.table is None and self.path.is_dir() and data_files(self.path) == sorted(self.path.rglob("*.parquet")):
            return self.version, digest_directory(self.path)
        return (self.version,)

    @cached_property
    def _delta_versions(self) -> tuple[str, ...]:
        found = open_delta(str(self.path))
        return tuple(f"{found.table_id}@{number}" for number in range(found.log.same_since, found.version + 1))

    @cached_property
    def names(self) -> dict[str, str]:
        """The contract's name of each column, by its name in the file: the same if possible."""
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
        """The file's types with the contract's names."""
        return pa.schema([item.with_name(self.names[item.name]) for item in self.schema])

    def without(self, names: Collection[str]) -> Source:
        """The same table without some columns."""
        return replace(self, schema=pa.schema([item for item in self.schema if item.name not in names]))

    @property
    def plain_schema(self) -> pa.Schema:
        """The schema of `batches`: the contract's names, and plain types instead of dictionary-encoded ones."""
        return plain_schema(self.own_schema)

    def batches(self, columns: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, of type `plain_schema`.

        Args:
            columns: by the contract's names; they come in the table's order. None: all.

        Raises:
            SourceError: a file is missing or damaged, a CSV column cannot be read as its type, or there is no row
                and not `may_be_empty`.
        """
        items = [item for item in self.schema if columns is None or self.names[item.name] in columns]
        wanted, empty, problem = self.plain_schema, not self.may_be_empty, None
        wanted = pa.schema([wanted.field(self.names[item.name]) for item in items])
        stored = [item.name for item in items]
        try:
            for batch in self._stored(stored):
                empty = empty and not batch.num_rows
                yield pa.RecordBatch.from_arrays([plain(column) for column in batch.columns], schema=wanted)
        except UnicodeError:
            problem = f"it is not in {self.dialect.encoding} throughout"
        except (OSError, ValueError, pa.ArrowException) as error:
            # Only the error's type is shown: the library's text may quote the data.
            problem = f"a file of the table is missing or damaged ({reason_of(error)})"
        if problem or empty:
            accepted = self.dialect.accepted if self.format == "csv" else "a table with rows"
            raise SourceError(f"{self.path}: {problem or 'the table has no rows'}; accepted: {accepted}")

    def _stored(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self.table is not None:
            flat = flat_table(self.table, self.declared) if self.shape is not None else self.table
            return iter(flat.select(names).to_batches(max_chunksize=_BATCH_ROWS))
        if self.format == "csv":
            whole = text_schema(self.found, self.declared)
            return CsvTable((self.path,), whole, self.dialect, self.declared).batches(names)
        return FlatTable(open_table(self.path, self.declared), self.declared).batches(names)


def open_source(
    path: Path | pa.Table, declared: Mapping[str, Column], dialect: Dialect | None = None, named: Collection[str] = ()
) -> Source:
    """The table at a path, without ignored columns; reads metadata only, of a CSV file its first line.

    Args:
        declared: declared columns, which give a CSV file's types.
        dialect: of a CSV file; None: the usual one.
        named: further known names: a CSV file's first line with one of these or of the declared names is a header.

    Raises:
        SourceError: there is no readable table, two columns have the same name, also as fields of structs, or a CSV
            file has no declared header.
        ContractError: a dialect is declared for a table that is no CSV file.
    """
    if isinstance(path, pa.Table):
        source = _columnar(IN_MEMORY, "memory", path.schema, declared, path)
    elif path.suffix.lower() in _CSV_NAMES:
        dialect = dialect or Dialect()
        if path.is_file():
            check_unpacked(path)
        schema = open_csv([path], declared, dialect, tuple(named)).schema
        source = Source(path, "csv", schema, dialect, declared, tuple(schema.names))
    else:
        if path.is_file():
            check_unpacked(path)
        if dialect is not None and (dialect.declared or dialect != Dialect()):
            raise ContractError(f"--csv-...: {path} is no {_CSV_FILE}; accepted: those options for one that is")
        schema = open_table(path, declared, also=f", a {_CSV_FILE}").schema
        layout: Format = "delta" if is_delta(path) else "parquet"
        source = _columnar(path, layout, schema, declared)
    twice = sorted({name for name in source.found if source.found.count(name) > 1})
    if twice:
        raise SourceError(
            f"{source.path}: column {twice[0]!r} is in the table more than once; accepted: distinct names"
        )
    return source.without([name for name, column in declared.items() if column.type == "ignored"])


def _columnar(
    path: Path, layout: Layout, schema: pa.Schema, declared: Mapping[str, Column], table: pa.Table | None = None
) -> Source:
    """A table with types, the fields of whose structs are columns."""
    try:
        flat = flat_schema(schema, declared)
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from None
    shape = None if flat.equals(schema) else shape_of(schema)
    return Source(path, layout, flat, declared=declared, found=tuple(flat.names), table=table, shape=shape)


def table_digest(table: pa.Table) -> str:
    """SHA-256 (hex) of a table's columns and values, whatever their chunks."""
    digest, combined = hashlib.sha256(), table.combine_chunks().replace_schema_metadata(None)
    with pa.ipc.new_stream(_Writes(digest.update), combined.schema) as writer:
        writer.write_table(combined)
    return digest.hexdigest()


class _Writes(io.RawIOBase):
    """A file that passes on what is written."""

    def __init__(self, to: Callable[[Any], None]) -> None:
        self._to = to

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._to(data)
        return len(data)


def check_exists(path: Path, accepted: str = "the path of a table") -> None:
    """Raises `SourceError` if nothing is there; for commands that refuse other arguments before they open the table."""
    if not os.path.lexists(path):
        raise SourceError(f"{path}: there is no such file or directory; accepted: {accepted}")


def guessed(source: Source) -> pa.Table:
    """All rows by the names in the file, with types that are inferred from all values of a CSV file.

    Only for reading domains from the data, which no guarantee covers.

    Raises:
        SourceError: the rows cannot be read.
    """
    from pyarrow import csv

    if source.format != "csv":
        return pa.Table.from_batches(source.batches()).rename_columns(source.schema.names)
    # Arrow infers types from the first block only, so it is large.
    reading, parsing = source.dialect.options(_GUESSED_BYTES)
    converting = csv.ConvertOptions(decimal_point=source.dialect.decimal)
    try:
        source.dialect.check_quotes(source.path)
        table = csv.read_csv(source.path, reading, parsing, converting)
        whole = [item.name for item in table.schema if pa.types.is_integer(item.type)]
        if whole:  # digits after a zero are a code, such as of a postal district, and no number
            typed = csv.ConvertOptions(include_columns=whole, column_types=dict.fromkeys(whole, pa.string()))
            texts = csv.read_csv(source.path, reading, parsing, typed)
            for name in whole:
                if pc.any(pc.match_substring_regex(texts[name], _CODE)).as_py():
                    table = table.set_column(table.column_names.index(name), name, texts[name])
        table = table.rename_columns(list(source.found))
        return pa.table({name: _without_empty(source, table[name].combine_chunks()) for name in source.schema.names})
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = reason_of(error)  # the library's text may quote the data
    raise SourceError(f"{source.path}: the table cannot be read ({problem}); accepted: {source.dialect.accepted}")


def _without_empty(source: Source, column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        return column
    texts = source.dialect.fields(column)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
