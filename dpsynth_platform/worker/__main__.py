"""The worker's program under Dagster Pipes: `python -m dpsynth_platform.worker --parent PID --log FILE`.

What belongs here: the frame around `run`. What does not: the work. On another machine than its launcher's, it is tied
to that one by `--alive FILE` in place of `--parent PID`.

Pipes sends an exception that leaves its context to the event log with its text and its whole chain, so none may leave
it: everything is caught inside, its traceback goes to the restricted log, and only a code from the allow-list goes out,
as a message and as the exit status.
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
from dpsynth_platform.worker.lifeline import die_without
from dpsynth_platform.worker.process import bind_to_parent, end, redirect_output, refuse_credentials, stop_when_told

REPORT_SECONDS = 2.0


def main() -> int:
    """Runs one job and returns the exit status."""
    arguments = _arguments()
    os.umask(PRIVATE_UMASK)
    no_core_dumps()
    try:
        redirect_output(arguments.log)
    except OSError as error:  # not even printed: where there is no log, a cluster's own would have it
        return status_of(code_of_exception(error))
    stop_when_told()
    if arguments.parent is not None:
        bind_to_parent(arguments.parent)
    else:
        die_without(arguments.alive)
    return status_of(guarded(_under_pipes))


def _under_pipes() -> str:
    code = ""
    if not PipesEnvVarParamsLoader().is_dagster_pipes_process():  # type: ignore[no-untyped-call]
        raise ConfigurationError("the worker is started through Dagster Pipes")
    try:
        with open_dagster_pipes() as context:
            code = guarded(lambda: _work(context))
            context.report_custom_message({"code": code})
    except OSError:  # the messages' file cannot be written, and the exit status says it, too
        if not code:
            raise
    return code


def _work(context: PipesContext) -> str:
    refuse_credentials(inherited_environment())
    with loading():  # late: it takes seconds, and a refusal should not
        import torch  # noqa: F401  (every mechanism needs it)

        from dpsynth_platform.worker.run import run

    run(WorkerJob.from_extras(context.extras), _Reporter(context.log.info))
    return DONE


class _Reporter:
    """Progress as log lines with the time that is left, no more than one every few seconds within a stage."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._said = ("", -1)
        self._next = 0.0
        self._pace = Pace()

    def __call__(self, stage: str, done: int, total: int, beside: str = "") -> None:
        now = time.monotonic()
        left = self._pace.left(stage, done, total)
        news = done > 0 and (stage, done) != self._said
        if news and (stage != self._said[0] or now >= self._next or done == total):
            with suppress(OSError):  # a mechanism that was paid for does not fail for a message
                self._write("; ".join(filter(None, (f"{stage}: {done} of {total}{left}", beside))))
            self._said, self._next = (stage, done), now + REPORT_SECONDS


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dpsynth_platform.worker")
    tie = parser.add_mutually_exclusive_group(required=True)
    tie.add_argument("--parent", type=int, help="process id of the launcher")
    tie.add_argument("--alive", type=Path, help="file of the signs of life of a launcher on another machine")
    parser.add_argument("--log", type=Path, required=True, help="restricted file for everything printed")
    return parser.parse_args()


if __name__ == "__main__":
    end(main())
