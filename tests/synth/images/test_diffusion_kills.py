"""Killed in the middle of its training, a network counts every step, continues, and ends complete."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from diffusion_cases import bounded_pictures, diffusion_plan, job
from finetune_cases import finetune_plan
from gan_cases import gan_plan
from public_models import saved_model
from public_pictures import nearest_contract, public_table

from dpsynth_platform.synth.images import diffusion_training, gan_network, public_warm_up
from dpsynth_platform.synth.images.diffusion import ImageDiffusion
from dpsynth_platform.synth.images.finetune import ImageFinetune
from dpsynth_platform.synth.images.image_gan import ImageGan

PROGRAM = Path(__file__).with_name("killed_diffusion.py")
GENERATOR = ImageDiffusion()
PATIENCE = 200.0


class Killed:
    """One training in a process of its own, started again and again."""

    def __init__(self, plan, bounded, place):
        self.directory, self.plan = place / "model", place / "plan.json"
        self.directory.mkdir()
        self.plan.write_text(plan.to_json())
        self._command = [sys.executable, str(PROGRAM), str(self.plan), str(bounded), str(self.directory)]
        self._environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def lines(self, word):
        log = self.directory.with_name("log")
        return [line for line in log.read_text().splitlines() if line.startswith(word)] if log.exists() else []

    def kill_after(self, word, number, resume, most):
        """Kills it as soon as it wrote so many lines more. It goes no further than one step after `most`.

        A step is counted before its line is written: only a training held at its last line has a line for each count.
        """
        before = len(self.lines(word))
        command = [*self._command, "resume" if resume else "new"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=self._environment) as process:
            os.write(process.stdin.fileno(), b"." * most)
            end = time.monotonic() + PATIENCE
            while len(self.lines(word)) < before + number:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL

    def finish(self, resume=True):
        command = [*self._command, "resume" if resume else "new"]
        return subprocess.run(
            command, input=b"." * 50, capture_output=True, timeout=PATIENCE, check=False, env=self._environment
        )


def test_killed_in_the_middle_it_continues_within_what_is_paid_for(tmp_path):
    """Killed within its third step, and after a further one: each step's execution is counted, and it ends complete."""
    runs = Killed(diffusion_plan(), bounded_pictures(tmp_path / "bounded"), tmp_path)
    runs.kill_after("begun", 3, resume=False, most=2)
    assert GENERATOR.can_resume(runs.directory)
    assert not GENERATOR.is_complete(runs.directory)
    assert (runs.directory / "pictures/training").is_dir()
    assert not list((runs.directory / "pictures").rglob("pixels*"))  # they had no name any more
    runs.kill_after("complete", 1, resume=True, most=0)
    done = runs.finish()
    assert done.returncode == 0, done.stderr[-2000:]
    executed = json.loads((runs.directory / "pictures/trained.json").read_text())["executed_steps"]
    begun = [int(line.split()[1]) for line in runs.lines("begun")]
    assert begun == list(range(1, executed + 1))
    assert 7 <= executed <= 10
    assert GENERATOR.is_complete(runs.directory)
    left = sorted(path.name for path in (runs.directory / "pictures").iterdir())
    assert left == ["trained.json", "weights.safetensors"]
    table = GENERATOR.sample(runs.directory, 20)
    assert table.num_rows == 20
    assert table.column("picture").null_count == 0


def test_killed_between_count_and_training_it_counts_no_second_time(tmp_path):
    contract = nearest_contract(public_table(tmp_path / "public"))
    runs = Killed(diffusion_plan(contract, by_table=True), bounded_pictures(tmp_path / "bounded"), tmp_path)
    runs.kill_after("warm-up", 1, resume=False, most=0)
    counts = runs.directory / "pictures" / public_warm_up.COUNTS
    kept = counts.read_bytes()
    assert GENERATOR.can_resume(runs.directory)
    done = runs.finish()
    assert done.returncode == 0, done.stderr[-2000:]
    assert runs.lines(public_warm_up.STAGE) == [f"{public_warm_up.STAGE} {number}" for number in (0, 1)]
    assert counts.read_bytes() == kept
    assert GENERATOR.is_complete(runs.directory)


def test_a_killed_training_of_a_public_model_continues(tmp_path, monkeypatch):
    """It begins again from the same checkpoint, in another process, whose first low-rank matrices are others."""
    plan, bounded = finetune_plan(saved_model(tmp_path / "public")), bounded_pictures(tmp_path / "bounded")
    runs = Killed(plan, bounded, tmp_path)
    runs.kill_after("begun", 4, resume=False, most=3)
    mechanism = ImageFinetune()
    assert mechanism.can_resume(runs.directory)
    monkeypatch.setattr(diffusion_training, "refuse_unsound_grid", lambda *given: None)
    mechanism.run(job(plan, bounded, runs.directory, resume=True))
    executed = json.loads((runs.directory / "pictures/trained.json").read_text())["executed_steps"]
    assert 7 <= executed <= 10
    left = sorted(path.name for path in (runs.directory / "pictures").iterdir())
    assert left == ["trained.json", "weights.safetensors"]
    assert mechanism.sample(runs.directory, 20).column("picture").null_count == 0


def test_a_killed_gan_continues_with_its_generator(tmp_path, monkeypatch):
    """The generator's weights after the last complete step are those that a new process begins with."""
    plan, bounded = gan_plan(), bounded_pictures(tmp_path / "bounded")
    runs = Killed(plan, bounded, tmp_path)
    runs.kill_after("begun", 4, resume=False, most=3)
    mechanism, begins = ImageGan(), []
    assert mechanism.can_resume(runs.directory)
    step = gan_network.Follower.step

    def noted(self, number):
        begins.append((number, {name: float(value.abs().sum()) for name, value in self.state.items()}))
        step(self, number)

    monkeypatch.setattr(gan_network, "refuse_unsound_grid", lambda *given: None)
    monkeypatch.setattr(gan_network.Follower, "step", noted)
    mechanism.run(job(plan, bounded, runs.directory, resume=True))
    number, state = begins[0]
    assert number in (4, 5)  # the killed step may have been complete
    assert all(value > 0 for name, value in state.items() if "optimizer" in name)
    executed = json.loads((runs.directory / "pictures/trained.json").read_text())["executed_steps"]
    assert executed == 4 + 7 - number
    left = sorted(path.name for path in (runs.directory / "pictures").iterdir())
    assert left == ["trained.json", "weights.safetensors"]
    assert mechanism.sample(runs.directory, 20).column("picture").null_count == 0
