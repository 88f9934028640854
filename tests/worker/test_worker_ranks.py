"""One worker whose processes train a model together: real ones, which share only what they tell each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from worker_cases import ROOT, is_running, kill, make_text_job, pipes_environment, sabotage, wait_until

from dpsynth_platform.training import soundness
from dpsynth_platform.worker import codes, ranks
from dpsynth_platform.worker.job import WorkerJob

STEPS, ALLOWANCE = 4, 3

TELLS = """
import sys
if any(name.startswith("dpsynth_platform.worker") for name in sys.orig_argv):
    import os, pathlib, time
    from dpsynth_platform.training import soundness
    from dpsynth_platform.training.noise import GaussianNoise
    from dpsynth_platform.training.sampler import PoissonSampler
    soundness.refuse_unsound = lambda *given, **named: None  # it takes seconds, and has tests of its own
    place = pathlib.Path(__file__).parent
    draw, add = PoissonSampler.draw, GaussianNoise.add_
    def tell(what):
        with (place / f"{os.getpid()}-{what}").open("a") as file:
            print(what, file=file)
    def drawn(self):
        tell(f"draws-of-{self._number}")
        while (place / "hold").exists():
            time.sleep(0.05)
        return draw(self)
    def added(self, sums, deviation):
        tell("adds-noise")
        add(self, sums, deviation)
    PoissonSampler.draw, GaussianNoise.add_ = drawn, added
    if "dpsynth_platform.worker.rank" in sys.orig_argv:
        (place / "rank").write_text(str(os.getpid()))
"""


@contextmanager
def started(directory: Path, job: WorkerJob) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, and when it samples, the other process, whose id is in a file."""
    paths = f"{directory / 'sabotage'}:{ROOT}"
    environment = pipes_environment(directory, job.to_extras(), PYTHONPATH=paths, GLOO_SOCKET_IFNAME="lo")
    command = [sys.executable, "-m", "dpsynth_platform.worker", "--parent", str(os.getpid())]
    worker = subprocess.Popen([*command, "--log", str(directory / "log")], env=environment, cwd=ROOT)
    try:
        yield worker
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait()


def told(directory: Path, process: int) -> dict[str, int]:
    """How often a process told each thing."""
    found = (directory / "sabotage").glob(f"{process}-*")
    return {path.name.partition("-")[2]: len(path.read_text().split()) for path in found}


def executed_in(directory: Path) -> int:
    return len((directory / "model" / "training" / "journal").read_bytes().partition(b"\n")[2]) // 43


@pytest.mark.slow
def test_they_train_one_model_and_end_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is killed, then the worker: nobody is left behind, and each kill costs one step. Then they go on to the end.

    Each samples from its half in every step, one adds the noise, and a step is counted once.
    """
    monkeypatch.setattr(soundness, "refuse_unsound", lambda *given, **named: None)
    job = replace(make_text_job(tmp_path, steps=STEPS, replay_steps=ALLOWANCE, batch_size=20), processes="2")
    code = Path(sabotage(tmp_path / "sabotage", TELLS))
    (code / "hold").touch()
    for number, victim in enumerate(("rank", "worker"), 1):
        with started(tmp_path, job if number == 1 else replace(job, mode="resume")) as worker:
            assert wait_until(partial(told, tmp_path, worker.pid), 200), (tmp_path / "log").read_text()
            rank = int((code / "rank").read_text())
            assert wait_until(partial(told, tmp_path, rank), 200)
            assert executed_in(tmp_path) == number
            assert not (tmp_path / "model" / "training" / "examples").exists()  # real texts have no name by now
            kill(rank if victim == "rank" else worker.pid)
            assert codes.code_of(worker.wait(120)) == codes.KILLED
        assert wait_until(lambda pid=rank: not is_running(pid), 120)
        (code / "rank").unlink()
    (code / "hold").unlink()
    with started(tmp_path, replace(job, mode="resume")) as worker:
        assert worker.wait(300) == 0, (tmp_path / "log").read_text()
    rank = int((code / "rank").read_text())
    weights = told(tmp_path, worker.pid).pop("adds-noise")
    assert weights % STEPS == 0
    assert told(tmp_path, worker.pid) == {"draws-of-50": STEPS, "adds-noise": weights}
    assert told(tmp_path, rank) == {"draws-of-50": STEPS}
    assert not is_running(rank)
    assert json.loads((tmp_path / "model" / "trained.json").read_text())["executed_steps"] == STEPS + 2
    assert not (tmp_path / "model" / "training").exists()
    assert "training: 4 of 4" in (tmp_path / "messages").read_text()


def test_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    asked = ("", "1", "2", "8")
    assert [ranks._size(number, "cuda") for number in asked] == [4, 1, 2, 4]
    assert [ranks._size(number, "cpu") for number in asked] == [1, 1, 2, 8]
    devices = [ranks.device_of_rank("cuda", rank) for rank in (0, 1)]
    assert devices == [torch.device("cuda:0"), torch.device("cuda:1")]
    assert ranks.device_of_rank("cpu", 1) == torch.device("cpu")
