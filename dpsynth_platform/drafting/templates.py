"""Declarations to fill in, by the type of a column."""

from __future__ import annotations

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain_type

TEMPLATES = (
    (pa.types.is_integer, "integer, min: , max: "),
    (pa.types.is_floating, "float, min: , max: "),
    (pa.types.is_date, "date, min: , max: "),
    (pa.types.is_timestamp, "datetime, min: , max: "),
    (pa.types.is_time, "time"),
    (pa.types.is_decimal, "float, min: , max: , decimals: "),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_string, "categorical, values: []"),
    (pa.types.is_large_string, "categorical, values: []"),
)


def template(type_: pa.DataType) -> str:
    """A declaration to fill in for a column of a type, as in `{type: integer, min: , max: }`, without the braces.

    What no declaration reads (lists, structs, maps, bytes) is ignored.
    """
    plain = plain_type(type_)
    return next((f"type: {words}" for fits, words in TEMPLATES if fits(plain)), "ignore: true")
