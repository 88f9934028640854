"""Delta tables of other people: which features of the protocol are honoured, and which are refused by name.

What belongs here: opening a version of a Delta table for reading, whatever wrote it. What does not: the platform's own
tables, which have none of these features (`storage`), and which version is news (`versions`).

Of the protocol (https://github.com/delta-io/delta/blob/master/PROTOCOL.md), readers have to understand the reader
features alone. Those that only writers have to know (row tracking, identity and generated columns, invariants, check
constraints, in-commit timestamps, change data feed, domain metadata, clustering and the like) leave rows as they are.

| feature | here |
| --- | --- |
| columnMapping (by name or id) | columns have their logical names; not inside of nested columns |
| deletionVectors | rows that are marked as deleted are left out; not together with the next two |
| typeWidening | values of older files are brought to the column's type |
| vacuumProtocolCheck, v2Checkpoint, timestampNtz | say nothing of rows, or are read by the library |
| any other | refused by name |
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.files import FileTable, StoredColumn
from dpsynth_platform.sources.versions import Log

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

_MAPPING, _DELETIONS, _NTZ = "columnMapping", "deletionVectors", "timestampNtz"
_NOT_WITH_DELETIONS = ("typeWidening", "typeWidening-preview", "vacuumProtocolCheck")
HONOURED = frozenset({_MAPPING, _DELETIONS, _NTZ, "v2Checkpoint", *_NOT_WITH_DELETIONS})
"""Reader features that are understood here."""
_MODE = "delta.columnMapping.mode"
_READER_VERSION = 3
_FEATURE = re.compile(r"Kernel error: Unsupported: Feature '([A-Za-z][\w-]*)' is not supported", re.ASCII)
_CATALOG = re.compile(r"Kernel error: Max catalog version error: .*", re.ASCII)
_NESTED_UNMAPPED = (
    "is nested, in a Delta table with columnMapping, and is not read; accepted: ignore: true in its declaration, or a "
    "table without that feature"
)


class DeltaProblem(SourceError):
    """A Delta table is not read. Its words do not name the place, which the caller knows."""


class NoDeltaTable(DeltaProblem):
    """There is no Delta table at a place."""


@dataclass(frozen=True)
class DeltaVersion:
    """One version of a Delta table, opened.

    Attributes:
        table_id: the table's own id, random.
        version: its number.
        table: its columns and rows.
        log: its versions.
    """

    table_id: str
    version: int
    table: FileTable
    log: Log

    @property
    def schema(self) -> pa.Schema:
        """The columns, with their logical names."""
        return self.table.schema


def open_delta(uri: str, version: int | None = None) -> DeltaVersion:
    """Opens the newest (or the given) version of a Delta table, reading its log only.

    Raises:
        NoDeltaTable: there is none at this place.
        DeltaProblem: it cannot be read, or needs a reader feature that is not understood.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        opened = DeltaTable(uri, version=version)
        if (problem := _refused(opened)) is None:
            table_id, number = str(opened.metadata().id), opened.version()
            return DeltaVersion(table_id, number, _file_table(opened), Log(opened.table_uri, number))
    except TableNotFoundError:
        problem = None
    except (DeltaError, OSError, ValueError, KeyError, pa.ArrowException) as error:
        problem = _problem(error)
    if problem is None:
        raise NoDeltaTable("there is no Delta table at this place")
    raise DeltaProblem(problem)


def _problem(error: Exception) -> str:
    """The library's own text may quote statistics of the data, so its type must do, or the name of a feature."""
    text = str(error)
    if named := _FEATURE.fullmatch(text):
        return _unknown([named[1]])
    if _CATALOG.fullmatch(text):
        return _unknown(["catalogManaged"])
    return f"the Delta table cannot be read ({reason_of(error)}); accepted: a readable Delta table"


def _unknown(features: list[str]) -> str:
    return (
        f"the Delta table needs its readers to know {', '.join(features)}, which is not read here; accepted: a table "
        f"without it (ALTER TABLE ... DROP FEATURE, or a copy), or with {', '.join(sorted(HONOURED))}"
    )


def _features(opened: DeltaTable) -> set[str]:
    """The reader features that a table uses."""
    protocol = opened.protocol()
    found = set(protocol.reader_features or ())
    return found | ({_MAPPING} if protocol.min_reader_version == 2 else set())


