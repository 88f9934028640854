"""The platform's own record of events: a file of JSON lines that several processes append to.

What belongs here: appending durably and reading back, with crashes in mind. What does not: what the lines mean. A
process that dies while it writes leaves a torn last line. The next writer ends that line before it begins its own, so
that no event is ever merged with another, and readers pass over lines that are no JSON object.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class JsonLines:
    """An append-only file of JSON objects, one a line (mode 0600, its directory 0700)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Holds the file open for appending, and every other writer away. Yields the file descriptor.

        Raises:
            OSError: the file cannot be opened or made.
        """
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
            OSError: nothing was appended; what a failed write left is cut off again.
        """
        size = self.size(descriptor)
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        line = (b"\n" if torn else b"") + text.encode() + b"\n"
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # what else cuts a write short
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise

    def size(self, descriptor: int) -> int:
        """Length of the open file in bytes."""
        return os.fstat(descriptor).st_size

    def last(self, descriptor: int) -> dict[str, Any] | None:
        """The object on the last line, or None where there is no line or a damaged one. Call it inside `locked`."""
        size, length = self.size(descriptor), 1 << 16
        while True:
            tail = os.pread(descriptor, length, max(0, size - length))
            line = tail.rstrip(b"\n").rpartition(b"\n")
            if line[1] or length >= size:
                return parse(line[2])
            length *= 4

    def has_content(self) -> bool:
        """Whether anything was appended; without a lock, so that a writer at work may be overlooked."""
        try:
            return self.path.stat().st_size > 0
        except OSError:
            return False

    def empty(self, descriptor: int) -> None:
        """Removes everything. Call it inside `locked`."""
        os.ftruncate(descriptor, 0)
        os.fsync(descriptor)

    def read(self) -> Iterator[dict[str, Any]]:
        """All objects in order. Damaged lines are passed over; a missing file is an empty one."""
        try:
            with self.path.open("rb") as file:
                for line in file:
                    entry = parse(line)
                    if entry is not None:
                        yield entry
        except FileNotFoundError:
            return


def run_event(entry: dict[str, Any]) -> bool:
    """Whether an object has the parts of a run event that readers of the record rely on."""
    run, job = entry.get("run"), entry.get("job")
    return (
        isinstance(entry.get("eventType"), str)
        and isinstance(run, dict)
        and isinstance(run.get("runId"), str)
        and isinstance(job, dict)
        and isinstance(job.get("name"), str)
    )


def parse(line: bytes) -> dict[str, Any] | None:
    """One line as an object, or None where it is torn, damaged or something else."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
