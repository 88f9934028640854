"""Reads tables of Parquet files in batches; the memory depends on the batches only.

What belongs here: reading a dataset's files one after the other. What does not: finding the files
(`dpsynth_platform.sources`), and using the rows.

Arrow's scan of a dataset decodes whole row groups of several files ahead of the reader, gigabytes if records are long,
and its allocator keeps the memory for a while. This module decodes one batch of one file at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpsynth_platform.foundation.errors import EngineError

if TYPE_CHECKING:
    import pyarrow.dataset as ds

BATCH_ROWS = 65_536
"""The most rows of a batch."""
BATCH_BYTES = 1 << 23
"""About the most bytes of a batch, unless a single row has more."""
_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True)
class Span:
    """The rows whose value in a column is at least `start` and below `end`, which have the column's type."""

    column: str
    start: pa.Scalar
    end: pa.Scalar

    def expression(self, name: str | None = None) -> pc.Expression:
        """The span as a filter; the column may have another name in a file."""
        field = pc.field(name or self.column)
        return (field >= self.start) & (field < self.end)

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """A mask of the span's rows in a batch; null where the value is null."""
        values = batch.column(self.column)
        return pc.and_(pc.greater_equal(values, self.start), pc.less(values, self.end))


def read_batches(table: ds.Dataset, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a dataset of Parquet files, in batches of its types, of at most `BATCH_ROWS` and `BATCH_BYTES`.

    Values of partition columns come from the files' paths, and a column that a file lacks is null, as in Arrow's scan.

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
    """The given columns of a schema, in that order, or all. Raises `EngineError` for a missing one."""
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
        schema: the requested columns, with their types.
        stored: the names of the columns in the file; None: as in `schema`.
        kept: a mask of the file's existing rows, by position; all rows beyond its end exist.
        span: the requested rows. Its column is in `schema`. Row groups without such rows are not decoded.
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
    """Casts values. Moments are not cast to or from numbers, which would depend on the file's time unit."""
    temporal = pa.types.is_temporal(column.type)
    if temporal != pa.types.is_temporal(wanted) and not pa.types.is_null(column.type):
        raise pa.ArrowTypeError(f"{column.type} where another file has {wanted}")
    if pa.types.is_timestamp(wanted) and wanted.unit != "ns":
        column = in_microseconds(column)
    return column.cast(wanted)


def in_microseconds(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A column; moments in nanoseconds are cut off. A cast rounds towards 1970, and so the last of 1969 into 1970."""
    if not pa.types.is_timestamp(column.type) or column.type.unit != "ns":
        return column
    numbers = column.cast(pa.int64())  # Arrow's own floor overflows at the least of them
    whole = pc.divide(numbers, 1000)
    below = pc.less(pc.subtract(numbers, pc.multiply(whole, 1000)), 0)
    return pc.subtract(whole, below.cast(pa.int64())).cast(pa.timestamp("us", column.type.tz))


def _starts(path: str) -> set[str]:
    """What a path in a Parquet file may begin with: names of columns, and of their parts, may have dots themselves."""
    return set(accumulate(path.split("."), "{}.{}".format))


def _batch_rows(group: pq.RowGroupMetaData, columns: Sequence[str], most: int) -> int:
    """The rows of a batch, by the mean length of the row group's rows."""
    parts = (group.column(place) for place in range(group.num_columns))
    size = sum(part.total_uncompressed_size for part in parts if _starts(part.path_in_schema) & set(columns))
    return min(most, max(1, BATCH_BYTES * int(group.num_rows) // max(int(size), 1)))
