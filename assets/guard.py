"""The edge at which errors become safe.

Dagster keeps an exception with its text, its cause and its whole context in the event log, and lineage events carry
error messages. A library's exception may quote a row, and so may what it prints or logs. So a step's body runs inside
`guarded`: errors of ours pass with their message, all others by the name of their type; the full traceback and whatever
was printed go to a restricted file.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import dagster as dg

from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.redaction import safe_error
from dpsynth_platform.foundation.restricted_log import keep_traceback, new_log, output_to

T = TypeVar("T")


@dataclass(frozen=True)
class Caught:
    """A safe account of an exception, detached from it.

    Attributes:
        message: for Dagster, an operator's place; free of any value of the data.
        interrupted: the run was cancelled, or its process told to end.
    """

    code: str
    message: str
    interrupted: bool

    @property
    def safe(self) -> DpsynthError:
        """What lineage may say: no message. Events are exported, and even "the table is empty" depends on the data."""
        error = DpsynthError("The step failed; its message is kept with the run in Dagster.")
        error.code = self.code
        return error

    def failure(self) -> dg.Failure:
        """What Dagster is given. No retry policy applies. Raise it outside of any `except` block: it keeps contexts."""
        return dg.Failure(description=self.message, metadata={"code": self.code}, allow_retries=False)


def passed(done: T | Caught) -> T:
    """What `guarded` returned, or raises `dagster.Failure`."""
    if isinstance(done, Caught):
        raise done.failure()
    return done


def said_if_possible(say: Callable[[str], None]) -> Callable[[str], None]:
    """The same, but a sentence that cannot be written is dropped: Dagster's event log may be on a full disk.

    Where a mechanism has just been paid for, it must start.
    """

    def say_it(words: str) -> None:
        with suppress(Exception):
            say(words)

    return say_it


def guarded(body: Callable[[], T], log_directory: Path) -> T | Caught:
    """Runs `body` and catches everything, interrupts included; the caller raises anew, outside any `except` block."""
    log = new_log(log_directory, "step")
    try:
        with output_to(log):
            return body()
    except BaseException as error:  # also KeyboardInterrupt and Dagster's own interrupt, which derive from it
        caught = error
    # Out here nothing that fails can carry the error as its context.
    code, message = safe_error(caught)
    interrupted = not isinstance(caught, Exception) or "Interrupted" in type(caught).__name__
    return Caught(code, f"{message} ({keep_traceback(log, caught)})", interrupted)
