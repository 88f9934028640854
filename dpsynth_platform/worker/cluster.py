"""Waiting for a worker that a cluster runs.

What belongs here: how often to poll, how long to wait, and what follows when the cluster does not answer. What does
not: its API (`kubernetes_job`, `ray_job`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dpsynth_platform.foundation.errors import LaunchFailed

POLL_SECONDS = 2.0
SILENCE_SECONDS = 300.0
"""A worker counts as lost after the cluster did not answer for this time."""
REMOVAL_SECONDS = 120.0


class RequestFailed(Exception):
    """A cluster does not answer or refuses a request. The message has no text of the cluster, which may hold data."""


def wait_for_exit(poll: Callable[[], int | str | None], start_seconds: float) -> int:
    """Waits for the worker's exit status.

    Args:
        poll: returns the exit status, or why the worker has not started, in safe words, or None while it runs; raises
            `RequestFailed`.
        start_seconds: the most seconds until it starts.

    Raises:
        LaunchFailed: the worker does not start, or the cluster does not answer.
    """
    begun = answered = time.monotonic()
    while True:
        try:
            found = poll()
            answered = time.monotonic()
        except RequestFailed as failure:
            if time.monotonic() - answered > SILENCE_SECONDS:
                raise LaunchFailed(f"the worker was lost: {failure}") from None
        else:
            if isinstance(found, int):
                return found
            if found is not None and answered - begun > start_seconds:
                raise LaunchFailed(f"the worker did not start in {start_seconds:g} s ({found})")
        time.sleep(POLL_SECONDS)


def uninterrupted(end_worker: Callable[[], None]) -> None:
    """Ends a worker; repeats that after each interruption, so `end_worker` must be idempotent.

    Ctrl-C interrupts all processes at once, and the run then interrupts its steps again. Without the heartbeat of its
    launcher a worker ends immediately and loses the training step that it was about to save.
    """
    while True:
        try:
            end_worker()
        except Exception:
            raise
        except BaseException:  # noqa: S112  (Dagster's interruption is also one)
            continue
        return


def wait_until_gone(exists: Callable[[], bool], name: str) -> None:
    """Waits for a job's end. Raises `LaunchFailed` after `REMOVAL_SECONDS`, and `RequestFailed` as `exists` does."""
    begun = time.monotonic()
    while exists():
        if time.monotonic() - begun > REMOVAL_SECONDS:
            raise LaunchFailed(f"job {name} does not end; end it in the cluster, then materialize the step again")
        time.sleep(POLL_SECONDS)
