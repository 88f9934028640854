"""Cadences: the names of periods and their days, and when a run of a period is due.

What belongs here: what follows from a contract's cadence and a period's name. What does not: instants of a source's
rows (`sources.periods`), and Dagster's partitions, which have the same names.

A period is named by its first day. Names of one cadence are never names of another, so a dataset whose cadence changes
pays for no period under the name of another one; and they sort by time. That their days overlap, the ledger sees.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass

_DAY = dt.timedelta(days=1)
_YEAR = "[0-9]{4}"


@dataclass(frozen=True)
class Cadence:
    """How long periods are and how they are named.

    Attributes:
        noun: a period in words.
        form: a period's name, for people.
        format: the same for `strptime` and `strftime`, of the first day.
        pattern: the same as a regular expression, which accepts some texts more.
        cron: the midnights at which periods begin.
        months: of a period; 0: it is a week.
    """

    noun: str
    form: str
    format: str
    pattern: str
    cron: str
    months: int

    def first_day(self, period: str) -> dt.date | None:
        """The first day of a period; None for a text that is no name of one."""
        if not re.fullmatch(self.pattern, period, re.ASCII):
            return None
        try:
            day = dt.datetime.strptime(period, self.format).date()
        except ValueError:  # 31 February, or the year 0
            return None
        # In some time zone, periods of the year 9999 end outside the range of Python's dates.
        return day if day.year < dt.MAXYEAR and (self.months or day.weekday() == 0) else None

    def after(self, first: dt.date) -> dt.date:
        """The first day of the period after one that begins on a day."""
        if not self.months:
            return first + 7 * _DAY
        months = first.year * 12 + first.month - 1 + self.months
        return dt.date(months // 12, months % 12 + 1, 1)


CADENCES = {
    "weekly": Cadence(
        noun="week",
        form="YYYY-MM-DD-week, of its Monday",
        format="%Y-%m-%d-week",
        pattern=rf"{_YEAR}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])-week",
        cron="0 0 * * 1",
        months=0,
    ),
    "monthly": Cadence(
        noun="month",
        form="YYYY-MM",
        format="%Y-%m",
        pattern=rf"{_YEAR}-(0[1-9]|1[0-2])",
        cron="0 0 1 * *",
        months=1,
    ),
    "quarterly": Cadence(
        noun="quarter",
        form="YYYY-MM-quarter, of its first month",
        format="%Y-%m-quarter",
        pattern=rf"{_YEAR}-(01|04|07|10)-quarter",
        cron="0 0 1 1,4,7,10 *",
        months=3,
    ),
}
PERIOD_PATTERN = rf"^({'|'.join(cadence.pattern for cadence in CADENCES.values())})$"
"""The name of a period of any cadence."""


def cadence_of(period: str) -> Cadence | None:
    """The cadence whose periods have such a name; None for a text that is no period's name."""
    return next((cadence for cadence in CADENCES.values() if cadence.first_day(period)), None)


def period_bounds(period: str) -> tuple[dt.date, dt.date]:
    """First and last day of a period. Raises `ValueError` if the text is no period's name."""
    cadence = cadence_of(period)
    first = cadence.first_day(period) if cadence else None
    if cadence is None or first is None:
        raise ValueError("no name of a period")
    return first, cadence.after(first) - _DAY


def periods_from(first: str) -> Iterator[str]:
    """A period and all later ones of the same cadence."""
    cadence, (day, _) = cadence_of(first), period_bounds(first)
    while cadence and day.year < dt.MAXYEAR:
        yield f"{day.year:04}{day.strftime(cadence.format.removeprefix('%Y'))}"
        day = cadence.after(day)


@dataclass(frozen=True)
class Cron:
    """A cron expression with one minute and one hour, on some days.

    `days` (of the month), `months` and `weekdays` (0: Sunday) are None where every one is meant.
    """

    minute: int
    hour: int
    days: frozenset[int] | None
    months: frozenset[int] | None
    weekdays: frozenset[int] | None

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Raises `ValueError` for an expression that is not of this kind, or that names no day."""
        fields = text.split(" ")
        if len(fields) != 5:
            raise ValueError(text)
        minute, hour = (_numbers(field, 0, most) for field, most in zip(fields, (59, 23), strict=False))
        # Each month has 28 days: with the days after, an expression might name no day of any year.
        days, months, weekdays = (
            _numbers(field, least, most) for field, least, most in zip(fields[2:], (1, 1, 0), (28, 12, 6), strict=True)
        )
        if not minute or not hour or len(minute) > 1 or len(hour) > 1 or (days and weekdays):
            raise ValueError(text)
        return cls(min(minute), min(hour), days, months, weekdays)

    def first_from(self, day: dt.date) -> dt.datetime:
        """The first time at or after a day's midnight, on the clocks of the expression's time zone."""
        while not (
            (self.days is None or day.day in self.days)
            and (self.months is None or day.month in self.months)
            and (self.weekdays is None or day.isoweekday() % 7 in self.weekdays)
        ):
            day += _DAY
        return dt.datetime.combine(day, dt.time(self.hour, self.minute))


def _numbers(field: str, least: int, most: int) -> frozenset[int] | None:
    if field == "*":
        return None
    found = frozenset(int(part) if re.fullmatch("[0-9]{1,2}", part, re.ASCII) else -1 for part in field.split(","))
    if not all(least <= number <= most for number in found):
        raise ValueError(field)
    return found
