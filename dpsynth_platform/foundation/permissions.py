"""Files for this user alone.

What belongs here: making what is sensitive unreadable for others, and images of memory not at all. What does not: what
is sensitive; who writes into the restricted zone knows. `Path.mkdir` gives its mode to the last directory only, and
libraries that write files ask for no mode at all, so both go through the process's umask.
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
    """The process's umask, private while any thread asks for it.

    A process has one umask for all of its threads. Were each thread to give back what it had found, the first to leave
    would open the files that another is still making, and the last would leave the process private for good.
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
        """In a forked child, where no other thread will let go of the lock; what they held private stays so."""
        self._lock = threading.Lock()


_UMASK = _Umask()
os.register_at_fork(after_in_child=_UMASK.forked)


@contextmanager
def private_files() -> Iterator[None]:
    """Files made inside are of mode 0600, directories 0700, whichever thread of this process makes them."""
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
    """`private_directory`, and one that is there already becomes private too; returns the path.

    Raises:
        ConfigurationError: others may use it and it is not this user's to close: somebody else's, or a shared one.
    """
    found = private_directory(path).stat()
    shared = found.st_mode & stat.S_ISVTX or found.st_uid != os.geteuid()
    if found.st_mode & PRIVATE_UMASK and shared:
        raise ConfigurationError(
            f"{path} is open to others and not this user's to close; accepted: a directory of its own, mode 0700"
        )
    make_private(path)
    return path


def make_private(path: Path) -> None:
    """Takes from a file or directory all that others may do. Raises `OSError` where it is not this user's.

    By name, never by a descriptor: closing one would drop the locks that SQLite holds on the file in this process.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & PRIVATE_UMASK:
        path.chmod(mode & ~PRIVATE_UMASK)


def no_core_dumps() -> None:
    """Forbids this process, and all that it starts, to leave an image of its memory behind when it crashes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
