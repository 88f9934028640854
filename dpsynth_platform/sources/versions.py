"""Versions of a Delta table that hold the same rows.

What belongs here: finding from the commits of a table's log whether they changed rows or columns. What does not:
opening a version (`delta`), and handling a new one (`dpsynth_platform.reviewing.new_versions`).

Compaction, clustering, vacuum, properties, protocol and transaction markers make versions with the same rows: their
commits add and remove files only with `dataChange: false`. Unknown commits count as changes: deleted ones (by default
the log keeps 30 days, since a checkpoint), and those with an unknown action.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow.fs as fs

if TYPE_CHECKING:
    from deltalake import Schema

_QUIET = frozenset({"commitInfo", "txn", "protocol", "domainMetadata", "checkpointMetadata", "sidecar"})
"""Actions that affect no row and no column."""


@dataclass(frozen=True)
class Log:
    """The commits of a Delta table around its opened version."""

    uri: str
    version: int

    @cached_property
    def same_since(self) -> int:
        """The first version that is known to hold the rows and columns of this one."""
        version = self.version
        while version > 0 and self._quiet(version):
            version -= 1
        return version

    @cached_property
    def same_until(self) -> int:
        """The last version that is known to hold the rows and columns of this one."""
        version = self.version
        while self._quiet(version + 1):
            version += 1
        return version

    @property
    def known_since(self) -> bool:
        """Whether the commit of `same_since` is readable, so that it is known to be a change."""
        return self._actions(self.same_since) is not None

    def _quiet(self, version: int) -> bool:
        """Whether a version exists and is known to have the rows and columns of the one before."""
        actions = self._actions(version)
        if actions is None:
            return False
        metadata, kinds = None, set()
        for kind, about in (pair for action in actions for pair in action.items()):
            kinds.add(kind)
            if kind == "metaData":
                metadata = about
            elif kind not in _QUIET and not (kind in ("add", "remove") and about.get("dataChange") is False):
                return False
        if ("add" in kinds) != ("remove" in kinds):
            return False  # rows were added or removed, even with dataChange: false
        return metadata is None or _columns(metadata) == self._columns_before(version)

    def _columns_before(self, version: int) -> Any:
        """The columns of the previous version; None if they are unknown."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            before = DeltaTable(self.uri, version=version - 1)
            metadata = before.metadata()
            return metadata.id, list(metadata.partition_columns), _fields(before.schema())
        except (DeltaError, OSError, ValueError, KeyError):
            return None

    def _actions(self, version: int) -> list[dict[str, Any]] | None:
        """The actions of a version's commit; None if it is missing or unreadable."""
        try:
            with self._files.open_input_stream(f"_delta_log/{version:020}.json") as commit:
                actions = [json.loads(line) for line in commit.read().splitlines() if line.strip()]
        except (OSError, ValueError, RecursionError):
            return None
        return actions if all(map(_is_action, actions)) else None

    @cached_property
    def _files(self) -> fs.FileSystem:
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.uri))


def _is_action(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(about, dict) for about in value.values())


def _columns(metadata: dict[str, Any]) -> Any:
    """The columns of a metadata action; an invalid one equals no others."""
    from deltalake import Schema

    try:
        schema = Schema.from_json(metadata["schemaString"])
        return metadata["id"], list(metadata["partitionColumns"]), _fields(schema)
    except (KeyError, TypeError, ValueError):
        return metadata


def _fields(schema: Schema) -> Any:
    """Names, types and nullability of columns, without other metadata, whose changes affect no rows."""
    return [(item["name"], item["type"], item["nullable"]) for item in json.loads(schema.to_json())["fields"]]
