"""Several processes of one worker that train a model together, one for each CUDA device.

What belongs here: starting them, and ending all of them together. What does not: their work (`rank`) and communication
(`training.world`).

The worker has rank 0: only it holds the grant, reports to Dagster, counts steps, adds noise and writes checkpoints and
weights. The others are its children, die with it, and print into its restricted log. If one of them ends early, the
worker exits with the same code, since it may wait for that process inside a sum, where nothing else would wake it. A
resumed training recovers from that by journal and checkpoints, as from any crash.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_platform.worker.job import WorkerJob
from dpsynth_platform.worker.lifeline import KILLED_STATUS

if TYPE_CHECKING:
    import torch

POLL_SECONDS = 0.2
FAILURE_SECONDS = 1.0
"""If the worker fails because of another process, this leaves the time to exit with that one's code."""
EXIT_SECONDS = 60.0


@contextmanager
def local_ranks(job: WorkerJob, device: str, plan_digest: str) -> Iterator[LocalRanks | None]:
    """The other processes, which `meet` starts and which have ended after the block; None: there are no others.

    Args:
        device: `cpu` or `cuda`.
        plan_digest: of the granted plan; the others refuse any other plan.
    """
    size = _size(job.processes, device) if job.base_model else 1
    if size == 1:
        yield None
        return
    ranks = LocalRanks(job, device, plan_digest, size)
    try:
        yield ranks
        ranks.finish()
    except BaseException:
        ranks.abandon()
        raise


class LocalRanks:
    """See `synth.interface.Ranks`."""

    def __init__(self, job: WorkerJob, device: str, plan_digest: str, size: int) -> None:
        self._job, self._device, self._plan_digest, self._size = job, device, plan_digest, size
        self._others: list[subprocess.Popen[bytes]] = []
        self._finished = threading.Event()
        self._place = tempfile.TemporaryDirectory(prefix="dpsynth-ranks-")  # for addresses, not for data

    def meet(self, examples: Path) -> None:
        from dpsynth_platform.training.world import join_group

        share_processors(self._size)
        meeting = Path(self._place.name) / "meeting"
        for rank in range(1, self._size):
            self._others.append(self._start(rank, meeting, examples))
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()
        join_group(meeting, 0, self._size, device_of_rank(self._device, 0))

    def finish(self) -> None:
        """Waits for the others after the last step; kills those that do not end in time."""
        from dpsynth_platform.training.world import leave_group

        leave_group()
        end = time.monotonic() + EXIT_SECONDS
        while any(other.poll() is None for other in self._others) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        self._finished.set()
        self._end()

    def abandon(self) -> None:
        """Kills the others after a failure of the worker."""
        time.sleep(FAILURE_SECONDS if self._others else 0)
        self._finished.set()
        self._end()

    def _start(self, rank: int, meeting: Path, examples: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dpsynth_platform.worker.rank", "--parent", str(os.getpid())]
        other = subprocess.Popen(command, stdin=subprocess.PIPE)
        task = {
            "plan": self._job.plan,
            "plan_digest": self._plan_digest,
            "base_model": self._job.base_model,
            "examples": str(examples),
            "meeting": str(meeting),
            "rank": rank,
            "size": self._size,
            "device": self._device,
        }
        assert other.stdin is not None  # noqa: S101
        with other.stdin as pipe:
            pipe.write(json.dumps(task).encode())
        return other

    def _watch(self) -> None:
        """Ends this process with the exit status of another that failed."""
        while not self._finished.wait(POLL_SECONDS):
            for other in self._others:
                if status := other.poll():
                    self._end()
                    os._exit(status if status > 0 else KILLED_STATUS)

    def _end(self) -> None:
        for other in self._others:
            if other.poll() is None:
                other.kill()
            other.wait()
        self._place.cleanup()


def device_of_rank(device: str, rank: int) -> torch.device:
    """`cpu`, or the CUDA device with the index `rank`."""
    import torch

    return torch.device(device, rank) if device == "cuda" else torch.device(device)


def share_processors(size: int) -> None:
    """Limits torch to an equal share of its threads, for `size` processes on this machine."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // size))


def _size(processes: str, device: str) -> int:
    """The number of processes; on CUDA at most that of the devices."""
    import torch

    if device != "cuda":
        return int(processes or 1)
    devices = torch.cuda.device_count()
    return min(int(processes or devices), devices)
