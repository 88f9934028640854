"""Reading tables of Parquet files in batches, in memory that depends on the batches only.

What belongs here: going through a dataset's files one after the other. What does not: finding the files (`deltalake`,
`bounding.ownership`) and what is done with the rows.

Arrow's own scan of a dataset decodes whole row groups of several files ahead of whoever reads, gigabytes of them where
records are long, and its allocator keeps what it had for a while. Here only one batch of one file is decoded at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dpsynth_platform.compute.engine import EngineError

if TYPE_CHECKING:
    import pyarrow.dataset as ds

BATCH_ROWS = 65_536
"""The most rows of a batch."""
BATCH_BYTES = 1 << 23
"""About the most bytes of a batch, unless a single row has more."""
_BUFFER_BYTES = 1 << 18


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
        yield from _file_batches(fragment, schema)


def selected(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Some columns of a schema, in that order, or all of them. Raises `EngineError` for one that is not there."""
    if columns is None:
        return schema
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise EngineError(f"the table has no column {', '.join(missing)}")
    return pa.schema([schema.field(name) for name in columns])


def _file_batches(fragment: ds.ParquetFileFragment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow.dataset as ds

    elsewhere = ds.get_partition_keys(fragment.partition_expression)
    with fragment.open() as source, pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        present = [name for name in schema.names if name in file.schema_arrow.names]

        def column(batch: pa.RecordBatch, item: pa.Field) -> pa.Array:
            if item.name in present:
                return _cast(batch.column(item.name), item.type)
            return pa.repeat(pa.scalar(elsewhere.get(item.name), item.type), batch.num_rows)

        for group in range(file.num_row_groups):
            rows = _batch_rows(file.metadata.row_group(group), present)
            for batch in file.iter_batches(rows, row_groups=[group], columns=present):
                yield pa.RecordBatch.from_arrays([column(batch, item) for item in schema], schema=schema)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values as another type's. Moments are no numbers: those would follow from the unit of the file."""
    temporal = pa.types.is_temporal(column.type)
    if temporal != pa.types.is_temporal(wanted) and not pa.types.is_null(column.type):
        raise pa.ArrowTypeError(f"{column.type} where another file has {wanted}")
    return column.cast(wanted)


def _batch_rows(group: pq.RowGroupMetaData, columns: Sequence[str]) -> int:
    """How many of a row group's rows make a batch, by their mean length."""
    parts = (group.column(place) for place in range(group.num_columns))
    size = sum(part.total_uncompressed_size for part in parts if part.path_in_schema.split(".")[0] in columns)
    return min(BATCH_ROWS, max(1, BATCH_BYTES * int(group.num_rows) // max(int(size), 1)))
