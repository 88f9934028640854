"""Trainings killed with SIGKILL at random steps, beside trainings that nobody killed. Not a test: it prints a table.

    python tests/benchmarks/bench_kills.py                  # five trainings, four kills each, and five without
    python tests/benchmarks/bench_kills.py --trainings 1 --seed 5

Everything is real: step and worker are processes, one of the two is killed, and somebody asks for the model again. Then
it must hold, and this fails otherwise: one ledger entry for each training, spent, under a chain that verifies; each
executed step counted, within what the plan pays for. Whether the models are as good is told by the log-likelihood a
token of letters that none of them saw, beside that of the base model.

Measured on two cores beside other work, with a model of toy size:

| kills | executed steps | log-likelihood before | after: mean and standard deviation | seconds |
| --- | --- | --- | --- | --- |
| 4 each | 64, 50, 54, 54, 65 | -3.680 | -3.488 ± 0.020 | 168 |
| 0 each | 40, 40, 40, 40, 40 | -3.680 | -3.484 ± 0.028 | 25 |

What belongs here: kills, and the table. What does not: each of the rules, which tests hold (`test_text_crashes`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "synth"))
sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))

from deployment import Deployment
from line_cases import PEOPLE, ledger_of, run_here, storage_of
from test_text_crashes import DIES_WHERE_TOLD, MATERIALIZES, TO_BOUNDED, line_to_bounded
from text_line_cases import letters_table

from dpsynth_platform.synth.text.dp_finetune import log_likelihoods
from dpsynth_platform.synth.text.generator import read_plan

PLANNED, ALLOWANCE, KILLS = 40, 32, 4
UNSEEN = 200


@dataclass(frozen=True)
class Trained:
    """One training's end.

    Attributes:
        executed: steps that looked at the data, over all attempts.
        before: mean log-likelihood a token of unseen letters, by the base model; in nats.
        after: likewise by the trained model.
        seconds: from the first attempt to the end of the last.
    """

    executed: int
    before: float
    after: float
    seconds: float


def train(root: Path, orders: list[str]) -> Trained:
    """A training that dies where it is told: each order is a count of executed steps; `p` before it: its step dies."""
    deployment = line_to_bounded(root, steps=PLANNED, replay_steps=ALLOWANCE)
    sabotage = root / "sabotage"
    sabotage.mkdir()
    (sabotage / "sitecustomize.py").write_text(DIES_WHERE_TOLD)
    (sabotage / "orders").write_text(" ".join(orders))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(sabotage), *sys.path])}
    attempt = [sys.executable, "-c", MATERIALIZES, str(root)]
    began = time.monotonic()
    for _ in range(len(orders) + 1):
        subprocess.run(attempt, env=environment, check=False, capture_output=True)
    assert not (sabotage / "orders").read_text(), "not every kill took place"
    return _result(deployment, time.monotonic() - began)


def _result(deployment: Deployment, seconds: float) -> Trained:
    ran = run_here(deployment, steps=[*TO_BOUNDED, "model"])  # what is there already is kept
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    assert ledger_of(deployment).verify().ok
    place = storage_of(deployment).require(PEOPLE, "model").directory
    executed = json.loads((place / "trained.json").read_text())["executed_steps"]
    assert executed <= PLANNED + ALLOWANCE
    before, after = log_likelihoods(read_plan(place), place, letters_table(UNSEEN, seed=99))
    return Trained(executed, float(before.mean()), float(after.mean()), seconds)


def main() -> None:
    """Prints a table in Markdown, a row for each kind of training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainings", type=int, default=5)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    chosen = parser.parse_args()
    chance = random.Random(chosen.seed)
    print(f"seed {chosen.seed}; {PLANNED} steps planned, {ALLOWANCE} more paid for\n")
    print("| kills | executed steps | log-likelihood before | after: mean and standard deviation | seconds |")
    print("| --- | --- | --- | --- | --- |")
    for kills in (KILLS, 0):
        found = []
        for _ in range(chosen.trainings):
            steps = sorted(chance.sample(range(1, PLANNED + 1), kills))
            orders = [f"{chance.choice(['', 'p'])}{step}" for step in steps]
            with tempfile.TemporaryDirectory(prefix="kills") as root:
                found.append(train(Path(root), orders))
        after = [one.after for one in found]
        spread = statistics.stdev(after) if len(after) > 1 else float("nan")
        print(
            f"| {kills} each | {', '.join(str(one.executed) for one in found)} | {found[0].before:.3f} | "
            f"{statistics.mean(after):.3f} ± {spread:.3f} | {statistics.mean(one.seconds for one in found):.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
