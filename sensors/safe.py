"""The edge at which errors of ticks become safe.

What belongs here: what a sensor or a schedule raises where it fails. What does not: steps and checks (`assets.guard`).

Dagster keeps what a tick raised with its text, its cause and its whole context, and shows it. So a tick raises errors
of ours alone, without a context. Of every other error it tells the type, and the traceback goes to a restricted file.
Standard output stays as it is: ticks run at the same time in one process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.redaction import detached, safe_error
from dpsynth_platform.foundation.restricted_log import keep_traceback, new_log

P = ParamSpec("P")
T = TypeVar("T")


def safe_tick(logs: Path) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes the errors of a tick's function safe. One that yields gives back all that it yields, or fails.

    Args:
        logs: the directory of restricted logs.
    """

    def safe(look: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(look)
        def tick(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                found = look(*args, **kwargs)
                return _again(list(found)) if isinstance(found, Iterator) else found  # type: ignore[return-value]
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # the panics of libraries in Rust are no `Exception`
                caught = error
            # Out here nothing that fails can carry the error as its context.
            if isinstance(caught, DpsynthError):
                detached(caught)
                raise caught
            code, what = safe_error(caught)
            failure = DpsynthError(f"{what} ({keep_traceback(new_log(logs, 'tick'), caught)})")
            failure.code = code
            raise failure

        return tick

    return safe


def _again(found: list[T]) -> Iterator[T]:
    """A generator, since Dagster takes no other iterator."""
    yield from found
