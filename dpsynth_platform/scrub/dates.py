"""Plausible fictional dates and ages.

What belongs here: another date in the same format and of a near-by year, another age of the same stage of life. What
does not: finding dates (`rules`).

Every part is drawn independently. One shift for all dates of a document would keep the days between them, so that one
known date would reveal the others.
"""

from __future__ import annotations

import datetime as dt
import random
import re

_MOST_YEARS = 2
_MOST_AGE = 5
_LIVES = ((0, 2), (3, 12), (13, 17), (18, 64), (65, 89), (90, 115))
_MONTHS = [dt.date(2000, month, 1).strftime("%B") for month in range(1, 13)]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_SHORTEST_NAME = 3

_NO_DATE = re.compile(r"[^\W\d_]{3}|(?<!\.)(?<!\.\d)(?<!\d\d)\d{3}")
_PARTS = re.compile(
    rf"""(?P<numbers>\d{{1,4}}([/.-])\d{{1,2}}\2\d{{1,4}})
    | (?P<clock>\d{{1,2}}:\d{{2}}(?::\d{{2}})?)(?P<half>\s?[ap]\.?m)?
    | (?P<year>(?<!\d)(?:1[89]|20)\d{{2}}(?!\d))
    | (?P<ordinal>(?<!\d)\d{{1,2}})(?:st|nd|rd|th)\b
    | (?P<number>(?<!\d)\d{{1,2}}(?!\d))
    | (?P<month>\b(?:{"|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS)}|sept)\b)
    | (?P<day>\b(?:{"|".join(f"{name[:3]}(?:{name[3:]})?|{name[:4]}" for name in _DAYS)})\b)""",
    re.VERBOSE | re.IGNORECASE,
)


def other_date(text: str, generator: random.Random) -> str:
    """A date in the same format, of a year at most two away; short words and fractions of seconds stay.

    A text with other words or numbers is returned as it is, for the caller to mask: it is more than a date.
    """
    if _NO_DATE.search(_PARTS.sub("", text)):
        return text
    return _PARTS.sub(lambda match: _other_part(match, generator), text)


def other_age(text: str, generator: random.Random) -> str:
    """An age within five years of this one, and of the same stage of life."""
    if not text.isdecimal():
        return text
    age = int(text)
    low, high = next(((low, high) for low, high in _LIVES if low <= age <= high), (age, age))
    others = [other for other in range(max(low, age - _MOST_AGE), min(high, age + _MOST_AGE) + 1) if other != age]
    return str(generator.choice(others)) if others else text


def _other_part(match: re.Match[str], generator: random.Random) -> str:
    kind, text = match.lastgroup, match.group()
    if match["numbers"]:
        return _other_numbers(text, generator)
    if match["clock"]:
        hours = range(1, 13) if match["half"] else range(24)
        clock = [f"{generator.choice(hours):0{len(match['clock'].split(':')[0])}d}"]
        clock += [f"{generator.randrange(60):02d}" for _ in match["clock"].split(":")[1:]]
        return ":".join(clock) + (match["half"] or "")
    if kind == "year":
        return _other_year(text, generator)
    if kind == "ordinal":
        day = generator.randint(1, 28)
        suffix = "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
        return f"{day}{suffix}"
    if kind == "number":
        # A day after a month's name, or a year of two digits, which may be any.
        return f"{generator.randint(1, 28):0{len(text)}d}"
    return _other_name(text, _MONTHS if kind == "month" else _DAYS, generator)


def _other_numbers(text: str, generator: random.Random) -> str:
    first, second, third = re.findall(r"\d+", text)
    separator = text[len(first)]
    if len(first) == 4:
        parts = [_other_year(first, generator), *_other_days(second, third, generator)]
    else:
        year = _other_year(third, generator) if len(third) == 4 else f"{(int(third) + _step(generator)) % 100:02d}"
        parts = [*_other_days(first, second, generator), year]
    return separator.join(parts)


def _other_days(first: str, second: str, generator: random.Random) -> list[str]:
    """Month and day in their order; if each may be the month, so may each afterwards."""
    result = []
    for text in (first, second):
        low, high = (13, 28) if int(text) > 12 else (1, 9 if len(text) == 1 else 12)
        result.append(f"{generator.randint(low, high):0{len(text)}d}")
    return result


def _other_year(text: str, generator: random.Random) -> str:
    return str(int(text) + _step(generator))


def _step(generator: random.Random) -> int:
    return generator.choice([step for step in range(-_MOST_YEARS, _MOST_YEARS + 1) if step])


def _other_name(text: str, names: list[str], generator: random.Random) -> str:
    """Another name of the list, as short as this one, and in its case."""
    own = text[:_SHORTEST_NAME].casefold()
    name = generator.choice([name for name in names if not name.casefold().startswith(own)])
    # "May" is full and short; it counts as full.
    short = len(text) < len(next((item for item in names if item.casefold().startswith(own)), text))
    value = name[:_SHORTEST_NAME] if short else name
    return value.upper() if text.isupper() else value.lower() if text.islower() else value
