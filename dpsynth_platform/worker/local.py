"""A worker on this machine: a child of the process that waits for it.

What belongs here: its start, and its end after an interruption. What does not: command and environment (`launch`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dpsynth_platform.foundation.settings import inherited_environment
from dpsynth_platform.worker.launch import Start, command, environment

STOP_SECONDS = 20.0
"""A worker that does not stop within this time is killed."""


class LocalLauncher:
    """See `launch.Launcher`."""

    def check(self, reads: Sequence[Path], hidden: Sequence[Path]) -> None:
        """Checks nothing: a process of this machine and user sees the same files as its step."""

    def run(self, start: Start) -> int:
        """See `launch.Launcher.run`. The worker dies with the thread that calls this."""
        worker = subprocess.Popen(
            command(sys.executable, ["--parent", str(os.getpid())], start.log),
            env=environment(inherited_environment(), start.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return worker.wait()
        except BaseException:
            _stop(worker)
            raise


def _stop(worker: subprocess.Popen[bytes]) -> None:
    """Interrupts a worker, and kills it if it does not stop in time.

    Further interruptions do not shorten the wait: Ctrl-C interrupts all processes at once, and the run then interrupts
    its steps again. A worker dies with its step and would lose the training step that it was about to save.
    """
    worker.send_signal(signal.SIGINT)
    end = time.monotonic() + STOP_SECONDS
    while worker.poll() is None and time.monotonic() < end:
        with suppress(BaseException):
            worker.wait(max(0.0, end - time.monotonic()))
    if worker.poll() is None:
        worker.kill()
        worker.wait()
