"""The edge at which errors become safe.

Dagster keeps an exception with its text, its cause and its whole context in the event log, and lineage events carry
error messages. A library's exception may quote a row. So a step's body runs inside `guarded`: errors of ours pass
with their message, all others by the name of their type, and the full traceback goes to a restricted file.
"""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dpsynth_platform.errors import DpsynthError
from dpsynth_platform.lineage.redaction import safe_error

T = TypeVar("T")


@dataclass(frozen=True)
class Caught:
    """A safe account of an exception, detached from it.

    Attributes:
        safe: an error of ours with that message, for lineage.
    """

    code: str
    message: str
    interrupted: bool

    @property
    def safe(self) -> DpsynthError:
        """The same as an error of ours."""
        error = DpsynthError(self.message)
        error.code = self.code
        return error


def guarded(body: Callable[[], T], log_directory: Path) -> T | Caught:
    """Runs `body` and catches everything, interrupts included; the caller raises anew, outside any `except` block."""
    try:
        return body()
    except BaseException as error:  # also KeyboardInterrupt and Dagster's own interrupt, which derive from it
        code, message = safe_error(error)
        log = _keep_traceback(log_directory)
        interrupted = not isinstance(error, Exception) or "Interrupted" in type(error).__name__
        return Caught(code, f"{message} (details: restricted log {log})", interrupted)


def _keep_traceback(directory: Path) -> str:
    """Writes the traceback being handled to a file of mode 0600 and returns the file's name."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{secrets.token_hex(8)}.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(traceback.format_exc())
    return path.name
