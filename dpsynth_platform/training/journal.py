"""The durable count of executed training steps.

What belongs here: counting a step before its batch is drawn, refusing steps that nobody paid for, and noticing a count
that was lost. What does not: the model's state (`checkpoints`), and what a step costs (`plan`). The privacy event of a
training covers its planned steps and a replay allowance; a step whose result was lost in a crash looked at the data all
the same, so what holds the event true is that this count never goes down.

The journal is a file of records of one length, one for each executed step, appended and flushed to disk before the step
begins. A record holds its own number, the step of the model that it was meant for, and a digest over all records
before it and itself. A record that was torn by a crash counts: its step may have begun, as far as anybody can tell
later. Cutting records off the end leaves a sound file; that is noticed where a checkpoint has seen more of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from dpsynth_platform.foundation.digests import canonical_json
from dpsynth_platform.foundation.errors import MechanismFailed, ReplayExhausted, ResumeRefused, file_problem
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.storage import HeldByAnother, held, hold, write_durably

JOURNAL_FILE = "journal"

_RECORD = re.compile(rb"(\d{12} \d{12}) ([0-9a-f]{16})\n")
_RECORD_BYTES = 43
_TORN = b"~"
_OVER = "what the training cost stays spent, and a new attempt is a new spend"


class StepJournal:
    """Counts the executed steps of one training, in all its attempts. One process may hold it at a time, anywhere.

        with StepJournal(directory, planned_steps=1000, replay_allowance=50, resuming=True) as journal:
            journal.resume(checkpoint.step, checkpoint.executed)      # where there is a checkpoint
            executed = journal.begin_step()                           # then draw the batch

    Open it before the ledger's grant is used up: whoever resumes can then insist that there is one.

    Args:
        directory: of this training alone; made where it is missing.
        planned_steps: steps that the model is to take.
        replay_allowance: how many steps more may be executed.
        resuming: whether steps may have been executed before; then a missing journal is refused.

    Attributes:
        executed: how many steps were begun, in all attempts.
        position: how many steps the model has taken, the one that is under way included.

    Raises:
        ResumeRefused: another process holds it; it is missing, damaged or of another plan.
    """

    def __init__(self, directory: Path, planned_steps: int, replay_allowance: int, *, resuming: bool = False) -> None:
        self._planned, self._allowance = planned_steps, replay_allowance
        self._path = private_directory(directory) / JOURNAL_FILE
        self._file: int | None = None
        self._holding = ExitStack()
        try:
            self._holding.enter_context(held(directory))
            self._open(resuming)
        except HeldByAnother:
            self.close()
            raise ResumeRefused(f"{directory}: another process is training here; wait for its end, or end it") from None
        except BaseException:
            self.close()
            raise
        self.position = 0

    def _open(self, resuming: bool) -> None:
        header = canonical_json({"planned_steps": self._planned, "replay_allowance": self._allowance}).encode() + b"\n"
        if not self._path.exists():
            if resuming:
                raise ResumeRefused(
                    f"{self._path}: the journal of executed steps is missing, so that nobody can tell how many were; "
                    f"{_OVER}"
                )
            write_durably(self._path, header)
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        hold(self._file)
        content = self._path.read_bytes()
        if not content.startswith(header):
            raise ResumeRefused(
                f"{self._path}: the journal is damaged or of another plan; accepted: one of {self._planned} steps and "
                f"an allowance of {self._allowance}"
            )
        records = content[len(header) :]
        if missing := -len(records) % _RECORD_BYTES:
            filler = _TORN * (missing - 1) + b"\n"
            _append(self._file, filler)
            records += filler
        self.executed, self._digest = self._read(records, hashlib.sha256(header).digest())

    @property
    def replayed(self) -> int:
        """Executed steps that are not in the model: lost, or executed again since."""
        return self.executed - self.position

    @property
    def finished(self) -> bool:
        """Whether the model's last step has begun."""
        return self.position >= self._planned

    def resume(self, step: int, executed: int) -> None:
        """Goes on from a checkpoint.

        Args:
            step: how many steps its model has taken.
            executed: how many steps had been executed when it was written.

        Raises:
            ResumeRefused: the journal knows of fewer steps than the checkpoint does.
        """
        if executed > self.executed:
            raise ResumeRefused(
                f"{self._path}: knows of {self.executed} executed steps, and a checkpoint was written after "
                f"{executed}; records are missing, so that nobody can tell how many steps were executed: {_OVER}"
            )
        self.position = step

    def begin_step(self) -> int:
        """Counts one more step, on disk when it returns. To be called before the step's batch is drawn.

        Returns:
            How many steps were executed so far, this one included, in all attempts.

        Raises:
            ReplayExhausted: the steps that are left to do would be more than the plan pays for. Raised as soon as that
                is certain, since the rest of the training could not be finished either.
            MechanismFailed: the model has taken all its steps, or the step could not be counted. It must not begin.
        """
        if self._file is None:
            raise MechanismFailed(f"{self._path}: the journal is closed, so no step may begin")
        if self.finished:
            raise MechanismFailed(f"the model has taken all its {self._planned} steps; none is left to begin")
        left = self._planned - self.position
        if self.executed + left > self._planned + self._allowance:
            raise ReplayExhausted(
                f"{self.executed} steps were executed and {left} of the planned {self._planned} are still to do: "
                f"interruptions cost {self.replayed} steps, and the plan pays for {self._allowance}; {_OVER}. "
                "Accepted: a plan with a larger replay allowance, or more frequent checkpoints"
            )
        body = f"{self.executed + 1:012d} {self.position + 1:012d}".encode()
        digest = _next_digest(self._digest, body)
        try:
            _append(self._file, body + b" " + digest.hex()[:16].encode() + b"\n")
        except OSError as error:
            self.close()  # part of the record may stand in the file; the next to open it counts that as a step
            raise MechanismFailed(
                f"{self._path}: the next step cannot be counted ({file_problem(error)}), so it was not begun; the "
                "training can be resumed once that is mended"
            ) from None
        self._digest = digest
        self.executed += 1
        self.position += 1
        return self.executed

    def close(self) -> None:
        """Lets others open the journal; counts no more."""
        if self._file is not None:
            os.close(self._file)
        self._file = None
        self._holding.close()

    def __enter__(self) -> StepJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, records: bytes, digest: bytes) -> tuple[int, bytes]:
        """Number of records and the digest over them. The digest over a torn one is over its bytes as they are."""
        count = len(records) // _RECORD_BYTES
        for number in range(1, count + 1):
            raw = records[(number - 1) * _RECORD_BYTES : number * _RECORD_BYTES]
            found = _RECORD.fullmatch(raw)
            if found is None:
                digest = _next_digest(digest, raw)
                continue
            digest = _next_digest(digest, found[1])
            sound = found[2] == digest.hex()[:16].encode() and int(raw[:12]) == number
            if not sound:
                raise ResumeRefused(
                    f"{self._path}: record {number} of {count} does not follow from those before it; the journal was "
                    f"changed, so that nobody can tell how many steps were executed: {_OVER}"
                )
        return count, digest


def may_go_on(directory: Path, steps_taken: int) -> bool:
    """Whether a training that was cut short has any paid steps left to finish with. Looks without holding the journal.

    Args:
        directory: of the training.
        steps_taken: by the model of its newest checkpoint.

    Returns:
        Whether there is a journal, unless what it counts proves `begin_step` to refuse. Whether it is sound is found
        when it is opened.
    """
    try:
        header, _, records = (directory / JOURNAL_FILE).read_bytes().partition(b"\n")
    except OSError:
        return False
    try:
        promised = json.loads(header)
        planned, allowance = int(promised["planned_steps"]), int(promised["replay_allowance"])
    except (ValueError, KeyError, TypeError):
        return True
    executed = -(-len(records) // _RECORD_BYTES)
    return steps_taken >= planned or executed - steps_taken <= allowance


def _append(descriptor: int, record: bytes) -> None:
    while record:
        record = record[os.write(descriptor, record) :]
    os.fsync(descriptor)


def _next_digest(digest: bytes, record: bytes) -> bytes:
    return hashlib.sha256(digest + record).digest()
