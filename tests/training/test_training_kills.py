"""Killed at random points, training counts every step that it executed, finishes, and stops where the plan ends."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

from dpsynth_platform.training.journal import StepJournal

PROGRAM = Path(__file__).with_name("killed_training.py")
sys.path.insert(0, str(PROGRAM.parent))
from killed_training import checkpoints, state_after  # noqa: E402

PATIENCE = 300.0


class Runs:
    """One training, started again and again."""

    def __init__(self, directory: Path, planned: int, allowance: int, every: int) -> None:
        self.directory = directory
        self._command = [sys.executable, str(PROGRAM), str(directory), str(planned), str(allowance), str(every)]
        self._steps = planned + allowance

    def logged(self) -> int:
        """How many steps were executed, by the training's own log."""
        try:
            return (self.directory / "log").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def kill_after(self, steps: int, delay: float, *, spare: int = 2) -> None:
        """Starts it, allows a few steps more than `steps`, waits for those and the delay, and kills it."""
        before = self.logged()
        with subprocess.Popen(self._command, stdin=subprocess.PIPE) as process:
            os.write(process.stdin.fileno(), bytes(steps + spare))
            end = time.monotonic() + PATIENCE
            while self.logged() < before + steps:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.0005)
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.returncode == -signal.SIGKILL

    def finish(self) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self._command, input=bytes(self._steps), capture_output=True, timeout=PATIENCE, check=False
        )


def test_every_executed_step_is_counted_through_twenty_kills(tmp_path: Path) -> None:
    kills, planned, every = 20, 150, 5
    allowance = kills * every
    runs = Runs(tmp_path, planned, allowance, every)
    for number in range(kills):
        if number % 5 == 4:  # while it starts
            runs.kill_after(0, secrets.randbelow(200) / 1000)
        else:
            runs.kill_after(1 + secrets.randbelow(6), secrets.randbelow(40) / 10_000)
    done = runs.finish()
    assert done.returncode == 0, done

    with StepJournal(tmp_path / "training", planned, allowance, resuming=True) as journal:
        executed = journal.executed
    logged = (tmp_path / "log").read_text().split()
    assert len(set(logged)) == len(logged)
    assert max(map(int, logged)) == executed
    assert len(logged) <= executed <= len(logged) + kills  # killed after the count and before the log
    assert planned < executed <= planned + allowance

    kept = checkpoints(tmp_path)
    latest = kept.latest()
    assert (latest.step, latest.executed) == (planned, executed)
    assert b"".join(kept.read(latest)) == state_after(planned)
    files = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert len(files) == 2, files


def test_beyond_the_allowance_it_stops_and_says_so(tmp_path: Path) -> None:
    planned, allowance = 30, 10
    runs = Runs(tmp_path, planned, allowance, every=0)
    for _ in range(3):  # without checkpoints each kill loses all steps
        runs.kill_after(4, 0.0, spare=0)
    done = runs.finish()
    assert done.returncode == 3
    output = done.stdout.decode()
    with StepJournal(tmp_path / "training", planned, allowance) as journal:
        executed = journal.executed
    assert executed == 12
    assert output.startswith("replay-exhausted ")
    assert "12 steps were executed and 30 of the planned 30 are still to do" in output
    assert "interruptions cost 12 steps, and the plan pays for 10" in output
    assert "stays spent" in output
    assert "Accepted: a plan with a larger replay allowance" in output
