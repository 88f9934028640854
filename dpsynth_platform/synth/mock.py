"""A fictional table made from a contract alone, on which the whole line can be tried free of charge.

What belongs here: the Arrow schema that a contract suggests, and rows of it drawn without any data. What does not: rows
that resemble anybody. Values are uniform over the declared domain, names and addresses are Faker's, so nothing but the
contract can be learned from a mock table, and a mechanism that runs on one spends nothing.
"""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.columns import Column, DateColumn, FloatColumn, IntegerColumn, TextColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.synth.tabular.domain import Codes, ColumnDomain, domain_of

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
}
_TEXT_POOL = 200
_NULL_SHARE = 0.5
_MOST_INVENTED = 5
"""Values of a column whose own are learned, unless fewer are kept. They are numbers, so that any type can hold them."""


def source_schema_of(contract: DataContract) -> pa.Schema:
    """The plainest Arrow schema that fits the contract; where there is a source, its own schema counts."""
    read = ((name, column) for name, column in contract.columns.items() if name not in contract.ignored)
    return pa.schema([pa.field(name, _TYPES[column.type], nullable=column.nullable) for name, column in read])


def mock_table(contract: DataContract, rows: int, period: str | None = None) -> pa.Table:
    """`rows` fictional records of `source_schema_of(contract)`; owners have one record to one more than the bound.

    Args:
        contract: the only thing that the rows depend on.
        rows: how many.
        period: `YYYY-MM` for datasets with a cadence; all rows fall into it.

    Raises:
        ContractError: the period lies outside the declared range.
    """
    rng = np.random.default_rng()
    domain = domain_of(contract, period)
    invented = {
        index: [str(number + 1) for number in range(min(_MOST_INVENTED, domain.columns[index].most or 0))]
        for index in domain.unknown
    }
    domains = {column.name: column for column in domain.with_values(invented)}
    first, *others = contract.privacy.owner_columns
    owners = {first: _owners(rows, contract.privacy.max_contributions, rng)}
    # Where a record has several owners, whoever shares one with whom is left to chance.
    owners |= {name: rng.permutation(owners[first]) for name in others}
    schema = source_schema_of(contract)
    arrays = []
    for field in schema:
        if field.name in owners:
            arrays.append(_owner_ids(contract, field, owners[field.name]))
        elif field.name in domains:
            column = domains[field.name]
            arrays.append(column.decode(_cells(column, rows, rng), field.type, rng))
        elif contract.columns[field.name].type == "identifier":
            arrays.append(pa.array(np.arange(1, rows + 1)))
        elif isinstance(declared := contract.columns[field.name], IntegerColumn | FloatColumn | DateColumn):
            arrays.append(_weights(declared, field.type, rows, rng))
        else:
            arrays.append(_texts(contract.columns[field.name], rows, rng))
    return pa.Table.from_arrays(arrays, schema=schema)


def _owners(rows: int, bound: int, rng: np.random.Generator) -> Codes:
    """Owner number of each row."""
    records = rng.integers(1, bound + 2, size=rows)
    return np.repeat(np.arange(rows, dtype=np.int32), records)[:rows]


def _owner_ids(contract: DataContract, field: pa.Field, owners: Codes) -> pa.Array:
    if contract.columns[field.name].type == "text":
        return pa.array([f"fictional owner {owner}" for owner in owners], pa.string())
    return pa.array(owners + 1, pa.int64())


def _cells(column: ColumnDomain, rows: int, rng: np.random.Generator) -> Codes:
    return rng.choice(np.flatnonzero(column.allowed), size=rows).astype(np.int32)


def _weights(
    declared: IntegerColumn | FloatColumn | DateColumn, kind: pa.DataType, rows: int, rng: np.random.Generator
) -> pa.Array:
    """A column that orders records with several owners: not modelled, so that it has no cells to draw from."""
    if isinstance(declared, DateColumn):
        days = rng.integers(declared.min.toordinal(), declared.max.toordinal() + 1, rows)
        return pa.array([dt.date.fromordinal(int(day)) for day in days], kind)
    return pa.array(rng.uniform(declared.min, declared.max, rows)).cast(kind, safe=False)


def _texts(declared: Column, rows: int, rng: np.random.Generator) -> pa.Array:
    """Names, or for free text (what is scrubbed by replacing) remarks with a name and contacts in them."""
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
