"""A fictional table made from a contract alone, on which the whole line can be tried at no privacy cost.

What belongs here: the Arrow schema that a contract suggests, and rows drawn uniformly over the declared domain, with
names and addresses by Faker. What does not: anything that depends on data, so that a mock table reveals none.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.columns import Column, DateColumn, FloatColumn, ImageColumn, IntegerColumn, TextColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.sources.pictures import encoded
from dpsynth_platform.synth.tabular.domain import Codes, domain_of

_TYPES = {
    "integer": pa.int64(),
    "float": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "time": pa.string(),  # Delta tables hold no times of day
    "categorical": pa.string(),
    "boolean": pa.bool_(),
    "identifier": pa.int64(),
    "text": pa.string(),
    "image": pa.binary(),
}
_TEXT_POOL = 200
_NULL_SHARE = 0.5
_MOST_INVENTED = 5
"""Values invented for a column with learned values. They are numbers, so that any type can hold them."""


def source_schema_of(contract: DataContract) -> pa.Schema:
    """The plainest Arrow schema that fits the contract; use a source's own schema where there is one."""
    return schema_of({name: column for name, column in contract.columns.items() if name not in contract.ignored})


def schema_of(columns: Mapping[str, Column]) -> pa.Schema:
    """The plainest Arrow schema that fits these declarations, none of which is `ignore: true`."""
    return pa.schema([pa.field(name, _type_of(item), nullable=item.nullable) for name, item in columns.items()])


def _type_of(column: Column) -> pa.DataType:
    """Numbers of a Delta table beyond 64 bits with a sign are of double precision (`sources.delta_types`)."""
    large = isinstance(column, IntegerColumn) and column.max >= 2**63
    return pa.float64() if large else _TYPES[column.type]


def mock_table(contract: DataContract, rows: int, period: str | None = None) -> pa.Table:
    """`rows` fictional records of `source_schema_of(contract)`; an owner has 1 to `max_contributions` + 1 of them.

    All rows fall into the period. Raises `ContractError` if it lies outside the declared range.
    """
    rng = np.random.default_rng()
    domain = domain_of(contract, period)
    invented = {
        index: [str(number + 1) for number in range(min(_MOST_INVENTED, domain.columns[index].most or 0))]
        for index in domain.unknown
    }
    domains = {column.name: column for column in domain.with_values(invented)}
    first, *others = contract.privacy.owner_columns
    records = rng.integers(1, contract.privacy.max_contributions + 2, size=rows)
    owners = {first: np.repeat(np.arange(rows, dtype=np.int32), records)[:rows]}
    # Which owners share a record is random.
    owners |= {name: rng.permutation(owners[first]) for name in others}
    schema = source_schema_of(contract)
    arrays = []
    for field in schema:
        if field.name in owners:
            arrays.append(_owner_ids(contract, field, owners[field.name]))
        elif field.name in domains:
            column = domains[field.name]
            cells = rng.choice(np.flatnonzero(column.allowed), size=rows).astype(np.int32)
            arrays.append(column.decode(cells, field.type, rng))
        elif contract.columns[field.name].type == "identifier":
            arrays.append(pa.array(np.arange(1, rows + 1)))
        elif isinstance(pictures := contract.columns[field.name], ImageColumn):
            arrays.append(_pictures(pictures, rows, rng))
        elif isinstance(declared := contract.columns[field.name], IntegerColumn | FloatColumn | DateColumn):
            arrays.append(_weights(declared, field.type, rows, rng))
        else:
            arrays.append(_texts(contract.columns[field.name], rows, rng))
    return pa.Table.from_arrays(arrays, schema=schema)


def _owner_ids(contract: DataContract, field: pa.Field, owners: Codes) -> pa.Array:
    if contract.columns[field.name].type == "text":
        return pa.array([f"fictional owner {owner}" for owner in owners], pa.string())
    return pa.array(owners + 1, pa.int64())


def _weights(
    declared: IntegerColumn | FloatColumn | DateColumn, kind: pa.DataType, rows: int, rng: np.random.Generator
) -> pa.Array:
    """A column that orders records with several owners; it is not modelled and has no cells."""
    if isinstance(declared, DateColumn):
        days = rng.integers(declared.min.toordinal(), declared.max.toordinal() + 1, rows)
        return pa.array([dt.date.fromordinal(int(day)) for day in days], kind)
    return pa.array(rng.uniform(declared.min, declared.max, rows)).cast(kind, safe=False)


def _pictures(declared: ImageColumn, rows: int, rng: np.random.Generator) -> pa.Array:
    """Pictures of random shades from corner to corner, as the source stores them."""
    height, width, channels = declared.form.shape
    down, across = np.linspace(-1, 1, height)[:, None, None], np.linspace(-1, 1, width)[None, :, None]
    slopes = rng.normal(scale=60, size=(2, rows, 1, 1, channels))
    pixels = np.clip(127 + slopes[0] * down + slopes[1] * across, 0, 255).astype(np.uint8)
    if declared.stored == "raw":
        return declared.form.stored(pixels)
    return pa.array([encoded(picture, "png") for picture in pixels], pa.binary())


def _texts(declared: Column, rows: int, rng: np.random.Generator) -> pa.Array:
    """Names, or for free text (`pii: replace`) remarks that contain a name and contacts."""
    from faker import Faker

    faker = Faker()
    pool = [faker.name() for _ in range(_TEXT_POOL)]
    if isinstance(declared, TextColumn) and declared.pii == "replace":
        pool = [
            f"{name} asked to be called at {faker.numerify('555-01##')} or written to at {faker.safe_email()}."
            for name in pool
        ]
    drawn = rng.integers(0, _TEXT_POOL, rows)
    absent = rng.uniform(size=rows) < _NULL_SHARE if declared.nullable else np.zeros(rows, dtype=np.bool_)
    return pa.array(pool, pa.string()).take(pa.array(drawn, mask=absent))
