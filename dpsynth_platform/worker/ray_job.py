"""A worker as a Ray job: what the cluster is asked for, and what became of it.

What belongs here: the calls to the cluster's job API. What does not: what a deployment may choose (`choice`), and Ray's
own tasks and actors: the cluster lends a machine, and the worker is a process of it as of any other.

Ray starts a job's command in the environment of its own process, and a cluster may hold anything there: the command
begins with `env -i` and hands on the few variables of `launch.KEPT`. Before a job starts, those of earlier starts at
the same place are stopped: their ids begin alike. If the step is killed, the worker ends itself (`lifeline`).
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.errors import ConfigurationError, LaunchFailed
from dpsynth_platform.foundation.sizes import bytes_of
from dpsynth_platform.worker.choice import RayChoice
from dpsynth_platform.worker.cluster import POLL_SECONDS, Unanswered, end_of, to_its_end, wait_until_gone
from dpsynth_platform.worker.launch import KEPT, LOOPBACK, Start, command
from dpsynth_platform.worker.lifeline import KILLED_STATUS, lifeline

SUBMIT_SECONDS = 60.0
_FAULTS = (RuntimeError, OSError, ValueError)
"""What Ray's client raises: for answers other than 200, for no answer, and for one that it cannot read."""


def entrypoint(choice: RayChoice, start: Start) -> str:
    """The shell command of the job. Of the restricted zone there are paths in it, and nothing else."""
    kept = " ".join(f'${{{name}+"{name}=${name}"}}' for name in KEPT)
    given = " ".join(shlex.quote(f"{name}={value}") for name, value in {**LOOPBACK, **start.variables}.items())
    worker = shlex.join(command(choice.python, ["--alive", str(start.alive)], start.log))
    return f"exec env -i {kept} {given} {worker}"


class RayLauncher:
    """See `launch.Launcher`.

    Raises:
        ConfigurationError: there is no client library, or no cluster at the address.
    """

    def __init__(self, choice: RayChoice) -> None:
        try:
            from ray.job_submission import JobSubmissionClient
        except ImportError:
            raise ConfigurationError("launcher: ray: install it first: pip install -r requirements/ray.lock") from None
        self._choice = choice
        try:
            self._client: Any = JobSubmissionClient(choice.address)
        except _FAULTS as error:
            raise ConfigurationError(
                f"launcher: ray: no cluster that takes jobs at {choice.address} ({type(error).__name__})"
            ) from None

    def check(self, reads: Sequence[Path], hidden: Sequence[Path]) -> None:
        """That the cluster answers; what its machines see is not for it to say."""
        try:
            self._client.list_jobs()
        except _FAULTS as error:
            raise ConfigurationError(
                f"launcher: ray: {self._choice.address} does not list its jobs ({type(error).__name__})"
            ) from None

    def run(self, start: Start) -> int:
        name = f"{start.name}-{secrets.token_hex(4)}"  # Ray is slow to take an id again
        with lifeline(start.alive):
            try:
                self._remove(start.name)  # what an interrupted step left
                self._submit(name, start)
                return end_of(lambda: self._look(name), self._choice.start_seconds)
            finally:
                with suppress(LaunchFailed):  # it ends by itself
                    to_its_end(lambda: self._remove(start.name))

    def _submit(self, name: str, start: Start) -> None:
        begun = time.monotonic()
        while True:
            try:
                self._client.submit_job(
                    entrypoint=entrypoint(self._choice, start),
                    submission_id=name,
                    entrypoint_num_cpus=self._choice.cpus,
                    entrypoint_num_gpus=self._choice.gpus,
                    entrypoint_memory=bytes_of(self._choice.memory),
                    entrypoint_resources=dict(self._choice.resources) or None,
                )
            except _FAULTS as error:  # as while the cluster is starting; one id is never taken twice
                if time.monotonic() - begun > SUBMIT_SECONDS:
                    raise LaunchFailed(
                        f"the worker was not started: Ray took no job ({type(error).__name__})"
                    ) from None
                time.sleep(POLL_SECONDS)
            else:
                return

    def _remove(self, beginning: str) -> None:
        """Stops the jobs whose ids begin so, waits for their end and deletes them."""
        try:
            ids = [str(job.submission_id) for job in self._client.list_jobs()]
            for name in (name for name in ids if name.startswith(beginning)):
                if self._runs(name):
                    self._client.stop_job(name)
                    wait_until_gone(partial(self._runs, name), name)
                self._client.delete_job(name)
        except _FAULTS as error:
            raise LaunchFailed(f"Ray did not remove jobs {beginning} ({type(error).__name__})") from None

    def _runs(self, name: str) -> bool:
        return not self._client.get_job_status(name).is_terminal()

    def _look(self, name: str) -> int | str | None:
        """The worker's exit status, or why it has not started, or None while it runs."""
        try:
            job = self._client.get_job_info(name)
        except _FAULTS as error:
            raise Unanswered(f"no answer of Ray ({type(error).__name__})") from None
        if not job.status.is_terminal():
            return "Ray has set nothing aside for it" if job.status.value == "PENDING" else None
        if job.status.value == "SUCCEEDED":
            return 0
        return KILLED_STATUS if job.driver_exit_code is None else int(job.driver_exit_code)
