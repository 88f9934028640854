"""Contracts of linked tables: what follows from `tables:`, and what such a contract cannot have.

What belongs here: deriving the contract's columns, bound and key from its tables, and the faults between `tables` and
the other parts. What does not: the tables' own declaration (`tables`).

    source: {uri: "${DPSYNTH_HOME}/sources/clinic"}     # a directory of tables, or a database file
    privacy: {unit: user, namespace: patient, guarantee: {epsilon: 1.0}, expected_units: 50000}
    tables: {patients: {...}, stays: {...}}              # as in `tables`
    generate: {method: aim}                              # of each table

Such a contract has its columns as `table.column`, so that what shows, tags and traces columns needs no other form. One
owner's rows in all tables are the bound, and owners weigh alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.audit import Audit
from dpsynth_platform.contracts.base import NOT_FILLED_IN, Part, key_path, refuse, shown_value
from dpsynth_platform.contracts.columns import Column, IdentifierColumn
from dpsynth_platform.contracts.generation import Generate
from dpsynth_platform.contracts.methods import NETWORK_METHODS, VIEW_METHODS
from dpsynth_platform.contracts.quality import Quality
from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.contracts.sql import check_reads
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ContractError

if TYPE_CHECKING:
    from dpsynth_platform.contracts.privacy import Privacy
    from dpsynth_platform.contracts.release import Release
    from dpsynth_platform.contracts.source import Source

TABLES_FORMAT = "tables"
"""The source's format: a directory with a file or Delta table for each, or a file of SQLite or DuckDB."""


_STAND_IN = {"TABLE": {"key": ["KEY"], "columns": {"COLUMN": {"type": "boolean"}}}}
"""Names that fit in the messages that show them."""
TARGETS = ("delta", "duckdb", "files", "sqlite")
"""Formats of targets that take several tables."""


def dotted(table: str, column: str) -> str:
    """A column of linked tables, in the contract and all that names columns."""
    return f"{table}.{column}"


def by_tables(tables: Mapping[str, Any], fault: str) -> str:
    """A fault with `tables.stays.columns.ward` for `columns.stays.ward`, as the contract's file has the key."""
    named = "|".join(re.escape(str(each)) for each in tables)
    return re.sub(rf"\bcolumns\.({named})\.", r"tables.\1.columns.", fault) if named else fault


def linked_of(tables: Mapping[str, Any], privacy: Any) -> LinkedTables:
    """The tables of a contract with the owner that `privacy.owner_columns` names. Raises `ContractError`.

    Args:
        privacy: the part, validated or as in a file.
    """
    declared = privacy.get("owner_columns") if isinstance(privacy, dict) else getattr(privacy, "owner_columns", None)
    root = root_of(tables)
    named = [str(each) for each in declared] if isinstance(declared, list) else []
    key = _key_of(tables.get(root))
    if not named and len(key) == 1:
        named = [dotted(root, key[0])]
    if len(named) != 1 or not named[0].startswith(f"{root}."):
        validated(LinkedTables, {"tables": tables}, "contract")  # its own faults come first
        shown = ", ".join(named) or f"missing, and the key of {root or 'the root'} has {len(key)} columns"
        raise ContractError(
            f"privacy.owner_columns: {shown}; accepted: one column of the root, as {dotted(root or 'root', 'COLUMN')}"
        )
    owner = named[0].removeprefix(f"{root}.")
    return validated(LinkedTables, {"tables": tables, "owner": None if [owner] == key else owner}, "contract")


def root_of(tables: Mapping[str, Any]) -> str:
    """The name of the first table without a parent, validated or as in a file; empty without one."""
    return next((name for name, table in tables.items() if _is_root(table)), "")


