"""Versions of a Delta table that hold the same rows.

What belongs here: reading, from the commits of a table's log, whether they changed rows or columns. What does not:
opening a version (`delta`), and what follows from a new one (`dpsynth_platform.reviewing.new_versions`).

Compaction, clustering, vacuum, properties, protocol and transaction markers make versions, and no news: their commits
add and remove files with `dataChange: false` at most. What cannot be known counts as news: a commit that was cleaned up
(the log keeps those since a checkpoint, 30 days of them by default), or an action that is not known here.
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
"""Actions that are of no row and no column."""


@dataclass(frozen=True)
class Log:
    """The commits of a Delta table.

    Attributes:
        uri: of the table.
        version: the one that was opened.
    """

    uri: str
    version: int

    @cached_property
    def same_since(self) -> int:
        """The first version of those up to this one that are known to hold the same rows and columns."""
        version = self.version
        while version > 0 and self._quiet(version):
            version -= 1
        return version

    @cached_property
    def same_until(self) -> int:
        """The last version of those from this one on that are known to hold the same rows and columns."""
        version = self.version
        while self._quiet(version + 1):
            version += 1
        return version

    @property
    def known_since(self) -> bool:
        """Whether the commit that made `same_since` is there, so that it is known to be news."""
        return self._actions(self.same_since) is not None

    def _quiet(self, version: int) -> bool:
        """Whether a version is there and known to have the rows and columns of the one before."""
        actions = self._actions(version)
        if actions is None:
            return False
        metadata = None
        files = {"add": 0, "remove": 0}
        for action in actions:
            for kind, about in action.items():
                if kind in files:
                    files[kind] += 1
                if kind == "metaData":
                    metadata = about
                elif kind not in _QUIET and not (kind in ("add", "remove") and about.get("dataChange") is False):
                    return False
        if bool(files["add"]) != bool(files["remove"]):
            return False  # whatever it says of itself: rows came or went
        return metadata is None or _columns(metadata) == self._columns_before(version)

    def _columns_before(self, version: int) -> Any:
        """The columns of the version before one; None if that cannot be known."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            before = DeltaTable(self.uri, version=version - 1)
            metadata = before.metadata()
            return metadata.id, list(metadata.partition_columns), _fields(before.schema())
        except (DeltaError, OSError, ValueError, KeyError):
            return None

    def _actions(self, version: int) -> list[dict[str, Any]] | None:
        """What a version's commit did; None if it is not there or cannot be read."""
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
    """The columns that a metadata action declares; equal to no others where it is none."""
    from deltalake import Schema

    try:
        schema = Schema.from_json(metadata["schemaString"])
        return metadata["id"], list(metadata["partitionColumns"]), _fields(schema)
    except (KeyError, TypeError, ValueError):
        return metadata


def _fields(schema: Schema) -> Any:
    """Names and types of columns; what else is said of them is no news, nor is where files keep them."""
    return [(item["name"], item["type"], item["nullable"]) for item in json.loads(schema.to_json())["fields"]]
