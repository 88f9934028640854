"""Names of the files of a release, and listing them.

What belongs here: names that the writer and all readers share. What does not: content, hashes and signatures.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

ATTESTATION = "attestation.dsse.json"
PUBLIC_KEY = "public_key.pem"
DOSSIER = "dossier.json"
PAGE = "dossier.html"
SCHEMA = "dossier.schema.json"
CROISSANT = "croissant.json"
CARD = "README.md"
DATA = "data"
SAMPLE = "sample.json"
SHEET = "pictures.png"
SINGLE = ""
"""Name of the table of a release that has one only: it lies in `DATA` itself, linked tables each in `DATA/TABLE`."""
ROWS = (DATA, SAMPLE, SHEET)
"""What holds published rows or pictures of them. A withdrawal deletes these; nothing else of a release holds any."""


def has_rows(directory: Path) -> bool:
    """Whether a release still has its table, or its first rows or pictures."""
    return any(os.path.lexists(directory / name) for name in ROWS)


def holds_rows(name: str) -> bool:
    """Whether a release's file, by its relative name, is one of those that hold rows."""
    return name.split("/", 1)[0] in ROWS


def table_files(files: Iterable[str], table: str) -> list[str]:
    """Of a release's files, by their relative names, those of a table, relative to its directory."""
    start = f"{DATA}/{table}/" if table else f"{DATA}/"
    return [name.removeprefix(start) for name in files if name.startswith(start)]


def regular_files(directory: Path) -> dict[str, Path]:
    """The regular files below a directory by relative name; without links."""
    return {
        path.relative_to(directory).as_posix(): path
        for path in sorted(directory.rglob("*"))
        if stat.S_ISREG(path.lstat().st_mode)
    }
