"""Files of a backup: from the deployment into it, and back.

What belongs here: copying files that are written whole and seldom. What does not: which ones (`taking`, `restoring`).
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
    """Copies every file below a directory that the target lacks: for this user alone, each whole, durable on return.

    A source that is not there is an empty one, and so is a file that goes meanwhile. Links are not followed, and what
    is being written (a name with a dot) is not looked at.

    Raises:
        OSError: something cannot be read or written.
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
