"""Trains a network on pictures as a worker does, to be killed.

It writes a line for each step of a warm-up and for each complete step. After the latter it waits for a byte on standard
input, so that the killing test knows how far it can be.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from diffusion_cases import job

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.synth.images import diffusion_training, gan_network, public_warm_up
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.training.journal import StepJournal


def main(plan: Path, bounded: Path, directory: Path, resume: bool) -> None:
    log = os.open(directory.with_name("log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    begin = StepJournal.begin_step

    def noted(self: StepJournal) -> int:
        executed = begin(self)
        os.write(log, f"begun {executed}\n".encode())
        return executed

    StepJournal.begin_step = noted
    for module in (diffusion_training, gan_network):  # it takes time, and other tests have it
        module.refuse_unsound_grid = lambda *given: None

    def progress(stage: str, done: int, total: int, beside: str = "") -> None:
        if stage in ("warm-up", public_warm_up.STAGE):
            os.write(log, f"{stage} {done}\n".encode())
        if stage == "training":
            os.write(log, f"complete {done}\n".encode())
            if not os.read(0, 1):
                raise SystemExit("out of steps")

    run = job(SealedPlan.from_json(plan.read_text()), bounded, directory, resume=resume)
    mechanism = generator(run.plan.method)
    mechanism.fit(run.plan, bounded, run.grant, directory, progress=progress, checkpoints=run.checkpoints)


if __name__ == "__main__":
    torch.set_num_threads(1)
    *paths, resume = sys.argv[1:]
    try:
        main(*map(Path, paths), resume == "resume")
    except MechanismFailed as error:
        print(error.code, error)
        sys.exit(3)
