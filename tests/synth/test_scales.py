"""Values of every type to cells and back: nothing is lost that the contract declares, nothing lies outside of it."""

import datetime as dt
import warnings
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synth_cases import contract_with

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.tabular.domain import ColumnDomain, domain_of
from dpsynth_platform.synth.tabular.restore import release_schema

RNG = np.random.default_rng(0)
MOMENT = {"type": "datetime", "min": "2026-01-01T00:00:00", "max": "2026-03-31T23:45:00", "resolution": "15min"}
PLAIN = {"identifier": pa.int64(), "text": pa.string(), "integer": pa.int64(), "date": pa.date32()}
PLAIN |= {"float": pa.float64(), "categorical": pa.string(), "boolean": pa.bool_()}


def column(**declared):
    return domain_of(contract_with(columns__score=declared)).columns[1]


def again(domain, type_, repeats=3):
    """Values drawn from every cell, which must come back to the same cells."""
    codes = np.tile(np.arange(domain.size, dtype=np.int32), repeats)
    values = domain.decode(codes, type_, RNG)
    assert values.type == type_
    assert values.null_count == repeats
    np.testing.assert_array_equal(domain.encode(values), codes)
    return values.drop_null()


@pytest.mark.parametrize(
    "type_",
    [
        pa.timestamp("s"),
        pa.timestamp("ms"),
        pa.timestamp("us"),
        pa.timestamp("ns"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ns", "America/New_York"),
    ],
    ids=str,
)
@pytest.mark.parametrize("bins", ["adaptive", 7])
def test_moments_keep_their_time_of_day_and_their_zone(type_, bins):
    domain = column(**MOMENT, bins=bins)
    values = again(domain, type_, 20)
    moments = [value.replace(tzinfo=None) for value in values.cast(pa.timestamp("us")).to_pylist()]
    assert min(moments) >= dt.datetime(2026, 1, 1)
    assert max(moments) <= dt.datetime(2026, 3, 31, 23, 45)
    assert {moment.minute for moment in moments} == {0, 15, 30, 45}
    assert {(moment.second, moment.microsecond) for moment in moments} == {(0, 0)}
    assert domain.label(0).startswith("2026-01-01 00:00:00")


def test_moments_fall_into_the_step_that_they_belong_to():
    domain = column(**MOMENT, bins=1)
    values = pa.array(
        [dt.datetime(1960, 1, 1), dt.datetime(2026, 1, 1, 0, 29, 59), dt.datetime(2150, 1, 1), None],
        pa.timestamp("us", "Asia/Tokyo"),
    )
    minutes = domain.numbers(values) / 60e6
    first = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() / 60
    np.testing.assert_allclose(minutes, [first, first + 15, first + 24 * 60 * 90 - 15, np.nan])


@pytest.mark.parametrize(
    ("resolution", "type_", "example"),
    [
        ("1min", pa.string(), "07:31"),
        ("30s", pa.large_string(), "07:31:30"),
        ("250ms", pa.dictionary(pa.int32(), pa.string()), "07:31:30.250"),
        ("1min", pa.time32("s"), dt.time(7, 31)),
        ("30s", pa.time64("us"), dt.time(7, 31, 30)),
        ("250ms", pa.time64("ns"), dt.time(7, 31, 30, 250_000)),
    ],
    ids=str,
)
def test_times_of_day_come_back_as_they_were_written(resolution, type_, example):
    domain = column(type="time", min="07:00", max="19:00", resolution=resolution)
    again(domain, type_)
    (exact,) = domain.numbers(pa.array([example], type_))
    step = ColumnDomain("x", "time", False, edges=(int(exact) // domain.step, int(exact) // domain.step + 1))
    alone = ColumnDomain("x", "time", False, edges=step.edges, step=domain.step)
    assert alone.decode(np.zeros(1, np.int32), type_, RNG).to_pylist() == [example]


def test_texts_that_are_no_time_of_day_are_missing():
    domain = column(type="time", resolution="1h")
    texts = ["7:30", "07:30:59.9", "24:00", "7h30", "", None, "19:60", " 07:30", "00:00"]
    assert domain.encode(pa.array(texts)).tolist() == [7, 7, 24, 24, 24, 24, 24, 24, 0]


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64(), pa.decimal128(9, 2), pa.decimal128(30, 4)], ids=str)
def test_amounts_come_back_in_cents(type_):
    domain = column(type="float", min=-5, max=1000, decimals=2, points=[9.99])
    values = [float(value) for value in again(domain, type_, 20).to_pylist()]
    assert min(values) >= -5
    assert max(values) <= 1000
    np.testing.assert_allclose(np.array(values) * 100, np.rint(np.array(values) * 100), atol=2e-3)
    assert len({round(value * 100) for value in values}) > 500
    point = int(domain.encode(pa.array([9.99]))[0])
    assert domain.label(point) == "9.99"
    near = domain.encode(pa.array([Decimal("9.98"), Decimal("9.9900"), Decimal("10.00")]))
    assert [code == point for code in near] == [False, True, False]


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64(), pa.float16()], ids=str)
def test_a_point_of_real_numbers_is_one_number(type_):
    domain = column(type="float", min=-1, max=0.7, points=[0.1])
    kind = type_.to_pandas_dtype()
    numbers = [-1, 0.0, -0.0, 0.1, np.nextafter(kind(0.1), kind(1)), np.nextafter(kind(0.1), kind(0)), 0.7, 9]
    codes = domain.encode(pa.array(np.array(numbers, kind)))
    shown = [domain.label(code) for code in codes]
    assert [label for label in shown if "[" not in label] == ["-1", "0", "0", "0.1", "0.7", "0.7"]
    assert "[" in shown[4]
    assert "[" in shown[5]
    for code in codes[:4]:
        drawn = domain.decode(np.full(50, code, np.int32), type_, RNG).to_numpy()
        assert len(set(drawn.tolist())) == 1


