"""Makes the runs of a choice among settings as a worker does, and kills its own process within a training's step."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from network_cases import job

from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.neural import states_network
from dpsynth_platform.synth.tabular import paid
from dpsynth_platform.training.journal import StepJournal


def main(plan: Path, bounded: Path, directory: Path, at: str) -> None:
    states_network.refuse_unsound_grid = lambda *given: None  # it takes time, and other tests have it
    paid.ROWS = 500
    begin, begun = StepJournal.begin_step, []

    def counted(self: StepJournal) -> int:
        begun.append(executed := begin(self))
        if len(begun) == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        return executed

    StepJournal.begin_step = counted
    sealed = SealedPlan.from_json(plan.read_text())
    generator(sealed.method).run(job(sealed, bounded, directory))


if __name__ == "__main__":
    torch.set_num_threads(1)
    *paths, last = sys.argv[1:]
    main(*map(Path, paths), last)
