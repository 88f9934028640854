"""What a contract may say of columns with an order."""

import datetime as dt

import pytest
from pydantic import TypeAdapter

from dpsynth_platform.contracts.columns import Column, DatetimeColumn, FloatColumn, TimeColumn
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.yaml_files import parse_value


def parsed(column: str):
    """The contract's column of that YAML."""
    document = {
        "dataset": "people",
        "description": "Fictional people.",
        "owners": ["tests@example.org"],
        "source": {"uri": "/nowhere", "key": ["person"]},
        "family": "people",
        "privacy": {
            "unit": "user",
            "owner_columns": ["person"],
            "namespace": "person",
            "max_contributions": 1,
            "guarantee": {"epsilon": 1.0},
            "expected_units": 1000,
        },
        "columns": {
            "person": {"type": "identifier"},
            "flag": {"type": "boolean"},
            "x": parse_value(column),
        },
        "generate": {"rows": 10},
        "release": {"uri": "/nowhere/public"},
    }
    return parse_contract(document, where="test", variables={}).columns["x"]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("{type: integer, min: 0, max: 9, bins: gm}", "bins: 'gm'; accepted: adaptive, quantile, privtree, kmeans"),
        ("{type: date, min: 2026-01-01, max: 2026-12-31, bins: 0}", "bins: 0; accepted: adaptive, "),
        (
            "{type: integer, min: 0, max: 9, bins: [privtree]}",
            "bins: ['privtree']; accepted: adaptive, quantile, privtree, kmeans, or 1 to 1000, or a list of ascending",
        ),
        ("{type: float, min: 0, max: 9, bins: [1, x]}", "bins: [1, 'x']; accepted: adaptive, "),
        ("{type: time, bins: [1, 2]}", "bins: [1, 2]; accepted: adaptive, quantile, privtree, kmeans, or 1 to 1000"),
        (
            "{type: integer, min: 0, max: 9, points: [3, 10]}",
            "points: not ascending within the range; accepted: ascending values from 0 to 9",
        ),
        (
            "{type: float, min: 0, max: 9, points: [3, 3]}",
            "points: not ascending within the range; accepted: ascending values",
        ),
        ("{type: integer, min: 0, max: 18446744073709551616}", "columns.x.max: 18446744073709551616; accepted:"),
        ("{type: integer, min: -2, max: 18446744073709551615}", "the range exceeds every integer type"),
        ("{type: float, min: 0.005, max: 9, decimals: 2}", "min: 0.005 has more than the 2 declared decimals"),
        ("{type: float, min: 0, max: 9, points: [0.125], decimals: 2}", "points: 0.125 has more than the 2 declared"),
        (
            "{type: float, min: 0, max: 1.0e15, decimals: 2}",
            "decimals: 2 exceed double precision for numbers of this size",
        ),
        (
            "{type: datetime, min: 2026-01-01T00:00:00, max: 2026-01-01T00:00:00}",
            "min 2026-01-01T00:00:00 is not before",
        ),
        (
            "{type: datetime, min: 2026-01-01T00:30:00, max: 2026-01-02T00:00:00, resolution: 1h}",
            "min: 2026-01-01T00:30:00 is not a multiple of the resolution 1h",
        ),
        (
            "{type: datetime, min: 2026-01-01T00:00:00, max: 2026-01-02T00:00:00, resolution: 1d}",
            "resolution: '1d'; accepted: whole ms, s, min or h, such as 15min",
        ),
        ("{type: time, max: 2230}", "columns.x.max: 2230; accepted: a time of day such as '12:30'"),
        ("{type: date, min: 20260101, max: 2026-12-31}", "columns.x.min: 20260101; accepted: a date such as"),
        ("{type: date, min: 2026-01-01, max: 2026-02-30}", "columns.x.max: '2026-02-30'; accepted: a date"),
        ("{type: datetime, min: 2020, max: 2026-02-28}", "columns.x.min: 2020; accepted: a moment such as 2026-01-31T"),
        ("{type: datetime, min: 0001-01-01T00:00:00+14:00, max: 2026-02-28}", "lies outside of the years of UTC"),
        (
            "{type: time, min: '08:00+01:00'}",
            "columns.x.min: 08:00:00+01:00 has a time zone; accepted: a time of day without",
        ),
        ("{type: time, min: '09:00', max: '08:00'}", "min 09:00:00 is not before max 08:00:00"),
        ("{type: time, min: '08:15', resolution: 1h}", "min: 08:15:00 is not a multiple"),
    ],
)
def test_faults_name_path_value_and_what_is_accepted(column: str, said: str) -> None:
    with pytest.raises(ContractError) as caught:
        parsed(column)
    assert said in str(caught.value)
    assert str(caught.value).startswith("test: columns.x")
    assert "\n" not in str(caught.value)


def test_moments_are_kept_in_utc() -> None:
    column = parsed("{type: datetime, min: 2026-01-01T01:00:00+01:00, max: 2026-01-02T00:00:00, resolution: 15min}")
    assert isinstance(column, DatetimeColumn)
    assert column.min == dt.datetime(2026, 1, 1)
    assert column.step == 15 * 60 * 10**6
    assert column.steps[0] * 1000 == dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() * 1e9


def test_a_time_of_day_has_the_whole_day_by_default() -> None:
    column = parsed("{type: time, resolution: 7min}")
    assert isinstance(column, TimeColumn)
    assert column.steps == (0, 205 * 7 * 60 * 10**6)


@pytest.mark.parametrize(
    "column",
    [
        "{type: datetime, min: 2026-01-01T00:00:00, max: 2026-01-02T00:00:00, bins: adaptive}",
        "{type: time, min: '07:30', max: '22:00', bins: 10}",
        "{type: float, min: -1, max: 1, points: [0], decimals: 2, bins: [0.5]}",
        "{type: integer, min: 0, max: 99999, points: [0, 99999], bins: quantile}",
        "{type: integer, min: 0, max: 9, bins: privtree}",
        "{type: time, min: '07:30', max: '22:00', bins: kmeans}",
    ],
)
def test_a_sealed_column_reads_back_the_same(column: str) -> None:
    declared = parsed(column)
    assert TypeAdapter(Column).validate_python(declared.model_dump(mode="json")) == declared


def test_a_number_of_decimals_needs_no_more_than_double_precision() -> None:
    column = parsed("{type: float, min: -0.1, max: 123456.78, decimals: 2}")
    assert isinstance(column, FloatColumn)