def _refused(opened: DeltaTable) -> str | None:
    """Why a table is not read, or None."""
    protocol, features = opened.protocol(), _features(opened)
    if protocol.min_reader_version > _READER_VERSION:
        return _unknown([f"protocol version {protocol.min_reader_version}"])
    if others := sorted(features - HONOURED):
        return _unknown(others)
    mode = opened.metadata().configuration.get(_MODE, "none")
    if mode not in ("none", "name", "id") or (mode != "none" and _MAPPING not in features):
        return f"the Delta table has {_MODE} {mode!r}, and its protocol does not have {_MAPPING}; accepted: both"
    together = sorted(features.intersection(_NOT_WITH_DELETIONS))
    if _DELETIONS in features and together:
        return (
            f"the Delta table has {_DELETIONS} together with {', '.join(together)}, which is not read here; accepted: "
            "either of them, after REORG TABLE ... APPLY (PURGE) and ALTER TABLE ... DROP FEATURE, or a copy"
        )
    return None


def _file_table(opened: DeltaTable) -> FileTable:
    if _features(opened) <= {_NTZ}:
        return FileTable(opened.to_pyarrow_dataset())
    stored, nested = _stored(opened)
    dataset = _dataset(opened)
    kept = _kept(opened, dataset) if _DELETIONS in _features(opened) else {}
    return FileTable(dataset, stored, kept, dict.fromkeys(nested, _NESTED_UNMAPPED))


def _stored(opened: DeltaTable) -> tuple[dict[str, StoredColumn] | None, list[str]]:
    """Where the files of a table with column mapping keep its columns, and which of those are nested."""
    mode = opened.metadata().configuration.get(_MODE, "none")
    if mode == "none":
        return None, []
    stored, nested = {}, []
    for item in json.loads(opened.schema().to_json())["fields"]:
        about = item["metadata"]
        number = int(about["delta.columnMapping.id"]) if mode == "id" else None
        stored[item["name"]] = StoredColumn(about["delta.columnMapping.physicalName"], number)
        if _has_fields(item["type"]):
            nested.append(item["name"])
    return stored, nested


def _has_fields(type_: Any) -> bool:
    """Whether a type has fields of its own, whose names would be mapped, too."""
    if not isinstance(type_, dict):
        return False
    return type_["type"] == "struct" or any(_has_fields(part) for part in type_.values())


def _dataset(opened: DeltaTable) -> ds.FileSystemDataset:
    """The files of a version as the log lists them, with the values of partition columns."""
    import pyarrow.dataset as ds
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    schema = pa.schema(opened.schema().to_arrow())
    actions = pa.table(opened.get_add_actions(flatten=False))
    sizes = dict(zip(_paths(actions), actions["size_bytes"].to_pylist(), strict=True))
    files = PyFileSystem(DeltaStorageHandler(opened.table_uri, None, sizes))
    layout = ds.ParquetFileFormat()
    values = actions["partition"].to_pylist() if "partition" in actions.column_names else [{}] * actions.num_rows
    fragments = [
        layout.make_fragment(path, files, partition_expression=_place(schema, found))
        for path, found in zip(sizes, values, strict=True)
    ]
    return ds.FileSystemDataset(fragments, schema, layout, files)


def _paths(actions: pa.Table) -> Iterator[str]:
    """Paths below the table's root; in the log, they are URLs."""
    return (unquote(path) for path in actions["path"].to_pylist())


def _place(schema: pa.Schema, values: Mapping[str, Any]) -> pc.Expression:
    """What all rows of a file have in common."""
    place = pc.scalar(True)
    for name, value in values.items():
        known = (
            pc.field(name).is_null() if value is None else pc.field(name) == pa.scalar(value, schema.field(name).type)
        )
        place = place & known
    return place


def _kept(opened: DeltaTable, dataset: ds.FileSystemDataset) -> dict[str, pa.BooleanArray]:
    """By file, which rows its deletion vector leaves.

    Raises:
        ValueError: a vector is of no file, so that rows would come back.
    """
    paths = set(dataset.files)
    root = unquote(opened.table_uri).rstrip("/") + "/"
    kept = {}
    for batch in pa.RecordBatchReader.from_stream(opened.deletion_vectors()):
        for row, place in enumerate(batch["filepath"].to_pylist()):
            path = unquote(place).removeprefix(root)
            if path not in paths or path in kept:
                raise ValueError("a deletion vector is of no file of this version")
            kept[path] = pa.concat_arrays([batch["selection_vector"][row].values])
    return kept
