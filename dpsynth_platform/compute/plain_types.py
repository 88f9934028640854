"""Arrow columns as plain values, and back: what a type means, however its values are laid out in memory.

What belongs here: the plain type of each Arrow type, and casts to and from it; texts in the forms that
categories are compared by. What does not: which types a declaration accepts (`scrub`, `synth.tabular.restore`), and
what a Delta table can hold (`synthesis.delta_types`).

| type of a file | plain |
| --- | --- |
| dictionary, run-end-encoded | that of the values |
| string_view, binary_view | string, binary |
| decimal32, decimal64 | decimal128 of the same digits |
| date64 | date32 |
| extension arrow.bool8, arrow.json | bool, string |
| any other | itself |
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_WHOLE = r"^\s*(-?)(0|[1-9][0-9]{0,18})(?:\.0*)?\s*$"
_BEYOND = 2.0**63
TIME_OF_DAY = r"^(?P<h>[01]?\d|2[0-3]):(?P<m>[0-5]\d)(?P<s>:[0-5]\d)?(?P<f>\.\d{1,6})?$"
"""A text that is a time of day."""


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type of a column's values; see the module."""
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return plain_type(type_.value_type)
    if isinstance(type_, pa.Bool8Type):
        return pa.bool_()
    if isinstance(type_, pa.JsonType):
        return plain_type(type_.storage_type)
    if pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_binary_view(type_):
        return pa.binary()
    if pa.types.is_decimal32(type_) or pa.types.is_decimal64(type_):
        return pa.decimal128(type_.precision, type_.scale)
    return pa.date32() if pa.types.is_date64(type_) else type_


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema with plain types."""
    return pa.schema([item.with_type(plain_type(item.type)) for item in schema])


def plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A column's values as those of its plain type.

    Raises:
        pyarrow.ArrowException: a day of milliseconds is no day.
    """
    type_ = column.type
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([plain(chunk) for chunk in column.chunks], plain_type(type_))
    if pa.types.is_dictionary(type_):
        return plain(column.dictionary).take(column.indices)
    if pa.types.is_run_end_encoded(type_):
        runs = pa.RunEndEncodedArray.from_arrays(column.run_ends, plain(column.values))
        return pc.run_end_decode(runs).slice(column.offset, len(column))
    if isinstance(type_, pa.Bool8Type):
        return pc.not_equal(column.storage, 0)
    if isinstance(type_, pa.JsonType):
        return plain(column.storage)
    wanted = plain_type(type_)
    return column if wanted == type_ else column.cast(wanted)


def laid_out(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Plain values as a type whose plain type they are of: the inverse of `plain`."""
    if pa.types.is_dictionary(type_):
        # Arrow encodes into a dictionary of the values' own type only.
        return laid_out(column, type_.value_type).dictionary_encode().cast(type_)
    if pa.types.is_run_end_encoded(type_):
        runs = pc.run_end_encode(column, run_end_type=type_.run_end_type)
        return pa.RunEndEncodedArray.from_arrays(runs.run_ends, laid_out(runs.values, type_.value_type))
    if isinstance(type_, pa.Bool8Type | pa.JsonType):
        return pa.ExtensionArray.from_storage(type_, column.cast(type_.storage_type))
    return column.cast(type_)


def whole_texts(column: pa.Array) -> pa.Array:
    """A column of texts or floating-point numbers as texts in which whole numbers have their canonical form.

    A text that is a whole number with nothing but zeros behind a point, or with blanks around, becomes that number
    (` 4 `, `4.0` and `4.` are `4`); any other text (`04`, `4.5`, `x`) stays as it is. A number becomes `4` where it is
    whole, else null, since it is no whole number's text.

    Args:
        column: of type string or large_string, without invalid UTF-8, or of floating point; of other types, its values
            as texts.
    """
    if pa.types.is_floating(column.type):
        numbers = column.cast(pa.float64())
        whole = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), _BEYOND))
        return pc.if_else(whole, numbers, None).cast(pa.int64()).cast(pa.string())
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.cast(pa.string())
    texts = pc.replace_substring_regex(column, _WHOLE, r"\1\2")
    return pc.if_else(pc.equal(texts, "-0"), pa.scalar("0", texts.type), texts)


def bare(texts: pa.Array, quote: str) -> pa.Array:
    """Texts without blanks around them, and without the quotes inside of those."""
    trimmed = pc.utf8_trim_whitespace(texts)
    if not quote:
        return trimmed
    inside = pc.and_(
        pc.greater_equal(pc.utf8_length(trimmed), 2),
        pc.and_(pc.starts_with(trimmed, quote), pc.ends_with(trimmed, quote)),
    )
    unquoted = pc.replace_substring(pc.utf8_slice_codeunits(trimmed, 1, -1), quote * 2, quote)
    return pc.if_else(inside, unquoted, trimmed)
