"""A worker on this machine: a child of the process that waits for it.

What belongs here: starting it, and ending it where the waiting is interrupted. What does not: its command and
environment (`launch`).
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
"""How long a worker may take to stop by itself."""


class LocalLauncher:
    """See `launch.Launcher`."""

    def check(self, reads: Sequence[Path], hidden: Sequence[Path]) -> None:
        """Nothing: a process of this machine and this user sees what its step sees."""

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
    """Tells a worker to stop, and kills it where it does not in time.

    A second interruption shortens nothing: the keyboard's reaches every process at once, and then the run's sends its
    steps another. A worker dies with its step, and a step of training that it was about to keep would be lost.
    """
    worker.send_signal(signal.SIGINT)
    end = time.monotonic() + STOP_SECONDS
    while worker.poll() is None and time.monotonic() < end:
        with suppress(BaseException):
            worker.wait(max(0.0, end - time.monotonic()))
    if worker.poll() is None:
        worker.kill()
        worker.wait()
