"""Waiting for a worker that a cluster runs.

What belongs here: how often to ask, how long to be patient, and what follows from silence. What does not: asking
(`kubernetes_job`, `ray_job`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dpsynth_platform.foundation.errors import LaunchFailed

POLL_SECONDS = 2.0
SILENCE_SECONDS = 300.0
"""How long a cluster may fail to answer before a worker counts as lost."""
REMOVAL_SECONDS = 120.0


class Unanswered(Exception):
    """A cluster does not do what it was asked, in safe words; its own may hold anything."""


def end_of(look: Callable[[], int | str | None], start_seconds: float) -> int:
    """Waits for the worker's exit status.

    Args:
        look: the exit status, or why the worker has not started, in safe words, or None while it runs; raises
            `Unanswered`.
        start_seconds: how long it may take to start.

    Raises:
        LaunchFailed: it does not start, or the cluster is silent.
    """
    begun = heard = time.monotonic()
    while True:
        try:
            found = look()
            heard = time.monotonic()
        except Unanswered as silent:
            if time.monotonic() - heard > SILENCE_SECONDS:
                raise LaunchFailed(f"the worker was lost: {silent}") from None
        else:
            if isinstance(found, int):
                return found
            if found is not None and heard - begun > start_seconds:
                raise LaunchFailed(f"the worker did not start in {start_seconds:g} s ({found})")
        time.sleep(POLL_SECONDS)


def to_its_end(ending: Callable[[], None]) -> None:
    """Ends a worker in its own time, however often that is interrupted; ending it again must do no harm.

    The keyboard's interruption reaches every process at once, and then a run sends its steps another. Without its
    launcher's sign of life a worker ends at once, and a step of training that it was about to keep would be lost.
    """
    while True:
        try:
            ending()
        except Exception:
            raise
        except BaseException:  # noqa: S112  (Dagster's interruption is one, too)
            continue
        return


def wait_until_gone(there: Callable[[], bool], name: str) -> None:
    """Waits until a job is over. Raises `LaunchFailed` if that takes too long, and `Unanswered` as `there` does."""
    begun = time.monotonic()
    while there():
        if time.monotonic() - begun > REMOVAL_SECONDS:
            raise LaunchFailed(f"job {name} does not end; end it in the cluster, then materialize the step again")
        time.sleep(POLL_SECONDS)
