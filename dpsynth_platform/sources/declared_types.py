"""The types as which declarations read a file's types, and back.

What belongs here: values that a declaration reads as those of another type. What does not: the layout of a type in
memory (`compute.plain_types`), what a Delta table can hold (`delta_types`), and which types are accepted
(`scrub.fitting`).

| declared | in the file | read as |
| --- | --- | --- |
| integer | duration | int64, the number of its unit |
| integer | decimal of scale 0 | int64; beyond its range the nearest, as beyond any declared range |
| categorical, identifier | decimal of scale 0 | int64 if it has at most 18 digits, else its digits as text |
| boolean | text | bool, by the words of CSV files (`csv_texts`) |
| identifier | bytes, fixed-size or not | text of hexadecimal digits |
| identifier | extension arrow.uuid | text, as in 123e4567-e89b-12d3-a456-426614174000 |
| any other | any other | itself |
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import is_text
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.sources.csv_texts import values_of

_DIGITS = 18
"""Of decimals of which int64 holds all."""
_UUID = r"^(.{8})(.{4})(.{4})(.{4})"


def read_type(kind: str, type_: pa.DataType) -> pa.DataType:
    """The type as which a declaration reads a plain type.

    Args:
        kind: the declared `type`.
    """
    if kind == "boolean" and is_text(type_):
        return pa.bool_()
    if kind == "integer" and (pa.types.is_duration(type_) or _is_whole(type_)):
        return pa.int64()
    if kind in ("categorical", "identifier") and _is_whole(type_):
        return pa.int64() if type_.precision <= _DIGITS else pa.string()
    return pa.string() if kind == "identifier" and is_bytes(type_) else type_


def read_as(kind: str, column: pa.Array, name: str = "") -> pa.Array:
    """A column of a plain type as one of its `read_type`.

    Raises:
        SourceError: a text of a boolean column is neither true nor false.
    """
    wanted = read_type(kind, column.type)
    if wanted == column.type:
        return column
    if is_bytes(column.type):
        return _hexadecimal(column)
    if kind == "boolean":
        return _truth(column, name)
    if pa.types.is_decimal(column.type) and column.type.precision > _DIGITS and wanted == pa.int64():
        first, last = (pa.scalar(Decimal(end), column.type) for end in (-(2**63), 2**63 - 1))
        column = pc.max_element_wise(column, first, skip_nulls=False)
        column = pc.min_element_wise(column, last, skip_nulls=False)
    return column.cast(wanted)


def whole_as(numbers: pa.Array, type_: pa.DataType) -> pa.Array:
    """Whole numbers as a plain type that a declaration reads as whole numbers.

    Raises `pyarrow.ArrowException` if the type cannot hold them.
    """
    if pa.types.is_decimal(type_):  # Arrow casts integers only to decimals of all of their digits
        return numbers.cast(pa.decimal128(20, 0)).cast(type_)
    if pa.types.is_duration(type_):
        return numbers.cast(pa.int64()).cast(type_)
    return numbers.cast(type_, safe=not pa.types.is_floating(type_))


def _truth(column: pa.Array, name: str) -> pa.Array:
    try:
        return values_of(column.cast(pa.string()).fill_null(""), pa.bool_())
    except pa.ArrowInvalid:
        pass  # its text may quote the data
    raise SourceError(
        f"columns.{name}: declared boolean, and some of its texts are neither true nor false; accepted: true, false, 1 "
        "or 0 (in any case), or type categorical with values"
    )


def _hexadecimal(column: pa.Array) -> pa.Array:
    is_uuid = isinstance(column.type, pa.UuidType)
    stored = (column.storage if is_uuid else column).cast(pa.large_binary())
    _, ends, data = stored.buffers()
    places = np.frombuffer(ends, np.int64)[stored.offset : stored.offset + len(stored) + 1]
    first, last = (int(places[0]), int(places[-1])) if len(stored) else (0, 0)
    digits = b"" if data is None else data[first:last].to_pybytes().hex().encode()
    shown = pa.LargeStringArray.from_buffers(len(stored), pa.py_buffer((places - first) * 2), pa.py_buffer(digits))
    if is_uuid:
        shown = pc.replace_substring_regex(shown, _UUID, r"\1-\2-\3-\4-")
    return pc.if_else(stored.is_valid(), shown.cast(pa.string()), None)


def _is_whole(type_: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(type_) and type_.scale == 0)


def is_bytes(type_: pa.DataType) -> bool:
    """Whether a plain type is bytes, or a UUID."""
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return isinstance(type_, pa.UuidType) or any(check(type_) for check in checks)
