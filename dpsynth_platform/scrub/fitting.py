"""Which Arrow types a column's declaration reads.

What belongs here: the types by the declaration's own, and the words for those that it does not read. What does not: a
look at values, and whether a declared range fits into a type (`synth.tabular.restore`).
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain_type
from dpsynth_platform.contracts.columns import CategoricalColumn, Column

Check = Callable[[pa.DataType], bool]

TEXT: tuple[Check, ...] = (pa.types.is_string, pa.types.is_large_string)
IGNORE = "ignore: true, which leaves the column out (no declaration reads values of this type)"
"""The one way out for a column of a type that no declaration reads."""

_FITS: dict[str, tuple[str, tuple[Check, ...]]] = {
    # Whole numbers with nulls often arrive as floating point.
    "integer": ("integer or float (of decimals: type float)", (pa.types.is_integer, pa.types.is_floating)),
    "float": ("float or decimal", (pa.types.is_floating, pa.types.is_decimal)),
    "date": ("date or timestamp", (pa.types.is_date, pa.types.is_timestamp)),
    "datetime": ("timestamp", (pa.types.is_timestamp,)),
    "time": ("time or string", (pa.types.is_time, *TEXT)),
    "categorical": ("string or integer", (*TEXT, pa.types.is_integer)),
    "boolean": ("bool", (pa.types.is_boolean,)),
    "identifier": ("string or integer", (*TEXT, pa.types.is_integer)),
    "text": ("string", TEXT),
}
_CODES = ("string, integer or float", (*TEXT, pa.types.is_integer, pa.types.is_floating))
"""Of a list of whole numbers: 4.0 is 4."""


def fits(column: Column, type_: pa.DataType) -> tuple[bool, str]:
    """Whether a declaration reads values of an Arrow type, and the types that it reads, in words.

    For a type that no declaration reads, the words are `IGNORE`.

    Args:
        column: one that is read.
    """
    whole = isinstance(column, CategoricalColumn) and column.whole_numbers
    accepted, checks = _CODES if whole else _FITS[column.type]
    values = plain_type(type_)
    if any(check(values) for check in checks):
        return True, accepted
    readable = any(check(values) for _, others in _FITS.values() for check in others)
    return False, accepted if readable else IGNORE
