"""Delta tables with features that the installed writer does not write: logs by hand, real data files."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TABLE_ID = "5fba94ed-9794-4965-ba6e-6ee3c0d22af9"
_VECTOR_MAGIC = 1681511377
_COOKIE = 12346

Action = dict[str, Any]


def field(name: str, type_: Any, **metadata: Any) -> dict[str, Any]:
    """A column of a Delta schema."""
    return {"name": name, "type": type_, "nullable": True, "metadata": metadata}


def mapped(name: str, type_: Any, number: int, physical: str) -> dict[str, Any]:
    """A column of a Delta schema with column mapping."""
    return field(name, type_, **{"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical})


def numbered(name: str, number: int, values: pa.Array) -> tuple[pa.Field, pa.Array]:
    """A column of a data file that says its number."""
    return pa.field(name, values.type, metadata={"PARQUET:field_id": str(number)}), values


def protocol(readers: Sequence[str] = (), writers: Sequence[str] = (), **versions: int) -> Action:
    """A protocol action: of features, or of versions alone."""
    if versions:
        return {"protocol": versions}
    found: Action = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
    if readers:
        found["readerFeatures"] = list(readers)
    return {"protocol": found | {"writerFeatures": [*readers, *writers]}}


def metadata(fields: Sequence[Mapping[str, Any]], partitions: Sequence[str] = (), **configuration: str) -> Action:
    """A metadata action."""
    return {
        "metaData": {
            "id": TABLE_ID,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
            "partitionColumns": list(partitions),
            "configuration": configuration,
            "createdTime": 0,
        }
    }


def add(root: Path, name: str, table: pa.Table, **more: Any) -> Action:
    """Writes a data file; the action that adds it."""
    root.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, root / name)
    return {
        "add": {
            "path": name,
            "partitionValues": {},
            "size": (root / name).stat().st_size,
            "modificationTime": 0,
            "dataChange": True,
            "stats": json.dumps({"numRecords": table.num_rows}),
            **more,
        }
    }


def remove(name: str, **more: Any) -> Action:
    """The action that removes a data file."""
    return {"remove": {"path": name, "deletionTimestamp": 0, "dataChange": True, **more}}


def commit(root: Path, version: int, *actions: Action) -> Path:
    """Writes one version's commit."""
    log = root / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return root


def deleted(*rows: int) -> dict[str, Any]:
    """A deletion vector, inline: what an `add` has of it."""
    bitmap = struct.pack("<QIIIHHI", 1, 0, _COOKIE, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    content = struct.pack("<i", _VECTOR_MAGIC) + bitmap
    padded = content + bytes(-len(content) % 4)
    return {
        "deletionVector": {
            "storageType": "i",
            "pathOrInlineDv": _z85(padded),
            "sizeInBytes": len(content),
            "cardinality": len(rows),
        }
    }


def deleted_in_file(root: Path, *rows: int) -> dict[str, Any]:
    """A deletion vector in a file of its own, below the table."""
    inline = deleted(*rows)["deletionVector"]
    content = _from_z85(inline["pathOrInlineDv"])[: inline["sizeInBytes"]]
    number = bytes(range(16))
    name = f"deletion_vector_{number[:4].hex()}-{number[4:6].hex()}-{number[6:8].hex()}-{number[8:10].hex()}-"
    name += f"{number[10:].hex()}.bin"
    import zlib

    stored = b"\x01" + struct.pack(">i", len(content)) + content + struct.pack(">I", zlib.crc32(content))
    (root / name).write_bytes(stored)
    about = {"storageType": "u", "pathOrInlineDv": _z85(number), "offset": 1}
    return {"deletionVector": inline | about}


_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def _z85(content: bytes) -> str:
    return base64.b85encode(content).decode().translate(str.maketrans(_B85, _Z85))


def _from_z85(text: str) -> bytes:
    return base64.b85decode(text.translate(str.maketrans(_Z85, _B85)))
