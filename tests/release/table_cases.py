"""Tables as `publish` takes them, and releases that their own publisher changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation import signature
from dpsynth_platform.release.attestation import Envelope, release_statement
from dpsynth_platform.release.publish import TableRows


def one_table(batches: Iterable[pa.RecordBatch], schema: pa.Schema | None = None) -> dict[str, TableRows]:
    """A single table; the schema is that of the first batch unless given."""
    if schema is None:
        batches = list(batches)
        schema = batches[0].schema
    return {"": TableRows(schema, batches)}


def pem(key: Ed25519PrivateKey) -> bytes:
    return signature.public_pem(key.public_key())


def resign(path: Path, key: Ed25519PrivateKey, **changes: Any) -> None:
    """What someone with a key of their own can do: sign whatever is there now, with a changed predicate or subjects."""
    (path / layout.PUBLIC_KEY).write_bytes(pem(key))
    statement = release_statement(path, json.loads((path / layout.DOSSIER).read_text()))
    statement["subject"] = changes.pop("subject", statement["subject"])
    statement["predicate"] |= changes
    (path / layout.ATTESTATION).write_bytes(Envelope.seal(statement, key).to_bytes())


def rewrite(path: Path, key: Ed25519PrivateKey, change: Callable[[dict[str, Any]], None]) -> None:
    """A dossier that its own publisher changed and signed again."""
    dossier = json.loads((path / layout.DOSSIER).read_text())
    change(dossier)
    (path / layout.DOSSIER).write_text(json.dumps(dossier))
    resign(path, key)
