"""Whole content of files that people name: regular files up to a size, opened without waiting.

What belongs here: keeping a named pipe, a device or an endless file from blocking or filling a process. What does not:
what the content means.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from dpsynth_platform.foundation.errors import NotUsable

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: Path) -> None:
    """Refuses what would block or never end when it is opened; directories and missing files are left to the reader.

    Raises:
        OSError: a named pipe, socket or device, in words that `errors.file_problem` passes on.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    _refuse(mode, path)


MOST_BYTES = 2**30
"""Of a file that people name; what the platform itself writes has its own bounds."""


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        OSError: there is none that can be read, it is of another kind, or larger.
        ValueError: no file can have this name.
    """
    # A pipe without a writer would block the opening. Looking at the name first keeps devices unopened.
    check_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        _refuse(os.fstat(descriptor).st_mode, path)
        content = file.read(most + 1)
    if len(content) > most:
        raise NotUsable(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return content


def _refuse(mode: int, path: Path) -> None:
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise NotUsable(errno.EINVAL, f"it is {kind}; accepted: a regular file", str(path))
