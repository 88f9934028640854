"""The console's charts say in words what they draw."""

import datetime as dt
from xml.etree import ElementTree

import pytest

from dpsynth_platform.console.pages.charts import budget_over_time, owners_left
from dpsynth_platform.console.views.families import OwnersView, SpentPoint

SPACE = "{http://www.w3.org/2000/svg}"


def points(*spent: tuple[str, float, float]) -> list[SpentPoint]:
    return [
        SpentPoint(at=at, event=number, entry=None, place=None, kind="reserved", epsilon=epsilon, cap=cap)
        for number, (at, epsilon, cap) in enumerate(spent, 1)
    ]


def lines(chart: str) -> list[list[tuple[float, float]]]:
    drawn = ElementTree.fromstring(chart).iter(f"{SPACE}polyline")
    return [[tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()] for line in drawn]


def test_a_budget_stays_as_it_is_from_one_event_to_the_next() -> None:
    chart = budget_over_time(
        points(
            ("2026-01-05T00:00:00+00:00", 1.0, 4.0),
            ("2026-02-05T00:00:00+00:00", 1.6, 4.0),
            ("2026-03-05T00:00:00+00:00", 1.6, 6.0),
        )
    )
    spent, cap = lines(chart)
    for line in (spent, cap):
        assert len(line) == 6
        assert all(one[1] == other[1] for one, other in zip(line[::2], line[1::2], strict=True))  # level
        assert all(one[0] == other[0] for one, other in zip(line[1::2], line[2::2], strict=False))  # then a step
    assert cap[-1][1] < cap[0][1] < spent[-1][1] < spent[0][1]  # smaller is higher up
    assert "rose to 1.6 in 3 events; the cap is now 6" in chart


@pytest.mark.parametrize("hours, form", [(2, "%H:%M"), (40, "%m-%d %H:%M"), (24 * 90, "%Y-%m-%d")])
def test_the_axis_tells_hours_or_days_as_the_span_asks(hours: int, form: str) -> None:
    first = dt.datetime.now(dt.UTC) - dt.timedelta(hours=hours)
    chart = budget_over_time(points((first.isoformat(), 1.0, 4.0)))
    found = [text.text or "" for text in ElementTree.fromstring(chart).iter(f"{SPACE}text")]
    ticks = []
    for words in found:
        try:
            leap = ("2028 ", "%Y ") if "%Y" not in form else ("", "")  # 29 February is a day of some years
            ticks.append(dt.datetime.strptime(leap[0] + words, leap[1] + form))
        except ValueError:
            continue
    assert len(ticks) >= 3


def test_shares_of_owners_are_bars_and_words() -> None:
    chart = owners_left(
        OwnersView(owners=80, epsilon_left_unspent=2.0, steps=((0.0, 1.0, 0.25), (1.0, 2.0, 0.75)), quantiles={})
    )
    assert "25% have epsilon 0 to 1 left; 75% have epsilon 1 to 2 left" in chart
