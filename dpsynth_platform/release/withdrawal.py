"""Withdrawing a release's files: write its tombstone, then delete its rows; dossier and signatures stay.

What belongs here: changes in the release's directory; repeating them completes an interrupted attempt. What does not:
the ledger's record and the lineage event (`withdrawing`), and the tombstone's format (`tombstone`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpsynth_platform.foundation.release_layout import ROWS
from dpsynth_platform.foundation.storage import sync
from dpsynth_platform.release.publish import only_one
from dpsynth_platform.release.tombstone import ATTESTATION, TOMBSTONE, Tombstone


def bury(directory: Path, tombstone: Tombstone, key: Ed25519PrivateKey) -> bool:
    """Writes a signed tombstone into a release's directory and deletes its rows. Returns whether there were any."""
    with only_one(directory.parent):
        # The signature first, so that every visible tombstone can be checked.
        _write_public(directory / ATTESTATION, tombstone.seal(key))
        _write_public(directory / TOMBSTONE, tombstone.to_bytes())
        return sum(_delete(directory / name) for name in ROWS) > 0


def _delete(rows: Path) -> bool:
    if not os.path.lexists(rows):
        return False
    if rows.is_symlink() or not rows.is_dir():
        rows.unlink()
    else:
        shutil.rmtree(rows)
    sync(rows.parent)
    return True


def _write_public(path: Path, content: bytes) -> None:
    """Replaces a file atomically, readable by all and flushed to disk."""
    partial = path.with_name(f".{path.name}")  # `only_one` excludes other writers
    partial.unlink(missing_ok=True)
    partial.write_bytes(content)
    partial.chmod(0o644)
    sync(partial)
    partial.replace(path)
    sync(path.parent)
