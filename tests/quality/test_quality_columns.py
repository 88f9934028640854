from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.columns import (
    CELL_BINS,
    align,
    cells,
    declared,
    numbers_of,
    of_rows,
    of_tables,
    row_counts,
)
from dpsynth_platform.quality.features import for_distances, for_training
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain


def test_numbers_and_categories_follow_from_the_types() -> None:
    table = pa.table(
        {
            "int": pa.array([1, None], pa.int16()),
            "float": pa.array([1.5, float("inf")]),
            "decimal": pa.array([decimal.Decimal("2.50"), None]),
            "day": pa.array([dt.date(1970, 1, 2), None]),
            "moment": pa.array([dt.datetime(1970, 1, 2, tzinfo=dt.UTC), None]),
            "text": pa.array(["a", None]),
            "coded": pa.array(["a", None]).dictionary_encode(),
            "flag": pa.array([True, None]),
            "nothing": pa.array([None, None]),
        }
    )
    found = {column.name: column for column in align({"real": table, "synthetic": table})}
    day = 86_400_000_000.0
    for name, value in {"int": 1.0, "float": 1.5, "decimal": 2.5, "day": day, "moment": day}.items():
        assert found[name].size is None
        for part in found[name].parts:
            assert part[0] == value
            assert np.isnan(part[1])
    for name in ("text", "coded", "flag"):
        assert found[name].size == 2
        assert found[name].parts[0].tolist() == [0, 1]
    assert found["nothing"].size == 1
    assert found["nothing"].parts[1].tolist() == [0, 0]


def test_equal_values_have_equal_codes_whatever_their_type() -> None:
    real = pa.table({"code": pa.array([3, 1, None]), "word": pa.array(["x", "y", "x"]).dictionary_encode()})
    other = pa.table({"word": pa.array(["y", None], pa.large_string()), "code": pa.array([1.0, float("nan")])})
    code, word = align({"real": real, "synthetic": other}, categorical={"code"})
    assert (code.name, word.name) == ("code", "word")
    assert code.parts[0][1] == code.parts[1][0]
    assert code.parts[0][2] == code.parts[1][1] == code.size - 1
    assert word.parts[0][1] == word.parts[1][0]
    assert word.parts[1][1] == word.size - 1 == 2


def test_a_column_without_values_goes_with_the_others() -> None:
    real = pa.table({"age": [1, 2], "word": ["a", "b"]})
    nothing = pa.table({"age": pa.nulls(3), "word": pa.nulls(3)})
    age, word = align({"real": real, "synthetic": nothing})
    assert age.size is None
    assert np.isnan(age.parts[1]).all()
    assert word.parts[1].tolist() == [2, 2, 2]


def test_parts_can_be_picked() -> None:
    tables = {name: pa.table({"a": list(range(rows))}) for name, rows in (("x", 2), ("y", 3), ("z", 4))}
    columns = align(tables)
    assert row_counts(columns) == (2, 3, 4)
    assert row_counts(of_tables(columns, 2, 0)) == (4, 2)
    (kept,) = of_rows(of_tables(columns, 0, 1), np.array([1]), np.array([0, 2]))
    assert [part.tolist() for part in kept.parts] == [[1.0], [0.0, 2.0]]


