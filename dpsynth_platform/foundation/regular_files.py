"""Reading files that users name: regular files of limited size, opened without blocking.

What belongs here: refusing named pipes, devices and endless files. What does not: the meaning of the content.
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
    """Refuses files that would block or never end; accepts directories and missing files.

    Raises:
        NotUsable: a named pipe, socket or device.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    _refuse(mode, path)


MOST_BYTES = 2**30
"""Of a file that a user names; files that the platform writes have other bounds."""


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        OSError: it cannot be read, is of another kind, or larger.
        ValueError: the name is invalid.
    """
    # Opening a pipe without a writer would block. Checking the name first leaves devices unopened.
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
