"""A step's process and the run that it belongs to.

What belongs here: tying the life of the one to the other's, and what the step's may print. What does not: the worker's
own tie to its step (`worker.process`).

A run whose process was killed is closed as failed. Its steps must not go on behind that: a mechanism would run, and
outputs would change, in a run that everyone believes to be over.
"""

import multiprocessing
import os
import signal
import threading
from pathlib import Path

from dpsynth_platform.foundation.restricted_log import keep_traceback, new_log, no_tracebacks, print_unfailing


def live_with_run(logs: Path) -> None:
    """Ends this process at once when the one that executes its run is gone; what nobody catches in it goes to a log.

    Does nothing where the step runs in that very process.
    """
    run = multiprocessing.parent_process()
    if run is not None:
        print_unfailing()
        no_tracebacks(lambda error: keep_traceback(new_log(logs, "step"), error))
        threading.Thread(target=_follow_to_the_end, args=(run,), name="run", daemon=True).start()


def _follow_to_the_end(run: multiprocessing.process.BaseProcess) -> None:
    run.join()
    os.kill(os.getpid(), signal.SIGKILL)
