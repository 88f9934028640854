"""A run over linked tables before it is paid for: options, declarations, contracts of views, and the sealed plan.

What belongs here: everything that follows from the options and the public facts of the tables. What does not: reading
private rows (`rows`), and the plan's cost (`synth.relational.sealing`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.base import MOST_UNITS
from dpsynth_platform.contracts.columns import Column, IdentifierColumn, TextColumn
from dpsynth_platform.contracts.constraints import Values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.tables import (
    POSITION,
    LinkedTables,
    children_name,
    context_name,
    gap_name,
    previous_name,
)
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.linked_tables.draft import check_columns, refuse_without_schema
from dpsynth_platform.linked_tables.places import Tables, is_csv, place_of, tables_at
from dpsynth_platform.one_table import declaration
from dpsynth_platform.one_table.more_rows import canonical
from dpsynth_platform.one_table.task import LEAST_UNITS, check_common, readable_schema
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.scrub import check_source_schema
from dpsynth_platform.secrets.vault import keyed_name
from dpsynth_platform.sources.database_files import DatabaseFile
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.table_files import IN_MEMORY, Format, Source, open_source
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.planning import cost_request
from dpsynth_platform.synth.relational.sealing import VIEW_METHODS, View, linked_plan
from dpsynth_platform.synth.tabular.restore import release_schema

MOST_KEYS = 10_000
"""Rows of a public table that private ones may refer to."""
OWNER = "owner__id"
"""The owner's column in contracts of views. No output contains it."""
_OTHERS = r"(?<=[A-Za-z0-9])__(?=[A-Za-z0-9])"
"""In a view's names, between a table and its column."""


@dataclass(frozen=True)
class TablesOptions:
    """The options of a run over linked tables.

    Attributes:
        epsilon: of the guarantee for one owner and all rows that belong to it.
        delta: None: 1/n^1.1, n = expected_units.
        expected_units: about how many owners there are, as the public knows it.
        schema: a file with `tables:` (`contracts.tables`), or a mapping like one.
        method: of each table, one of `VIEW_METHODS`.
        roots: number of rows of the root; None: estimated from the noisy counts.
        given: conditions on all rows of the root by column: a list, or a range {"min": ..., "max": ...}. Like `roots`,
            they change nothing that is paid for.
        format: of all released tables.
        ledger: directory of a ledger that several outputs share; None: a ledger for this output alone.
        cap_epsilon: the ledger's epsilon for its lifetime, sealed by the first run; None: that of this run.
        accept_weak_guarantee: why epsilon may be above 10.
        spend_again: id of a started ledger entry without a result; permits to spend its cost a second time.
        runner: the person's name; None: the deployment's user.
        dialect: of CSV files.
    """

    epsilon: float
    delta: float | None = None
    expected_units: int | None = None
    schema: str | Path | Mapping[str, Any] | None = None
    method: str = "aim"
    roots: int | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    format: Format = "parquet"
    ledger: str | Path | None = None
    cap_epsilon: float | None = None
    accept_weak_guarantee: str | None = None
    spend_again: str | None = None
    runner: str | None = None
    dialect: Dialect = field(default_factory=Dialect)


@dataclass(frozen=True)
class LinkedTask:
    """The public facts of one run.

    Attributes:
        tables: by the contracts' names of columns.
        sources: of all tables, public ones included.
        contracts: of each private table's own columns and keys, for reading them.
        contract: with the privacy unit of the whole.
    """

    options: TablesOptions
    tables: LinkedTables
    sources: Mapping[str, Source]
    contracts: Mapping[str, DataContract]
    contract: DataContract
    plan: SealedPlan

    def given(self, name: str) -> dict[str, str]:
        """The source's names of a table's columns, by the contract's names."""
        return {plain: given for given, plain in self.sources[name].names.items()}

    @property
    def owner_in_words(self) -> str:
        """The columns that name an owner, as the ledger seals them."""
        root = self.tables.root
        columns = [self.tables.owner] if self.tables.owner is not None else self.tables.tables[root].key
        return f"{root}.{', '.join(self.given(root).get(column, column) for column in columns)}"

    @property
    def conditions(self) -> dict[str, Values]:
        """`given` by the contract's names of columns. Raises `ContractError` for an unknown one."""
        names = self.sources[self.tables.root].names
        own = self.tables.own_columns(self.tables.root)
        if unknown := [name for name in self.options.given if names.get(name) not in own]:
            accepted = ", ".join(self.given(self.tables.root)[name] for name in own)
            raise ContractError(
                f"given.{unknown[0]}: is no modelled column of {self.tables.root}; accepted: {accepted}"
            )
        return {names[name]: canonical(name, values) for name, values in self.options.given.items()}

    def request(self, runner: str) -> CostRequest:
        return cost_request(self.plan, runner)

    def keys(self, secret: bytes) -> list[str]:
        """The key of the run: the same content, declarations, plan and output are one run and one spend."""
        run = {
            "plan": self.plan.digest,
            "mechanism": self.plan.mechanism_digest,
            "csv": self.options.dialect.declared,
            "sources": {name: self.sources[name].version for name in self.tables.private},
        }
        return [keyed_name(secret, "run", canonical_digest(run))]


