"""Periods: in whatever time zone, each row is in exactly one, and the day of its period is the day that it is of."""

from __future__ import annotations

import datetime as dt
import itertools
from zoneinfo import ZoneInfo, available_timezones

import dagster as dg
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpsynth_platform.contracts.periods import CADENCES, cadence_of, period_bounds, periods_from
from dpsynth_platform.sources.periods import has_ended, local, local_schema, period_instants, period_span

ZONES = sorted(available_timezones())
HOUR = dt.timedelta(hours=1)


def month(day: dt.date) -> str:
    return f"{day.year:04}-{day.month:02}"


def week(day: dt.date) -> str:
    return f"{day - dt.timedelta(days=day.weekday())}-week"


def quarter(day: dt.date) -> str:
    return f"{day.year:04}-{(day.month - 1) // 3 * 3 + 1:02}-quarter"


NAMED = {"weekly": week, "monthly": month, "quarterly": quarter}


def around(period: str) -> list[str]:
    """A period and those beside it."""
    named = next(name for key, name in NAMED.items() if CADENCES[key] is cadence_of(period))
    first, last = period_bounds(period)
    return [named(first - dt.timedelta(days=1)), period, named(last + dt.timedelta(days=1))]


def counted(values: pa.Array, period: str, zone: str) -> list[int]:
    """In how many of a period and those beside it each value is."""
    batch = pa.record_batch({"at": values})
    masks = [period_span("at", values.type, each, zone).mask(batch).to_pylist() for each in around(period)]
    return [sum(found) for found in zip(*masks, strict=True)]


def test_period_bounds() -> None:
    assert period_bounds("2028-02") == (dt.date(2028, 2, 1), dt.date(2028, 2, 29))
    assert period_bounds("2026-12") == (dt.date(2026, 12, 1), dt.date(2026, 12, 31))

    assert period_bounds("2026-12-28-week") == (dt.date(2026, 12, 28), dt.date(2027, 1, 3))
    assert period_bounds("2026-10-quarter") == (dt.date(2026, 10, 1), dt.date(2026, 12, 31))
    assert list(itertools.islice(periods_from("2026-12-28-week"), 2)) == ["2026-12-28-week", "2027-01-04-week"]
    assert list(itertools.islice(periods_from("2026-10-quarter"), 2)) == ["2026-10-quarter", "2027-01-quarter"]
    assert list(periods_from("9998-11")) == ["9998-11", "9998-12"]


def test_which_texts_are_periods() -> None:
    ours = ("2026-01", "0001-01", "9998-12", "2026-01-05-week", "2026-10-quarter")
    assert [cadence_of(text) for text in ours] == [
        *[CADENCES["monthly"]] * 3,
        CADENCES["weekly"],
        CADENCES["quarterly"],
    ]
    others = ("0000-01", "9999-12", "2026-13", "2026-1", "\u0662026-01", "2026-01\n", "2026-01-06-week")
    assert not any(map(cadence_of, (*others, "2026-02-31-week", "2026-02-quarter", "2026-01-05", "")))
    with pytest.raises(ValueError, match="no name of a period"):
        period_bounds("2026-01-05")


@pytest.mark.parametrize(
    ("zone", "period", "start", "end"),
    [
        ("UTC", "2026-02", "2026-02-01T00:00", "2026-03-01T00:00"),
        ("Asia/Kolkata", "2026-02", "2026-01-31T18:30", "2026-02-28T18:30"),
        ("America/New_York", "2026-11", "2026-11-01T04:00", "2026-12-01T05:00"),  # clocks change on the 1st, at 2:00
        ("Africa/Cairo", "2014-08", "2014-07-31T22:00", "2014-08-31T21:00"),  # midnight of the 1st was skipped
        ("America/Havana", "2015-11", "2015-11-01T04:00", "2015-12-01T05:00"),  # midnight of the 1st came twice
        ("America/St_Johns", "2009-11", "2009-11-01T02:30", "2009-12-01T03:30"),  # a minute of it, then October again
    ],
)
def test_known_boundaries(zone: str, period: str, start: str, end: str) -> None:
    found = period_instants(period, zone)
    assert [instant.strftime("%Y-%m-%dT%H:%M") for instant in found] == [start, end]
    assert not has_ended(period, zone, found[1] - dt.timedelta(microseconds=1))
    assert has_ended(period, zone, found[1])


