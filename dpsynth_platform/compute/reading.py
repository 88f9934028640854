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

if TYPE_CHECKING:
    import pyarrow.dataset as ds

BATCH_ROWS = 65_536
"""The most rows of a batch."""
_BUFFER_BYTES = 1 << 18


def read_batches(table: ds.Dataset, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a dataset of Parquet files, in batches of the dataset's types and at most `BATCH_ROWS` rows.

    Values of partition columns come from the files' places, and a column that a file does not have is null in it, as
    in Arrow's own scan.

    Args:
        table: of Parquet files, without a filter.
        columns: by name and in order; all of them by default.

    Raises:
        pyarrow.ArrowException, OSError: a file is missing, damaged or of types that cannot be cast to the dataset's.
        ValueError: the dataset has a filter.
    """
    schema = table.schema if columns is None else pa.schema([table.schema.field(name) for name in columns])
    for fragment in table.get_fragments():
        yield from _file_batches(fragment, schema)


def _file_batches(fragment: ds.ParquetFileFragment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow.dataset as ds

    elsewhere = ds.get_partition_keys(fragment.partition_expression)
    with fragment.open() as source, pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        present = [name for name in schema.names if name in file.schema_arrow.names]

        def column(batch: pa.RecordBatch, item: pa.Field) -> pa.Array:
            if item.name in present:
                return batch.column(item.name).cast(item.type)
            return pa.repeat(pa.scalar(elsewhere.get(item.name), item.type), batch.num_rows)

        for batch in file.iter_batches(BATCH_ROWS, columns=present):
            yield pa.RecordBatch.from_arrays([column(batch, item) for item in schema], schema=schema)
