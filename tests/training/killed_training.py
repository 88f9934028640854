"""A toy training to be killed: the library counts and keeps its steps, which it also logs in a separate file.

Each step waits for a byte on standard input, so that the killing test knows how far it can be. Without torch: it
is started many times.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.checkpoints import CheckpointPolicy, Checkpoints
from dpsynth_platform.training.journal import StepJournal

KEY = bytes(range(32))
NUMBERS = 140_000


def checkpoints(directory: Path) -> Checkpoints:
    return Checkpoints(directory / "checkpoints", KEY, plan_digest="plan", entry_id="entry")


def state_after(step: int) -> bytes:
    """More than one chunk, and different for every step."""
    return (step * (step + 1) // 2).to_bytes(8, "big") * NUMBERS


def train(directory: Path, planned: int, allowance: int, every: int | None) -> None:
    log = os.open(directory / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    policy = CheckpointPolicy(every)
    with StepJournal(directory / "training", planned, allowance) as journal:
        kept = checkpoints(directory)
        total = 0
        if (latest := kept.latest()) is not None:
            journal.resume(latest.step, latest.executed)
            total = int.from_bytes(b"".join(kept.read(latest))[:8], "big")
        while journal.position < planned:
            if not os.read(0, 1):
                raise SystemExit("out of steps")
            executed = journal.begin_step()
            os.write(log, f"{executed}\n".encode())
            total += journal.position
            if policy.due(journal.position, 0):
                kept.save(journal.position, executed, [total.to_bytes(8, "big")] * NUMBERS)
        kept.save(planned, journal.executed, [total.to_bytes(8, "big")] * NUMBERS)


if __name__ == "__main__":
    root, planned, allowance, every = sys.argv[1:]
    try:
        train(Path(root), int(planned), int(allowance), int(every) or None)
    except MechanismFailed as error:
        print(error.code, error)
        sys.exit(3)
