"""Restricted logs: private files for the output of libraries, which may quote data.

What belongs here: redirecting a process's output to such a file, and keeping tracebacks in one. What does not: what of
an error may be shown (`foundation.redaction`), and deleting old logs (`lifecycle.retention`).

Writing a log may fail: the disk is full, read-only or gone, or no descriptor is left. That must neither replace the
error that is being handled nor send its text elsewhere. So nothing here raises once a body has started, and what cannot
be written is dropped.
"""

from __future__ import annotations

import ctypes
import io
import logging
import os
import secrets
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.redaction import reason_of, safe_error

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def logs_of(restricted: Path) -> Path:
    """The directory of logs in a restricted zone."""
    return restricted / "logs"


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Redirects standard output and error of this process and its children to a restricted file.

    What libraries print may quote data, and terminals are often recorded (CI, `script`, a scheduler's log). An empty
    file is removed.

    Raises:
        OSError: the file cannot be created; the block has not started. Later failures to write are dropped.
    """
    opened = [_open(log)]
    try:
        opened.append(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        opened.extend(os.dup(number) for number in _OUTPUTS)
    except OSError:
        _close(opened)
        raise
    descriptor, nowhere, *kept = opened
    _flush()  # earlier output belongs to the terminal
    noted = takes_notes(descriptor)
    try:
        _send_to(descriptor, descriptor)
        yield
    finally:
        _noted.discard(noted)
        if not _flush():  # else the rest would go to the terminal later
            _send_to(nowhere, nowhere)
            _flush()
        _send_to(*kept)
        with suppress(OSError):
            if os.fstat(descriptor).st_size == 0:
                log.unlink(missing_ok=True)
        _close(opened)


def new_log(directory: Path, kind: str) -> Path:
    """A new path such as `step-<random>.log`."""
    return directory / f"{kind}-{secrets.token_hex(8)}.log"


def keep_traceback(log: Path, error: BaseException) -> str:
    """Appends an error's traceback to a restricted log. Never raises.

    Call it outside of the `except` block: an interruption meanwhile would carry the error as its context.

    Returns:
        Where it is, or why it could not be kept, for the brackets at the end of a message.
    """
    try:
        text = "".join(traceback.format_exception(error))
        with os.fdopen(_open(log), "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except Exception as failure:
        return f"its traceback could not be kept: {reason_of(failure)}"
    return f"details: restricted log {log.name}"


def takes_notes(descriptor: int) -> tuple[int, int]:
    """Says that an open file is the restricted log of this process, to which `note` may write; returns its identity."""
    found = _identity(descriptor)
    _noted.add(found)
    return found


def note(words: str) -> None:
    """Writes a line to this process's restricted log: standard error, where a mechanism runs.

    Writes nothing where standard error is another file, one that others can read, or cannot be written to: a paid
    mechanism does not fail for that. A private file alone is not enough: `nohup` makes one of what a script prints.
    """
    with suppress(OSError):
        sys.stderr.flush()
        kind = os.fstat(2).st_mode
        if _identity(2) in _noted and stat.S_ISREG(kind) and not kind & 0o077:
            os.write(2, f"{words}\n".encode(errors="backslashreplace"))


def no_tracebacks(keep: Callable[[BaseException], str]) -> None:
    """Makes this process print only the type of uncaught errors: their text may quote data.

    Covers the main program, threads and finalizers. Call it only in processes that the platform starts.

    Args:
        keep: keeps a traceback like `keep_traceback` and returns where; never raises.
    """

    def report(error: BaseException | None) -> None:
        if error is None or isinstance(error, SystemExit | KeyboardInterrupt):
            return
        with suppress(Exception):
            print(f"unexpected error: {safe_error(error)[1]} ({keep(error)})", file=sys.stderr)

    sys.excepthook = lambda kind, error, trace: report(error)
    sys.unraisablehook = lambda found: report(found.exc_value)
    threading.excepthook = lambda found: report(found.exc_value)
    logging.raiseExceptions = False  # a failing handler would print its message
    logging.lastResort = logging.StreamHandler()
    logging.lastResort.setLevel(logging.WARNING)
    logging.lastResort.addFilter(without_words)


def without_words(record: logging.LogRecord) -> bool:
    """Log filter: replaces a library's message by its origin and the safe part of its error."""
    error = record.exc_info[1] if record.exc_info else record.msg if isinstance(record.msg, BaseException) else None
    what = safe_error(error)[1] if error is not None else "a line of its own"
    record.msg, record.args, record.exc_info = f"{record.name}, {record.module} {record.lineno}: {what}", (), None
    record.exc_text = record.stack_info = None  # these quote lines and paths of code
    return True


def print_unfailing() -> None:
    """Makes `print` drop what it cannot write, instead of raising. Only in processes that the platform starts."""
    for number, name in zip(_OUTPUTS, ("stdout", "stderr"), strict=True):
        raw = io.BufferedWriter(_Dropping(number, "wb", closefd=False))
        setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True))


class _Dropping(io.FileIO):
    """Writing to it never fails."""

    def write(self, content: ReadableBuffer, /) -> int:
        with suppress(OSError):
            return super().write(content)
        return memoryview(content).nbytes


_OUTPUTS = (1, 2)
_noted: set[tuple[int, int]] = set()
"""Device and number of the files that take notes."""


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _open(log: Path) -> int:
    private_directory(log.parent)
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _send_to(*descriptors: int) -> None:
    for number, descriptor in zip(_OUTPUTS, descriptors, strict=True):
        with suppress(OSError):
            os.dup2(descriptor, number)


def _flush() -> bool:
    """Flushes the buffers of Python and of libraries in C. False where that failed."""
    well = bool(ctypes.CDLL(None).fflush(None) == 0)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            well = False
    return well


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
