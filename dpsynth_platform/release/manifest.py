"""The manifest: what exactly a release consists of, as the bytes that are signed.

What belongs here: listing files with their hashes, and the canonical form. What does not: signing and judging.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts import canonical_digest
from dpsynth_platform.storage import digest_file

FORMAT = "dpsynth-release/1"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
PUBLIC_KEY = "public_key.pem"
DOSSIER = "dossier.json"
PAGE = "dossier.html"
DATA = "data"
NOT_LISTED = frozenset({MANIFEST, SIGNATURE, PUBLIC_KEY})
"""Files that a manifest cannot list: itself and what vouches for it."""


def regular_files(directory: Path) -> dict[str, Path]:
    """Every regular file below a directory by its relative name; links are not followed and not listed."""
    return {
        path.relative_to(directory).as_posix(): path
        for path in sorted(directory.rglob("*"))
        if stat.S_ISREG(path.lstat().st_mode)
    }


def build(directory: Path, dossier: Mapping[str, Any], key_fingerprint: str) -> dict[str, Any]:
    """The manifest of a staged release.

    Each part of the dossier has a digest of its own, so that a later change can be told by its JSON path.
    """
    files = [
        {"path": name, "sha256": digest_file(path), "size": path.stat().st_size}
        for name, path in regular_files(directory).items()
        if name not in NOT_LISTED
    ]
    return {
        "format": FORMAT,
        "release_id": dossier["release"]["id"],
        "candidate": dossier["commitments"]["candidate"],
        "ledger_head": dossier["ledger"]["head"],
        "key_fingerprint": key_fingerprint,
        "files": files,
        "dossier": section_digests(dossier),
    }


def section_digests(dossier: Mapping[str, Any]) -> dict[str, str]:
    """Canonical digest of each top-level part of a dossier."""
    return {name: canonical_digest(part) for name, part in dossier.items()}


def to_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Canonical JSON: sorted keys, no spaces, UTF-8, one line feed at the end."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"
