"""What Delta tables cannot hold comes back with the same values."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.sources.delta_types import in_calendar, kept, kept_type


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        (pa.time32("s"), [0, 86_399], ["00:00:00", "23:59:59"]),
        (pa.time64("ns"), [1_500_000_123], ["00:00:01.500000"]),
        (pa.uint8(), [255], [255]),
        (pa.uint16(), [65_535], [65_535]),
        (pa.uint32(), [2**32 - 1], [2**32 - 1]),
        (pa.uint64(), [2**64 - 1], [2.0**64]),
        (pa.float16(), [np.float16(0.5)], [0.5]),
        (pa.decimal256(50, 2), [Decimal("1.25")], [1.25]),
        (pa.int32(), [-1], [-1]),
        (pa.bool_(), [True], [True]),
    ],
)
def test_values_survive_a_delta_table(tmp_path: Path, type_: pa.DataType, values: list[Any], expected: Any) -> None:
    column = kept(pa.array(values, type_))
    assert column.type == kept_type(type_)
    table = pa.table({"x": column})
    write_table(tmp_path / "t", table.schema, table.to_batches())
    assert pa.Table.from_batches(read_table(tmp_path / "t"))["x"].to_pylist() == expected


def test_moments_lose_what_is_less_than_a_microsecond(tmp_path: Path) -> None:
    column = kept(pa.array([1_234], pa.timestamp("ns", "Europe/Berlin")))
    assert column.type == pa.timestamp("us", "Europe/Berlin")
    assert column.cast(pa.int64()).to_pylist() == [1]


@pytest.mark.parametrize(
    ("type_", "whole"),
    [
        (pa.date32(), pa.int32()),
        (pa.date64(), pa.int64()),
        (pa.timestamp("us"), pa.int64()),
        (pa.timestamp("ms", "Asia/Kolkata"), pa.int64()),
    ],
    ids=str,
)
def test_days_and_moments_far_from_ours_become_the_nearest_in_the_calendar(type_: pa.DataType, whole: Any) -> None:
    far = 2**31 - 1 if whole == pa.int32() else 2**62 // 86_400_000 * 86_400_000
    column = pa.array([-far, far, 0, None], whole).cast(type_)
    inside = in_calendar(column)
    assert inside.type == type_
    first, last, *others = inside.cast(whole).to_pylist()
    assert others == [0, None]
    plain = pa.timestamp(type_.unit) if pa.types.is_timestamp(type_) else type_
    shown = [value.as_py() for value in pa.array([first, last], whole).cast(plain)]
    assert [(day.year, day.month, day.day) for day in shown] == [(1, 1, 1), (9999, 12, 31)]
    assert in_calendar(inside).equals(inside)
