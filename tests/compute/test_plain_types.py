"""Every layout of a column means the same values, and comes back in the same layout."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dpsynth_platform.compute.plain_types import laid_out, plain, plain_type, whole_texts

TEXTS = ["a", None, "b", "b"]


@pytest.mark.parametrize(
    ("column", "type_", "values"),
    [
        (pa.array(TEXTS, pa.string_view()), pa.string(), TEXTS),
        (pa.array([b"a", None], pa.binary_view()), pa.binary(), [b"a", None]),
        (pa.array(TEXTS).dictionary_encode(), pa.string(), TEXTS),
        (
            pa.DictionaryArray.from_arrays(
                pa.array([0, None, 1, 1], pa.int8()), pa.array(["a", "b"], pa.string_view())
            ),
            pa.string(),
            TEXTS,
        ),
        (pc.run_end_encode(pa.array(TEXTS)), pa.string(), TEXTS),
        (
            pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int16()), pa.array(["a", "b"], pa.string_view())),
            pa.string(),
            ["a", "b", "b"],
        ),
        (pc.run_end_encode(pa.array([1, 1, None])), pa.int64(), [1, 1, None]),
        (pa.array([Decimal("1.25"), None], pa.decimal32(5, 2)), pa.decimal128(5, 2), [Decimal("1.25"), None]),
        (pa.array([Decimal("1.25"), None], pa.decimal64(12, 2)), pa.decimal128(12, 2), [Decimal("1.25"), None]),
        (pa.array([dt.date(2024, 2, 29), None], pa.date64()), pa.date32(), [dt.date(2024, 2, 29), None]),
        (
            pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, None, 7], pa.int8())),
            pa.bool_(),
            [False, True, None, True],
        ),
        (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None])), pa.string(), ["{}", None]),
        (pa.array([1, None]), pa.int64(), [1, None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_values_survive_both_ways(column: pa.Array, type_: pa.DataType, values: list[Any]) -> None:
    found = plain(column)
    assert (found.type, found.to_pylist()) == (type_, values)
    assert plain_type(column.type) == type_
    assert plain(pa.chunked_array([column, column])).to_pylist() == values * 2
    assert plain(column.slice(1)).to_pylist() == values[1:]
    back = laid_out(found, column.type)
    assert back.type == column.type
    assert plain(back).to_pylist() == values


def test_whole_numbers_have_one_text() -> None:
    texts = ["4", "4.0", "4.", " 4 ", "-0", "-3.00", "04", "4.5", "", "x", None, "4e0", "+4", str(2**63), "4\n5"]
    assert whole_texts(pa.array(texts)).to_pylist() == [
        "4", "4", "4", "4", "0", "-3", "04", "4.5", "", "x", None, "4e0", "+4", str(2**63), "4\n5",
    ]  # fmt: skip
    for type_ in (pa.float16(), pa.float32(), pa.float64()):
        numbers = pa.array([4.0, 4.5, -0.0, None, float("nan"), float("inf"), -3.0], type_)
        assert whole_texts(numbers).to_pylist() == ["4", None, "0", None, None, None, "-3"]
    assert whole_texts(pa.array([1e18, 1e19])).to_pylist() == [str(10**18), None]
    assert whole_texts(pa.array([7, None])).to_pylist() == ["7", None]
