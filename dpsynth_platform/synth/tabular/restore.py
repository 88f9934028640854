"""Restoring the source's schema for synthetic rows.

What belongs here: the treatment of each source column in a release, and completing released rows. What does not: coding
values into cells (`domain`) and drawing the codes (`sampling`).

| treatment | column |
| --- | --- |
| modelled | drawn from the model |
| written | text that a language model writes (`generate.text`) |
| pictured | pictures that a method makes (`generate.image`), as files in bytes whatever the source's type |
| regenerated | identifiers: fresh surrogates 1, 2, ... or S0000001, S0000002, ...; of a list, one |
| empty | text that is not dropped: present in the schema, all null |
| absent | text declared `pii: drop`, and columns declared `ignore: true`: left out |
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dpsynth_platform.compute.plain_types import is_text, laid_out, plain_type, roomy, type_name, without_notes
from dpsynth_platform.contracts.columns import (
    BooleanColumn,
    CategoricalColumn,
    Column,
    DateColumn,
    DatetimeColumn,
    FloatColumn,
    IdentifierColumn,
    IgnoredColumn,
    ImageColumn,
    IntegerColumn,
    TextColumn,
)
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.scrub.fitting import fits
from dpsynth_platform.scrub.owners import is_id_list
from dpsynth_platform.sources.declared_types import is_bytes, read_type, whole_as

Treatment = Literal["modelled", "written", "pictured", "regenerated", "empty", "absent"]


@dataclass(frozen=True)
class ReleaseSchema:
    """The released table's Arrow schema, and every contract column's treatment in the source's order."""

    schema: pa.Schema
    treatments: dict[str, Treatment]

    def to_json(self) -> dict[str, Any]:
        """The schema is the base64 of its Arrow IPC form, which keeps every type exactly."""
        encoded = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return {"schema": encoded, "treatments": dict(self.treatments), "order": list(self.treatments)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ReleaseSchema:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["schema"])))
        return cls(schema, {name: document["treatments"][name] for name in document["order"]})


def release_schema(contract: DataContract, source: pa.Schema) -> ReleaseSchema:
    """The schema of a release of this source.

    Raises `ContractError` if the source lacks a declared column, or its type cannot hold the declared values.
    """
    modelled = set(contract.modelled)
    missing = [name for name in contract.columns if name not in source.names and name not in contract.ignored]
    if missing:
        raise ContractError(
            f"{contract.dataset}: columns.{missing[0]}: declared, but the source has no such column; accepted: columns "
            "of the source"
        )
    fields, treatments = [], {}
    for field in source:
        if field.name not in contract.columns:
            continue
        treatment = _treatment(contract, field, modelled)
        treatments[field.name] = treatment
        if treatment == "absent":
            continue
        if treatment == "modelled":
            _check_type(contract, field)
        if treatment == "written" and not is_text(field.type):
            raise ContractError(
                f"{contract.dataset}: columns.{field.name}: written by a language model, but the source holds "
                f"{type_name(field.type)}; accepted: strings"
            )
        declared = contract.columns[field.name]
        if treatment == "pictured":
            fields.append(pa.field(field.name, pa.binary(), nullable=False))
            continue
        # A column with learned values may have none.
        learned = isinstance(declared, CategoricalColumn) and declared.most_learned is not None
        nullable = field.nullable or treatment == "empty" or declared.nullable or learned
        # Of the data's values an index of the source's type reaches all; synthetic rows may have more.
        type_ = field.type if learned or treatment == "empty" else roomy(field.type, _most_values(declared))
        fields.append(pa.field(field.name, without_notes(type_), nullable))
    return ReleaseSchema(pa.schema(fields), treatments)


def _most_values(declared: Column) -> int | None:
    """How many values a declaration has; None: not limited."""
    if isinstance(declared, CategoricalColumn):
        return len(declared.listed)
    if isinstance(declared, BooleanColumn):
        return 2
    return declared.max - declared.min + 1 if isinstance(declared, IntegerColumn) else None


