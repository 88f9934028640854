import datetime as dt
import math
from bisect import bisect_right

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synth_cases import contract_with

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain, domain_of, filled_in_words

RNG = np.random.default_rng(0)
DAYS = (dt.date(2026, 2, 1) - dt.date(1970, 1, 1)).days

INTEGER = ColumnDomain("x", "integer", False, edges=(-5, 0, 3, 11))
FLOAT = ColumnDomain("x", "float", False, edges=(-1.5, 0.25, 2.0))
DATE = ColumnDomain("x", "date", False, edges=(DAYS, DAYS + 7, DAYS + 28))
CATEGORY = ColumnDomain("x", "categorical", True, values=("b", "a", "ü"))
BOOLEAN = ColumnDomain("x", "boolean", True)


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        (INTEGER, pa.int8()),
        (INTEGER, pa.int64()),
        (INTEGER, pa.float64()),
        (FLOAT, pa.float32()),
        (FLOAT, pa.float64()),
        (DATE, pa.date32()),
        (DATE, pa.date64()),
        (DATE, pa.timestamp("us")),
        (DATE, pa.timestamp("ns", "UTC")),
        (CATEGORY, pa.string()),
        (CATEGORY, pa.large_string()),
        (CATEGORY, pa.dictionary(pa.int8(), pa.string())),
        (CATEGORY, pa.dictionary(pa.int32(), pa.large_string())),
        (BOOLEAN, pa.bool_()),
    ],
    ids=lambda value: str(getattr(value, "kind", value)),
)
def test_every_cell_survives_decoding_and_encoding(column, type_):
    codes = np.tile(np.arange(column.size, dtype=np.int32), 50)
    values = column.decode(codes, type_, RNG)
    assert values.type == type_
    assert values.null_count == 50
    np.testing.assert_array_equal(column.encode(values), codes)
    np.testing.assert_array_equal(column.encode(pa.chunked_array([values, values])), np.tile(codes, 2))


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-20, 20))))
def test_integers_fall_into_their_bins_and_outside_ones_are_clamped(values):
    def reference(value):
        if value is None:
            return INTEGER.missing
        return bisect_right(INTEGER.edges, min(max(value, -5), 10)) - 1

    assert INTEGER.encode(pa.array(values, pa.int64())).tolist() == [reference(value) for value in values]


@given(st.lists(st.one_of(st.none(), st.floats(), st.floats(-3, 3))))
def test_floats_fall_into_their_bins_and_nan_is_missing(values):
    def reference(value):
        if value is None or math.isnan(value):
            return FLOAT.missing
        return 0 if value < 0.25 else 1

    assert FLOAT.encode(pa.array(values, pa.float64())).tolist() == [reference(value) for value in values]


@given(st.lists(st.one_of(st.none(), st.text(max_size=2), st.sampled_from(["a", "b", "ü"]))))
def test_unlisted_categories_are_missing(values):
    position = {"b": 0, "a": 1, "ü": 2}
    expected = [position.get(value, 3) for value in values]
    assert CATEGORY.encode(pa.array(values, pa.string())).tolist() == expected
    assert CATEGORY.encode(pa.array(values, pa.string()).dictionary_encode()).tolist() == expected


@given(st.lists(st.one_of(st.none(), st.dates(dt.date(1800, 1, 1), dt.date(2200, 1, 1)))))
def test_days_outside_are_clamped(values):
    expected = [2 if value is None else int(value >= dt.date(2026, 2, 8)) for value in values]
    assert DATE.encode(pa.array(values, pa.date32())).tolist() == expected


def test_values_are_drawn_over_the_whole_bin():
    drawn = INTEGER.decode(np.full(2000, 2, dtype=np.int32), pa.int64(), RNG).to_pylist()
    assert set(drawn) == set(range(3, 11))  # a value of eight is missed with probability 8 * (7/8)^2000
    floats = FLOAT.decode(np.full(2000, 1, dtype=np.int32), pa.float64(), RNG).to_numpy()
    assert 0.25 <= floats.min() < 0.3
    assert 1.9 < floats.max() <= 2.0


