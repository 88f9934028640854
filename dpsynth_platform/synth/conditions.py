"""The columns by which a text or a picture is made.

What belongs here: a conditioning column with its public values, and a table's values as the texts that are compared
with them. What does not: how a method uses them.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

Given = tuple[str | None, ...]
"""The values of a layout's conditions, in order."""


@dataclass(frozen=True)
class Condition:
    """A conditioning column, with all its public values as texts (`text_of`); None is a missing value.

    Records with another value are left out.
    """

    column: str
    values: tuple[str | None, ...]


def text_of(value: Any) -> str | None:
    """A table's value as text, or None. Floats without fraction become whole numbers, times ISO 8601."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.isoformat() if isinstance(value, (dt.date, dt.time)) else str(value)
