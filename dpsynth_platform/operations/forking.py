"""The fork server of a run's steps, started while the command that runs them still loads.

What belongs here: its list of modules, its start and its end. What does not: importing them (`preloading`), and running
(`running`). Dagster's executor would start one itself: this only saves time. It keeps the environment of its start.
"""

from __future__ import annotations

import multiprocessing
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
    "dpsynth_platform.audit.text_scoring",
    "dpsynth_platform.quality.plots",
    "openlineage.client.client",
    "torch",
    "pandas",
    "sklearn.ensemble",
    "xgboost",
    "pyarrow.dataset",
    "upath.core",
    "duckdb",
    "deltalake",
)
"""Modules that most steps, each in its own process, need and that take seconds to import."""
PRELOADING = "dpsynth_platform.operations.preloading"
"""The module that imports them."""
_ENDING = "dpsynth_platform.operations.ending_with_parent"
_FIRST = "dagster._core.executor.multiprocess"
"""The module that Dagster's executor imports first."""


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
