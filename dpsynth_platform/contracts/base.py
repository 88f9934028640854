"""What all parts of a contract share: names, durations, limits, and the strict base model."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
FamilyName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
ColumnName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_\-]{0,126}$")]
Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,4}[hd]$")]
TimeLimit = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,4}[smh]$")]
EntityName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{1,40}$")]
Phrase = Annotated[str, StringConstraints(strip_whitespace=True, min_length=2, max_length=200)]
MOST_ROWS = 100_000_000
MOST_UNITS = 10**15
MOST_CAP = 1000.0
"""The largest epsilon of a family's cap."""

_LONGEST_SHOWN = 200


def duration_of(duration: str) -> dt.timedelta:
    """The time that `12h` or `7d` stands for."""
    number, unit = int(duration[:-1]), duration[-1]
    return dt.timedelta(hours=number) if unit == "h" else dt.timedelta(days=number)


class Part(BaseModel):
    """Strict and immutable: an unknown key, or a value of another kind, is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def refuse(faults: Iterable[str]) -> None:
    """Raises all faults as the one error that pydantic lets a validator raise, a line each."""
    if lines := list(faults):
        raise ValueError("\n".join(lines))


def shown_value(value: Any) -> str:
    """A value of a contract in a message; an empty key is a gap of a draft."""
    if value is None:
        return "not filled in"
    shown = f"a {type(value).__name__}" if isinstance(value, (dict, list)) else repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."