@pytest.mark.parametrize("low", [-(2**63), -(2**62), 0, 2**62])
@pytest.mark.parametrize("type_", [pa.int64(), pa.uint64()], ids=str)
def test_integers_beyond_double_precision_are_exact(low, type_):
    if low < 0 and type_ == pa.uint64():
        low = 1
    high = 2**63 - 1 if type_ == pa.int64() else 2**64 - 1
    points = [low + 1, high - 2, high - 1]
    domain = column(type="integer", min=low, max=high, points=points)
    again(domain, type_)
    codes = domain.encode(pa.array([low, *points, high, low + 2, high - 3], type_))
    assert [domain.label(code) for code in codes[:5]] == [str(value) for value in (low, *points, high)]
    assert all(" to " in domain.label(code) for code in codes[5:])


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.integers(-(2**63), 2**64 - 3), st.data())
def test_unsigned_integers_are_clamped_into_their_cells(values, low, data):
    high = data.draw(st.integers(low + 2, 2**64 + min(low, 0) - 1))
    middle = data.draw(st.integers(low + 1, high))
    domain = ColumnDomain("x", "integer", False, edges=(low, middle, high + 1))
    assert domain.encode(pa.array(values, pa.uint64())).tolist() == [int(value >= middle) for value in values]


@given(st.lists(st.floats(), min_size=1), st.integers(-(2**53), 2**53 - 2), st.data())
def test_floating_point_integers_are_clamped_into_their_cells(values, low, data):
    high = data.draw(st.integers(low + 2, 2**53))
    middle = data.draw(st.integers(low + 1, high))
    domain = ColumnDomain("x", "integer", False, edges=(low, middle, high + 1))
    expected = [2 if np.isnan(value) else int(value >= middle) for value in values]
    assert domain.encode(pa.array(values, pa.float64())).tolist() == expected