def test_cells_follow_the_contract():
    contract = contract_with(
        columns__age={"type": "integer", "min": 1, "max": 100},
        columns__score={"type": "float", "min": 0, "max": 64},
        columns__day={"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
    )
    age, score, day, city, member = domain_of(contract)
    assert age.size == 101  # one cell a value, and the one for missing
    assert set(range(64)) < set(score.edges)
    assert day.size == 366
    assert (city.size, member.size) == (4, 3)
    assert [column.cutting for column in (age, score, day, city)] == ["adaptive"] * 3 + ["declared"]
    edges = domain_of(contract_with(columns__age={"type": "integer", "min": 0, "max": 9, "bins": [1, 9]})).columns[0]
    assert [edges.label(code) for code in range(4)] == ["0", "1 to 8", "9", "missing"]


def test_equal_bins_cover_the_range_without_gaps():
    for bins in (1, 3, 7, 10):
        column = domain_of(contract_with(columns__age={"type": "integer", "min": 0, "max": 9, "bins": bins})).columns[0]
        widths = np.diff(column.edges)
        assert column.edges[0] == 0
        assert column.edges[-1] == 10
        assert len(widths) == bins
        assert widths.max() - widths.min() <= 1


def test_the_period_narrows_its_column_to_the_month():
    changes = {
        "source": {"uri": "/x", "key": ["person_id"], "period_column": "day"},
        "release": {"uri": "/y", "cadence": "monthly", "start": "2026-01"},
        "columns__day": {"type": "date", "min": "2026-01-10", "max": "2026-12-31"},
    }
    contract = contract_with(**changes)
    february = domain_of(contract, "2026-02").columns[2]
    assert (february.size, february.label(0), february.label(27)) == (29, "2026-02-01", "2026-02-28")
    assert domain_of(contract, "2026-01").columns[2].size == 23
    with pytest.raises(ContractError, match="period 2027-01"):
        domain_of(contract, "2027-01")


def test_json_round_trip(contract):
    domain = domain_of(contract)
    assert Domain.from_json(domain.to_json()) == domain


def test_the_preparation_says_what_is_counted_finely():
    contract = contract_with(columns__score={"type": "float", "min": 0, "max": 64})
    domain = domain_of(contract)
    assert f"score in {domain.columns[1].size}" in domain.preparation
    assert "age" not in domain.preparation
    assert domain.most_states == (11, 17, 5, 4, 3)
    assert domain_of(contract_with()).preparation.startswith("every column is counted by the values or bins")


def test_what_may_not_miss_is_named_by_its_declaration():
    contract = contract_with(columns__score={"type": "float", "min": 0, "max": 64, "nullable": True})
    domain = domain_of(contract)
    assert domain.nullable == ("score", "city")
    assert domain.filled == ("age", "day", "member")
    message = filled_in_words(domain.filled, domain.nullable)
    assert message.startswith("Missing values of age, day, member are not kept as such")


def test_where_most_columns_may_not_miss_the_others_are_named():
    names = tuple(f"column_{number}" for number in range(22))
    assert filled_in_words(names, ("city",)).startswith("Missing values of all columns but city are not kept as such")
    assert filled_in_words(names, ()).startswith("Missing values of all columns are not kept as such")
    assert filled_in_words(names[:4], names[4:]).startswith(f"Missing values of {', '.join(names[:4])} are not kept")
    assert len(filled_in_words(names, ("city",))) < 320


def test_for_the_eyes_cells_are_few():
    contract = contract_with(
        columns__age={"type": "integer", "min": 0, "max": 10_000},
        columns__score={"type": "float", "min": -5, "max": 5, "bins": "quantile"},
        columns__day={"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
    )
    coarse = domain_of(contract, coarse=True)
    assert coarse.names == domain_of(contract).names
    assert all(column.size <= 37 and column.cutting == "declared" for column in coarse)
    assert [coarse.columns[1].label(code) for code in coarse.columns[1].encode(pa.array([-5.0, 0, 5]))] == [
        "-5",
        "0",
        "5",
    ]
