"""A Delta table that grows by one version a release, in a directory or an object store; of linked tables, one of each.

What belongs here: the table's form and its commits. What does not: which files a release has (`targets`).

Its columns and files are those of `table_targets`: Parquet files in `RELEASE/`, all others in `_dossier/RELEASE/`,
which Delta's VACUUM leaves alone. A commit carries the release's id as an application transaction (`txn`), which tells
whether it was made, also after a crash between commit and record.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from dpsynth_platform.contracts.base import caseless
from dpsynth_platform.contracts.release import PERIOD, RELEASE, Target
from dpsynth_platform.foundation.errors import PublicationFailed
from dpsynth_platform.release.table_targets import (
    PARTITIONS,
    commit_facts,
    copy_release,
    holds_what,
    not_ours,
    other_columns,
)
from dpsynth_platform.release.target_files import SignedRelease
from dpsynth_platform.sources.remote_files import opened

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema

_LOG = "_delta_log/00000000000000000000.json"


def put(target: Target, release: SignedRelease) -> bool:
    """Adds a release to the table of a target, or to its tables; makes those that are missing. See `targets.put`."""
    uris = {name: f"{target.uri.rstrip('/')}/{name}" if name else target.uri for name in release.tables}
    tables = {name: _table(uri, release, name) for name, uri in uris.items()}
    new = [name for name, table in tables.items() if table.transaction_version(release.release_id) is None]
    if new:
        copy_release(release, *opened(target.uri))
    for name in new:
        _commit(tables[name], release, name)
    for name, uri in uris.items():
        _check(uri, release, name)
    return bool(new)


def _table(uri: str, release: SignedRelease, name: str) -> DeltaTable:
    """The table, made empty if there is none. Raises `PublicationFailed` for a table of another form or dataset."""
    from deltalake import DeltaTable

    schema, title = _schema(release, name), holds_what(release, name)
    # Nothing is done where there is a table already.
    DeltaTable.create(uri, schema, mode="ignore", partition_by=list(PARTITIONS), name=title)
    table = DeltaTable(uri)
    found = table.metadata()
    if (found.name, tuple(found.partition_columns)) != (title, PARTITIONS):
        raise not_ours(release, name)
    if table.transaction_version(release.release_id) is None and table.schema() != schema:
        raise other_columns()
    return table


def _schema(release: SignedRelease, name: str) -> Schema:
    from deltalake import DeltaTable, Field, Schema
    from deltalake.schema import PrimitiveType

    text = PrimitiveType("string")
    fields = DeltaTable(release.data(name)).schema().fields
    if taken := [field.name for field in fields if caseless(field.name) in map(caseless, PARTITIONS)]:
        raise PublicationFailed(
            f"the table {name} has a column {taken[0]!r}, and a table of this target one of its own; accepted: another "
            "name in the source, or another format"
        )
    return Schema([*fields, Field(PERIOD, text), Field(RELEASE, text, nullable=False)])


def _commit(table: DeltaTable, release: SignedRelease, name: str) -> None:
    from deltalake import CommitProperties, Transaction

    properties = CommitProperties(
        custom_metadata=commit_facts(release, name), app_transactions=[Transaction(release.release_id, 1)]
    )
    table.create_write_transaction(
        [_addition(release, add) for add in _additions(release, name)],
        "append",
        table.schema(),
        list(PARTITIONS),
        commit_properties=properties,
    )


def _additions(release: SignedRelease, name: str) -> list[dict[str, Any]]:
    """The files of the release's own table, by its log: verified with the release, and of one commit."""
    log = (release.data(name) / _LOG).read_text(encoding="utf-8")
    return [action["add"] for action in map(json.loads, log.splitlines()) if "add" in action]


def _addition(release: SignedRelease, add: dict[str, Any]) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        path=f"{release.release_id}/{unquote(add['path'])}",
        size=add["size"],
        partition_values={PERIOD: release.period, RELEASE: release.release_id},
        modification_time=add["modificationTime"],
        data_change=True,
        stats=add["stats"],
    )


def _check(uri: str, release: SignedRelease, name: str) -> None:
    """Raises `PublicationFailed` unless the table's newest version holds all rows of the release, and no other."""
    from deltalake import DeltaTable

    added = DeltaTable(uri).get_add_actions(flatten=True)
    if not added.num_rows and not release.tables[name]:
        return
    ids, numbers = added.column(f"partition.{RELEASE}").to_pylist(), added.column("num_records").to_pylist()
    rows = sum(number for each, number in zip(ids, numbers, strict=True) if each == release.release_id)
    if rows != release.tables[name]:
        raise PublicationFailed(
            f"the table there holds {rows:,} rows of this release, which has {release.tables[name]:,}; accepted: the "
            "table's version that was committed for it, restored (RESTORE), or another place"
        )
