"""Foreign Delta tables: the supported reader features of the protocol, and the refusal of all others by name.

What belongs here: opening a version of a Delta table for reading, whatever wrote it. What does not: the platform's own
tables, which have none of these features (`storage`), and which versions have new rows (`versions`).

Readers must understand the reader features of the protocol only
(https://github.com/delta-io/delta/blob/master/PROTOCOL.md). Writer features (row tracking, generated columns, check
constraints, change data feed, clustering and others) do not affect reading.

| feature | here |
| --- | --- |
| columnMapping (by name or id) | columns have their logical names; not inside nested columns |
| deletionVectors | deleted rows are left out; not together with typeWidening or vacuumProtocolCheck |
| typeWidening | values of older files are cast to the column's type |
| variantType | nothing, in a table without a variant: delta-rs names it beside deletionVectors |
| vacuumProtocolCheck, v2Checkpoint, timestampNtz | do not affect rows, or are read by the library |
| any other | refused by name |
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.storage import arrow_files, unusable_place
from dpsynth_platform.sources.files import FileTable, StoredColumn, partition_of
from dpsynth_platform.sources.versions import Log

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    import pyarrow.fs as fs
    from deltalake import DeltaTable

_MAPPING, _DELETIONS, _NTZ = "columnMapping", "deletionVectors", "timestampNtz"
_NOT_WITH_DELETIONS = ("typeWidening", "typeWidening-preview", "vacuumProtocolCheck")
HONOURED = frozenset({_MAPPING, _DELETIONS, _NTZ, "v2Checkpoint", *_NOT_WITH_DELETIONS})
"""Supported reader features."""
_VARIANTS = frozenset({"variantType", "variantType-preview"})
_MODE = "delta.columnMapping.mode"
_READER_VERSION = 3
_FEATURE = re.compile(r"Kernel error: Unsupported: Feature '([A-Za-z][\w-]*)' is not supported", re.ASCII)
_CATALOG = re.compile(r"Kernel error: Max catalog version error: .*", re.ASCII)
_NESTED_UNMAPPED = (
    "is nested, in a Delta table with columnMapping, and is not read; accepted: ignore: true in its declaration, or a "
    "table without that feature"
)


class DeltaProblem(SourceError):
    """A Delta table cannot be read. The message does not name the place, which the caller knows."""


class NoDeltaTable(DeltaProblem):
    """There is no Delta table at a place."""


@dataclass(frozen=True)
class DeltaVersion:
    """One opened version of a Delta table; `table_id` is the table's own random id."""

    table_id: str
    version: int
    table: FileTable
    log: Log


def open_delta(uri: str, version: int | None = None) -> DeltaVersion:
    """Opens the newest (or the given) version of a Delta table, reading its log only.

    Raises:
        NoDeltaTable: there is none at this place.
        DeltaProblem: it cannot be read, or needs an unsupported reader feature.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    local = unquote(urlsplit(uri).path) if uri.startswith("file://") else uri
    unusable = None if "://" in local else unusable_place(Path(local).absolute())
    if unusable is not None:
        raise DeltaProblem(unusable)
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
    """The error's type or the name of a feature: the library's own text may quote statistics of the data."""
    text = str(error)
    if named := _FEATURE.fullmatch(text):
        return _unknown([named[1]])
    if _CATALOG.fullmatch(text):
        return _unknown(["catalogManaged"])
    return f"the Delta table cannot be read ({reason_of(error)}); accepted: a readable Delta table"


def _unknown(features: list[str]) -> str:
    return (
        f"the Delta table needs the reader feature {', '.join(features)}, which is not supported; accepted: a table "
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
    if not _holds(json.loads(opened.schema().to_json()), "variant"):
        features -= _VARIANTS
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
            f"the Delta table has {_DELETIONS} together with {', '.join(together)}, which is not supported; accepted: "
            "either of them, after REORG TABLE ... APPLY (PURGE) and ALTER TABLE ... DROP FEATURE, or a copy"
        )
    return None


def _file_table(opened: DeltaTable) -> FileTable:
    if _features(opened) <= {_NTZ}:
        return FileTable(opened.to_pyarrow_dataset(filesystem=_local_files(opened)))
    stored, nested = _stored(opened)
    dataset = _dataset(opened)
    kept = _kept(opened, dataset) if _DELETIONS in _features(opened) else {}
    return FileTable(dataset, stored, kept, dict.fromkeys(nested, _NESTED_UNMAPPED))


def _stored(opened: DeltaTable) -> tuple[dict[str, StoredColumn] | None, list[str]]:
    """The columns' places in the files of a table with column mapping, and the names of nested columns."""
    mode = opened.metadata().configuration.get(_MODE, "none")
    if mode == "none":
        return None, []
    stored, nested = {}, []
    for item in json.loads(opened.schema().to_json())["fields"]:
        about = item["metadata"]
        number = int(about["delta.columnMapping.id"]) if mode == "id" else None
        stored[item["name"]] = StoredColumn(about["delta.columnMapping.physicalName"], number)
        if _holds(item["type"], "struct"):  # whose fields have other names in the files, too
            nested.append(item["name"])
    return stored, nested


def _holds(type_: Any, name: str) -> bool:
    """Whether a type is another one by its name, or has a part that is."""
    if isinstance(type_, list):
        return any(_holds(item, name) for item in type_)
    if isinstance(type_, dict):
        return any(_holds(type_.get(key), name) for key in ("fields", "type", "elementType", "keyType", "valueType"))
    return bool(type_ == name)


def _local_files(opened: DeltaTable) -> fs.FileSystem | None:
    """The table's directory by Arrow itself (`storage.arrow_files`); None: it is not on this machine."""
    place = urlsplit(opened.table_uri)
    return arrow_files(Path(unquote(place.path))) if place.scheme == "file" else None


def _dataset(opened: DeltaTable) -> ds.FileSystemDataset:
    """The files of a version as the log lists them, with the values of partition columns."""
    import pyarrow.dataset as ds
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    schema = pa.schema(opened.schema().to_arrow())
    actions = pa.table(opened.get_add_actions(flatten=False))
    # Paths in the log are URLs.
    sizes = dict(zip(map(unquote, actions["path"].to_pylist()), actions["size_bytes"].to_pylist(), strict=True))
    files = _local_files(opened) or PyFileSystem(DeltaStorageHandler(opened.table_uri, None, sizes))
    layout = ds.ParquetFileFormat()
    values = actions["partition"].to_pylist() if "partition" in actions.column_names else [{}] * actions.num_rows
    fragments = [
        layout.make_fragment(path, files, partition_expression=partition_of(schema, found))
        for path, found in zip(sizes, values, strict=True)
    ]
    return ds.FileSystemDataset(fragments, schema, layout, files)


def _kept(opened: DeltaTable, dataset: ds.FileSystemDataset) -> dict[str, pa.BooleanArray]:
    """The rows that deletion vectors leave, by file. ValueError: a vector has no file, so deleted rows would return."""
    paths = set(dataset.files)
    root = unquote(opened.table_uri).rstrip("/") + "/"
    kept = {}
    for batch in pa.RecordBatchReader.from_stream(opened.deletion_vectors()):
        for row, place in enumerate(batch["filepath"].to_pylist()):
            path = unquote(place).removeprefix(root)
            if path not in paths or path in kept:
                raise ValueError("a deletion vector belongs to no file of this version")
            kept[path] = pa.concat_arrays([batch["selection_vector"][row].values])
    return kept
