"""A table in Parquet files, once it is known which files and columns it has.

What belongs here: its schema and its rows, file by file. What does not: finding the files (`delta`, `directories`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from dpsynth_platform.compute.reading import BATCH_ROWS, Span, file_batches, selected
from dpsynth_platform.foundation.errors import SourceError

if TYPE_CHECKING:
    import pyarrow.dataset as ds


@dataclass(frozen=True)
class StoredColumn:
    """Where the files of a table keep a column.

    Attributes:
        name: what the files call it.
        field_id: its number in the files, where that says which column it is, and not the name.
    """

    name: str
    field_id: int | None = None


@dataclass(frozen=True)
class FileTable:
    """A table in Parquet files.

    Attributes:
        dataset: its files, with the columns' own names and types; values of partition columns stand beside each file.
        stored: where files keep the columns, if not under their own names.
        kept: by file, which of its rows are still there, where some are not.
        unreadable: columns that cannot be read, and why.
    """

    dataset: ds.FileSystemDataset
    stored: Mapping[str, StoredColumn] | None = None
    kept: Mapping[str, pa.BooleanArray] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """The columns, with their logical names."""
        return self.dataset.schema

    def batches(
        self, columns: Sequence[str] | None = None, *, span: Span | None = None, most_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """The rows, in memory that depends on a batch only.

        Args:
            columns: by name and in order; all of them by default.
            span: which rows; its column is one of `columns`.
            most_rows: of a batch.

        Raises:
            EngineError: there is no such column.
            SourceError: a column cannot be read.
            pyarrow.ArrowException, OSError: a file is missing, damaged or of other types. Its words may quote data.
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

    def to_table(self) -> pa.Table:
        """All rows at once. Raises as `batches` does."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def kinds(self, columns: Sequence[str]) -> dict[str, set[str]]:
        """The types that the files keep each column as; `absent` of a file without it. Raises as `batches` does."""
        found: dict[str, set[str]] = {name: set() for name in columns}
        for fragment in self.dataset.get_fragments():
            physical, stored = fragment.physical_schema, self._stored_in(fragment)
            for name in columns:
                here = name if stored is None else stored.get(name)
                there = here is not None and here in physical.names
                found[name].add(str(physical.field(here).type) if there else "absent")
        return found

    def _stored_in(self, fragment: ds.ParquetFileFragment) -> Mapping[str, str] | None:
        """What a file calls each of the columns that it has."""
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
