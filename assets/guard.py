"""Safe errors of steps and checks.

Dagster stores an exception with text, cause and context, and a library's exception or output may quote a row. So a body
runs inside `guarded`: only safe errors keep their message; tracebacks and all output go to a restricted file.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster._utils.error import SerializableErrorInfo  # type: ignore[attr-defined]

from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.redaction import safe_error
from dpsynth_platform.foundation.restricted_log import keep_traceback, new_log, output_to

T = TypeVar("T")
_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Caught:
    """A safe description of an exception, without a reference to it.

    Attributes:
        message: for Dagster, in the operator's zone; without any value of the data.
        interrupted: the run was cancelled, or its process received a signal to end.
    """

    code: str
    message: str
    interrupted: bool

    @property
    def safe(self) -> DpsynthError:
        """The error for lineage, without the message: events are exported, and the message may depend on the data."""
        error = DpsynthError("The step failed; its message is kept with the run in Dagster.")
        error.code = self.code
        return error

    def failure(self) -> dg.Failure:
        """The error for Dagster, without retries. Raise it outside of `except` blocks: Dagster stores the context."""
        return StepFailure(self.code, self.message)


class StepFailure(DagsterUserCodeProcessError, dg.Failure):
    """A failure that Dagster shows as its message alone, and does not retry.

    Dagster takes over errors of other processes as they are. Of any other exception it would show a traceback, whose
    lines are of this package and of Dagster. That of the cause is in the restricted log that the message names.
    """

    def __init__(self, code: str, message: str) -> None:
        shown = [SerializableErrorInfo(message, [], None)]
        super().__init__(message, user_code_process_error_infos=shown)  # type: ignore[no-untyped-call]
        self.metadata = {"code": dg.MetadataValue.text(code)}
        self.allow_retries = False


def log_if_possible(log: Callable[[str], None]) -> Callable[[str], None]:
    """The same function without errors: Dagster's event log may be on a full disk, and a paid mechanism must start."""

    def log_it(message: str) -> None:
        with suppress(Exception):
            log(message)

    return log_it


class Interruptions:
    """Interruptions within a block: handled as before until one has been caught (`caught`), and ignored from then on.

    Ctrl-C reaches all processes at once, and the run then interrupts its steps again: the second one must not end the
    handling of the first, which reports the end of the step. One that a finalizer or a library swallowed is followed by
    others, which still end the step. Python handles signals in the main thread only.
    """

    def __init__(self) -> None:
        self.caught = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Interruptions:
        if threading.current_thread() is threading.main_thread():
            found = {number: signal.getsignal(number) for number in _INTERRUPTIONS}
            self._handlers = {number: handler for number, handler in found.items() if callable(handler)}
            for number in self._handlers:
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.caught:
            self._handlers[number](number, frame)


def guarded(body: Callable[[], T], log_directory: Path, interruptions: Interruptions | None = None) -> T | Caught:
    """Runs `body` and catches everything, interrupts included; the caller raises outside of any `except` block.

    Args:
        interruptions: those of the caller's block, which also reports the end of the body.
    """
    log = new_log(log_directory, "step")
    with nullcontext(interruptions) if interruptions else Interruptions() as noted:
        try:
            with output_to(log):
                return body()
        except BaseException as error:  # also KeyboardInterrupt and Dagster's own interrupt, which derive from it
            noted.caught, caught = True, error
        # Outside of `except`, a further error does not carry this one as its context.
        code, message = safe_error(caught)
        interrupted = not isinstance(caught, Exception) or "Interrupted" in type(caught).__name__
        return Caught(code, f"{message} ({keep_traceback(log, caught)})", interrupted)
