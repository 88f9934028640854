"""The mechanism inside the test's own process, where a test can patch it.

What belongs here: the replacement of the accelerator. What does not: patches, for which the product
has no switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import dagster as dg
from deployment import Deployment

import resources as res
from dpsynth_platform.worker.job import WorkerJob


class InProcessAccelerator(res.AcceleratorResource):
    """Runs the worker's own program without a process of its own."""

    def runner(self, context: dg.AssetExecutionContext) -> Callable[[WorkerJob], None]:
        from dpsynth_platform.worker.run import run

        return lambda job: run(job, lambda stage, done, total, beside="": None)


@contextmanager
def worker_inside() -> Iterator[None]:
    """All mechanisms take place in this process, those of rehearsals too, and say how far they are as a worker does."""
    from dpsynth_platform.worker.__main__ import _Reporter
    from dpsynth_platform.worker.run import run

    def runner(_: res.AcceleratorResource, context: dg.AssetExecutionContext) -> Callable[[WorkerJob], None]:
        return lambda job: run(job, _Reporter(context.log.info))

    with patch.object(res.AcceleratorResource, "runner", runner):
        yield


def inside(deployment: Deployment) -> InProcessAccelerator:
    """The accelerator for `run_here(deployment, accelerator=inside(deployment))`."""
    return InProcessAccelerator(device="cpu", logs=str(deployment.settings.restricted / "logs"))
