"""Geographic coordinates in degrees.

What belongs here: formats of latitude and longitude, and fictional values. What does not: places by name (`names`,
`addresses`).

Two decimal numbers are coordinates only with a context word, with hemispheres, or with four decimals and in the range
of degrees.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from dpsynth_platform.scrub.findings import Trust
from dpsynth_platform.scrub.rule import Rule, context_of, pattern_of

ENTITY = "COORDINATES"

_DECIMALS = re.compile(r"\d\.\d{2}")
_DEGREES = re.compile(r"[°º]|\d\s?[Dd]eg")
_AFTER, _BEFORE = re.compile(r"\d\s?[NS]\b"), re.compile(r"\b[NS]\s?\d")
_WORDS = context_of(
    r"coord|lati?\b|latitude|lon\b|lng\b|long:|longitude|gps\b|geo\b|geo[:_-]|position|located|location|maps?\b"
)
_DEGREE = r"\s?(?:[°º]|deg(?:rees?)?\b\.?)"
_MINUTES = r"\s?\d{1,2}(?:\.\d+)?\s?['\u2032\u2019]"
_SECONDS = r"(?:\s?\d{1,2}(?:\.\d+)?\s?(?:[\"\u2033\u201d]|''|\u2032\u2032))?"
_ANGLE = rf"\d{{1,3}}(?:\.\d+)?{_DEGREE}(?:{_MINUTES}{_SECONDS})?"
_FINE_ANGLE = rf"\d{{1,3}}{_DEGREE}{_MINUTES}{_SECONDS}"
_NORTH, _EAST = r"\s?[NS](?:orth|outh)?\b", r"\s?[EW](?:ast|est)?\b"
_BARE = r"\d{1,3}(?:\.\d{2,}|[ ]\d{1,2}(?:\.\d+)?(?:[ ]\d{1,2}(?:\.\d+)?)?)"
"""Degrees with decimals, or with minutes and seconds after spaces: only with hemispheres."""
_OTHER_WORD = re.compile(
    r"(?<![^\W\d_])(?!(?:deg(?:rees?)?|north|south|east|west|and|lat(?:itude)?|lon\w{0,6}|lng)(?![^\W\d_]))[^\W\d_]{3}",
    re.IGNORECASE,
)
_SIGN = r"(?:\s?[°º])?"
_LABELLED = r"(?:\s?[,;/]\s?|\s|\s?,?\s?(?:and\s)?(?:lon|lng|long)\w*\s?[:=]?\s?)"
_BETWEEN = r"\s?[,;/]?\s{0,2}(?:and\s)?"


def coordinate_rules() -> Iterator[Rule]:
    """The rules, the least ambiguous first."""
    yield _rule(rf"(?<![\w.]){_ANGLE}{_NORTH}{_BETWEEN}{_ANGLE}{_EAST}", _DEGREES)
    yield _rule(rf"(?<![\w.]){_FINE_ANGLE}(?:{_NORTH}|{_EAST})", _DEGREES)
    yield _rule(rf"(?<![\w.])(?-i:{_BARE}\s?[NS]{_BETWEEN}{_BARE}\s?[EW])(?!\w)", _AFTER)
    yield _rule(rf"(?<!\w)(?-i:[NS]\s?{_BARE}{_SIGN}{_BETWEEN}[EW]\s?{_BARE}{_SIGN})(?!\w|\.\d)", _BEFORE)
    yield Rule(ENTITY, pattern_of(_pair(4, r",\s?")), Trust.SHAPE, _likely_on_earth, needs=_DECIMALS)
    yield Rule(ENTITY, pattern_of(_pair(2, _LABELLED)), Trust.SHAPE, _on_earth, context=_WORDS, needs=_DECIMALS)
    yield _rule(
        r"\b(?:latitude|longitude|lat|lon|lng)\b\s?(?:is|of|[:=])?\s?(?P<value>[+-]?\d{1,3}\.\d{2,})(?![\w%]|\.\d)",
        _DECIMALS,
    )


def _pair(decimals: int, between: str) -> str:
    """A pattern of two numbers with at least `decimals` decimals."""
    latitude, longitude = (rf"[+-]?\d{{1,{most}}}\.\d{{{decimals},}}{_SIGN}" for most in (2, 3))
    return rf"(?<![\w.,/-]){latitude}{between}{longitude}(?![\w%]|[.,]\d)"


def other_coordinates(text: str, draw: random.Random) -> str:
    """Another place in the same format: two-digit numbers are below 60, three-digit ones below 180.

    A text with words is returned as it is, for the caller to mask: it is more than coordinates.
    """
    if _OTHER_WORD.search(text):
        return text
    return re.sub(r"(\d+)(\.\d+)?", lambda match: _other_number(match, text, draw), text)


def _other_number(match: re.Match[str], text: str, draw: random.Random) -> str:
    whole, decimals = match.group(1), match.group(2) or ""
    if len(whole) > 3:
        return "".join(draw.choice("0123456789") if item.isdecimal() else item for item in match.group())
    most = 180 if len(whole) == 3 else min(10 ** len(whole), 60)
    least = 10 ** (len(whole) - 1) if len(whole) > 1 and whole[0] != "0" else 0
    value = f"{draw.randrange(least, most):0{len(whole)}d}"
    return value + decimals[:1] + "".join(draw.choice("0123456789") for _ in decimals[1:])


def _on_earth(text: str) -> bool:
    latitude, longitude = (float(number) for number in re.findall(r"\d+\.\d+", text)[:2])
    return latitude <= 90 and longitude <= 180


def _likely_on_earth(text: str) -> bool:
    """Two numbers below ten are probably no coordinates."""
    return _on_earth(text) and re.search(r"\d\d\.", text) is not None


def _rule(pattern: str, needs: re.Pattern[str]) -> Rule:
    return Rule(ENTITY, pattern_of(pattern), Trust.SHAPE, needs=needs)
