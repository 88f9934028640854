"""Templates of column declarations by the type of a column."""

from __future__ import annotations

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain_type

TEMPLATES = (
    (pa.types.is_integer, "integer, min: , max: "),
    (pa.types.is_duration, "integer, min: , max: "),
    (lambda type_: pa.types.is_decimal(type_) and type_.scale == 0, "integer, min: , max: "),
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
    """The declaration to fill in, such as `type: integer, min: , max: `.

    Types that are not modelled (lists, maps, bytes) give `ignore: true`.
    """
    plain = plain_type(type_)
    return next((f"type: {words}" for fits, words in TEMPLATES if fits(plain)), "ignore: true")
