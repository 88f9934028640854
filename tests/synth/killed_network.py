"""Fits a network over columns as a worker does, and kills its own process: after the counts, or within a step."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from network_cases import job

from dpsynth_platform.synth import network_training
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.neural import language_generator, row_training, states_network
from dpsynth_platform.training.journal import StepJournal


def main(plan: Path, bounded: Path, directory: Path, at: str) -> None:
    # It takes time, and other tests have it.
    states_network.refuse_unsound_grid = language_generator._try = lambda *given: None
    die = lambda *given: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    begin = StepJournal.begin_step

    def counted(self: StepJournal) -> int:
        executed = begin(self)
        if executed == int(at):
            die()
        return executed

    if at == "counts":
        network_training.train_network = die
    elif at == "form":
        row_training.losses = die
    else:
        StepJournal.begin_step = counted
    sealed = SealedPlan.from_json(plan.read_text())
    generator(sealed.method).run(job(sealed, bounded, directory))


if __name__ == "__main__":
    torch.set_num_threads(1)
    *paths, last = sys.argv[1:]
    main(*map(Path, paths), last)
