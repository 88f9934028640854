"""The fork server of a run's steps, started while the command that runs them still loads.

What belongs here: its lists of modules, its start and its end. What does not: importing them (`preloading`), and
running (`running`). Dagster's executor would start one itself: this only saves time. It keeps the environment of its
start.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver

from dpsynth_platform.foundation.restricted_log import logs_of, new_log, output_to
from dpsynth_platform.foundation.settings import Settings

PRELOADED = (
    "dpsynth_platform.definitions",
    "dagster._core.storage.sqlite_storage",  # also all that an instance on PostgreSQL needs, except its client
    "dpsynth_platform.operations.step_lineage",
    "dpsynth_platform.lineage.events",
    "dpsynth_platform.scrub.scrub",
    "openlineage.client.client",
    "torch",
    "pyarrow.dataset",
    "upath.core",
    "deltalake",
)
"""Modules that the first step needs, as most others do, each in its own process, and that take seconds to import."""
PRELOADED_LATER = (
    "dpsynth_platform.audit.scoring",
    "dpsynth_platform.quality.plots",
    "pandas",
    "sklearn.ensemble",
    "xgboost",
    "duckdb",
)
"""Modules of later steps. They are imported while the first one works."""
PRELOADING = "dpsynth_platform.operations.preloading"
"""The module that imports them."""
_ENDING = "dpsynth_platform.operations.ending_with_parent"
_CODE_LOCATION = "dpsynth_platform.definitions"
_FIRST = "dagster._core.executor.multiprocess"
"""The module that Dagster's executor imports first."""


def start_beside_run() -> None:
    """Starts the fork server where this process is a run of this code location, which Dagster's code server spawned.

    The imports of the steps then take place beside those of the run. Does nothing in any other process.
    """
    if multiprocessing.parent_process() is not None and _CODE_LOCATION in sys.argv:
        multiprocessing.get_context("forkserver").set_forkserver_preload([_FIRST, PRELOADING])
        forkserver.ensure_running()


@contextmanager
def fork_server(settings: Settings) -> Iterator[None]:
    """Starts the fork server and its imports; in the block, output of this process and its steps goes to a log.

    The fork server ends with this process, also during its imports. Call it in the main thread: to the kernel, the end
    of the calling thread is the end of the parent.
    """
    settings.export()
    with output_to(new_log(logs_of(settings.restricted), "run")):
        multiprocessing.get_context("forkserver").set_forkserver_preload([_ENDING, _FIRST, PRELOADING])
        forkserver.ensure_running()
        yield