def completed(values: Mapping[str, pa.Array], rows: int, release: ReleaseSchema, first: int = 1) -> pa.RecordBatch:
    """Released rows: the given columns' values with all other columns; surrogate ids begin at `first`."""
    arrays = []
    for field in release.schema:
        treatment = release.treatments[field.name]
        if field.name in values:
            arrays.append(values[field.name])
        elif treatment == "regenerated":
            arrays.append(surrogates(rows, field, first))
        else:
            arrays.append(pa.nulls(rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=release.schema)


def _treatment(contract: DataContract, field: pa.Field, modelled: set[str]) -> Treatment:
    declared = contract.columns[field.name]
    if field.name in modelled:
        return "modelled"
    if field.name == contract.text_column:
        return "written"
    if field.name == contract.image_column:
        return "pictured"
    if isinstance(declared, IgnoredColumn | ImageColumn):
        return "absent"
    if isinstance(declared, TextColumn):
        return "absent" if declared.pii == "drop" else "empty"
    kind = plain_type(field.type.value_type if is_id_list(field.type) else field.type)
    read = read_type(declared.type, kind)
    is_id = isinstance(declared, IdentifierColumn) and (pa.types.is_integer(read) or is_text(read))
    return "regenerated" if is_id else "empty"


def _check_type(contract: DataContract, field: pa.Field) -> None:
    """Raises `ContractError` if the source's type cannot hold a modelled column's declared values."""
    declared = contract.columns[field.name]
    type_ = plain_type(field.type)
    read, accepted = fits(declared, read_type(declared.type, type_))
    if not read:
        raise ContractError(
            f"{contract.dataset}: columns.{field.name}: declared {declared.type}, but the source holds "
            f"{type_name(field.type)}; accepted: {accepted}"
        )
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if isinstance(declared, CategoricalColumn) and any(check(type_) for check in numbers):
        _check_codes(contract, field, declared.listed, type_)
    if isinstance(declared, IntegerColumn | FloatColumn | DateColumn | DatetimeColumn):
        try:
            ends: list[Any] = [declared.min, declared.max]
            if isinstance(declared, IntegerColumn) and read_type(declared.type, type_) != type_:
                whole_as(pa.array(ends, pa.int64()), type_)
                return
            if not pa.types.is_integer(type_):  # whole numbers as doubles: these hold the ends of every integer type
                ends = [float(end) if isinstance(end, int) else end for end in ends]
            pa.array(ends, type_ if pa.types.is_integer(type_) else None).cast(type_)
        except (pa.ArrowException, OverflowError):
            raise ContractError(
                f"{contract.dataset}: columns.{field.name}: the declared range {declared.min} to {declared.max} does "
                f"not fit the source's type {field.type}; accepted: a range of that type"
            ) from None


def _check_codes(contract: DataContract, field: pa.Field, values: list[str], type_: pa.DataType) -> None:
    """Listed texts for numbers must be spelled as these are, or no value of the source would match."""
    for value in values:
        try:
            number = pa.scalar(value, pa.string()).cast(type_).as_py()
            alike = math.isfinite(number) and str(int(number)) == value
        except pa.ArrowException:
            alike = False
        if not alike:
            raise ContractError(
                f"{contract.dataset}: columns.{field.name}.values: {value!r}, but the source holds {field.type}; "
                "accepted: whole numbers of that type"
            )


def surrogates(rows: int, field: pa.Field, first: int) -> pa.Array:
    """Ids of the field's type, numbered from `first`. Raises `ContractError` if they do not fit."""
    if is_id_list(field.type):
        one_each = surrogates(rows, pa.field(field.name, field.type.value_type), first)
        return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1), pa.int32()), one_each).cast(field.type)
    numbers = np.arange(first, first + rows)
    type_ = plain_type(field.type)
    try:
        if pa.types.is_integer(type_) or pa.types.is_decimal(type_):
            return laid_out(whole_as(pa.array(numbers, pa.int64()), type_), field.type)
        if isinstance(type_, pa.UuidType) or pa.types.is_fixed_size_binary(type_):
            stored = type_.storage_type if isinstance(type_, pa.UuidType) else type_
            ids = pa.array([int(number).to_bytes(stored.byte_width) for number in numbers], stored)
            return laid_out(ids.cast(type_), field.type)
    except (pa.ArrowException, OverflowError):
        raise ContractError(
            f"generate.rows: {first + rows - 1} surrogate ids do not fit column {field.name!r} ({field.type}); "
            "accepted: fewer rows"
        ) from None
    texts = [f"S{number:07d}" for number in numbers]
    return laid_out(pa.array(texts, pa.string() if is_bytes(type_) else type_).cast(type_), field.type)
