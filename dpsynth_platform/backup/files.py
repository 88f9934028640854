"""Copies files from a deployment to a backup, and back.

What belongs here: copying files that are replaced as a whole. What does not: which ones (`taking`, `restoring`).
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.release_layout import regular_files
from dpsynth_platform.foundation.storage import sync


def copy_missing(source: Path, target: Path) -> None:
    """Copies every file below a directory that the target lacks: private, atomic for each file, durable on return.

    Ignores a missing source, a file that disappears meanwhile, links, and partial files (their names start with a dot).
    Raises `OSError`.
    """
    for name, path in regular_files(source).items() if source.is_dir() else ():
        place = target / name
        if place.name.startswith(".") or place.exists():
            continue
        private_directory(place.parent)
        partial = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
        with suppress(FileNotFoundError), private_files():
            shutil.copyfile(path, partial)
            sync(partial)
            partial.replace(place)
            sync(place.parent)
