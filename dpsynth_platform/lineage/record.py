"""The platform's own record of events: a file of JSON lines that several processes append to.

What belongs here: appending durably and reading back, also after crashes. What does not: the meaning of the lines. A
process that dies while it writes leaves a torn last line. The next writer ends that line first, so that no two events
are merged, and readers skip lines that are no JSON object.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class JsonLines:
    """An append-only file of JSON objects, one a line (mode 0600, its directory 0700)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Opens the file for appending, under an exclusive lock. Yields the file descriptor. Raises `OSError`."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)  # releases the lock

    def append(self, descriptor: int, entry: dict[str, Any]) -> None:
        """Appends one object in a single write and flushes it to disk. Call it inside `locked`.

        Raises:
            OSError: nothing was appended; the remains of a failed write are removed.
        """
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        line = (b"\n" if torn else b"") + text.encode() + b"\n"
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the usual cause of a short write
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise

    def last(self, descriptor: int) -> dict[str, Any] | None:
        """The object on the last line, or None if that is missing or damaged. Call it inside `locked`."""
        size, length = os.fstat(descriptor).st_size, 1 << 16
        while True:
            tail = os.pread(descriptor, length, max(0, size - length))
            line = tail.rstrip(b"\n").rpartition(b"\n")
            if line[1] or length >= size:
                return parse(line[2])
            length *= 4

    def has_content(self) -> bool:
        """Whether anything was appended; without a lock, so a concurrent write may be missed."""
        try:
            return self.path.stat().st_size > 0
        except OSError:
            return False

    def empty(self, descriptor: int) -> None:
        """Removes everything. Call it inside `locked`."""
        os.ftruncate(descriptor, 0)
        os.fsync(descriptor)

    def read(self) -> Iterator[dict[str, Any]]:
        """All objects in order. Damaged lines are skipped; a missing file is empty."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            yield from (entry for line in file if (entry := parse(line)) is not None)


def run_event(entry: dict[str, Any]) -> bool:
    """Whether an object has the parts of a run event that readers of the record require."""
    match entry:
        case {"eventType": str(), "run": {"runId": str()}, "job": {"name": str()}}:
            return True
    return False


def parse(line: bytes) -> dict[str, Any] | None:
    """One line as an object, or None if it is torn, damaged or another value."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
