"""Files that only this user can read.

What belongs here: private modes of files, and no core dumps. What does not: which files are sensitive. `Path.mkdir`
applies its mode to the last directory only, and libraries set none, so both go through the process's umask.
"""

from __future__ import annotations

import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpsynth_platform.foundation.errors import ConfigurationError

PRIVATE_UMASK = 0o077


class _Umask:
    """The process's umask, private while any thread needs it.

    Threads share one umask. If each restored the value that it found, the first to leave would expose files that
    another still creates, and the last would leave the process private for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._earlier = PRIVATE_UMASK

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._earlier = os.umask(PRIVATE_UMASK)
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                os.umask(self._earlier)

    def forked(self) -> None:
        """In a forked child no other thread releases the lock. The umask stays private if it was."""
        self._lock = threading.Lock()


_UMASK = _Umask()
os.register_at_fork(after_in_child=_UMASK.forked)


@contextmanager
def private_files() -> Iterator[None]:
    """Gives new files mode 0600 and directories 0700, in all threads of this process."""
    _UMASK.enter()
    try:
        yield
    finally:
        _UMASK.leave()


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