def test_a_cell_of_all_numbers_can_be_drawn_from():
    domain = ColumnDomain("x", "integer", False, edges=(0, 2**64))
    drawn = domain.decode(np.zeros(1000, np.int32), pa.uint64(), RNG).to_pylist()
    # Of 1,000 numbers none is in the first 64th, or none in the last, with a chance of 3e-7.
    assert min(drawn) < 2**58
    assert max(drawn) > 2**64 - 2**58


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata", "UTC", None])
def test_days_stay_the_same_day_in_every_zone(zone):
    domain = column(type="date", min="2026-03-01", max="2026-03-31")
    values = again(domain, pa.timestamp("us", zone))
    days = {value.date() for value in values.to_pylist()}
    assert days == {dt.date(2026, 3, day) for day in range(1, 32)}


def test_nan_and_null_are_the_same_absence():
    for kind in ({"type": "float", "min": 0, "max": 1, "decimals": 1}, {"type": "float", "min": 0, "max": 1}):
        domain = column(**kind, nullable=True)
        assert domain.encode(pa.array([None, float("nan")])).tolist() == [domain.missing] * 2
        drawn = domain.decode(np.full(2, domain.missing, np.int32), pa.float64(), RNG)
        assert drawn.to_pylist() == [None, None]
    whole = column(type="integer", min=0, max=9, nullable=True)
    assert whole.encode(pa.array([None, float("nan"), 9.9])).tolist() == [10, 10, 9]


@pytest.mark.parametrize(
    ("declared", "type_", "message"),
    [
        ({"type": "datetime"} | MOMENT, pa.date32(), "declared datetime, but the source holds date32"),
        ({"type": "time"}, pa.int64(), "declared time, but the source holds int64; accepted: time or string"),
        ({"type": "float", "min": 0, "max": 1e6}, pa.decimal128(5, 2), "does not fit the source's type decimal128"),
        ({"type": "integer", "min": -1, "max": 2**64 - 2}, pa.int64(), "does not fit the source's type int64"),
        (
            {"type": "datetime", "min": "1500-01-01T00:00:00", "max": "2026-01-01T00:00:00"},
            pa.timestamp("ns"),
            "not fit",
        ),
    ],
)
def test_types_that_cannot_hold_the_declared_values_are_refused(declared, type_, message):
    contract = contract_with(columns__score=declared)
    names = [name for name in contract.columns if name != "score"]
    schema = pa.schema([(name, PLAIN[contract.columns[name].type]) for name in names] + [("score", type_)])
    with pytest.raises(ContractError, match=rf"columns\.score: .*{message}"):
        release_schema(contract, schema)


@pytest.mark.parametrize("type_", [pa.int8(), pa.uint64(), pa.dictionary(pa.int8(), pa.int32()), pa.string()], ids=str)
def test_codes_are_categories_of_any_integer_type(type_):
    contract = contract_with(columns__city={"type": "categorical", "values": [3, 1, "7"], "nullable": True})
    domain = domain_of(contract).columns[3]
    again(domain, type_)
    numbers = pa.array([1, 2, 3, 7, None], pa.int32())
    assert domain.encode(numbers).tolist() == [1, 3, 0, 2, 3]
    names = [name for name in contract.columns if name != "city"]
    schema = pa.schema([(name, PLAIN[contract.columns[name].type]) for name in names] + [("city", type_)])
    assert release_schema(contract, schema).schema.field("city").type == type_


@pytest.mark.parametrize("values", [["01", "2"], ["1", "x"], ["1", "300"]])
def test_codes_that_no_integer_spells_are_refused(values):
    contract = contract_with(columns__city={"type": "categorical", "values": values})
    names = [name for name in contract.columns if name != "city"]
    schema = pa.schema([(name, PLAIN[contract.columns[name].type]) for name in names] + [("city", pa.int8())])
    with pytest.raises(
        ContractError, match=r"columns\.city\.values: '\w+', but the source holds int8; accepted: whole"
    ):
        release_schema(contract, schema)


