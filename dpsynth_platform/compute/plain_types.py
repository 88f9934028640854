"""Arrow columns as plain values, and back: a type's values independent of their layout in memory.

What belongs here: the plain type of each Arrow type, and casts to and from it; texts in the forms in which categories
are compared. What does not: which types a declaration accepts (`scrub`, `synth.tabular.restore`), and what a Delta
table can hold (`synthesis.delta_types`).

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


def has_fields(type_: pa.DataType) -> bool:
    """Whether a type has named fields (a struct, a union), at any depth."""
    if pa.types.is_map(type_):
        return has_fields(type_.key_type) or has_fields(type_.item_type)
    named = pa.types.is_struct(type_) or pa.types.is_union(type_)
    return named or any(has_fields(type_.field(place).type) for place in range(type_.num_fields))


def without_notes(type_: pa.DataType) -> pa.DataType:
    """A list's, map's or struct's type without the metadata of its parts: polars notes all categories there."""

    def bare(part: pa.Field) -> pa.Field:
        return part.remove_metadata().with_type(without_notes(part.type))

    if pa.types.is_struct(type_):
        return pa.struct(map(bare, type_))
    if pa.types.is_map(type_):
        return pa.map_(bare(type_.key_field), bare(type_.item_field), type_.keys_sorted)
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(bare(type_.value_field), type_.list_size)
    lists = {
        pa.types.is_list: pa.list_,
        pa.types.is_large_list: pa.large_list,
        pa.types.is_list_view: pa.list_view,
        pa.types.is_large_list_view: pa.large_list_view,
    }
    return next((make(bare(type_.value_field)) for check, make in lists.items() if check(type_)), type_)


def is_text(type_: pa.DataType) -> bool:
    """Whether the values of a type are texts."""
    values = plain_type(type_)
    return bool(pa.types.is_string(values) or pa.types.is_large_string(values))


def type_name(type_: pa.DataType) -> str:
    """A type's name for messages, without the names of its fields: they may have been keys in the data."""
    return "nested" if has_fields(type_) else str(type_)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema with plain types."""
    return pa.schema([item.with_type(plain_type(item.type)) for item in schema])


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with plain values. Raises as `plain` does."""
    return pa.RecordBatch.from_arrays([plain(column) for column in batch.columns], schema=plain_schema(batch.schema))


def plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A column's values as those of its plain type.

    Raises:
        pyarrow.ArrowException: a date of milliseconds is no whole day.
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
    """Plain values as a type with this plain type: the inverse of `plain`."""
    if pa.types.is_dictionary(type_):
        # Arrow encodes plain values only, and only into a dictionary of their type.
        coded = column.dictionary_encode()
        values, codes = laid_out(coded.dictionary, type_.value_type), coded.indices.cast(type_.index_type)
        return pa.DictionaryArray.from_arrays(codes, values, ordered=type_.ordered)
    if pa.types.is_run_end_encoded(type_):
        runs = pc.run_end_encode(column, run_end_type=type_.run_end_type)
        return pa.RunEndEncodedArray.from_arrays(runs.run_ends, laid_out(runs.values, type_.value_type))
    if isinstance(type_, pa.Bool8Type | pa.JsonType):
        return pa.ExtensionArray.from_storage(type_, column.cast(type_.storage_type))
    return column.cast(type_)


def roomy(type_: pa.DataType, values: int | None = None) -> pa.DataType:
    """The type; for a dictionary with too few indices for so many values (None: any number), one with wider indices."""
    most = 2**31 - 1 if values is None else values
    if not pa.types.is_dictionary(type_) or most < 2 ** (type_.index_type.bit_width - 1):
        return type_
    return pa.dictionary(pa.int32(), type_.value_type, type_.ordered)


def whole_texts(column: pa.Array) -> pa.Array:
    """A column of texts or floating-point numbers as texts in which whole numbers have their canonical form.

    A text of a whole number, also with zeros after a decimal point or with blanks around it, becomes that number (` 4
    `, `4.0` and `4.` are `4`); other texts (`04`, `4.5`, `x`) do not change. A number becomes `4` if it is whole, else
    null.

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
    """Texts without surrounding blanks, and then without surrounding quotes."""
    trimmed = pc.utf8_trim_whitespace(texts)
    if not quote:
        return trimmed
    inside = pc.and_(
        pc.greater_equal(pc.utf8_length(trimmed), 2),
        pc.and_(pc.starts_with(trimmed, quote), pc.ends_with(trimmed, quote)),
    )
    unquoted = pc.replace_substring(pc.utf8_slice_codeunits(trimmed, 1, -1), quote * 2, quote)
    return pc.if_else(inside, unquoted, trimmed)
