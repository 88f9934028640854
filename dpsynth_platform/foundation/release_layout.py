"""What a release's directory holds: the names of its files, and listing them.

What belongs here: names that the writer and every reader of a release share. What does not: content, hashes and
signatures.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

ATTESTATION = "attestation.dsse.json"
PUBLIC_KEY = "public_key.pem"
DOSSIER = "dossier.json"
PAGE = "dossier.html"
SCHEMA = "dossier.schema.json"
CROISSANT = "croissant.json"
CARD = "README.md"
DATA = "data"


def has_rows(directory: Path) -> bool:
    """Whether anything of a release's table is there."""
    return os.path.lexists(directory / DATA)


def regular_files(directory: Path) -> dict[str, Path]:
    """Every regular file below a directory by its relative name; links are not followed and not listed."""
    return {
        path.relative_to(directory).as_posix(): path
        for path in sorted(directory.rglob("*"))
        if stat.S_ISREG(path.lstat().st_mode)
    }
