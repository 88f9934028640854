"""Tables of several files, whose types differ."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from column_names import NAMES

from dpsynth_platform.foundation.reading import BATCH_BYTES, Span, read_batches
from dpsynth_platform.sources.files import FileTable

MOMENTS = pa.array([1_700_000_000, 1_700_000_001])


def read(directory: Path, *columns: pa.Array) -> list[object]:
    """The column of all files, in the first one's type."""
    files = [str(directory / f"{number}.parquet") for number in range(len(columns))]
    for file, column in zip(files, columns, strict=True):
        pq.write_table(pa.table({"x": column}), file)
    return [value for batch in read_batches(ds.dataset(files)) for value in batch.column("x").to_pylist()]


@pytest.mark.parametrize("unit", ["s", "ns"])
def test_moments_of_one_file_are_no_numbers_of_another(tmp_path: Path, unit: str) -> None:
    """They would follow from the unit, and one fraction of a second decides on that when a file is written."""
    for kinds in ((pa.int64(), pa.timestamp(unit)), (pa.timestamp(unit), pa.int64())):
        with pytest.raises(pa.ArrowException):
            read(tmp_path, *(MOMENTS.cast(pa.timestamp("s")).cast(pa.timestamp(unit)).cast(kind) for kind in kinds))


def test_units_differ_and_values_do_not(tmp_path: Path) -> None:
    coarse = MOMENTS.cast(pa.timestamp("s"))
    fine = coarse.cast(pa.timestamp("ms"))
    assert read(tmp_path, coarse, fine, pa.nulls(1)) == [*coarse.to_pylist() * 2, None]
    assert read(tmp_path, MOMENTS, pa.nulls(2)) == [*MOMENTS.to_pylist(), None, None]


def test_columns_of_any_name_are_read_and_filtered(tmp_path: Path) -> None:
    table = pa.table({name: pa.array(range(place, place + 40)) for place, name in enumerate(NAMES)})
    table = table.append_column("outer", pa.array([{"b": number, "a.b": -number} for number in range(40)]))
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=10)
    dataset = ds.dataset([str(tmp_path / "0.parquet")])
    for place, name in enumerate(NAMES):
        span = Span(name, pa.scalar(place + 12), pa.scalar(place + 15))
        other = NAMES[place - 1]
        for names in ([name], [name, other]):
            found = pa.Table.from_batches(FileTable(dataset).batches(names, span=span))
            assert found.equals(table.select(names).slice(12, 3))
    assert pa.Table.from_batches(read_batches(dataset)).equals(table)


def test_rows_of_columns_with_dots_are_in_small_batches_too(tmp_path: Path) -> None:
    letter = "x" * (BATCH_BYTES // 4)
    pq.write_table(pa.table({"a.b": [f"{letter}{number}" for number in range(12)]}), tmp_path / "0.parquet")
    rows = [batch.num_rows for batch in read_batches(ds.dataset([str(tmp_path / "0.parquet")]), ["a.b"])]
    assert max(rows) <= 4 and sum(rows) == 12
