"""The worker's program under Dagster Pipes: `python -m dpsynth_platform.worker --parent PID --log FILE`.

What belongs here: the start, reports and end of the process. What does not: its work (`run`). On another machine than
its launcher, `--alive FILE` replaces `--parent PID`.

Pipes writes an exception that leaves its context to the event log, with its text and its chain. So every exception is
caught inside: its traceback goes to the restricted log, and the message and exit status are a code of the allow-list.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dagster_pipes import PipesContext, PipesEnvVarParamsLoader, open_dagster_pipes

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.garbage_collection import loading
from dpsynth_platform.foundation.permissions import PRIVATE_UMASK, no_core_dumps
from dpsynth_platform.foundation.progress import Pace
from dpsynth_platform.foundation.settings import inherited_environment
from dpsynth_platform.worker.codes import DONE, code_of_exception, guarded, status_of
from dpsynth_platform.worker.job import WorkerJob
from dpsynth_platform.worker.lifeline import end_without_heartbeat
from dpsynth_platform.worker.process import bind_to_parent, end, redirect_output, refuse_credentials, stop_on_signals

REPORT_SECONDS = 2.0


def main() -> int:
    """Runs one job and returns the exit status."""
    arguments = _arguments()
    os.umask(PRIVATE_UMASK)
    no_core_dumps()
    try:
        redirect_output(arguments.log)
    except OSError as error:  # not printed: without this log, the cluster's own log would show it
        return status_of(code_of_exception(error))
    stop_on_signals()
    if arguments.parent is not None:
        bind_to_parent(arguments.parent)
    else:
        end_without_heartbeat(arguments.alive)
    return status_of(guarded(_under_pipes))


def _under_pipes() -> str:
    code = ""
    if not PipesEnvVarParamsLoader().is_dagster_pipes_process():  # type: ignore[no-untyped-call]
        raise ConfigurationError("the worker is started through Dagster Pipes")
    try:
        with open_dagster_pipes() as context:
            code = guarded(lambda: _work(context))
            context.report_custom_message({"code": code})
    except OSError:  # the file of messages cannot be written; the exit status also carries the code
        if not code:
            raise
    return code


def _work(context: PipesContext) -> str:
    refuse_credentials(inherited_environment())
    with loading():  # late: it takes seconds
        import torch  # noqa: F401  (every mechanism needs it)

        from dpsynth_platform.worker.run import run

    run(WorkerJob.from_extras(context.extras), _Reporter(context.log.info))
    return DONE


class _Reporter:
    """Writes progress as log lines with the remaining time, at most one every few seconds within a stage."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._last = ("", -1)
        self._next = 0.0
        self._pace = Pace()

    def __call__(self, stage: str, done: int, total: int, beside: str = "") -> None:
        now = time.monotonic()
        left = self._pace.left(stage, done, total)
        changed = done > 0 and (stage, done) != self._last
        if changed and (stage != self._last[0] or now >= self._next or done == total):
            with suppress(OSError):  # an unwritten message must not fail a mechanism whose budget is spent
                self._write("; ".join(filter(None, (f"{stage}: {done} of {total}{left}", beside))))
            self._last, self._next = (stage, done), now + REPORT_SECONDS


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dpsynth_platform.worker")
    launcher = parser.add_mutually_exclusive_group(required=True)
    launcher.add_argument("--parent", type=int, help="process id of the launcher")
    launcher.add_argument("--alive", type=Path, help="heartbeat file of a launcher on another machine")
    parser.add_argument("--log", type=Path, required=True, help="restricted file for all output")
    return parser.parse_args()


if __name__ == "__main__":
    end(main())