def linked_task(data: Path | Mapping[str, Path | pa.Table], options: TablesOptions) -> LinkedTask:
    """The run of these options. Of files, it reads no row of a private table; of a database, all declared tables.

    Args:
        data: a directory, a database file, or tables by name (`places.tables_at`).

    Raises:
        ContractError: options or declarations are invalid, or a declaration is missing.
        SourceError: a table is missing or cannot be read, or has other columns or types than declared.
        AccountingError: no noise meets the guarantee.
    """
    _check_options(options)
    places = tables_at(data)
    declared = read_tables(options.schema, places, options.dialect)
    if isinstance(places, DatabaseFile):
        _check_public(declared, places)
    sources = {name: source_of(declared, name, places, options.dialect) for name in declared.tables}
    check_columns(declared, sources)
    _check_names(declared, sources)
    tables = declared.renamed({name: source.names for name, source in sources.items()})
    lookups = {name: _keys_of(name, sources[name], tables.tables[name].key[0]) for name in tables.lookups}
    privacy = _privacy(options, tables)
    contracts = {name: _table_contract(tables, name, privacy, lookups, sources[name]) for name in tables.private}
    views = {name: _view(tables, name, privacy, lookups, sources, contracts[name], options) for name in tables.private}
    contract = views[tables.root].contract
    plan = linked_plan(tables, views, lookups, Guarantee.target(contract))
    return LinkedTask(options, tables, sources, contracts, contract, plan)


def read_tables(schema: str | Path | Mapping[str, Any] | None, tables: Tables, dialect: Dialect) -> LinkedTables:
    """The declaration in a file, or in a mapping like one.

    Raises:
        ContractError: it is invalid.
        SchemaMissing: there is none; with a draft for these tables.
    """
    if schema is None:
        raise refuse_without_schema(tables, dialect)
    if isinstance(schema, Mapping):
        return validated(LinkedTables, dict(schema), "the schema")
    return validated(LinkedTables, read_yaml(Path(schema)), str(schema))


def _check_options(options: TablesOptions) -> None:
    if options.method not in VIEW_METHODS:
        raise ContractError(f"--method {options.method!r}; accepted: {', '.join(VIEW_METHODS)}")
    check_common(options.format, options.delta, options.expected_units, options.cap_epsilon)
    if options.roots is not None and options.roots < 1:
        raise ContractError(f"--roots {options.roots}; accepted: 1 or more")


def source_of(tables: LinkedTables, name: str, places: Tables, dialect: Dialect) -> Source:
    """A table with its declared columns and its keys; of a database, the others have no values."""
    table, ids = tables.tables[name], _identifiers(tables, name)
    columns: dict[str, Column] = {**table.columns, **ids}
    columns |= {column: TextColumn(type="text") for column in table.lookups}
    with in_table(name):
        place = place_of(places, name, {each for each in table.columns if each not in table.modelled}, table.columns)
        source = open_source(place, columns, dialect if is_csv(place) else None, [*columns])
    # That no owner has a row in a table may come of one owner's absence, and must not show.
    source = replace(source, may_be_empty=table.parent is not None)
    if table.public is not None and table.key[0] not in source.found:
        raise SourceError(f"tables.{name}.key: {table.key[0]!r} is no column of {source.path}")
    return source


def _check_public(tables: LinkedTables, places: DatabaseFile) -> None:
    """Refuses public tables that hold keys of private rows by the database's own foreign keys; reads no row."""
    for name in tables.lookups:
        for foreign in places.catalog[name].foreign if name in places else ():
            if foreign.table in tables.private:
                raise ContractError(
                    f"tables.{name}.public: the database says that {', '.join(foreign.columns)} refers to "
                    f"{foreign.table}, whose rows are private, and a public table is released as it is; accepted: a "
                    "parent, or leave the table out"
                )


def _check_names(tables: LinkedTables, sources: Mapping[str, Source]) -> None:
    """Refuses columns whose plain names have two signs _ in a row, as `_id` has: views use such names."""
    for name in tables.private:
        for given, plain in sources[name].names.items():
            if "__" in plain:
                raise SourceError(
                    f"tables.{name}: column {given!r} is {plain!r} in plain letters, and two signs _ in a row are for "
                    "columns of other rows; accepted: a name that begins with a letter of a to z, without two signs _ "
                    "in a row"
                )


