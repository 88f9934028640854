"""Ties a step's process to the process of its run, and restricts what it may print.

What belongs here: ending a step with its run. What does not: ending a worker with its step (`worker.process`).

A run whose process was killed is closed as failed. Its steps must end, too: otherwise a mechanism would run, and
outputs would change, in a run that is closed.
"""

import multiprocessing
import os
import signal
import threading
from pathlib import Path

from dpsynth_platform.foundation.restricted_log import keep_traceback, new_log, no_tracebacks, print_unfailing


def live_with_run(logs: Path) -> None:
    """Kills this process when the process of its run ends; uncaught errors go to a log.

    Does nothing where the step runs in the process of the run.
    """
    run = multiprocessing.parent_process()
    if run is not None:
        print_unfailing()
        no_tracebacks(lambda error: keep_traceback(new_log(logs, "step"), error))
        threading.Thread(target=_end_with, args=(run,), name="run", daemon=True).start()


def _end_with(run: multiprocessing.process.BaseProcess) -> None:
    run.join()
    os.kill(os.getpid(), signal.SIGKILL)
