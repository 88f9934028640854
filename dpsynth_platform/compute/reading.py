"""Reading tables of Parquet files in batches, in memory that depends on the batches only.

What belongs here: going through a dataset's files one after the other. What does not: finding the files
(`dpsynth_platform.sources`) and what is done with the rows.

Arrow's own scan of a dataset decodes whole row groups of several files ahead of whoever reads, gigabytes of them where
records are long, and its allocator keeps what it had for a while. Here only one batch of one file is decoded at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpsynth_platform.compute.engine import EngineError

if TYPE_CHECKING:
    import pyarrow.dataset as ds

BATCH_ROWS = 65_536
"""The most rows of a batch."""
BATCH_BYTES = 1 << 23
"""About the most bytes of a batch, unless a single row has more."""
_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True)
class Span:
    """The rows whose value in a column is at least `start` and below `end`: both of the column's type."""

    column: str
    start: pa.Scalar
    end: pa.Scalar

    def expression(self, name: str | None = None) -> pc.Expression:
        """The same as a filter, on a column that may have another name in a file."""
        field = pc.field(name or self.column)
        return (field >= self.start) & (field < self.end)

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Which rows of a batch they are; null where the value is."""
        values = batch.column(self.column)
        return pc.and_(pc.greater_equal(values, self.start), pc.less(values, self.end))


def read_batches(table: ds.Dataset, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a dataset of Parquet files, in batches of its types, of at most `BATCH_ROWS` and `BATCH_BYTES`.

    Values of partition columns come from the files' places, and a column that a file does not have is null in it, as
    in Arrow's own scan.

    Args:
        table: of Parquet files, without a filter.
        columns: by name and in order; all of them by default.

    Raises:
        EngineError: there is no such column.
        pyarrow.ArrowException, OSError: a file is missing, damaged or of types that cannot be cast to the dataset's.
        ValueError: the dataset has a filter.
    """
    schema = selected(table.schema, columns)
    for fragment in table.get_fragments():
        yield from file_batches(fragment, schema)


def selected(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Some columns of a schema, in that order, or all of them. Raises `EngineError` for one that is not there."""
    if columns is None:
        return schema
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise EngineError(f"the table has no column {', '.join(missing)}")
    return pa.schema([schema.field(name) for name in columns])


def file_batches(
    fragment: ds.ParquetFileFragment,
    schema: pa.Schema,
    *,
    stored: Mapping[str, str] | None = None,
    kept: pa.BooleanArray | None = None,
    span: Span | None = None,
    most_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows of one file.

    Args:
        schema: the columns that are wanted, with their types.
        stored: what the file calls each column that it has; None: what `schema` does.
        kept: which of the file's rows there are, by their position; those beyond its end are all there.
        span: which of those are wanted. Its column is one of `schema`. Row groups without any are not decoded.
        most_rows: of a batch.

    Raises:
        pyarrow.ArrowException, OSError: the file is missing, damaged or of types that cannot be cast.
    """
    import pyarrow.dataset as ds

    elsewhere = ds.get_partition_keys(fragment.partition_expression)
    options = {"pre_buffer": False, "buffer_size": _BUFFER_BYTES, "coerce_int96_timestamp_unit": "us"}
    with fragment.open() as source, pq.ParquetFile(source, **options) as file:
        found = file.schema_arrow
        if stored is None:
            stored = {name: name for name in schema.names if name in found.names}
        present = list(dict.fromkeys(stored[name] for name in schema.names if name in stored))

        def column(batch: pa.RecordBatch, item: pa.Field) -> pa.Array:
            if item.name in stored:
                return _cast(batch.column(stored[item.name]), item.type)
            return pa.repeat(pa.scalar(elsewhere.get(item.name), item.type), batch.num_rows)

        wanted = _row_groups(fragment, found, stored, span)
        start = 0
        for group in range(file.num_row_groups):
            metadata = file.metadata.row_group(group)
            position, start = start, start + metadata.num_rows
            if wanted is not None and group not in wanted:
                continue
            rows = _batch_rows(metadata, present, most_rows)
            for batch in file.iter_batches(rows, row_groups=[group], columns=present):
                made = pa.RecordBatch.from_arrays([column(batch, item) for item in schema], schema=schema)
                if kept is not None:
                    made = made.filter(_window(kept, position, batch.num_rows))
                    position += batch.num_rows
                yield made if span is None else made.filter(span.mask(made))


def _row_groups(
    fragment: ds.ParquetFileFragment, found: pa.Schema, stored: Mapping[str, str], span: Span | None
) -> set[int] | None:
    """The row groups that may have rows of a span, by their statistics; None: all."""
    name = None if span is None else stored.get(span.column)
    if span is None or name is None or found.field(name).type != span.start.type:
        return None
    return {group.id for group in fragment.subset(span.expression(name), schema=found).row_groups}


def _window(kept: pa.BooleanArray, start: int, rows: int) -> pa.BooleanArray:
    known = kept.slice(start, rows)
    return pa.concat_arrays([known, pa.repeat(True, rows - len(known))]) if len(known) < rows else known


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values as another type's. Moments are no numbers: those would follow from the unit of the file."""
    temporal = pa.types.is_temporal(column.type)
    if temporal != pa.types.is_temporal(wanted) and not pa.types.is_null(column.type):
        raise pa.ArrowTypeError(f"{column.type} where another file has {wanted}")
    return column.cast(wanted)


def _batch_rows(group: pq.RowGroupMetaData, columns: Sequence[str], most: int) -> int:
    """How many of a row group's rows make a batch, by their mean length."""
    parts = (group.column(place) for place in range(group.num_columns))
    size = sum(part.total_uncompressed_size for part in parts if part.path_in_schema.split(".")[0] in columns)
    return min(most, max(1, BATCH_BYTES * int(group.num_rows) // max(int(size), 1)))
