"""Temporary directories of commands, which may hold rows and owners' ids outside of the restricted zone.

What belongs here: making one that its process locks, and finding abandoned ones. What does not: their content, and
temporary directories without data.

A killed process cannot remove its directory. The next command with the same parent removes it, and so does the purge in
the system's temporary directory. A lock marks a running process; on other machines only the age counts.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpsynth_platform.foundation.storage import HeldByAnother, held

ABANDONED_AFTER = dt.timedelta(days=1)
"""How long an unlocked directory is kept: it may be new, or locked on another machine."""
_SUFFIX = ".work"
_PREFIX = "dpsynth-"


@contextmanager
def scratch_directory(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A private directory, removed after the block; first removes abandoned ones with the same parent.

    Args:
        prefix: starts with `dpsynth-`.
        parent: by default the system's temporary directory.
    """
    for left in abandoned(dt.datetime.now(dt.UTC), parent):
        shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, suffix=_SUFFIX, dir=parent) as name,
        held(Path(name)),
    ):
        yield Path(name)


def abandoned(now: dt.datetime, parent: Path | None = None) -> list[Path]:
    """This user's unlocked scratch directories that are older than `ABANDONED_AFTER`, by name.

    Args:
        parent: by default the system's temporary directory.
    """
    found = sorted((parent or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*{_SUFFIX}"))
    return [path for path in found if _is_ours(path) and last_written(path, now) >= ABANDONED_AFTER and _is_free(path)]


def last_written(path: Path, now: dt.datetime) -> dt.timedelta:
    """Time since the last write below a path. A file that is being removed counts as written now."""
    try:
        written = max(item.stat().st_mtime for item in (path, *path.rglob("*")))
    except FileNotFoundError:
        return dt.timedelta()
    return now - dt.datetime.fromtimestamp(written, dt.UTC)


def _is_ours(path: Path) -> bool:
    """Whether it is this user's directory and not a link: a shared parent may hold those of others."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _is_free(path: Path) -> bool:
    try:
        with held(path):
            return True
    except (HeldByAnother, FileNotFoundError):
        return False
