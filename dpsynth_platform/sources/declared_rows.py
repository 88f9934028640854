"""The rows of one table as declared: which columns are read outside of the line's scrubber, and as which types.

What belongs here: types by declaration. What does not: files (`table_files`), and any choice of rows. Text is read only
where a language model writes a column of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dpsynth_platform.contracts.columns import Column, IdentifierColumn, TextColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.sources.declared_types import read_as, read_type
from dpsynth_platform.sources.delta_types import kept, kept_type
from dpsynth_platform.sources.table_files import Source


def scrubbed_contract(contract: DataContract) -> DataContract:
    """The contract for the preparation of rows. Text columns are in it, and so read, only if a text is written."""
    (owner,) = contract.privacy.owner_columns
    kept: dict[str, Column] = {
        name: IdentifierColumn(type="identifier") if name == owner else column
        for name, column in contract.columns.items()
        if name == owner or contract.text_column is not None or not isinstance(column, TextColumn)
    }
    return contract.model_copy(update={"columns": kept})


def readable_schema(contract: DataContract, source: Source, row: str | None = None) -> pa.Schema:
    """The columns of `scrubbed_contract` as declared, modelled ones with types that a Delta table has."""
    read = scrubbed_contract(contract).columns
    fields = [item for item in with_row(source.plain_schema, row) if item.name in read]
    modelled = set(contract.modelled)

    def read_as(item: pa.Field) -> pa.DataType:
        kind = read[item.name].type
        type_ = read_type(kind, item.type)
        return kept_type(type_, codes=kind == "categorical") if item.name in modelled else type_

    return pa.schema([item.with_type(read_as(item)) for item in fields])


def with_row(schema: pa.Schema, row: str | None) -> pa.Schema:
    """The schema with a column of row ids, if there is one."""
    return schema.append(pa.field(row, pa.string(), nullable=False)) if row else schema


def kept_rows(source: Source, contract: DataContract, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """These columns of all rows, as declared; modelled ones with types that a Delta table has."""
    modelled, columns = set(contract.modelled), scrubbed_contract(contract).columns

    def column(batch: pa.RecordBatch, item: pa.Field) -> pa.Array:
        kind = columns[item.name].type
        found = read_as(kind, batch.column(item.name), item.name)
        return kept(found, codes=kind == "categorical") if item.name in modelled else found

    for batch in source.batches(schema.names):
        yield pa.RecordBatch.from_arrays([column(batch, item) for item in schema], schema=schema)
