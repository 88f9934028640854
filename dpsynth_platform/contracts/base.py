"""What all parts of a contract share: names, durations, limits, and the strict base model."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from dpsynth_platform.contracts.uris import may_be_secret
from dpsynth_platform.foundation.people import is_control, visible

IN_WORDS: dict[str, str] = {}
"""What texts a pattern accepts, for people."""


def text_like(pattern: str, words: str) -> StringConstraints:
    """A text that matches a pattern; a fault names the words in its place."""
    IN_WORDS[pattern] = words
    return StringConstraints(pattern=pattern)


_LOWER_CASE = "a lower-case letter, then at most 62 lower-case letters, digits and "
Name = Annotated[str, text_like(r"^[a-z][a-z0-9_]{0,62}$", f"{_LOWER_CASE}_")]
FamilyName = Annotated[str, text_like(r"^[a-z][a-z0-9_-]{0,62}$", f"{_LOWER_CASE}_ or -")]
COLUMN_NAME = r"[^\u0000-\u001F\u007F-\u009F\u2028\u2029]{1,127}"
"""Any name on one line, as it is: with blanks, signs and letters of any script."""
_ONE_LINE = "a name of 1 to 127 characters, without control characters"
ColumnName = Annotated[str, text_like(f"^{COLUMN_NAME}$", _ONE_LINE)]
NameOrNone = Annotated[str, text_like(f"^({COLUMN_NAME})?$", _ONE_LINE)]
"""A column's name, or the empty one that pandas and R write over an index."""
Duration = Annotated[str, text_like(r"^[1-9][0-9]{0,4}[hd]$", "whole hours or days, such as 12h or 7d")]
TimeLimit = Annotated[
    str, text_like(r"^[1-9][0-9]{0,4}[smh]$", "whole seconds, minutes or hours, such as 90s, 2m or 1h")
]
EntityName = Annotated[
    str, text_like(r"^[A-Z][A-Z0-9_]{1,40}$", "2 to 41 capital letters, digits and _, a letter first")
]
Phrase = Annotated[str, StringConstraints(strip_whitespace=True, min_length=2, max_length=200)]


def _on_one_line(text: str) -> str:
    if any(map(is_control, text)):
        raise ValueError(f"{text!r}; accepted: one line of plain text, without control characters")
    return text


Sentences = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=2, max_length=2000), AfterValidator(_on_one_line)
]
Recipient = Annotated[Phrase, AfterValidator(_on_one_line)]
MOST_ROWS = 100_000_000
MOST_UNITS = 10**15
MOST_CAP = 1000.0
"""The largest epsilon of a family's cap."""

_LONGEST_SHOWN = 200


def duration_of(duration: str) -> dt.timedelta:
    """Parses `12h` or `7d`."""
    number, unit = int(duration[:-1]), duration[-1]
    return dt.timedelta(hours=number) if unit == "h" else dt.timedelta(days=number)


class Part(BaseModel):
    """Strict and immutable: an unknown key, or a value of another kind, is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def refuse(faults: Iterable[str]) -> None:
    """Raises one `ValueError` with all faults, one a line: pydantic lets a validator raise one error only."""
    if lines := list(faults):
        raise ValueError("\n".join(lines))


def caseless(name: str) -> str:
    """Equal for names that an SQL engine or a Delta table may take for the same column."""
    return name.replace("\u0130", "i").upper().casefold()


def key_path(*keys: str) -> str:
    """The path of a key in messages, on one line whatever the keys are."""
    return ".".join(map(visible, keys))


NOT_FILLED_IN = "not filled in"


def shown_value(value: Any) -> str:
    """A contract's value, shortened for a message. None is a key that a draft has not filled in."""
    if value is None:
        return NOT_FILLED_IN
    if isinstance(value, str) and may_be_secret(value):
        return "a URI that has credentials, or a parameter that may be some (they are not shown)"
    shown = f"a {type(value).__name__}" if isinstance(value, (dict, list)) else repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."
