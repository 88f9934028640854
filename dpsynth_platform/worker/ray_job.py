"""A worker as a Ray job.

What belongs here: calls to the cluster's job API. What does not: what a deployment may choose (`choice`), and Ray's
tasks and actors: the worker is an ordinary process on a machine of the cluster.

Ray starts a job in the environment of its own process, which may contain anything: the command begins with `env -i` and
passes only the variables of `launch.KEPT`. Before a job starts, earlier jobs of the same model directory are stopped;
their ids have the same prefix. If the step is killed, the worker ends itself (`lifeline`).
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
from dpsynth_platform.worker.cluster import POLL_SECONDS, RequestFailed, uninterrupted, wait_for_exit, wait_until_gone
from dpsynth_platform.worker.launch import KEPT, LOOPBACK, Start, command
from dpsynth_platform.worker.lifeline import KILLED_STATUS, lifeline

SUBMIT_SECONDS = 60.0
_FAULTS = (RuntimeError, OSError, ValueError)
"""Exceptions of Ray's client: for answers other than 200, missing and unreadable ones."""


def entrypoint(choice: RayChoice, start: Start) -> str:
    """The shell command of the job. Of the restricted zone it contains only paths."""
    kept = " ".join(f'${{{name}+"{name}=${name}"}}' for name in KEPT)
    added = " ".join(shlex.quote(f"{name}={value}") for name, value in {**LOOPBACK, **start.variables}.items())
    worker = shlex.join(command(choice.python, ["--alive", str(start.alive)], start.log))
    return f"exec env -i {kept} {added} {worker}"


class RayLauncher:
    """See `launch.Launcher`.

    Raises:
        ConfigurationError: the client library is missing, or the address does not answer.
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
                f"launcher: ray: no cluster accepts jobs at {choice.address} ({type(error).__name__}); check the "
                "address in the deployment's worker.yaml"
            ) from None

    def check(self, reads: Sequence[Path], hidden: Sequence[Path]) -> None:
        """Checks that the cluster answers; its API does not show which files its machines see."""
        try:
            self._client.list_jobs()
        except _FAULTS as error:
            raise ConfigurationError(
                f"launcher: ray: {self._choice.address} does not list its jobs ({type(error).__name__})"
            ) from None

    def run(self, start: Start) -> int:
        name = f"{start.name}-{secrets.token_hex(4)}"  # Ray accepts a used id again only after a while
        with lifeline(start.alive):
            try:
                self._remove(start.name)  # jobs of an interrupted step
                self._submit(name, start)
                return wait_for_exit(lambda: self._poll(name), self._choice.start_seconds)
            finally:
                with suppress(LaunchFailed):  # it ends by itself
                    uninterrupted(lambda: self._remove(start.name))

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
            except _FAULTS as error:  # such as while the cluster starts; Ray accepts one id only once
                if time.monotonic() - begun > SUBMIT_SECONDS:
                    raise LaunchFailed(
                        f"the worker was not started: Ray accepted no job ({type(error).__name__})"
                    ) from None
                time.sleep(POLL_SECONDS)
            else:
                return

    def _remove(self, prefix: str) -> None:
        """Stops the jobs whose ids have the prefix, waits for their end and deletes them."""
        try:
            ids = [str(job.submission_id) for job in self._client.list_jobs()]
            for name in (name for name in ids if name.startswith(prefix)):
                if self._runs(name):
                    self._client.stop_job(name)
                    wait_until_gone(partial(self._runs, name), name)
                self._client.delete_job(name)
        except _FAULTS as error:
            raise LaunchFailed(f"Ray did not remove jobs {prefix} ({type(error).__name__})") from None

    def _runs(self, name: str) -> bool:
        return not self._client.get_job_status(name).is_terminal()

    def _poll(self, name: str) -> int | str | None:
        """The worker's exit status, or why it has not started, or None while it runs."""
        try:
            job = self._client.get_job_info(name)
        except _FAULTS as error:
            raise RequestFailed(f"no answer from Ray ({type(error).__name__})") from None
        if not job.status.is_terminal():
            return "Ray has not reserved its resources" if job.status.value == "PENDING" else None
        if job.status.value == "SUCCEEDED":
            return 0
        return KILLED_STATUS if job.driver_exit_code is None else int(job.driver_exit_code)
