"""The count of executed steps: durable, never less, and refused where it cannot be trusted."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from dpsynth_platform.foundation.errors import MechanismFailed, ReplayExhausted, ResumeRefused
from dpsynth_platform.training.journal import JOURNAL_FILE, StepJournal

RECORD = 43


def begun(directory: Path, steps: int, planned: int = 10, allowance: int = 5) -> None:
    with StepJournal(directory, planned, allowance) as journal:
        for _ in range(steps):
            journal.begin_step()


def test_steps_are_counted_over_all_attempts(tmp_path: Path) -> None:
    begun(tmp_path, 4)
    with StepJournal(tmp_path, 10, 5, resuming=True) as journal:
        assert (journal.executed, journal.position, journal.replayed) == (4, 0, 4)
        journal.resume(3, 3)
        assert journal.replayed == 1
        assert [journal.begin_step() for _ in range(7)] == [5, 6, 7, 8, 9, 10, 11]
        assert (journal.position, journal.replayed) == (10, 1)
        with pytest.raises(MechanismFailed, match="all its 10 steps"):
            journal.begin_step()


def test_a_step_is_on_disk_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StepJournal(tmp_path, 10, 5) as journal:
        synced: list[int] = []
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            synced.append(os.fstat(descriptor).st_size)

        monkeypatch.setattr(os, "fsync", fsync)
        for number in range(3):
            journal.begin_step()
            assert len(synced) == number + 1
            assert synced[-1] == (tmp_path / JOURNAL_FILE).stat().st_size
    assert stat.S_IMODE((tmp_path / JOURNAL_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("torn", range(1, RECORD))
def test_a_torn_record_counts(tmp_path: Path, torn: int) -> None:
    begun(tmp_path, 3)
    path = tmp_path / JOURNAL_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-torn])
    with StepJournal(tmp_path, 10, 5) as journal:
        assert journal.executed == 3
        journal.resume(2, 2)
        assert journal.begin_step() == 4
    with StepJournal(tmp_path, 10, 5) as journal:
        assert journal.executed == 4


def test_a_record_of_zeros_as_a_lost_page_leaves_it_counts(tmp_path: Path) -> None:
    begun(tmp_path, 3)
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(path.read_bytes()[:-RECORD] + bytes(RECORD))
    begun(tmp_path, 1)
    with StepJournal(tmp_path, 10, 5) as journal:
        assert journal.executed == 4


def test_no_step_beyond_what_is_paid(tmp_path: Path) -> None:
    begun(tmp_path, 6)
    with StepJournal(tmp_path, 10, 5) as journal:
        journal.resume(1, 1)
        for _ in range(9):
            journal.begin_step()
        assert journal.executed == 15
    with StepJournal(tmp_path, 10, 5) as journal:
        journal.resume(9, 14)
        with pytest.raises(ReplayExhausted, match="cost 6 steps, and the plan pays for 5; what the training cost"):
            journal.begin_step()
        assert journal.executed == 15


def test_it_stops_as_soon_as_the_rest_cannot_be_paid(tmp_path: Path) -> None:
    begun(tmp_path, 6)
    with StepJournal(tmp_path, 10, 5) as journal, pytest.raises(ReplayExhausted):
        journal.begin_step()


def test_records_that_a_checkpoint_has_seen_must_be_there(tmp_path: Path) -> None:
    begun(tmp_path, 6)
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(path.read_bytes()[: -2 * RECORD])
    with StepJournal(tmp_path, 10, 5) as journal:
        journal.resume(4, 4)
        with pytest.raises(ResumeRefused, match="has 4 executed steps, but a checkpoint was written after 5"):
            journal.resume(5, 5)


def test_a_missing_journal_is_refused_when_resuming(tmp_path: Path) -> None:
    with pytest.raises(ResumeRefused, match="missing"):
        StepJournal(tmp_path, 10, 5, resuming=True)
    begun(tmp_path, 0)
    with StepJournal(tmp_path, 10, 5, resuming=True) as journal:
        assert journal.executed == 0


def test_a_record_taken_out_or_changed_is_noticed(tmp_path: Path) -> None:
    begun(tmp_path, 6)
    path = tmp_path / JOURNAL_FILE
    whole = path.read_bytes()
    first = len(whole) - 6 * RECORD
    path.write_bytes(whole[: first + RECORD] + whole[first + 2 * RECORD :])
    with pytest.raises(ResumeRefused, match="record 2 of 5 does not follow"):
        StepJournal(tmp_path, 10, 5)
    path.write_bytes(whole[:first] + b"x" * RECORD + whole[first + RECORD :])
    with pytest.raises(ResumeRefused, match="record 2 of 6 does not follow"):
        StepJournal(tmp_path, 10, 5)


@pytest.mark.parametrize(("planned", "allowance"), [(11, 5), (10, 6)])
def test_another_plans_journal_is_refused(tmp_path: Path, planned: int, allowance: int) -> None:
    begun(tmp_path, 1)
    with pytest.raises(ResumeRefused, match=f"accepted: one of {planned} steps and an allowance of {allowance}"):
        StepJournal(tmp_path, planned, allowance)


def test_one_process_at_a_time_also_where_directories_are_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where a lock of a directory holds on one machine alone."""
    monkeypatch.setattr("dpsynth_platform.training.journal.held", lambda _: nullcontext())
    with StepJournal(tmp_path, 10, 5) as journal:
        with pytest.raises(ResumeRefused, match="another process is training here"):
            StepJournal(tmp_path, 10, 5, resuming=True)
        journal.begin_step()
    begun(tmp_path, 1)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from dpsynth_platform.training.journal import StepJournal\n"
        "journal = StepJournal(Path(sys.argv[1]), 10, 5); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(ResumeRefused, match="another process is training here"):
            StepJournal(tmp_path, 10, 5)
        other.kill()
        other.wait()
    begun(tmp_path, 1)


def test_a_step_that_cannot_be_counted_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path, 1)
    journal = StepJournal(tmp_path, 10, 5)
    real = os.write

    def full(descriptor: int, content: bytes) -> int:
        if len(content) < RECORD:
            raise OSError(28, "No space left on device")
        return real(descriptor, content[:7])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(MechanismFailed, match="no space left on device"):
            journal.begin_step()
        with pytest.raises(MechanismFailed, match="closed"):
            journal.begin_step()
    with StepJournal(tmp_path, 10, 5) as journal:
        assert journal.executed == 2
