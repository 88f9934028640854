"""Tables of several files, whose types differ."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dpsynth_platform.compute.reading import read_batches

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
