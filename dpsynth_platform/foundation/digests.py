"""Canonical JSON and SHA-256, the basis of all content hashes.

What belongs here: the canonical form and its digests. What does not: deciding what is hashed. Imports the standard
library only: verifying a release needs this module and little else.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """A JSON value with sorted keys and no spaces. Raises ValueError for numbers that JSON lacks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_digest(value: Any) -> str:
    """SHA-256 (hex) of a JSON value in canonical form, as UTF-8."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