def _identifiers(tables: LinkedTables, name: str) -> dict[str, Column]:
    owner = [tables.owner] if tables.owner is not None and name == tables.root else []
    return {column: IdentifierColumn(type="identifier") for column in (*tables.tables[name].keys, *owner)}


def _keys_of(name: str, source: Source, key: str) -> list[str]:
    """The keys of a public table, as texts. Raises `SourceError` for repeated or missing ones, or too many."""
    column = pa.chunked_array(batch.column(0) for batch in source.batches([key])).combine_chunks()
    keys = column.cast(pa.string())
    if keys.null_count or len(keys.unique()) < len(keys):
        raise SourceError(
            f"tables.{name}: column {key!r} has repeated or missing values; accepted: distinct keys, to which lookups "
            "may refer"
        )
    if not 2 <= len(keys) <= MOST_KEYS:
        raise SourceError(f"tables.{name}: {len(keys)} rows; accepted: a public table of 2 to {MOST_KEYS}")
    return sorted(keys.to_pylist())


def _privacy(options: TablesOptions, tables: LinkedTables) -> dict[str, Any]:
    units = options.expected_units or max(LEAST_UNITS, int(min(1 / (options.delta or 1), MOST_UNITS)))
    return {
        "unit": "user",
        "max_contributions": tables.rows_of_owner,
        "weighting": tables.weighting,
        "guarantee": {"epsilon": options.epsilon, "delta": "auto" if options.delta is None else options.delta},
        "expected_units": units,
        "accept_weak_guarantee": options.accept_weak_guarantee,
    }


def _table_contract(
    tables: LinkedTables,
    name: str,
    privacy: Mapping[str, Any],
    lookups: Mapping[str, Sequence[str]],
    source: Source,
) -> DataContract:
    """The contract of a table's own columns and keys, as its rows are read and released."""
    ids = _identifiers(tables, name)
    others = {column: each for column, each in tables.tables[name].columns.items() if column not in ids}
    columns = others | tables.declared(name, lookups) | ids
    owner = tables.owner if tables.owner is not None and name == tables.root else next(iter(ids))
    with in_table(name):
        ordered = {column: columns[column] for column in source.names.values() if column in columns}
        contract = declaration.contract_of(
            ordered, {**privacy, "owner_columns": [owner]}, generate=_generate("aim", [])
        )
        check_source_schema(declaration.scrubbed_contract(contract), readable_schema(contract, source))
    return contract


def _view(
    tables: LinkedTables,
    name: str,
    privacy: Mapping[str, Any],
    lookups: Mapping[str, Sequence[str]],
    sources: Mapping[str, Source],
    own: DataContract,
    options: TablesOptions,
) -> View:
    columns = tables.view(name, lookups) | {OWNER: IdentifierColumn(type="identifier")}
    with in_table(name):
        contract = declaration.contract_of(
            columns,
            {**privacy, "owner_columns": [OWNER]},
            generate=_generate(options.method, tables.constraints(name)),
        )
        schema = _view_schema(
            tables, name, {each: source.own_schema for each, source in sources.items()}, list(columns)
        )
        released = release_schema(own, sources[name].own_schema).to_json()
    return View(contract, schema, released)


def _view_schema(tables: LinkedTables, name: str, own: Mapping[str, pa.Schema], columns: Sequence[str]) -> pa.Schema:
    """The types of a view's columns: those of the columns that they are taken from."""
    types = {column: own[name].field(column).type for column in tables.own_columns(name)}
    found = dict(types)
    for lag in range(1, tables.lags(name) + 1):
        found |= {previous_name(column, lag): types[column] for column in tables.passed_on(name)}
    for table, column in tables.context(name):
        found[context_name(table, column)] = own[table].field(column).type
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
    lines = [
        line.removeprefix(f"{declaration.DATASET}: ").removeprefix(f"{IN_MEMORY}: ") for line in problem.split("\n")
    ]
    if kind is SourceError:  # with paths, which stay as they are
        raise SourceError("\n".join(f"tables.{name}: {line}" for line in lines))
    raise kind("\n".join(_of_table(name, line) for line in lines))


def _of_table(name: str, problem: str) -> str:
    """A fault of a view's contract by the names that the declaration has: `stays.ward` for `stays__ward`."""
    if problem.startswith("privacy."):
        return declaration.as_options(problem)
    return f"tables.{name}: {re.sub(_OTHERS, '.', problem).replace('generate.constraints', 'constraints')}"
