"""Restricted logs: where libraries' words go, since they may quote data.

What belongs here: sending what a process prints to a private file, and keeping a traceback in one. What does not:
deciding what of an error may be shown (`lineage.redaction`), and deleting old logs (`retention`).

A log may be impossible to write: the disk is full, read-only or gone, or no descriptor is left. That must neither
replace the error that is being handled nor send its words elsewhere. So nothing here raises once a body has started,
and what cannot be written is dropped.
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
    """Sends standard output and error of this process, and of all that it starts, to a restricted file.

    What libraries print may quote data, and a terminal is often recorded (CI, `script`, a scheduler's log). A file in
    which nothing was written is removed again.

    Raises:
        OSError: the file cannot be made. The block has not started then; what it prints later is dropped if need be.
    """
    opened = [_open(log)]
    try:
        opened.append(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        opened.extend(os.dup(number) for number in _OUTPUTS)
    except OSError:
        _close(opened)
        raise
    descriptor, nowhere, *kept = opened
    _flush()  # what was printed before belongs to the terminal
    try:
        _send_to(descriptor, descriptor)
        yield
    finally:
        if not _flush():  # the rest would go to the terminal with the next line that is printed there
            _send_to(nowhere, nowhere)
            _flush()
        _send_to(*kept)
        with suppress(OSError):
            if os.fstat(descriptor).st_size == 0:
                log.unlink(missing_ok=True)
        _close(opened)


def new_log(directory: Path, kind: str) -> Path:
    """A path for a new log, such as `step-<random>.log`."""
    return directory / f"{kind}-{secrets.token_hex(8)}.log"


def keep_traceback(log: Path, error: BaseException) -> str:
    """Appends an error's traceback to a restricted log; says where it is, or that it could not be kept. Never raises.

    Call it outside of the `except` block: an interruption that arrives meanwhile would carry the error as its context.

    Returns:
        What a message may end with, in brackets.
    """
    try:
        text = "".join(traceback.format_exception(error))
        with os.fdopen(_open(log), "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except Exception as failure:
        return f"its traceback could not be kept: {reason_of(failure)}"
    return f"details: restricted log {log.name}"


def note(words: str) -> None:
    """Writes a line to this process's restricted log, which its standard error is wherever a mechanism runs.

    Where it is none (a terminal, a pipe, a file that others can read), nothing is written anywhere; nor where it cannot
    be written to: a mechanism that was paid for does not fail for that.
    """
    with suppress(OSError):
        sys.stderr.flush()
        kind = os.fstat(2).st_mode
        if stat.S_ISREG(kind) and not kind & 0o077:
            os.write(2, f"{words}\n".encode(errors="backslashreplace"))


def no_tracebacks(keep: Callable[[BaseException], str]) -> None:
    """From now on this process prints of an error that nobody caught only its type: all else of it may quote data.

    That holds for threads, finalizers and the program itself. For processes of their own.

    Args:
        keep: keeps a traceback, as `keep_traceback` does, and says where it is; never raises.
    """

    def tell(error: BaseException | None) -> None:
        if error is None or isinstance(error, SystemExit | KeyboardInterrupt):
            return
        with suppress(Exception):
            print(f"unexpected error: {safe_error(error)[1]} ({keep(error)})", file=sys.stderr)

    sys.excepthook = lambda kind, error, trace: tell(error)
    sys.unraisablehook = lambda found: tell(found.exc_value)
    threading.excepthook = lambda found: tell(found.exc_value)
    logging.raiseExceptions = False  # a handler that cannot write would print what it was to write
    logging.lastResort = logging.StreamHandler()
    logging.lastResort.setLevel(logging.WARNING)
    logging.lastResort.addFilter(without_words)


def without_words(record: logging.LogRecord) -> bool:
    """A filter: a library's line of the log without what it quotes, such as what was sent, or the text of errors."""
    error = record.exc_info[1] if record.exc_info else record.msg if isinstance(record.msg, BaseException) else None
    what = safe_error(error)[1] if error is not None else "a line of its own"
    record.msg, record.args, record.exc_info = f"{record.name}, {record.module} {record.lineno}: {what}", (), None
    record.exc_text = record.stack_info = None  # these quote lines of the code, and where it is on this machine
    return True


def print_unfailing() -> None:
    """From now on this process drops what it cannot print, where `print` would raise. For processes of their own."""
    for number, name in zip(_OUTPUTS, ("stdout", "stderr"), strict=True):
        raw = io.BufferedWriter(_Dropping(number, "wb", closefd=False))
        setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True))


class _Dropping(io.FileIO):
    """A file to which writing never fails."""

    def write(self, content: ReadableBuffer, /) -> int:
        with suppress(OSError):
            return super().write(content)
        return memoryview(content).nbytes


_OUTPUTS = (1, 2)


def _open(log: Path) -> int:
    private_directory(log.parent)
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _send_to(*descriptors: int) -> None:
    for number, descriptor in zip(_OUTPUTS, descriptors, strict=True):
        with suppress(OSError):
            os.dup2(descriptor, number)


def _flush() -> bool:
    """Writes what is buffered, by Python and by libraries in C. False where something could not be written."""
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
