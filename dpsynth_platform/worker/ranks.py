"""Several processes of one worker that train a model together, one for each CUDA device.

What belongs here: starting them, and that all of them end together. What does not: what they do (`rank`), what they
tell each other (`training.world`), and whether a model is trained at all.

The worker is the first of them: it alone holds the grant, speaks with Dagster, counts steps, adds noise and writes
checkpoints and weights. The others are its children, die with it, and print into its restricted log. If one of them
ends before its time, the worker ends with the same code: it may be waiting for that one in the midst of a sum, where
nothing else would wake it. The journal and the checkpoints are made for that, as for any crash.
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

LOOK_SECONDS = 0.2
LAST_WORDS_SECONDS = 1.0
"""Where the worker fails, one of the others may have failed before it: its code says more."""
PARTING_SECONDS = 60.0


@contextmanager
def local_ranks(job: WorkerJob, device: str, plan_digest: str) -> Iterator[LocalRanks | None]:
    """The processes beside this one, which start when they are to meet and have ended after the block; None: no others.

    Args:
        job: its `processes` is the most that there may be.
        device: `cpu` or `cuda`.
        plan_digest: of the plan that was granted: none of them runs another.
    """
    size = _size(job.processes, device) if job.base_model else 1
    if size == 1:
        yield None
        return
    ranks = LocalRanks(job, device, plan_digest, size)
    try:
        yield ranks
        ranks.part()
    except BaseException:
        ranks.abandon()
        raise


class LocalRanks:
    """See `synth.interface.Ranks`."""

    def __init__(self, job: WorkerJob, device: str, plan_digest: str, size: int) -> None:
        self._job, self._device, self._plan_digest, self._size = job, device, plan_digest, size
        self._others: list[subprocess.Popen[bytes]] = []
        self._over = threading.Event()
        self._place = tempfile.TemporaryDirectory(prefix="dpsynth-ranks-")  # it holds addresses, and no data

    def meet(self, examples: Path) -> None:
        from dpsynth_platform.training.world import meet

        share_processors(self._size)
        meeting = Path(self._place.name) / "meeting"
        for rank in range(1, self._size):
            self._others.append(self._started(rank, meeting, examples))
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()
        meet(meeting, 0, self._size, device_of_rank(self._device, 0))

    def part(self) -> None:
        """After the last step: returns when the others have ended."""
        from dpsynth_platform.training.world import part

        part()
        end = time.monotonic() + PARTING_SECONDS
        while any(other.poll() is None for other in self._others) and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
        self._over.set()
        self._end()

    def abandon(self) -> None:
        """Where the worker fails: ends the others."""
        time.sleep(LAST_WORDS_SECONDS if self._others else 0)
        self._over.set()
        self._end()

    def _started(self, rank: int, meeting: Path, examples: Path) -> subprocess.Popen[bytes]:
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
        """Ends this process with the code of another that failed."""
        while not self._over.wait(LOOK_SECONDS):
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
    """The device of one of the processes, as torch's."""
    import torch

    return torch.device(device, rank) if device == "cuda" else torch.device(device)


def share_processors(size: int) -> None:
    """Leaves this process its part of the processors, as one of so many."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // size))


def _size(processes: str, device: str) -> int:
    """How many processes; on CUDA never more than there are devices."""
    import torch

    if device != "cuda":
        return int(processes or 1)
    devices = torch.cuda.device_count()
    return min(int(processes or devices), devices)