def test_cells_of_numbers_are_of_equal_width_over_all_tables() -> None:
    columns = align({"x": pa.table({"a": [0.0, 16.0, None]}), "y": pa.table({"a": [32.0, 31.99, 1.0]})})
    (first, second), sizes = cells(columns)
    assert sizes == (CELL_BINS + 1,)
    assert first[:, 0].tolist() == [0, CELL_BINS // 2, CELL_BINS]
    assert second[:, 0].tolist() == [CELL_BINS - 1, CELL_BINS - 1, 1]


@pytest.mark.parametrize("values", [[5, 5], [None, None]])
def test_cells_of_a_constant_column(values: list[int | None]) -> None:
    table = pa.table({"a": pa.array(values, pa.int64())})
    (first, second), _ = cells(align({"x": table, "y": table}))
    assert (first == second).all()
    assert len(np.unique(first)) == 1


@pytest.mark.parametrize("type_", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")])
def test_times_of_day_are_numbers(type_):
    times = pa.array([dt.time(7, 30), None, dt.time(19, 0)]).cast(type_)
    (column,) = align({"real": pa.table({"opens": times}), "synthetic": pa.table({"opens": times})})
    assert column.size is None
    assert column.parts[0][[0, 2]].tolist() == [27_000_000_000, 68_400_000_000]
    assert np.isnan(column.parts[0][1])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"age": [1]}, "synthetic: not the columns of real: lacks job; accepted"),
        (
            {"age": [1], "job": ["a"], "id": [1]},
            "synthetic: not the columns of real: has additional columns id; accepted",
        ),
        ({"age": [1], "work": ["a"]}, "lacks job; has additional columns work"),
        ({"age": pa.array([], pa.int64()), "job": pa.array([], pa.string())}, "synthetic: the table has no rows"),
        (
            {"age": ["Zaphod"], "job": ["a"]},
            r"column 'age' holds numbers; in synthetic: text that cannot all be parsed as numbers",
        ),
        ({"age": [[1]], "job": ["a"]}, r"synthetic: column 'age' is of type list<.*>; accepted: numbers"),
        ({"age": [[{"Zaphod": 1}]], "job": ["a"]}, "synthetic: column 'age' is of type nested; accepted"),
        ({"age": [b"Zaphod"], "job": ["a"]}, "synthetic: column 'age' is of type binary"),
        ({}, "synthetic: the table has no columns"),
    ],
)
def test_what_cannot_be_compared_is_said_without_a_value(other: dict, said: str) -> None:
    real = pa.table({"age": [1, 2], "job": ["Zaphod", "Zaphod"]})
    with pytest.raises(SourceError, match=said) as caught:
        align({"real": real, "synthetic": pa.table(other)})
    assert "Zaphod" not in str(caught.value)


def test_a_name_that_stands_twice_and_an_unknown_category_are_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(SourceError, match="two columns have the same name"):
        align({"real": twice, "synthetic": twice})
    once = pa.table({"a": [1]})
    with pytest.raises(SourceError, match="categories: no column 'b'; accepted: a"):
        align({"real": once}, categorical={"b"})


def test_declared_columns_look_as_the_mechanism_saw_them() -> None:
    domain = Domain(
        (
            ColumnDomain("age", "integer", False, edges=(0, 10, 100)),
            ColumnDomain("share", "float", False, edges=(0.0, 0.5, 1.0)),
            ColumnDomain("day", "date", True, edges=(0, 31)),
            ColumnDomain("job", "categorical", True, values=("a", "b")),
            ColumnDomain("flag", "boolean", True),
        )
    )
    table = pa.table(
        {
            "flag": [True, None],
            "job": ["b", "unlisted"],
            "day": [dt.date(1970, 1, 5), dt.date(1980, 1, 1)],
            "share": [0.25, 7.0],
            "age": [-3, 250],
        }
    )
    found = {column.name: column for column in declared(domain, [table, table.slice(0, 1)], target="age")}
    assert found["age"].parts[0].tolist() == [0, 1]
    assert found["age"].size == 3
    assert found["share"].parts[0].tolist() == [0.25, 1.0]
    assert found["job"].parts[0].tolist() == [1, 2]
    assert found["flag"].parts[0].tolist() == [1, 2]
    assert found["flag"].parts[1].tolist() == [1]
    assert found["day"].size is None
    first, last = found["day"].parts[0]
    assert (first, last) == (4.0, 30.0)
    plain = {column.name: column for column in declared(domain, [table])}
    assert plain["age"].parts[0].tolist() == [0.0, 99.0]


@pytest.mark.parametrize("largest", [1.0, 1e308])
def test_numbers_of_any_size_can_be_compared(largest: float) -> None:
    """The ends of double precision, whose squares and differences are none."""
    values = [[-1.0, 0.25, None], [1.0, -0.5, float("inf")]]
    tables = {
        str(place): pa.table({"x": [None if value is None else value * largest for value in part]})
        for place, part in enumerate(values)
    }
    (column,) = align(tables)
    for matrices in (for_distances([column]), for_training([column])):
        assert np.nanmax(np.abs(np.concatenate(matrices))) < 3
    assert np.isfinite(np.concatenate(for_distances([column]))).all()
    np.testing.assert_allclose(for_distances([column])[0][:2, 0], [0.0, 0.625])


def test_nanoseconds_are_cut_off_on_both_sides_of_1970() -> None:
    moments = pa.chunked_array([pa.array([-1, 1_999], pa.int64()).cast(pa.timestamp("ns"))])
    assert numbers_of(moments).tolist() == [-1, 1]