@settings(max_examples=300, deadline=None, derandomize=True)
@example("America/St_Johns", "2009-11", 90)
@example("Pacific/Kiritimati", "1995-01", 0)
@example("America/Toronto", "1919-04", 0)
@given(
    zone=st.sampled_from(ZONES),
    period=st.dates(dt.date(1850, 1, 1), dt.date(2060, 12, 31)).map(month),
    minutes=st.integers(-60 * 30, 60 * 30),
)
def test_each_instant_is_in_exactly_one_period(zone: str, period: str, minutes: int) -> None:
    start, end = period_instants(period, zone)
    assert period_instants(around(period)[2], zone)[0] == end
    type_ = pa.timestamp("us", "UTC")
    beside = [
        boundary + step
        for boundary in (start, end)
        for step in (dt.timedelta(0), dt.timedelta(microseconds=-1), dt.timedelta(minutes=minutes))
    ]
    values = pa.array(beside, type_)
    assert counted(values, period, zone) == [1] * len(beside)
    # Clocks say the same, but for times that come twice since they were set back over midnight.
    inside = period_span("at", type_, period, zone).mask(pa.record_batch({"at": values})).to_pylist()
    for moment, within in zip(beside, inside, strict=True):
        shown = moment.astimezone(ZoneInfo(zone))
        if (month(shown) == period) != within:
            since = moment - (start if within else end)
            assert shown.fold == 1 and dt.timedelta(0) <= since < dt.timedelta(hours=3)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    zone=st.sampled_from(ZONES),
    moment=st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2300, 12, 31), timezones=st.just(dt.UTC)),
)
def test_days_of_moments_are_those_of_the_zones_clocks(zone: str, moment: dt.datetime) -> None:
    schema = local_schema(pa.schema([("at", pa.timestamp("us", "UTC"))]), "at", zone)
    values = pa.array([moment, None], pa.timestamp("us", "UTC"))
    shown = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    expected = [shown if zone != "UTC" else moment, None]
    assert local(values, schema.field("at").type, zone).to_pylist() == expected


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    zone=st.sampled_from(ZONES),
    moment=st.datetimes(dt.datetime(1600, 1, 1), dt.datetime(2200, 1, 1)),
)
def test_days_and_clocks_without_a_zone_are_compared_as_they_stand(zone: str, moment: dt.datetime) -> None:
    period = month(moment)
    for values in (pa.array([moment.date()]), pa.array([moment], pa.timestamp("us"))):
        assert counted(values, period, zone) == [1]
        batch = pa.record_batch({"at": values})
        assert period_span("at", values.type, period, zone).mask(batch).to_pylist() == [True]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.sampled_from(ZONES), st.dates(dt.date(1975, 1, 6), dt.date(2035, 12, 30)), st.sampled_from(sorted(CADENCES)))
def test_the_schedule_asks_for_a_period_no_sooner_than_it_has_ended(zone: str, day: dt.date, cadence: str) -> None:
    """Dagster's partitions have the names of our periods, and their ends."""
    period, known = NAMED[cadence](day), CADENCES[cadence]
    partitions = dg.TimeWindowPartitionsDefinition(
        cron_schedule=known.cron, fmt=known.format, start=period, timezone=zone
    )
    end = period_instants(period, zone)[1]
    assert partitions.get_partition_keys(current_time=end - dt.timedelta(seconds=1)) == []
    assert partitions.get_partition_keys(current_time=end + 2 * HOUR) == [period]


def test_moments_of_utc_stay_as_they_are() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    assert local_schema(schema, "at", "UTC") is schema
    assert local_schema(schema, None, "Asia/Kolkata") is schema
    assert local_schema(schema, "at", "Asia/Kolkata").field("at").type == pa.timestamp("us")
    assert local_schema(schema, "n", "Asia/Kolkata") is schema
