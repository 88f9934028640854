"""The process that a run's steps are forked from, started while the command that runs them still loads.

What belongs here: what that process is to load, its start and its end. What does not: loading it (`preloading`), and
running (`running`). Dagster's executor starts one itself where there is none, so nothing but time depends on this.

It imports for longer than the command does, and neither needs the other for that. It keeps the environment that it was
started with, and with it the settings, as long as the command lives.
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
    "dagster._core.storage.sqlite_storage",  # with all that a step's instance on PostgreSQL needs, too, but its client
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
"""What a run's steps, which are processes of their own, find imported: most of them need it, and it takes seconds."""
PRELOADING = "dpsynth_platform.operations.preloading"
"""The module that loads them when it is imported."""
_ENDING = "dpsynth_platform.operations.ending_with_parent"
_FIRST = "dagster._core.executor.multiprocess"
"""What Dagster's executor itself has imported before all others."""


@contextmanager
def forked_from_now_on(settings: Settings) -> Iterator[None]:
    """Has the process that steps are forked from import what they need while the block goes on.

    Inside, what this process and its steps print goes to a restricted file. The process ends with this one, also while
    it imports. To be called in the main thread: the kernel takes the end of the calling thread for that of the process.
    """
    settings.export()
    with output_to(new_log(logs_of(settings.restricted), "run")):
        multiprocessing.get_context("forkserver").set_forkserver_preload([_ENDING, _FIRST, PRELOADING])
        forkserver.ensure_running()
        yield
