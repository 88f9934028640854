"""A run over linked tables before it is paid for: options, declarations, contracts of views, and the sealed plan.

What belongs here: everything that follows from the options and the public facts of the tables. What does not: reading
private rows (`rows`), and the plan's cost (`synth.relational.sealing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.base import MOST_UNITS
from dpsynth_platform.contracts.constraints import Values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import VIEW_METHODS
from dpsynth_platform.contracts.tables import LinkedTables, unquoted_in_tables
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.drafting.linked import draft
from dpsynth_platform.drafting.templates import draft_lines, in_words, untyped_note
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractError, SchemaMissing, SourceError
from dpsynth_platform.foundation.yaml_files import dump_inline, read_yaml
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.linked_rows.views import table_contracts, views_of
from dpsynth_platform.one_table.declaration import as_options
from dpsynth_platform.one_table.more_rows import canonical
from dpsynth_platform.one_table.task import LEAST_UNITS, UNREPEATED, check_common
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.secrets.vault import keyed_name
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.linked_source import LinkedSource, open_linked
from dpsynth_platform.sources.table_files import Format, Source
from dpsynth_platform.sources.table_places import Tables, tables_at
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.planning import cost_request
from dpsynth_platform.synth.relational.sealing import linked_plan


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
    found = open_linked(read_tables(options.schema, places, options.dialect), places, options.dialect)
    _check_columns(found)
    privacy = _privacy(options, found.tables)
    with _in_options():
        contracts = table_contracts(found, privacy)
        views = views_of(found, contracts, privacy, options.method, network=UNREPEATED)
    contract = views[found.tables.root].contract
    plan = linked_plan(found.tables, views, found.lookups, Guarantee.target(contract), contract)
    return LinkedTask(options, found.tables, found.sources, contracts, contract, plan)


@contextmanager
def _in_options() -> Iterator[None]:
    """Faults of the contract's privacy name the options that they come from."""
    try:
        yield
        return
    except ContractError as error:
        kind, lines = type(error), str(error).split("\n")
    raise kind("\n".join(as_options(line) if line.startswith("privacy.") else line for line in lines))


def read_tables(schema: str | Path | Mapping[str, Any] | None, tables: Tables, dialect: Dialect) -> LinkedTables:
    """The declaration in a file, or in a mapping like one.

    Raises:
        ContractError: it is invalid.
        SchemaMissing: there is none; with a draft for these tables.
    """
    if schema is None:
        raise SchemaMissing(
            "--schema: missing. Keys, bounds and the possible values of columns must be known beforehand, and are not "
            "read from the data. Accepted: --schema with this file, filled in with public facts:",
            draft(tables, dialect),
        )
    if isinstance(schema, Mapping):
        document, where = dict(schema), "the schema"
    else:
        document, where = read_yaml(Path(schema)), str(schema)
    found = validated(LinkedTables, document, where)
    if faults := [f"{where}: {fault}" for fault in unquoted_in_tables(document.get("tables"))]:
        raise ContractError("\n".join(faults))
    return found


def _check_options(options: TablesOptions) -> None:
    if options.method not in VIEW_METHODS:
        raise ContractError(f"--method {options.method!r}; accepted: {', '.join(VIEW_METHODS)}")
    check_common(options.format, options.delta, options.expected_units, options.cap_epsilon)
    if options.roots is not None and options.roots < 1:
        raise ContractError(f"--roots {options.roots}; accepted: 1 or more")


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


def _check_columns(found: LinkedSource) -> None:
    """Refuses columns of private tables that are declared and not there, or there and not declared.

    Raises:
        SourceError: a declared column is not there.
        SchemaMissing: columns are not declared; with a draft of all of them.
    """
    problems, lines = [], []
    for name, difference in found.differences.items():
        source = found.sources[name]
        if difference.absent:
            names, accepted = ", ".join(map(repr, difference.absent)), ", ".join(source.found)
            problems.append(f"tables.{name}: there is no column {names}; accepted: {accepted}")
        if missing := difference.undeclared:
            problems.append(f"tables.{name}: nothing is declared of: {in_words(source, missing)}")
            lines += [f"  {dump_inline(name)}:", "    columns:", *draft_lines(source, missing, " " * 6)]
    if lines:
        untyped = untyped_note() if any(source.format == "csv" for source in found.sources.values()) else ""
        raise SchemaMissing(
            ".\n".join(problems) + ". Accepted: --schema with these lines, too, filled in with public facts:",
            "\n".join((f"{untyped}tables:", *lines)),
        )
    if problems:
        raise SourceError("\n".join(problems))
