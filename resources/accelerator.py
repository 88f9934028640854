"""Where the mechanism runs: a worker process on this machine's GPU, or on its processors where there is none."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.errors import DagsterPipesExecutionError

from dpsynth_platform.errors import MechanismFailed
from dpsynth_platform.permissions import private_directory
from dpsynth_platform.restricted_log import new_log
from dpsynth_platform.settings import inherited_environment
from dpsynth_platform.worker import codes, launch
from dpsynth_platform.worker.job import WorkerJob


@dataclass(frozen=True)
class AcceleratorResource:
    """The device of the worker (`auto`, `cpu`, `cuda`) and the restricted directory for what it prints."""

    logs: str
    device: str = "auto"

    def runner(self, context: dg.AssetExecutionContext) -> Callable[[WorkerJob], None]:
        """A function that runs one job in a worker and returns when it has ended well.

        It raises `MechanismFailed` with the worker's code otherwise. Nothing that the worker prints passes through
        here: its output goes to a restricted file, and it reports by code only.
        """

        def run(job: WorkerJob) -> None:
            log = new_log(Path(self.logs), "worker")
            private_directory(log.parent)
            command = launch.command(inherited_environment(), parent=os.getpid(), log=log)
            # The context names restricted paths and holds the grant: it lies beside the plan and goes with it.
            context_file = Path(job.plan).with_name("pipes-context.json")
            client = dg.PipesSubprocessClient(
                context_injector=dg.PipesFileContextInjector(str(context_file)), forward_stdio=False
            )
            failure = None
            try:
                client.run(context=context, command=command, extras=job.to_extras())
            except DagsterPipesExecutionError as error:
                failure = codes.code_of_failure(str(error))
            if failure is not None:
                raise MechanismFailed(f"{codes.meaning(failure)} ({failure}; restricted log {log.name})")

        return run
