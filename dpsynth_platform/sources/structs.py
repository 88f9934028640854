"""Structs as columns, and back.

What belongs here: the fields of a struct as columns named `address.zip`, at any depth, and structs made of such
columns. What does not: reading files (`files`, `iceberg`), and lists and maps, which are columns as they are.

A struct whose own name is declared, such as with `ignore: true`, stays one column. Where a struct is null, so are its
fields; one whose fields are all null counts as null.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.reading import BATCH_ROWS, Span, selected

if TYPE_CHECKING:
    from dpsynth_platform.sources.csv_files import CsvTable
    from dpsynth_platform.sources.files import FileTable
    from dpsynth_platform.sources.iceberg import IcebergTable
    from dpsynth_platform.sources.image_folders import ImageFolder
    from dpsynth_platform.sources.json_files import JsonTable


@dataclass(frozen=True)
class FlatTable:
    """A table whose structs are columns.

    Attributes:
        whole: names of structs that stay as they are.
    """

    table: FileTable | CsvTable | JsonTable | ImageFolder | IcebergTable
    whole: Collection[str]

    @cached_property
    def schema(self) -> pa.Schema:
        """Raises `SourceError` where two columns would have one name."""
        return flat_schema(self.table.schema, self.whole)

    def batches(
        self, columns: Sequence[str] | None = None, *, span: Span | None = None, most_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """The rows; see `files.FileTable.batches`, which reads whole structs."""
        schema, stored = selected(self.schema, columns), self.table.schema
        if self.schema.names == stored.names:
            yield from self.table.batches(columns, span=span, most_rows=most_rows)
            return
        wanted = set(schema.names)
        read = [item.name for item in stored if not wanted.isdisjoint(_names(item, self.whole))]
        below = span is not None and span.column not in read
        for batch in self.table.batches(read, span=None if below else span, most_rows=most_rows):
            found = flat_batch(batch, self.whole).select(schema.names)
            yield found.filter(span.mask(found)) if span is not None and below else found


def flat_schema(schema: pa.Schema, whole: Collection[str]) -> pa.Schema:
    """The columns of a schema with the fields of structs in their places.

    Args:
        whole: names of structs that stay as they are.

    Raises:
        SourceError: a field would have the name of another column.
    """
    if not any(map(_has_columns, schema.types)):
        return schema
    fields = [(part, item) for item in schema for part in _fields(item, whole)]
    names = [part.name for part, _ in fields]
    for part, item in fields:
        if part.name != item.name and names.count(part.name) > 1:
            raise SourceError(
                # Fields are not named: they may have been keys in the data.
                f"a field of the struct {item.name!r} has the name of another column or field, which is not shown; "
                f"accepted: distinct names, or {item.name!r} declared with ignore: true"
            )
    return pa.schema([part for part, _ in fields])


def flat_batch(batch: pa.RecordBatch, whole: Collection[str]) -> pa.RecordBatch:
    """Rows by `flat_schema`."""
    if not any(map(_has_columns, batch.schema.types)):
        return batch
    columns = zip(batch.schema, batch.columns, strict=True)
    arrays = [part for item, column in columns for part in _arrays(item, column, whole)]
    return pa.RecordBatch.from_arrays(arrays, schema=flat_schema(batch.schema, whole))


def flat_table(table: pa.Table, whole: Collection[str] = ()) -> pa.Table:
    """A table by `flat_schema`. Raises as that does."""
    batches = [flat_batch(batch, whole) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, flat_schema(table.schema, whole))


def shape_of(schema: pa.Schema) -> pa.Schema:
    """The names of a schema's columns, and of the fields of its structs; without other types and without metadata."""
    return pa.schema(map(_bare, schema))


def _bare(item: pa.Field) -> pa.Field:
    type_ = pa.struct(map(_bare, item.type)) if _has_columns(item.type) else pa.null()
    return pa.field(item.name, type_, item.nullable)


def nested_batch(batch: pa.RecordBatch, shape: pa.Schema) -> pa.RecordBatch:
    """Rows with the structs of a schema or its `shape_of`, of which columns may lack."""
    columns = {item.name: (item, column) for item, column in zip(batch.schema, batch.columns, strict=True)}
    made = [part for item in shape if (part := _nested(item, "", columns)) is not None]
    return pa.RecordBatch.from_arrays([array for _, array, _ in made], schema=pa.schema([item for item, _, _ in made]))


def nested_schema(schema: pa.Schema, shape: pa.Schema) -> pa.Schema:
    """The schema of `nested_batch`."""
    return nested_batch(pa.RecordBatch.from_pylist([], schema), shape).schema


def _has_columns(type_: pa.DataType) -> bool:
    """Whether a type is a struct with fields."""
    return bool(pa.types.is_struct(type_) and type_.num_fields)


def _names(item: pa.Field, whole: Collection[str]) -> list[str]:
    return [part.name for part in _fields(item, whole)]


def _fields(item: pa.Field, whole: Collection[str]) -> Iterator[pa.Field]:
    if not _has_columns(item.type) or item.name in whole:
        yield item
        return
    for part in item.type:
        nullable = item.nullable or part.nullable
        yield from _fields(pa.field(f"{item.name}.{part.name}", part.type, nullable), whole)


def _arrays(item: pa.Field, column: pa.Array, whole: Collection[str]) -> Iterator[pa.Array]:
    if not _has_columns(item.type) or item.name in whole:
        yield column
        return
    for part, values in zip(item.type, column.flatten(), strict=True):
        yield from _arrays(part.with_name(f"{item.name}.{part.name}"), values, whole)


_Part = tuple[pa.Field, pa.Array, pa.Array]
"""A column, its values, and a mask of those that hold nothing."""


def _nested(item: pa.Field, prefix: str, columns: dict[str, tuple[pa.Field, pa.Array]]) -> _Part | None:
    """A column or struct of a shape, of the columns that there are; None: there are none."""
    name = f"{prefix}{item.name}"
    if name in columns:
        found, array = columns[name]
        return found.with_name(item.name), array, array.is_null()
    if not _has_columns(item.type):
        return None
    parts = [made for part in item.type if (made := _nested(part, f"{name}.", columns)) is not None]
    if not parts:
        return None
    empty = parts[0][2]
    for _, _, absent in parts[1:]:
        empty = pc.and_(empty, absent)
    array = pa.StructArray.from_arrays(
        [values for _, values, _ in parts],
        fields=[field for field, _, _ in parts],
        mask=empty if item.nullable else None,
    )
    return pa.field(item.name, array.type, item.nullable), array, empty
