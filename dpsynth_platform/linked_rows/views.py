"""The contracts of linked tables and of their views, each as of a single table, and the types of their columns.

What belongs here: single-table contracts that follow from the declaration and the sources' types. What does not: the
declaration (`contracts.tables`), and the plan's cost (`synth.relational.sealing`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain_type
from dpsynth_platform.contracts.columns import IdentifierColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import NETWORK_METHODS
from dpsynth_platform.contracts.tables import (
    POSITION,
    LinkedTables,
    children_name,
    context_name,
    gap_name,
    previous_name,
)
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.scrub.scrub import check_source_schema
from dpsynth_platform.sources.declared_rows import readable_schema, scrubbed_contract
from dpsynth_platform.sources.delta_types import kept_type
from dpsynth_platform.sources.linked_source import LinkedSource, identifiers
from dpsynth_platform.sources.table_files import IN_MEMORY
from dpsynth_platform.synth.relational.sealing import View
from dpsynth_platform.synth.tabular.restore import release_schema
from dpsynth_platform.synth.undeployed import DATASET, contract_of

OWNER = "owner__id"
"""The owner's column in contracts of views. No output contains it."""
_OTHERS = r"(?<=[A-Za-z0-9])__(?=[A-Za-z0-9])"
"""In a view's names, between a table and its column."""


def table_contracts(found: LinkedSource, privacy: Mapping[str, Any]) -> dict[str, DataContract]:
    """Of each private table, the contract of its own columns and keys, as its rows are read and released.

    Args:
        privacy: the part of a contract, without owner columns.

    Raises:
        ContractError, SourceError: a declaration is invalid, or columns have other types than declared.
    """
    return {name: _table_contract(found, name, privacy) for name in found.tables.private}


def views_of(
    found: LinkedSource,
    contracts: Mapping[str, DataContract],
    privacy: Mapping[str, Any],
    method: str,
    *,
    network: Mapping[str, Any] | None = None,
    stored: bool = False,
) -> dict[str, View]:
    """The view of each private table, as a single table with a method of its own. Raises `ContractError`.

    Args:
        network: as `generate.network` in a contract, of a method that trains one. Owners are sampled: one clipped mean
            gradient is what their rows weigh together, as in counts.
        stored: released rows have types that a Delta table has (`sources.delta_types`), and not the source's.
    """
    released = _released(found, contracts, stored)
    trained = {"network": {**(network or {}), "sampled": "owners"}} if method in NETWORK_METHODS else {}
    return {
        name: _view(
            found, name, privacy, contracts[name], released, _generate(method, found.tables.constraints(name)) | trained
        )
        for name in found.tables.private
    }


def _released(found: LinkedSource, contracts: Mapping[str, DataContract], stored: bool) -> dict[str, pa.Schema]:
    """The types of private tables' released rows. A foreign key has the type of the key that it refers to."""
    schemas: dict[str, pa.Schema] = {}
    for name in found.tables.private:
        contract, source, table = contracts[name], found.sources[name], found.tables.tables[name]
        types = {item.name: item.type for item in source.own_schema}
        if stored:
            read = {item.name: item.type for item in readable_schema(contract, source)}
            for column, declared in contract.columns.items():
                codes = declared.type in ("categorical", "identifier")
                types[column] = kept_type(read[column], codes=codes) if column in read else pa.string()
        if table.parent is not None:
            above, key = schemas[table.parent.table], found.tables.tables[table.parent.table].key
            types |= {own: above.field(other).type for own, other in zip(table.parent.columns, key, strict=True)}
        schemas[name] = pa.schema([item.with_type(types[item.name]) for item in source.own_schema])
    return schemas


def _table_contract(found: LinkedSource, name: str, privacy: Mapping[str, Any]) -> DataContract:
    tables, source = found.tables, found.sources[name]
    ids = identifiers(tables, name)
    others = {column: each for column, each in tables.tables[name].columns.items() if column not in ids}
    columns = others | tables.declared(name, found.lookups) | ids
    owner = tables.owner if tables.owner is not None and name == tables.root else next(iter(ids))
    with in_table(name):
        ordered = {column: columns[column] for column in source.names.values() if column in columns}
        contract = contract_of(ordered, {**privacy, "owner_columns": [owner]}, generate=_generate("aim", []))
        check_source_schema(scrubbed_contract(contract), readable_schema(contract, source))
    return contract


def _view(
    found: LinkedSource,
    name: str,
    privacy: Mapping[str, Any],
    own: DataContract,
    schemas: Mapping[str, pa.Schema],
    generate: Mapping[str, Any],
) -> View:
    tables = found.tables
    columns = tables.view(name, found.lookups) | {OWNER: IdentifierColumn(type="identifier")}
    with in_table(name):
        contract = contract_of(
            columns,
            {**privacy, "owner_columns": [OWNER]},
            generate=generate,
        )
        schema = _view_schema(tables, name, schemas, list(columns))
        released = release_schema(own, schemas[name]).to_json()
    return View(contract, schema, released)


def _view_schema(tables: LinkedTables, name: str, own: Mapping[str, pa.Schema], columns: Sequence[str]) -> pa.Schema:
    """The types of a view's columns: the plain types of the columns that they are taken from.

    Not every layout in memory, such as a view of texts, can be reordered; released rows have the source's.
    """
    types = {column: plain_type(own[name].field(column).type) for column in tables.own_columns(name)}
    found = dict(types)
    for lag in range(1, tables.lags(name) + 1):
        found |= {previous_name(column, lag): types[column] for column in tables.passed_on(name)}
    for table, column in tables.context(name):
        found[context_name(table, column)] = plain_type(own[table].field(column).type)
    counts = [children_name(each) for each in (*tables.children(name), *tables.siblings(name))]
    found |= dict.fromkeys((*counts, POSITION), pa.int32())
    if (gap := tables.gap(name)) is not None:
        found[gap_name(gap)] = pa.int64()
    return pa.schema([pa.field(column, found.get(column, pa.string())) for column in columns])


def _generate(method: str, constraints: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"method": method, "rows": "auto", "constraints": list(constraints)}


@contextmanager
def in_table(name: str) -> Iterator[None]:
    """Puts a table's name in front of faults of its contract; faults of the run's options name these."""
    try:
        yield
        return
    except (ContractError, SourceError) as error:
        kind, problem = type(error), str(error)
    lines = [re.sub(f"^({DATASET}|{IN_MEMORY}): (source: )?", "", line) for line in problem.split("\n")]
    raise kind("\n".join(_of_table(name, line) for line in lines))


def _of_table(name: str, problem: str) -> str:
    """A fault of a view's contract by the names that the declaration has: `stays.ward` for `stays__ward`."""
    if problem.startswith("privacy."):
        return problem
    shown = re.sub(_OTHERS, ".", problem).replace("generate.constraints", "constraints")
    return f"tables.{name}{'.' if shown.startswith(('columns.', 'constraints.')) else ': '}{shown}"
