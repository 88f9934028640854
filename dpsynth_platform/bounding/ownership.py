"""Ownerships of a table in files, for an evaluation: read once, stored as pairs in one Parquet file.

What belongs here: reading a table's owner columns, and their faults. What does not: the governed path, where `scrub`
turns owners into fingerprints, and any choice.

Owners are distinguished by the unchanged text of their id; the governed path also normalizes it as declared
(`scrub.fingerprints.canonical_text`). A null or empty id is no owner: it is skipped and counted, and so is a record
without an owner. A record is identified by its place in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.files import FileTable

WEIGHT_COLUMN = "_weight"

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_IDS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer, pa.types.is_date)
_ACCEPTED = "texts, whole numbers, dates, or lists of them"


@dataclass(frozen=True)
class Listed:
    """Counts of the ownerships that were read: exact, for operators only.

    Attributes:
        records: rows of the table.
        without_owner: rows without an owner.
        null_owners: owners that are null or empty.
        pairs: other owners, repetitions included.
    """

    records: int
    without_owner: int
    null_owners: int
    pairs: int


def write_ownership(
    table: FileTable, owner_columns: Sequence[str], weight: str | None, target: Path, *, separate: bool = False
) -> Listed:
    """Writes the pairs `_record` (integer), `_owner` (text) and `_weight` (the weight's column, or 0) to a new file.

    Args:
        owner_columns: columns of ids or of lists of ids. A record's owners are those of all columns.
        weight: a column to store with the pairs, for an order.
        separate: whether equal ids in different columns are different owners.

    Raises:
        SourceError: a column is missing, of another type than ids, of different types in different files, or not in
            UTF-8; or a file is damaged.
    """
    columns = list(dict.fromkeys([*owner_columns, *([weight] if weight else [])]))
    _check_columns(table, owner_columns, columns)
    kind = table.schema.field(weight).type if weight else pa.int32()
    schema = pa.schema([("_record", pa.int64()), ("_owner", pa.string()), (WEIGHT_COLUMN, kind)])
    records = owned = nulls = pairs = 0
    with pq.ParquetWriter(target, schema) as writer:
        for batch in _batches(table, columns):
            parents, owners = _pairs(batch, owner_columns, separate)
            nulls += owners.null_count
            parents, owners = parents.filter(owners.is_valid()), owners.drop_null()
            weights = batch.column(weight).take(parents) if weight else pa.array(np.zeros(len(owners), np.int32))
            writer.write_batch(pa.record_batch([pc.add(parents, records), owners, weights], schema=schema))
            records += batch.num_rows
            owned += pc.count_distinct(parents).as_py()
            pairs += len(owners)
    return Listed(records, records - owned, nulls, pairs)


def _check_columns(table: FileTable, owner_columns: Sequence[str], columns: Sequence[str]) -> None:
    for name in columns:
        if table.schema.names.count(name) != 1:
            raise SourceError(f"column {name!r}: not in the table; it has {', '.join(table.schema.names)}")
    for name in owner_columns:
        kind = table.schema.field(name).type
        if not any(fits(_id_type(kind)) for fits in _IDS):
            raise SourceError(f"column {name!r}: owners of type {kind}; accepted: {_ACCEPTED}")
    for name, kinds in _kinds(table, columns).items():
        # Files do not contain partition columns.
        if len(kinds) > 1:
            raise SourceError(f"column {name!r}: {', '.join(sorted(kinds))} in different files; accepted: one type")


def _kinds(table: FileTable, columns: Sequence[str]) -> dict[str, set[str]]:
    try:
        return table.kinds(columns)
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = reason_of(error)
    raise SourceError(f"a data file is missing or damaged ({problem})")


def _id_type(kind: pa.DataType) -> pa.DataType:
    """The type of the ids in a column: of a list's elements, of a dictionary's values."""
    if any(fits(kind) for fits in _LISTS) or pa.types.is_dictionary(kind):
        return _id_type(kind.value_type)
    return kind


def _batches(table: FileTable, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        yield from table.batches(columns)
        return
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = reason_of(error)
    raise SourceError(f"a data file is missing, damaged or of another type ({problem})")


def _pairs(batch: pa.RecordBatch, owner_columns: Sequence[str], separate: bool) -> tuple[pa.Array, pa.Array]:
    """Places of records in the batch, and their owners, null for an empty id."""
    parents, owners = [], []
    for name in owner_columns:
        column = batch.column(name)
        places = pa.array(np.arange(len(column), dtype=np.int64))
        while any(fits(column.type) for fits in _LISTS):
            places = places.take(pc.list_parent_indices(column))
            column = pc.list_flatten(column)
        texts = _texts(name, column)
        parents.append(places)
        owners.append(pc.binary_join_element_wise(name, texts, ":") if separate else texts)
    return pa.concat_arrays(parents), pa.concat_arrays(owners)


def _texts(name: str, column: pa.Array) -> pa.Array:
    try:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        texts = column.cast(pa.string())
        texts.validate(full=True)
    except pa.ArrowInvalid:
        texts = None
    if texts is None:
        raise SourceError(f"column {name!r} holds text that is not UTF-8; accepted: UTF-8")
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
