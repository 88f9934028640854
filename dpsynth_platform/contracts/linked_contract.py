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

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.audit import Audit
from dpsynth_platform.contracts.base import Part
from dpsynth_platform.contracts.columns import Column, IdentifierColumn
from dpsynth_platform.contracts.generation import Generate
from dpsynth_platform.contracts.methods import VIEW_METHODS
from dpsynth_platform.contracts.quality import Quality
from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ContractError

if TYPE_CHECKING:
    from dpsynth_platform.contracts.privacy import Privacy
    from dpsynth_platform.contracts.release import Release
    from dpsynth_platform.contracts.source import Source

TABLES_FORMAT = "tables"
"""The source's format: a directory with a file or Delta table for each, or a file of SQLite or DuckDB."""


TARGETS = ("delta", "duckdb", "files", "sqlite")
"""Formats of targets that take several tables."""


def dotted(table: str, column: str) -> str:
    """A column of linked tables, in the contract and all that names columns."""
    return f"{table}.{column}"


def linked_of(tables: Mapping[str, Any], privacy: Any) -> LinkedTables:
    """The tables of a contract with the owner that `privacy.owner_columns` names. Raises `ContractError`.

    Args:
        privacy: the part, validated or as in a file.
    """
    declared = privacy.get("owner_columns") if isinstance(privacy, dict) else getattr(privacy, "owner_columns", None)
    root = next((name for name, table in tables.items() if _is_root(table)), "")
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


def with_tables(document: Any) -> Any:
    """A contract's document with what follows from its `tables`; unchanged without any.

    Raises:
        ValueError: the tables are invalid, or what follows from them is declared otherwise; one line for each fault.
    """
    if not isinstance(document, dict) or not isinstance(document.get("tables"), dict) or not document["tables"]:
        return document
    problem = ""
    try:
        tables = linked_of(document["tables"], document.get("privacy"))
    except ContractError as error:
        problem = "\n".join(line.removeprefix("contract: ") for line in str(error).split("\n"))
    if problem:
        raise ValueError(problem)
    parts = {name: document.get(name) for name in ("source", "privacy")}
    source, privacy = ({} if part is None else part for part in parts.values())
    if not isinstance(source, dict) or not isinstance(privacy, dict):
        return document  # faults of their own
    root = tables.root
    columns = {dotted(*each): column for each, column in _columns(tables).items()}
    follows: dict[str, tuple[Any, Any]] = {
        "source.format": (source.get("format"), TABLES_FORMAT),
        "source.key": (source.get("key"), [dotted(root, each) for each in tables.tables[root].key]),
        "privacy.max_contributions": (privacy.get("max_contributions"), tables.rows_of_owner),
        "privacy.weighting": (privacy.get("weighting"), tables.weighting),
    }
    faults = [
        f"{key}: {given!r}; with tables it follows from them and is {right!r}; accepted: leave it out"
        for key, (given, right) in follows.items()
        if given is not None and given != right
    ]
    if document.get("columns") is not None and set(document["columns"]) != set(columns):
        faults.append("columns: beside tables; accepted: leave it out, and declare columns below tables")
    if faults:
        raise ValueError("\n".join(faults))
    owner = tables.owner or tables.tables[root].key[0]
    derived = {key.partition(".")[2]: right for key, (_, right) in follows.items()}
    return document | {
        "source": source | {key: derived[key] for key in ("format", "key")},
        "privacy": privacy
        | {key: derived[key] for key in ("max_contributions", "weighting")}
        | {"owner_columns": [dotted(root, owner)]},
        "columns": {name: column.model_dump(mode="json") for name, column in columns.items()},
    }


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
        for key in _changed(generate, Generate(), "method", "rows"):
            way = "tables.TABLE.constraints" if key == "constraints" else "leave it out"
            yield f"generate.{key}: with tables; accepted: {way}"
    if quality:
        for key in _changed(quality, Quality(), "holdout"):
            yield f"quality.{key}: with tables; accepted: holdout alone"
    if audit and audit.canary_texts:
        yield "audit.canary_texts: with tables, whose texts are not read; accepted: leave it out"
    if release and release.max_missing is not None:
        yield "release.max_missing: with tables; accepted: leave it out"
    for target in release.publish if release else ():
        if target.format not in TARGETS:
            yield f"release.publish: format {target.format}, with tables; accepted: {', '.join(TARGETS)}"


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
