"""An interrupted training resumes from its last state, and warns of checkpoints that it cannot write."""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from training_cases import Records, batch, flat, model, plan

from dpsynth_platform.foundation.errors import ReplayExhausted, ResumeRefused
from dpsynth_platform.training import stopping
from dpsynth_platform.training.checkpoints import CheckpointPolicy, Checkpoints
from dpsynth_platform.training.interface import Journal, TrainingState
from dpsynth_platform.training.journal import StepJournal
from dpsynth_platform.training.loop import train
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.resuming import ResumableJournal
from dpsynth_platform.training.sampler import PoissonSampler


class Attempts:
    """A training in one directory; the test ends its attempts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.warnings: list[str] = []

    def journal(self, policy: CheckpointPolicy, allowance: int = 3) -> tuple[StepJournal, ResumableJournal]:
        counted = StepJournal(self.directory / "journal", 10, allowance)
        kept = Checkpoints(self.directory / "kept", bytes(32), plan_digest="plan", entry_id="entry")
        return counted, ResumableJournal(counted, kept, policy, self.warnings.append)


class StopsAt:
    """A watch that ends a training in the middle of a step, as a crash would; keeps what it trained until then."""

    def __init__(self, step: int | None, made: torch.nn.Module) -> None:
        self._stop, self._made = step, made
        self.parameters: dict[int, torch.Tensor] = {}

    def step(self, step: int, gradients: object) -> None:
        self.parameters[step - 1] = flat(value.detach().clone() for value in self._made.parameters())
        if step == self._stop:
            raise KeyboardInterrupt


def test_the_loop_goes_on_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps 5 and 6 are executed twice, and the second time from what the model was after step 4."""
    attempts, policy = Attempts(tmp_path), CheckpointPolicy(every=2)
    chosen = plan(steps=10, replay_allowance=3, optimizer="sgd", learning_rate=0.1)
    made, rows = model(), Records(batch([5, 9, 7]))
    fresh, watch = copy.deepcopy(made), StopsAt(6, made)
    counted, journal = attempts.journal(policy)
    with counted, pytest.raises(KeyboardInterrupt):
        train(made, chosen, rows, journal=journal, health=watch)
    assert counted.executed == 6
    assert not torch.equal(watch.parameters[4], watch.parameters[5])

    # From here on nothing moves the model, so that it ends as it was loaded.
    monkeypatch.setattr(PoissonSampler, "draw", lambda self: np.zeros(0, dtype=np.int64))
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: None)
    counted, journal = attempts.journal(policy)
    with counted:
        trained = train(fresh, chosen, rows, journal=journal, health=StopsAt(None, fresh))
        assert (trained.steps, trained.executed, journal.replayed) == (10, 12, 2)
    assert torch.equal(flat(value.detach() for value in fresh.parameters()), watch.parameters[4])

    # A crash after the last step costs no further one.
    counted, journal = attempts.journal(policy)
    with counted:
        assert journal.latest().step == 10
        assert counted.executed == 12


class Signalled(StopsAt):
    """A watch in whose step the process gets a signal: after the sums, and before the optimizer's step."""

    def __init__(self, step: int, made: torch.nn.Module, number: signal.Signals = signal.SIGINT) -> None:
        super().__init__(None, made)
        self._signalled, self._number = step, number

    def step(self, step: int, gradients: object) -> None:
        super().step(step, gradients)
        if step == self._signalled:
            signal.raise_signal(self._number)
            signal.raise_signal(self._number)


@pytest.fixture
def ended_in_order() -> Iterator[None]:
    """SIGTERM as workers take it."""
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, former)


def test_a_training_cancelled_five_times_loses_no_step(tmp_path: Path, ended_in_order: None) -> None:
    """Though nothing is paid for what an interruption repeats, and no checkpoint is due before the end."""
    attempts, policy = Attempts(tmp_path), CheckpointPolicy.for_allowance(0)
    chosen = plan(steps=10, replay_allowance=0, optimizer="sgd", learning_rate=0.1)
    rows, start = Records(batch([5, 9, 7])), model()
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for step, number in zip((1, 2, 5, 8, 10), [signal.SIGINT, signal.SIGTERM] * 3, strict=False):
        counted, journal = attempts.journal(policy, 0)
        made = copy.deepcopy(start)
        with counted, pytest.raises(KeyboardInterrupt):
            train(made, chosen, rows, journal=journal, health=Signalled(step, made, number))
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
        counted, journal = attempts.journal(policy, 0)
        with counted:
            kept = journal.latest()
            assert (kept.step, counted.executed) == (step, step)
            assert torch.equal(
                flat(value for name, value in kept.tensors.items() if name.startswith("parameter.")),
                flat(value.detach() for value in made.parameters()),
            )
    counted, journal = attempts.journal(policy, 0)
    with counted:
        assert train(made, chosen, rows, journal=journal, health=StopsAt(None, made)).steps == 10
        assert (counted.executed, journal.replayed) == (10, 0)


