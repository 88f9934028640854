"""Files that only this user can read.

What belongs here: private modes of files, and no core dumps. What does not: which files are sensitive. `Path.mkdir`
applies its mode to the last directory only, and libraries set none, so both go through the process's umask.
"""

from __future__ import annotations

import os
import resource
import stat
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.process_state import ChangedWhileNeeded

PRIVATE_UMASK = 0o077


_PRIVATE = ChangedWhileNeeded(lambda: partial(os.umask, os.umask(PRIVATE_UMASK)))


def private_files() -> AbstractContextManager[None]:
    """Gives new files mode 0600 and directories 0700, in all threads of this process."""
    return _PRIVATE


def private_directory(path: Path) -> Path:
    """Makes a directory and its missing parents, mode 0700 each; returns the path."""
    with private_files():
        path.mkdir(parents=True, exist_ok=True)
    return path


def closed_directory(path: Path) -> Path:
    """As `private_directory`, and makes an existing one private too; returns the path.

    Raises:
        ConfigurationError: others can use it, and this user does not own it or it is shared (sticky).
    """
    found = private_directory(path).stat()
    shared = found.st_mode & stat.S_ISVTX or found.st_uid != os.geteuid()
    if found.st_mode & PRIVATE_UMASK and shared:
        raise ConfigurationError(
            f"{path} is open to others, and this user cannot close it; accepted: a directory of this user, mode 0700"
        )
    make_private(path)
    return path


def make_private(path: Path) -> None:
    """Removes the permissions of others. Raises `OSError` where the file is not this user's.

    By name, never by a descriptor: closing one would release SQLite's locks on the file in this process.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & PRIVATE_UMASK:
        path.chmod(mode & ~PRIVATE_UMASK)


def no_core_dumps() -> None:
    """Disables core dumps of this process and its children."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
