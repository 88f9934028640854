"""The program of a process that trains along: `python -m dpsynth_platform.worker.rank --parent PID`, its task on stdin.

What belongs here: the frame around its work. What does not: the work (`synth.text.dp_finetune.train_along`). It is
started by a worker that was granted the data, and reads what that one has made of them; standard output and error are
the worker's restricted log.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.permissions import PRIVATE_UMASK, no_core_dumps
from dpsynth_platform.worker.codes import DONE, guarded, status_of
from dpsynth_platform.worker.process import bind_to_parent, end, leave_stopping_to_parent


def main() -> int:
    """Runs one task and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dpsynth_platform.worker.rank")
    parser.add_argument("--parent", type=int, required=True, help="process id of the worker")
    parent = parser.parse_args().parent
    os.umask(PRIVATE_UMASK)
    no_core_dumps()
    bind_to_parent(parent)
    leave_stopping_to_parent()
    return status_of(guarded(lambda: _work(json.load(sys.stdin))))


def _work(task: dict[str, Any]) -> str:
    # Late, since it takes seconds: by now the process is tied to its parent.
    from dpsynth_platform.synth.text.dp_finetune import train_along
    from dpsynth_platform.training.world import meet, part
    from dpsynth_platform.worker.ranks import device_of_rank, share_processors
    from dpsynth_platform.worker.run import read_plan

    rank, size = int(task["rank"]), int(task["size"])
    device = device_of_rank(task["device"], rank)
    share_processors(size)
    train_along(
        read_plan(Path(task["plan"]), expected_digest=task["plan_digest"]),
        Path(task["base_model"]),
        Path(task["examples"]),
        str(device),
        lambda: meet(Path(task["meeting"]), rank, size, device),
    )
    part()
    return DONE


if __name__ == "__main__":
    end(main())
