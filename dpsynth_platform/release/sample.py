"""A few of the published rows, as texts in a file of their own, for readers who have not opened the table yet.

What belongs here: which values are shown, and finding the rows in the table again. What does not: choosing rows by what
they say; they are the first that were drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import plain, plain_type
from dpsynth_platform.foundation.release_layout import SINGLE

if TYPE_CHECKING:
    from pyarrow import RecordBatch

ROWS = 5
_LONGEST = 200
"""Characters of a value that are shown."""


def sample_of(batch: RecordBatch) -> dict[str, Any]:
    """The first rows as JSON: names of `columns`, and `rows` of texts, null where a value is missing."""
    first = batch.slice(0, ROWS)
    columns = {field.name: _texts(first.column(field.name)) for field in first.schema if _is_shown(field.type)}
    rows = [list(row) for row in zip(*(column.to_pylist() for column in columns.values()), strict=True)]
    return {"columns": list(columns), "rows": rows}


def read_samples(content: bytes) -> dict[str, dict[str, Any]]:
    """The samples of each table, as `sample_of` makes them. Raises `ValueError` for anything else."""
    found = json.loads(content)
    if isinstance(found, dict) and set(found) == {"tables"} and isinstance(found["tables"], dict):
        return {name: _checked(sample) for name, sample in found["tables"].items() if name != SINGLE}
    return {SINGLE: _checked(found)}


def _checked(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict) or set(found) != {"columns", "rows"}:
        raise ValueError("other members")
    columns, rows = found["columns"], found["rows"]
    names = isinstance(columns, list) and all(isinstance(name, str) for name in columns)
    if not names or len(set(columns)) < len(columns) or not isinstance(rows, list) or len(rows) > ROWS:
        raise ValueError("other members")
    for row in rows:
        if not isinstance(row, list) or not all(value is None or isinstance(value, str) for value in row):
            raise ValueError("a row of other values")
    return found


def not_found(sample: Mapping[str, Any], batches: Iterable[RecordBatch]) -> list[int]:
    """Places of the sample's rows that none of the batches has. Raises `KeyError` for columns they lack."""
    missing = set(range(len(sample["rows"])))
    for batch in batches:
        texts = [_texts(batch.column(name)) for name in sample["columns"]]
        for place in sorted(missing):
            found = pa.array([True]).take(pa.array([0] * batch.num_rows, pa.int32()))
            for column, value in zip(texts, sample["rows"][place], strict=True):
                same = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
                found = pc.and_(found, same)
            if pc.any(found).as_py():
                missing.discard(place)
    return sorted(missing)


def _is_shown(type_: pa.DataType) -> bool:
    type_ = plain_type(type_)
    return any(
        check(type_)
        for check in (
            *(pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean, pa.types.is_integer),
            *(pa.types.is_floating, pa.types.is_decimal, pa.types.is_date, pa.types.is_time, pa.types.is_timestamp),
        )
    )


def _texts(column: pa.Array) -> pa.Array:
    column = plain(column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp(column.type.unit))  # UTC: names of time zones need a database
    return pc.utf8_slice_codeunits(column.cast(pa.string()), 0, _LONGEST)
