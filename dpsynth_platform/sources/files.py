"""A table in known Parquet files.

What belongs here: its schema and its rows, file by file. What does not: finding the files (`delta`, `directories`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.reading import BATCH_ROWS, Span, file_batches, selected

if TYPE_CHECKING:
    import pyarrow.dataset as ds


def parquet_layout() -> ds.ParquetFileFormat:
    """How Parquet files are read: moments of 96 bits, as Hive, Impala and Spark wrote them, in microseconds, since
    nanoseconds do not reach 9999-12-31, which stands there for an open end."""
    import pyarrow.dataset as ds

    return ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))


def one_file(path: Path) -> FileTable:
    """The table in a Parquet file; its metadata is read.

    Arrow's own discovery refuses names that occur twice, without a word on which.

    Raises:
        pyarrow.ArrowException, OSError: it cannot be read. The text may quote data.
    """
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    layout, local = parquet_layout(), LocalFileSystem()
    fragment = layout.make_fragment(str(path), local)
    return FileTable(ds.FileSystemDataset([fragment], layout.inspect(str(path), local), layout, local))


@dataclass(frozen=True)
class StoredColumn:
    """A column's name in the files, or its number there (`field_id`), which then replaces the name."""

    name: str
    field_id: int | None = None


@dataclass(frozen=True)
class FileTable:
    """A table in Parquet files.

    Attributes:
        dataset: its files, with the columns' logical names and types, and each file's values of partition columns.
        stored: the columns' places in the files; None: under their logical names.
        kept: mask of the rows that were not deleted, by file.
        unreadable: columns that cannot be read, and why.
    """

    dataset: ds.FileSystemDataset
    stored: Mapping[str, StoredColumn] | None = None
    kept: Mapping[str, pa.BooleanArray] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        return self.dataset.schema

    def batches(
        self, columns: Sequence[str] | None = None, *, span: Span | None = None, most_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """The rows, with the memory of one batch at a time.

        Args:
            columns: by name and in order; all of them by default.
            span: which rows; its column is one of `columns`.
            most_rows: of a batch.

        Raises:
            EngineError: there is no such column.
            SourceError: a column cannot be read.
            pyarrow.ArrowException, OSError: a file is missing, damaged or of other types. The text may quote data.
        """
        schema = selected(self.schema, columns)
        for name in schema.names:
            if name in self.unreadable:
                raise SourceError(f"column {name!r}: {self.unreadable[name]}")
        for fragment in self.dataset.get_fragments(None if span is None else span.expression()):
            yield from file_batches(
                fragment,
                schema,
                stored=self._stored_in(fragment),
                kept=self.kept.get(fragment.path),
                span=span,
                most_rows=most_rows,
            )

    def local_files(self) -> list[Path]:
        """Its files that are on this machine."""
        from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

        store, root = self.dataset.filesystem, Path("/")
        if isinstance(store, SubTreeFileSystem):
            store, root = store.base_fs, Path(store.base_path)
        return [root / name for name in self.dataset.files] if isinstance(store, LocalFileSystem) else []

    def to_table(self) -> pa.Table:
        """All rows at once. Raises as `batches` does."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def kinds(self, columns: Sequence[str]) -> dict[str, set[str]]:
        """The types of each column in the files; `absent` in a file without it. Raises as `batches` does."""
        found: dict[str, set[str]] = {name: set() for name in columns}
        for fragment in self.dataset.get_fragments():
            physical, stored = fragment.physical_schema, self._stored_in(fragment)
            for name in columns:
                here = name if stored is None else stored.get(name)
                there = here is not None and here in physical.names
                found[name].add(str(physical.field(here).type) if there else "absent")
        return found

    def _stored_in(self, fragment: ds.ParquetFileFragment) -> Mapping[str, str] | None:
        """The file's own name of each column that it has."""
        if self.stored is None:
            return None
        physical = fragment.physical_schema
        numbers = {_field_id(item): item.name for item in physical}
        if any(column.field_id is not None for column in self.stored.values()) and not numbers.keys() - {None}:
            raise pa.ArrowInvalid("a file has no column numbers")
        found = {
            name: column.name if column.field_id is None else numbers.get(column.field_id)
            for name, column in self.stored.items()
        }
        return {name: stored for name, stored in found.items() if stored is not None and stored in physical.names}


def _field_id(item: pa.Field) -> int | None:
    number = (item.metadata or {}).get(b"PARQUET:field_id")
    return None if number is None else int(number)


def partition_of(schema: pa.Schema, values: Mapping[str, Any]) -> pc.Expression:
    """The values of partition columns that all rows of a file share."""
    found = pc.scalar(True)
    for name, value in values.items():
        column = pc.field(name)
        found &= column.is_null() if value is None else column == pa.scalar(value, schema.field(name).type)
    return found