def with_tables(document: Any) -> Any:
    """A contract's document with what follows from its `tables`; unchanged without any.

    Raises:
        ValueError: the tables are invalid, or what follows from them is declared otherwise; one line for each fault.
    """
    if not isinstance(document, dict) or not document.get("tables"):
        return document
    refuse(faults_of_tables(document))
    tables = linked_of(document["tables"], document.get("privacy"))
    root = tables.root
    columns = {dotted(*each): column for each, column in _columns(tables).items()}
    owner = tables.owner or tables.tables[root].key[0]
    follows: dict[str, dict[str, Any]] = {
        "source": {"format": TABLES_FORMAT, "key": [dotted(root, each) for each in tables.tables[root].key]},
        "privacy": {
            "max_contributions": tables.rows_of_owner,
            "weighting": tables.weighting,
            "owner_columns": [dotted(root, owner)],
        },
    }
    whole = dict(document)
    faults = []
    for name, derived in follows.items():
        given = document.get(name, {})
        if isinstance(given, dict):  # else a fault of its own
            faults += [
                f"{name}.{key}: {given[key]!r}; with tables it follows from them and is {right!r}; accepted: leave it "
                "out"
                for key, right in derived.items()
                if given.get(key) is not None and given[key] != right
            ]
            whole[name] = given | derived
    if document.get("columns") is not None and set(document["columns"]) != set(columns):
        faults.append("columns: beside tables; accepted: leave it out, and declare columns below tables")
    generate = document.get("generate")
    if isinstance(generate, dict) and generate.get("method") in NETWORK_METHODS:
        network = generate.get("network") or {}
        if isinstance(network, dict):  # else a fault of its own
            if (sampled := network.get("sampled", "owners")) != "owners":
                faults.append(f"generate.network.sampled: {sampled!r} with tables; accepted: owners, or leave it out")
            whole["generate"] = generate | {"network": network | {"sampled": "owners"}}
    refuse(faults)
    return whole | {"columns": {name: column.model_dump(mode="json") for name, column in columns.items()}}


def faults_of_tables(document: Any) -> list[str]:
    """The faults of a document's `tables` and their owner, a line each; none without tables."""
    if not isinstance(document, dict) or "tables" not in document:
        return []
    tables = document["tables"]
    if not isinstance(tables, dict) or not tables:
        return [f"tables: {shown_value(tables)}; accepted: tables by their names, or columns in place of tables"]
    gaps = {name: gap for name, table in tables.items() if (gap := _gap_of(table)) is not None}
    faults = [f"tables.{name}.{key}: {NOT_FILLED_IN}; {accepted}" for name, (key, _, accepted) in gaps.items()]
    filled = dict(tables) | {name: tables[name] | {key: value} for name, (key, value, _) in gaps.items()}
    try:
        linked_of(filled, document.get("privacy"))
    except ContractError as error:
        lines = [line.removeprefix("contract: ") for line in str(error).split("\n")]
        faults += [re.sub("^owner: ", "privacy.owner_columns: ", line) for line in lines]
    return faults


def _gap_of(table: Any) -> tuple[str, Any, str] | None:
    """A key of a draft's table that is not filled in and whose absence has a meaning; a stand-in; and what is accepted.

    A draft of a public table has no columns.
    """
    if not isinstance(table, dict):
        return None
    if table.get("parent") is not None and "max_children" in table and table["max_children"] is None:
        return "max_children", 1, "accepted: the most rows that are kept of each row of the parent"
    if "public" in table and table["public"] is None and not {"columns", "parent"}.intersection(table):
        return "public", NOT_FILLED_IN, "accepted: why it has nothing about people, or leave out the table"
    return None


