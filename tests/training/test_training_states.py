"""Training states as bytes: exact, in the safetensors format, and through an interrupted training."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch

from dpsynth_platform.errors import ReplayExhausted, ResumeRefused
from dpsynth_platform.training.checkpoints import CheckpointPolicy, Checkpoints
from dpsynth_platform.training.interface import Journal, TrainingState
from dpsynth_platform.training.journal import StepJournal
from dpsynth_platform.training.resuming import ResumableJournal
from dpsynth_platform.training.states import read_state, state_bytes

TENSORS = {
    "parameter.weight": torch.randn(300, 17, requires_grad=True),
    "parameter.transposed": torch.arange(12.0).reshape(3, 4).T,
    "parameter.half": torch.randn(5).to(torch.bfloat16),
    "parameter.double": torch.tensor([1e300, float("nan"), float("-inf")], dtype=torch.float64),
    "optimizer.count": torch.tensor(2**40),
    "optimizer.none": torch.empty(0, 3),
    "optimizer.mask": torch.tensor([True, False]),
}


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.allclose(one, other, 0, 0, equal_nan=True)


def test_a_state_comes_back_exactly() -> None:
    content = b"".join(state_bytes(TrainingState(12, TENSORS)))
    for size in (1, 7, 4096, len(content)):
        pieces = (content[start : start + size] for start in range(0, len(content), size))
        state = read_state(pieces)
        assert state.step == 12
        assert list(state.tensors) == list(TENSORS)
        assert all(same(state.tensors[name], tensor) for name, tensor in TENSORS.items())


def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    content = b"".join(state_bytes(TrainingState(12, TENSORS)))
    read = safetensors.torch.load(content)
    assert all(same(read[name], tensor) for name, tensor in TENSORS.items())
    (tmp_path / "state").write_bytes(content)
    with safetensors.safe_open(tmp_path / "state", "pt") as file:
        assert file.metadata() == {"step": "12"}


def test_what_the_format_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match=r"odd: torch.complex64; accepted: float64"):
        list(state_bytes(TrainingState(1, {"odd": torch.zeros(1, dtype=torch.complex64)})))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x" * 8,
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"{",
        struct.pack("<Q", 4) + b"null",
        b"".join(state_bytes(TrainingState(1, TENSORS)))[:-1],
    ],
)
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ResumeRefused, match="no training state"):
        read_state([content])


class Attempts:
    """A training in one directory, whose attempts end when a test says so."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.told: list[str] = []

    def journal(self, policy: CheckpointPolicy) -> tuple[StepJournal, ResumableJournal]:
        counted = StepJournal(self.directory / "journal", 10, 3)
        kept = Checkpoints(self.directory / "kept", bytes(32), plan_digest="plan", entry_id="entry")
        return counted, ResumableJournal(counted, kept, policy, self.told.append)


def state_of(step: int) -> TrainingState:
    return TrainingState(step, {"parameter.sum": torch.tensor([float(step)])})


def run_until(journal: Journal, first: int, last: int) -> list[int]:
    executed = []
    for step in range(first, last + 1):
        executed.append(journal.begin_step())
        journal.save(state_of(step))
    return executed


def test_a_training_goes_on_from_its_last_state(tmp_path: Path) -> None:
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
    assert attempts.told == []


def test_a_checkpoint_that_fails_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(tmp_path)
    counted, journal = attempts.journal(CheckpointPolicy(every=2))
    with counted:
        run_until(journal, 1, 3)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", full_disk)
            run_until(journal, 4, 6)
        assert len(attempts.told) == 1
        assert "checkpoint of step 4 could not be written (no space left on device)" in attempts.told[0]
        assert "more replayed steps" in attempts.told[0]
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
    with counted, pytest.raises(ResumeRefused, match="knows of 0 executed steps"):
        journal.latest()