EXTREMES = {
    "real": [1.7976931348623157e308, -1.7976931348623157e308, 5e-324, float("inf"), float("-inf"), float("nan")],
    "whole": [2**63 - 1, -(2**63), 0, -1],
    "moment": [2**63 - 1, -(2**63) + 1, 0, -1],
}
REALS = (pa.float16(), pa.float32(), pa.float64())
WHOLES = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
SWEPT = [
    *(({"type": "float", "min": 0, "max": 10, **more}, type_) for type_ in REALS for more in ({}, {"points": [0.1]})),
    *(({"type": "float", "min": -5, "max": 9, "decimals": d}, type_) for type_ in REALS for d in (0, 2, 12)),
    *(
        ({"type": "float", "min": 0, "max": 9, "decimals": 2}, type_)
        for type_ in (pa.decimal128(38, 2), pa.decimal256(76, 2))
    ),
    *(({"type": "integer", "min": -3, "max": 99}, type_) for type_ in (*REALS, *WHOLES)),
    *(({"type": "integer", "min": -(2**63), "max": 2**63 - 1}, type_) for type_ in (*REALS, *WHOLES)),
    *(({"type": "date", "min": "2000-01-01", "max": "2001-01-01"}, type_) for type_ in (pa.date32(), pa.date64())),
    *(
        ({"type": kind, "min": "2000-01-01", "max": "2001-01-01"}, pa.timestamp(unit, zone))
        for kind in ("date", "datetime")
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC")
    ),
    *(({"type": "time"}, type_) for type_ in (pa.time32("s"), pa.time64("ns"), pa.string())),
    ({"type": "boolean"}, pa.bool_()),
    ({"type": "categorical", "values": ["1", "2"]}, pa.string()),
    ({"type": "categorical", "values": ["1", "2"]}, pa.int64()),
]


def extremes(type_):
    """The utmost values that a column of a type can arrive with."""
    if pa.types.is_floating(type_):
        with np.errstate(over="ignore"):
            return pa.array(np.array(EXTREMES["real"]).astype(type_.to_pandas_dtype()))
    if pa.types.is_integer(type_):
        ends = np.iinfo(type_.to_pandas_dtype())
        return pa.array([ends.min, ends.max, 0], type_)
    if pa.types.is_decimal(type_):
        nines = "9" * (type_.precision - type_.scale)
        return pa.array([Decimal(f"{nines}.99"), Decimal(f"-{nines}.99")], type_)
    if pa.types.is_time(type_):
        most = 86_400 * 10 ** {"s": 0, "ms": 3, "us": 6, "ns": 9}[type_.unit] - 1
        return pa.array([0, most], pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)
    if pa.types.is_temporal(type_):
        # As `kept` and any Delta table hand them over: between the years 1 and 9999.
        days = (
            [dt.date(1, 1, 1), dt.date(9999, 12, 31)] if getattr(type_, "unit", "") != "ns" else [dt.date(1678, 1, 1)]
        )
        return (
            pa.array(days, pa.date32()).cast(pa.timestamp("s")).cast(type_)
            if pa.types.is_timestamp(type_)
            else (pa.array(days, type_))
        )
    return pa.array([True, False] if pa.types.is_boolean(type_) else ["", "9" * 1000, "99:99", "\x00"], type_)


@pytest.mark.parametrize(("declared", "type_"), SWEPT, ids=str)
def test_nobodys_extreme_value_is_told_by_a_warning(declared, type_):
    domain = column(**declared)
    values = pa.concat_arrays([extremes(type_), pa.nulls(1, type_)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codes = domain.encode(values)
        separately = [domain.encode(values.slice(place, 1))[0] for place in range(len(values))]
    assert codes.tolist() == separately
    assert codes[-1] == domain.missing
    assert codes.min() >= 0
    assert codes.max() <= domain.missing


def test_what_is_far_outside_is_at_the_end_of_a_range_with_decimals():
    domain = column(type="float", min=-5, max=9, decimals=12)
    found = domain.encode(pa.array([9.0, 1e308, float("inf"), -5.0, -1e308, float("-inf")])).tolist()
    assert found == [found[0]] * 3 + [found[3]] * 3
    assert found[0] != found[3]
