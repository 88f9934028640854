"""The values of the fields of a CSV file, each from its own text only.

What belongs here: one fixed rule for each declared type of a column. What does not: reading files (`table_files`), and
guessing types. If a reader infers a column's type from all rows, one row changes the values of all others: a single
half second makes timestamps nanoseconds, a single decimal point rounds large whole numbers. Here a text affects its own
value only, or stops the run.

| declared | texts |
| --- | --- |
| integer | `7`, `-7`, `0x1F`; below 2^53 also `7.0` and `7e3`, if nothing follows the point |
| float | `7`, `0.5`, `7e3`, `inf` |
| date, datetime | `2026-01-31`, `2026-01-31 07:30`, `2026-01-31T07:30:00.5`, with a zone (`Z`, `-05:00`) in UTC |
| boolean | `true`, `false`, `1`, `0`, `1.0`, `0.0`, in any case |
| others | the text as it is |

In text columns only an empty field is missing, since `NA` may be a code. In other columns, blanks around a value are
ignored, and Arrow's null values are missing.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

MOMENT = pa.timestamp("us")

_WHOLE = r"^(-?\d{1,19}|0[xX][0-9a-fA-F]{1,15})$"
_LARGEST_EXACT = 2.0**53
_ZONED = r"[ T].*(Z|[+-]\d{2}(:?\d{2})?)$"
_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0")


def values_of(texts: pa.Array, type_: pa.DataType, decimal: str = ".") -> pa.Array:
    """The values of a column, row by row.

    Args:
        texts: of type string, without null.
        type_: int64, float64, date32, timestamp in microseconds, bool or string.
        decimal: the decimal mark of numbers and truth values; with a comma, a point in them is invalid.

    Raises:
        pyarrow.ArrowInvalid: a text is no such value. The error's text quotes the data.
    """
    if pa.types.is_string(type_):
        return _where(pc.not_equal(texts, ""), texts)
    bare = pc.ascii_trim_whitespace(texts)
    known = _where(pc.invert(pc.is_in(bare, value_set=_missing())), bare)
    if decimal != "." and not pa.types.is_temporal(type_):
        if pc.any(pc.match_substring(known, ".")).as_py():
            raise pa.ArrowInvalid("a point where another mark is declared")
        known = pc.replace_substring(known, decimal, ".")
    if pa.types.is_integer(type_):
        return _whole(known)
    if pa.types.is_boolean(type_):
        return _truth(known)
    if pa.types.is_temporal(type_):
        # A timestamp in a column of dates loses its time of day.
        return _moments(known).cast(type_, safe=False)
    return known.cast(type_)


def _whole(texts: pa.Array) -> pa.Array:
    plain = pc.match_substring_regex(texts, _WHOLE)
    exact = _where(plain, texts).cast(pa.int64())
    if exact.null_count == texts.null_count:
        return exact
    others = _where(pc.invert(plain), texts).cast(pa.float64())
    if pc.all(pc.less(pc.abs(others), _LARGEST_EXACT)).as_py() is False:
        raise pa.ArrowInvalid("a number that double precision does not hold exactly")
    return pc.coalesce(exact, others.cast(pa.int64()))


def _truth(texts: pa.Array) -> pa.Array:
    lower = pc.ascii_lower(texts)
    true = pc.is_in(lower, value_set=pa.array(_TRUE))
    valid = pc.or_(true, pc.is_in(lower, value_set=pa.array(_FALSE)))
    if valid.true_count != len(texts) - texts.null_count:
        raise pa.ArrowInvalid("neither true nor false")
    return _where(valid, true)


def _moments(texts: pa.Array) -> pa.Array:
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    zoned = pc.match_substring_regex(texts, _ZONED)
    local = _where(pc.invert(zoned), texts).cast(MOMENT)
    return pc.coalesce(local, _where(zoned, texts).cast(pa.timestamp("us", "UTC")).cast(MOMENT))


def _where(kept: pa.Array, values: pa.Array) -> pa.Array:
    """The values where `kept` is true, null elsewhere."""
    return pc.if_else(kept, values, pa.scalar(None, values.type))


@cache
def _missing() -> pa.Array:
    from pyarrow import csv

    return pa.array(csv.ConvertOptions().null_values)
