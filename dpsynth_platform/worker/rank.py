"""A further process of a training: `python -m dpsynth_platform.worker.rank --parent PID`, with its task on stdin.

What belongs here: its start and end. What does not: its work (`synth.text.dp_finetune.train_along`). A worker that has
a grant starts it, and it reads the worker's examples. It prints into the worker's restricted log.
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
from dpsynth_platform.worker.process import bind_to_parent, end, ignore_stop_signals


def main() -> int:
    """Runs one task and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dpsynth_platform.worker.rank")
    parser.add_argument("--parent", type=int, required=True, help="process id of the worker")
    parent = parser.parse_args().parent
    os.umask(PRIVATE_UMASK)
    no_core_dumps()
    bind_to_parent(parent)
    ignore_stop_signals()
    return status_of(guarded(lambda: _work(json.load(sys.stdin))))


def _work(task: dict[str, Any]) -> str:
    # Late: it takes seconds, and the process must already end with its parent.
    from dpsynth_platform.synth.text.dp_finetune import train_along
    from dpsynth_platform.training.world import join_group, leave_group
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
        lambda: join_group(Path(task["meeting"]), rank, size, device),
    )
    leave_group()
    return DONE


if __name__ == "__main__":
    end(main())
