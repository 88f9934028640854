"""A worker on this machine: a child of the process that waits for it.

What belongs here: starting it, and ending it where the waiting is interrupted. What does not: its command and
environment (`launch`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dpsynth_platform.settings import inherited_environment
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
    worker.send_signal(signal.SIGINT)
    try:
        worker.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
