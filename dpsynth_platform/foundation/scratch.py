"""Temporary directories of commands, which may hold rows and owners' ids outside of the restricted zone.

What belongs here: making one that its process holds as long as it lives, and finding those whose process was killed
before it could remove its own. What does not: what is written there, and temporary directories without data.

A killed process takes nothing along (SIGKILL, power), so what it left is removed by whoever comes by: the next command
that works in the same place, and the sweep of what has expired, which looks into the system's place. A lock tells the
living from the dead; those of other machines, where the place is shared, by their age alone.
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
"""How long one that nobody holds is kept: the moment between making and holding it, and other machines."""
_SUFFIX = ".work"
_PREFIX = "dpsynth-"


@contextmanager
def scratch_directory(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A directory for this user alone, gone after the block; first removes those that were abandoned beside it.

    Args:
        prefix: begins its name, and begins with `dpsynth-`.
        parent: where it is made; None: the system's place.
    """
    for left in abandoned(dt.datetime.now(dt.UTC), parent):
        shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, suffix=_SUFFIX, dir=parent) as name,
        held(Path(name)),
    ):
        yield Path(name)


def abandoned(now: dt.datetime, parent: Path | None = None) -> list[Path]:
    """This user's scratch directories whose process is gone for `ABANDONED_AFTER`, in the order of their names.

    Args:
        parent: where to look; None: the system's place.
    """
    found = sorted((parent or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*{_SUFFIX}"))
    return [path for path in found if _is_ours(path) and last_written(path, now) >= ABANDONED_AFTER and _is_free(path)]


def last_written(path: Path, now: dt.datetime) -> dt.timedelta:
    """Time since anything in it was written. A file that is removed in this moment counts as written now."""
    try:
        written = max(item.stat().st_mtime for item in (path, *path.rglob("*")))
    except FileNotFoundError:
        return dt.timedelta()
    return now - dt.datetime.fromtimestamp(written, dt.UTC)


def _is_ours(path: Path) -> bool:
    """Whether it is a directory of this user's, and no link: a place for all users may hold what others have put."""
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
