"""The durable count of executed training steps.

What belongs here: counting a step before its batch is drawn, refusing unpaid steps, and detecting a lost count. What
does not: the model's state (`checkpoints`), and the cost of a step (`plan`). The privacy event of a training covers its
planned steps and a replay allowance. A step whose result was lost in a crash has read the data, so the event is valid
only if this count never decreases.

The journal is a file of fixed-length records, one for each executed step, appended and flushed to disk before the step
begins. A record has its number, the model's step that it was meant for, and a digest over all earlier records and
itself. A record torn by a crash counts, since its step may have begun. Truncation by whole records leaves a valid file;
it is detected if a checkpoint was written after more steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import ExitStack
from pathlib import Path

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

    Open it before using the ledger's grant, so that resuming can require its existence: `resuming` says that steps may
    have been executed before, and refuses a missing journal. The directory is of this training alone.

    Attributes:
        executed: number of begun steps, in all attempts.
        position: the model's steps, including the current one.

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
                    f"{self._path}: the journal of executed steps is missing, so their number is unknown; {_OVER}"
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
        """Executed steps that are not in the model: lost, or executed again."""
        return self.executed - self.position

    @property
    def finished(self) -> bool:
        """Whether the model's last step has begun."""
        return self.position >= self._planned

    def resume(self, step: int, executed: int) -> None:
        """Resumes from a checkpoint of the model's step `step`, written after `executed` steps.

        Raises:
            ResumeRefused: the journal has fewer steps than the checkpoint.
        """
        if executed > self.executed:
            raise ResumeRefused(
                f"{self._path}: has {self.executed} executed steps, but a checkpoint was written after {executed}; "
                f"records are missing, so the number of executed steps is unknown: {_OVER}"
            )
        self.position = step

    def begin_step(self) -> int:
        """Counts one more step durably, before its batch is drawn; returns the count over all attempts.

        Raises:
            ReplayExhausted: the remaining steps would exceed those that the plan pays for. Raised as soon as that is
                certain, since the training could not be finished.
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
            self.close()  # the file may have part of the record; opening it again counts that as a step
            raise MechanismFailed(
                f"{self._path}: the next step cannot be counted ({file_problem(error)}), so it was not begun; resolve "
                "that, then resume the training"
            ) from None
        self._digest = digest
        self.executed += 1
        self.position += 1
        return self.executed

    def close(self) -> None:
        """Lets other processes open the journal; `begin_step` is refused from now on."""
        if self._file is not None:
            os.close(self._file)
        self._file = None
        self._holding.close()

    def __enter__(self) -> StepJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, records: bytes, digest: bytes) -> tuple[int, bytes]:
        """Number of records, and the digest over them; of a torn record, over its actual bytes."""
        count = len(records) // _RECORD_BYTES
        for number in range(1, count + 1):
            raw = records[(number - 1) * _RECORD_BYTES : number * _RECORD_BYTES]
            found = _RECORD.fullmatch(raw)
            if found is None:
                digest = _next_digest(digest, raw)
                continue
            digest = _next_digest(digest, found[1])
            if found[2] != digest.hex()[:16].encode() or int(raw[:12]) != number:
                raise ResumeRefused(
                    f"{self._path}: record {number} of {count} does not follow from those before it; the journal was "
                    f"changed, so the number of executed steps is unknown: {_OVER}"
                )
        return count, digest


def can_resume(directory: Path, steps_taken: int) -> bool:
    """Whether an interrupted training has enough paid steps left to finish, after its newest checkpoint's steps.

    It is true if there is a journal, unless its count proves that `begin_step` refuses. It does not lock or validate
    the journal; opening it does.
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