def with_stand_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document whose tables have faults, with one table in place of them, so that its other parts are checked."""
    changed = dict(document) | {"tables": _STAND_IN}
    changed.pop("columns", None)
    if isinstance(privacy := document.get("privacy"), dict):
        follow = ("max_contributions", "weighting", "owner_columns")
        changed["privacy"] = {key: value for key, value in privacy.items() if key not in follow}
    if isinstance(source := document.get("source"), dict):
        changed["source"] = source | {"key": ["TABLE.KEY"]}  # valid by itself, so that the source stays guarded
    if isinstance(quality := document.get("quality"), dict):  # what names tables and columns cannot be checked
        changed["quality"] = {key: value for key, value in quality.items() if key not in ("target", "queries")}
    return changed


def table_faults(
    tables: Mapping[str, Any],
    source: Source | None,
    privacy: Privacy | None,
    scrub: Scrub | None,
    generate: Generate | None,
    audit: Audit | None,
    quality: Quality | None,
    release: Release | None,
) -> Iterator[str]:
    """What a contract with tables cannot have; and tables' format without tables."""
    if not tables:
        if source and source.format == TABLES_FORMAT:
            yield f"source.format: {TABLES_FORMAT} without tables; accepted: tables, or another format"
        if quality and quality.queries:
            yield "quality.queries: without tables; accepted: leave it out"
        return
    if source:
        if "://" in source.uri and not source.uri.startswith("file://"):
            yield f"source.uri: {source.uri!r} with tables; accepted: a directory or a database file on this machine"
        if source.period_column:
            yield "source.period_column: with tables; accepted: none, and a release of all rows"
    if privacy:
        fitting: tuple[tuple[str, tuple[Any, ...]], ...] = (
            ("unit", ("user", "group")),
            ("adjacency", ("add-or-remove",)),
            ("record_order", ("random",)),
            ("owner_normalization", ([],)),
        )
        for key, accepted in fitting:
            if getattr(privacy, key) not in accepted:
                words = " or ".join(str(each) for each in accepted if each) or "leave it out"
                yield f"privacy.{key}: {getattr(privacy, key)} with tables; accepted: {words}"
    if scrub and scrub != Scrub():
        yield "scrub: with tables, whose texts are not read; accepted: leave it out"
    if generate:
        if generate.method not in ("auto", *VIEW_METHODS):
            yield f"generate.method: {generate.method!r} with tables; accepted: {', '.join(VIEW_METHODS)}, auto"
        for key in _changed(generate, Generate(), "method", "rows", "network"):
            way = "tables.TABLE.constraints" if key == "constraints" else "leave it out"
            yield f"generate.{key}: with tables; accepted: {way}"
    if quality:
        yield from _quality_faults(tables, quality)
    if audit and audit.canary_texts:
        yield "audit.canary_texts: with tables, whose texts are not read; accepted: leave it out"
    if audit and audit.shared_secrets:
        yield "audit.shared_secrets: with tables, whose texts are not read; accepted: leave it out"
    if audit and audit.canary_rows not in (None, ["random"]):
        yield "audit.canary_rows: plausible with tables; accepted: random, or leave it out"
    if release and release.max_missing is not None:
        yield "release.max_missing: with tables; accepted: leave it out"
    for target in release.publish if release else ():
        if target.format not in TARGETS:
            yield f"release.publish: format {target.format}, with tables; accepted: {', '.join(TARGETS)}"


def _quality_faults(tables: Mapping[str, Any], quality: Quality) -> Iterator[str]:
    for key in _changed(quality, Quality(), "holdout", "target", "queries"):
        yield f"quality.{key}: with tables; accepted: holdout, target and queries"
    root, of = root_of(tables), (quality.target or "").partition(".")[0]
    if of in tables and of != root:
        yield f"quality.target: {quality.target!r} is no column of the root; accepted: {dotted(root, 'COLUMN')}"
    for name, text in quality.queries.items():
        try:
            check_reads(text, tables)
        except ValueError as error:
            yield f"{key_path('quality', 'queries', name)}: {error}"


def _changed(part: Part, usual: Part, *accepted: str) -> list[str]:
    """Keys of a part with another value than the usual one, but the accepted ones."""
    keys = sorted(set(type(part).model_fields) - set(accepted))
    return [key for key in keys if getattr(part, key) != getattr(usual, key)]


def _columns(tables: LinkedTables) -> dict[tuple[str, str], Column]:
    """All columns of private tables but lookups, whose values are those of public tables."""
    found: dict[tuple[str, str], Column] = {}
    for name in tables.private:
        owner = [tables.owner] if tables.owner is not None and name == tables.root else []
        for column in (*tables.tables[name].keys, *owner):
            found[name, column] = IdentifierColumn(type="identifier")
        found |= {(name, column): each for column, each in tables.tables[name].columns.items()}
    return found


def _is_root(table: Any) -> bool:
    keys = ("parent", "public")
    if isinstance(table, dict):
        return all(table.get(key) is None for key in keys)
    return all(getattr(table, key, None) is None for key in keys)


def _key_of(table: Any) -> list[str]:
    found = table.get("key") if isinstance(table, dict) else getattr(table, "key", None)
    return [str(each) for each in found] if isinstance(found, list) else []
