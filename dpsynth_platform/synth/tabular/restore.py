"""The source's schema, given back to the synthetic rows.

What belongs here: what becomes of each source column in a release, and building the released table from cell codes.
What does not: coding values into cells (`domain`) and drawing the codes (`sampling`).

| treatment | column |
| --- | --- |
| modelled | drawn from the model |
| written | text that a language model writes (`generate.text`) |
| regenerated | identifiers: fresh surrogates, 1, 2, ... or S0000001, S0000002, ..., linked to nobody; in a list, one |
| empty | text that is not dropped: present for the schema's sake, all null |
| absent | text declared `pii: drop`, and any column declared `ignore: true`: left out |
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dpsynth_platform.compute.plain_types import laid_out, plain_type
from dpsynth_platform.contracts.columns import (
    CategoricalColumn,
    DateColumn,
    DatetimeColumn,
    FloatColumn,
    IdentifierColumn,
    IgnoredColumn,
    IntegerColumn,
    TextColumn,
)
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.scrub.fitting import fits
from dpsynth_platform.scrub.owners import is_id_list

Treatment = Literal["modelled", "written", "regenerated", "empty", "absent"]


@dataclass(frozen=True)
class ReleaseSchema:
    """The released table's Arrow schema, and every contract column's treatment in the source's order."""

    schema: pa.Schema
    treatments: dict[str, Treatment]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: the schema as base64 of its Arrow IPC form, which keeps every type exact."""
        encoded = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return {"schema": encoded, "treatments": dict(self.treatments), "order": list(self.treatments)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ReleaseSchema:
        """Reads `to_json` back."""
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["schema"])))
        return cls(schema, {name: document["treatments"][name] for name in document["order"]})


def release_schema(contract: DataContract, source: pa.Schema) -> ReleaseSchema:
    """What a release of this source looks like.

    Raises:
        ContractError: a declared column is missing from the source or its type cannot hold the declared values.
    """
    modelled = set(contract.modelled)
    missing = [name for name in contract.columns if name not in source.names and name not in contract.ignored]
    if missing:
        raise ContractError(f"{contract.dataset}: columns.{missing[0]}: declared, but the source has no such column")
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
        if treatment == "written" and not _is_text(field.type):
            raise ContractError(
                f"{contract.dataset}: columns.{field.name}: written by a language model, but the source holds "
                f"{field.type}; accepted: strings"
            )
        declared = contract.columns[field.name]
        # Of a column whose values are learned, there may be none that may be shown.
        learned = isinstance(declared, CategoricalColumn) and declared.most_learned is not None
        nullable = field.nullable or treatment == "empty" or declared.nullable or learned
        fields.append(pa.field(field.name, field.type, nullable))
    return ReleaseSchema(pa.schema(fields), treatments)


def completed(values: Mapping[str, pa.Array], rows: int, release: ReleaseSchema, first: int = 1) -> pa.RecordBatch:
    """Released rows of the columns that have values, with the other columns; surrogate ids begin at `first`."""
    arrays = []
    for field in release.schema:
        treatment = release.treatments[field.name]
        if field.name in values:
            arrays.append(values[field.name])
        elif treatment == "regenerated":
            arrays.append(_surrogates(rows, field, first))
        else:
            arrays.append(pa.nulls(rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=release.schema)


def _treatment(contract: DataContract, field: pa.Field, modelled: set[str]) -> Treatment:
    declared = contract.columns[field.name]
    if field.name in modelled:
        return "modelled"
    if field.name == contract.text_column:
        return "written"
    if isinstance(declared, IgnoredColumn):
        return "absent"
    if isinstance(declared, TextColumn):
        return "absent" if declared.pii == "drop" else "empty"
    kind = plain_type(field.type.value_type if is_id_list(field.type) else field.type)
    is_id = isinstance(declared, IdentifierColumn) and (pa.types.is_integer(kind) or _is_text(kind))
    return "regenerated" if is_id else "empty"


def _check_type(contract: DataContract, field: pa.Field) -> None:
    """A modelled column must come back in the source's own type."""
    declared = contract.columns[field.name]
    type_ = plain_type(field.type)
    read, accepted = fits(declared, type_)
    if not read:
        raise ContractError(
            f"{contract.dataset}: columns.{field.name}: declared {declared.type}, but the source holds {field.type}; "
            f"accepted: {accepted}"
        )
    if isinstance(declared, CategoricalColumn) and (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        _check_codes(contract, field, declared.listed, type_)
    if isinstance(declared, IntegerColumn | FloatColumn | DateColumn | DatetimeColumn):
        try:
            ends = [declared.min, declared.max]
            pa.array(ends, type_) if pa.types.is_integer(type_) else _plain(ends).cast(type_)
        except (pa.ArrowException, OverflowError):
            raise ContractError(
                f"{contract.dataset}: columns.{field.name}: the declared range {declared.min} to {declared.max} does "
                f"not fit the source's type {field.type}"
            ) from None


def _check_codes(contract: DataContract, field: pa.Field, values: list[str], type_: pa.DataType) -> None:
    """Texts that stand for integers are spelled as those are, or no value would ever be found in the list."""
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


def _plain(ends: list[Any]) -> pa.Array:
    """The ends of a range; whole numbers in double precision, since it holds those of every integer type."""
    return pa.array([float(end) if isinstance(end, int) else end for end in ends])


def _surrogates(rows: int, field: pa.Field, first: int) -> pa.Array:
    if is_id_list(field.type):
        one_each = _surrogates(rows, pa.field(field.name, field.type.value_type), first)
        return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1), pa.int32()), one_each).cast(field.type)
    numbers = np.arange(first, first + rows)
    type_ = plain_type(field.type)
    if not pa.types.is_integer(type_):
        return laid_out(pa.array([f"S{number:07d}" for number in numbers], type_), field.type)
    last = first + rows - 1
    if rows and last > np.iinfo(type_.to_pandas_dtype()).max:
        raise ContractError(f"generate.rows: {last} surrogate ids do not fit column {field.name!r} ({field.type})")
    return laid_out(pa.array(numbers, pa.int64()).cast(type_), field.type)


def _is_text(type_: pa.DataType) -> bool:
    plain = plain_type(type_)
    return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))
