"""Restricted logs: where libraries' words go, since they may quote data.

What belongs here: sending what a process prints to a private file, and keeping a traceback in one. What does not:
deciding what of an error may be shown (`lineage.redaction`), and deleting old logs (`retention`).
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpsynth_platform.permissions import private_directory


def logs_of(restricted: Path) -> Path:
    """The directory of logs in a restricted zone."""
    return restricted / "logs"


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Sends standard output and error of this process, and of all that it starts, to a restricted file.

    What libraries print may quote data, and a terminal is often recorded (CI, `script`, a scheduler's log). A file in
    which nothing was written is removed again.
    """
    descriptor = _open(log)
    _flush()  # what was printed before belongs to the terminal
    kept = [os.dup(number) for number in (1, 2)]
    try:
        for number in (1, 2):
            os.dup2(descriptor, number)
        yield
    finally:
        _flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        empty = os.fstat(descriptor).st_size == 0
        os.close(descriptor)
        if empty:
            log.unlink(missing_ok=True)


def new_log(directory: Path, kind: str) -> Path:
    """A path for a new log, such as `step-<random>.log`."""
    return directory / f"{kind}-{secrets.token_hex(8)}.log"


def keep_traceback(log: Path) -> None:
    """Appends the traceback being handled to a restricted log."""
    with os.fdopen(_open(log), "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(traceback.format_exc())


def note(words: str) -> None:
    """Writes a line to this process's restricted log, which its standard error is wherever a mechanism runs.

    Where it is none (a terminal, a pipe, a file that others can read), nothing is written anywhere.
    """
    sys.stderr.flush()
    kind = os.fstat(2).st_mode
    if stat.S_ISREG(kind) and not kind & 0o077:
        os.write(2, f"{words}\n".encode(errors="backslashreplace"))


def _open(log: Path) -> int:
    private_directory(log.parent)
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
