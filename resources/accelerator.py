"""Where the mechanism runs: a worker process on this machine or in a cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import dagster as dg

from dpsynth_platform.foundation.errors import MechanismFailed, MechanismInterrupted
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.restricted_log import new_log
from dpsynth_platform.foundation.storage import check_room
from dpsynth_platform.worker import codes
from dpsynth_platform.worker.choice import WorkerChoice, worker_choice
from dpsynth_platform.worker.job import WorkerJob
from dpsynth_platform.worker.launch import Start
from dpsynth_platform.worker.launchers import launcher_of

_LOG_BYTES = 2**17
"""Most bytes of a worker's log, and of its messages, without errors."""


@dataclass(frozen=True)
class AcceleratorResource:
    """The device of the worker (`auto`, `cpu`, `cuda`), and the file that names its launcher, if there is one.

    Attributes:
        logs: the restricted directory for the worker's output.
        hidden: paths that no worker may see.
    """

    logs: str
    device: str = "auto"
    configuration: str | None = None
    hidden: tuple[str, ...] = ()

    def choice(self, dataset: str) -> WorkerChoice:
        """Where the dataset's worker runs. Raises `ConfigurationError` where the file is invalid."""
        return worker_choice(Path(self.configuration) if self.configuration else None, dataset)

    def check(self, dataset: str, reads: Sequence[Path]) -> None:
        """Checks, as far as possible, that a worker that reads these paths could start.

        Raises:
            ConfigurationError: a requirement of the launcher is missing.
            OSError: its log and messages cannot be written.
        """
        check_room(Path(self.logs), _LOG_BYTES, _LOG_BYTES)
        hidden = [Path(path) for path in self.hidden]
        launcher_of(self.choice(dataset)).check([Path(self.logs), *reads], hidden)

    def runner(self, context: dg.AssetExecutionContext) -> Callable[[WorkerJob], None]:
        """A function that runs one job in a worker to its end; raises `MechanismFailed` with the meaning of a failure.

        The worker reports by code only: all its output goes to a restricted file.
        """

        def run(job: WorkerJob) -> None:
            log = new_log(Path(self.logs), "worker")
            private_directory(log.parent)
            # The context contains restricted paths and the grant: it is stored beside the plan and deleted with it.
            injector = dg.PipesFileContextInjector(str(Path(job.plan).with_name("pipes-context.json")))
            reader = dg.PipesFileMessageReader(str(log.with_name(f"{log.stem}-messages.log")))
            choice = self.choice(context.asset_key.path[0])
            extras = replace(job, processes=str(choice.processes or "")).to_extras()
            with dg.open_pipes_session(context, injector, reader, extras=extras) as session:
                status = launcher_of(choice).run(Start(job.model_directory, log, session.get_bootstrap_env_vars()))
            failure = codes.code_of(status)
            if failure != codes.DONE:
                # Ctrl-C reaches all processes at once, and the worker may end before this one receives it.
                kind = MechanismInterrupted if failure == codes.INTERRUPTED else MechanismFailed
                raise kind(f"{codes.meaning(failure)} (details: restricted log {log.name})")

        return run