def test_a_step_longer_than_a_launcher_waits_is_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state before it is kept. The step counts as executed and not as one of the model's."""
    monkeypatch.setattr(stopping, "PATIENCE_SECONDS", 0.0)
    attempts, policy = Attempts(tmp_path), CheckpointPolicy(every=None)
    chosen = plan(steps=10, replay_allowance=3, optimizer="sgd", learning_rate=0.1)
    made, rows = model(), Records(batch([5, 9, 7]))
    watch = StopsAt(None, made)
    counted, journal = attempts.journal(policy)
    begin = counted.begin_step

    def signalled_in_the_fourth() -> int:
        if counted.executed == 3:
            signal.raise_signal(signal.SIGINT)
        return begin()

    monkeypatch.setattr(counted, "begin_step", signalled_in_the_fourth)
    monkeypatch.setattr(PoissonSampler, "draw", lambda self: np.arange(3))
    with counted, pytest.raises(KeyboardInterrupt):
        train(made, chosen, rows, journal=journal, health=watch)
    counted, journal = attempts.journal(policy)
    with counted:
        assert journal.latest().step == 3
        assert (counted.executed, journal.replayed) == (4, 1)


def state_of(step: int) -> TrainingState:
    return TrainingState(step, {"parameter.sum": torch.tensor([float(step)])})


def run_until(journal: Journal, first: int, last: int) -> list[int]:
    executed = []
    for step in range(first, last + 1):
        executed.append(journal.begin_step())
        journal.save(state_of(step))
    return executed


def test_what_was_kept_is_the_last_state_that_was_due(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    policy = CheckpointPolicy(every=2)
    counted, journal = attempts.journal(policy)
    with counted:
        assert journal.latest() is None
        assert run_until(journal, 1, 5) == [1, 2, 3, 4, 5]
    counted, journal = attempts.journal(policy)
    with counted:
        state = journal.latest()
        assert state.step == 4
        assert state.tensors["parameter.sum"].item() == 4.0
        assert journal.replayed == 1
        assert run_until(journal, 5, 10) == [6, 7, 8, 9, 10, 11]
        assert journal.replayed == 1
    assert attempts.warnings == []


def test_a_checkpoint_that_fails_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(tmp_path)
    counted, journal = attempts.journal(CheckpointPolicy(every=2))
    with counted:
        run_until(journal, 1, 3)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", full_disk)
            run_until(journal, 4, 6)
        assert len(attempts.warnings) == 1
        assert "checkpoint of step 4 could not be written (no space left on device)" in attempts.warnings[0]
        assert "more replayed steps" in attempts.warnings[0]
        assert journal.latest().step == 2
        counted.resume(6, 6)
        run_until(journal, 7, 7)
        assert journal.latest().step == 7


def full_disk(*_: object) -> Path:
    raise OSError(28, "No space left on device")


def test_time_makes_a_checkpoint_due(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    counted, journal = attempts.journal(CheckpointPolicy(every=None, seconds=0.0))
    with counted:
        run_until(journal, 1, 1)
        assert journal.latest().step == 1


def test_what_was_lost_beyond_the_allowance_stops_the_training(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    counted, journal = attempts.journal(CheckpointPolicy(every=None))
    with counted:
        run_until(journal, 1, 4)
    counted, journal = attempts.journal(CheckpointPolicy(every=None))
    with counted, pytest.raises(ReplayExhausted, match="cost 4 steps, and the plan pays for 3"):
        assert journal.latest() is None
        journal.begin_step()


def test_records_cut_off_the_journal_are_noticed(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    counted, journal = attempts.journal(CheckpointPolicy(every=1))
    with counted:
        run_until(journal, 1, 4)
    (tmp_path / "journal" / "journal").unlink()
    counted, journal = attempts.journal(CheckpointPolicy(every=1))
    with counted, pytest.raises(ResumeRefused, match="has 0 executed steps"):
        journal.latest()


def test_after_the_last_step_the_state_is_kept_whatever_the_policy(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    counted, journal = attempts.journal(CheckpointPolicy(every=None))
    with counted:
        run_until(journal, 1, 9)
        assert journal.latest() is None
        run_until(journal, 10, 10)
        assert journal.latest().step == 10
