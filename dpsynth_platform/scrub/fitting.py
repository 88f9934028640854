"""Which Arrow types a column's declaration reads.

What belongs here: accepted types by declared type, and their names in errors. What does not: types that are first read
as others (`sources.declared_types`), values, and whether a declared range fits into a type (`synth.tabular.restore`).
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain_type
from dpsynth_platform.contracts.columns import CategoricalColumn, Column
from dpsynth_platform.sources.declared_types import is_bytes, read_type
from dpsynth_platform.sources.pictures import is_file_struct, is_pixel_list

Check = Callable[[pa.DataType], bool]

TEXT: tuple[Check, ...] = (pa.types.is_string, pa.types.is_large_string)
IGNORE = "ignore: true, which leaves the column out (no declaration reads values of this type)"
"""What is accepted for a column of a type that no declaration reads."""
FIELDS = (
    "declarations of its fields instead, by names with dots such as address.zip; or ignore: true, which leaves all of "
    "them out"
)
"""What is accepted for a struct."""
BYTES = (
    "type identifier, for ids; or ignore: true, which leaves the column out (other bytes are read as pictures only, by "
    "type image)"
)
"""What is accepted for bytes."""
DURATION = "type integer, which is the number of its unit; or ignore: true, which leaves the column out"
"""What is accepted for a duration."""


_FITS: dict[str, tuple[str, tuple[Check, ...]]] = {
    # Whole numbers with nulls often arrive as floating point.
    "integer": (
        "integer, float, duration or decimal of scale 0 (of others: type float)",
        (pa.types.is_integer, pa.types.is_floating),
    ),
    "float": ("float or decimal", (pa.types.is_floating, pa.types.is_decimal)),
    "date": (
        "date or timestamp; texts must be converted before, as `pandas.to_datetime` does",
        (pa.types.is_date, pa.types.is_timestamp),
    ),
    "datetime": ("timestamp", (pa.types.is_timestamp,)),
    "time": ("time or string", (pa.types.is_time, *TEXT)),
    "categorical": ("string, integer or decimal of scale 0", (*TEXT, pa.types.is_integer)),
    "boolean": ("bool, or string of true and false", (pa.types.is_boolean,)),
    "identifier": (
        "string, integer (in pandas `Int64` where values are missing), decimal of scale 0 or bytes",
        (*TEXT, pa.types.is_integer),
    ),
    "text": ("string", TEXT),
    "image": (
        "binary (PNG, JPEG or WebP files, or raw pixels), a struct with bytes, or lists of whole numbers (raw)",
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, is_pixel_list, is_file_struct),
    ),
}
_CODES = ("string, integer, float or decimal of scale 0", (*TEXT, pa.types.is_integer, pa.types.is_floating))
"""For a list of whole numbers, where 4.0 is 4."""


def fits(column: Column, type_: pa.DataType) -> tuple[bool, str]:
    """Whether a declaration reads values of an Arrow type, and a text of what is accepted for the source's.

    The text is `IGNORE` for types that no declaration reads. The column must not be ignored.

    Args:
        type_: `declared_types.read_type` of the source's.
    """
    whole = isinstance(column, CategoricalColumn) and column.whole_numbers
    accepted, checks = _CODES if whole else _FITS[column.type]
    values = plain_type(type_)
    if any(check(values) for check in checks):
        return True, accepted
    if pa.types.is_struct(values):
        return False, FIELDS
    if pa.types.is_duration(values):
        return False, DURATION
    if is_bytes(values):
        return False, BYTES if column.type != "image" else accepted
    readable = any(check(read_type(kind, values)) for kind, (_, others) in _FITS.items() for check in others)
    return False, accepted if readable else IGNORE
