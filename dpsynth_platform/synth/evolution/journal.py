"""The durable record of an evolution: *draw, append durably, use*.

What belongs here: the append-only file of candidates and their noisy votes, round by round, and reading it back. What
does not: drawing votes (`votes`), and what follows from them (`loop`).

A round's votes are on disk before anything depends on them, so that an interrupted evolution continues with them and
draws none a second time. The file exists before the first record is read, and says whether columns are counted: without
the file, or without the counts, a resumed run cannot know what was drawn, and draws nothing. A crash may cut off the
line of votes that nothing has used: the line is removed, and the round votes again, as the plan has paid for.
Everything in the file is public or noisy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_platform.foundation.errors import MechanismFailed, ResumeRefused
from dpsynth_platform.foundation.storage import HeldByAnother, hold, write_durably
from dpsynth_platform.synth.tabular.noise import Counts

FILE_NAME = "evolution.jsonl"
_COUNTED = {"kind": "columns"}
_OVER = "what it cost stays spent, and a new attempt is a new spend"


class EvolutionJournal:
    """The open file; each call that appends returns when its line is on disk."""

    def __init__(self, descriptor: int, lines: list[dict[str, Any]]) -> None:
        self._descriptor = descriptor
        self._lines = lines

    @classmethod
    @contextmanager
    def opened(cls, directory: Path, plan_digest: str, *, resuming: bool) -> Iterator[EvolutionJournal]:
        """The new or continued journal of a model directory, for one process at a time.

        Args:
            resuming: whether records may have been read before; then a missing journal is refused.

        Raises:
            ResumeRefused: another process holds it, or it is missing, damaged or of another plan.
        """
        path, header = directory / FILE_NAME, {"kind": "header", "plan": plan_digest}
        if not path.exists():
            if resuming:
                raise ResumeRefused(f"{path}: the journal is missing, so that it is unknown what was drawn; {_OVER}")
            write_durably(path, _line(header))
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            try:
                hold(descriptor)
            except HeldByAnother:
                raise ResumeRefused(f"{path}: another process is at work here; wait for its end, or end it") from None
            content = path.read_bytes()
            os.ftruncate(descriptor, content.rfind(b"\n") + 1)  # a line that a crash cut off
            journal = cls(descriptor, _parsed(content))
            if journal._lines[:1] != [header]:
                raise ResumeRefused(f"{path}: the journal is of another plan; {_OVER}")
            yield journal
        finally:
            os.close(descriptor)

    def begin_counting(self) -> None:
        """Appends that counting the columns begins. Raises `ResumeRefused` if it had begun before."""
        if _COUNTED in self._lines:
            raise ResumeRefused(f"counting the columns began before, and its result is missing; {_OVER}")
        self._append(_COUNTED)

    @property
    def groups(self) -> dict[tuple[str | None, ...], int] | None:
        """How many candidates survive in each group, by its conditions' values; None if that is not settled yet."""
        found = self._of("groups")
        return None if found is None else {tuple(given): size for given, size in found["sizes"]}

    def settle(self, groups: dict[tuple[str | None, ...], int]) -> None:
        self._append({"kind": "groups", "sizes": [[list(given), size] for given, size in groups.items()]})

    def candidates(self, number: int) -> tuple[list[Any], list[int]] | None:
        """The candidates of a round and their groups; None if there are none yet."""
        found = self._of("candidates", number)
        return None if found is None else (found["samples"], found["groups"])

    def propose(self, number: int, samples: Sequence[Any], groups: Sequence[int]) -> None:
        """Appends a round's candidates, JSON values each."""
        self._append({"kind": "candidates", "round": number, "samples": list(samples), "groups": list(groups)})

    def votes(self, number: int) -> Counts | None:
        """The noisy votes of a round; None if there are none yet."""
        found = self._of("votes", number)
        return None if found is None else np.array(found["votes"], dtype=np.int64)

    def count(self, number: int, votes: Counts) -> None:
        """Appends a round's noisy votes. Raises `MechanismFailed` if there are some already."""
        if self.votes(number) is not None:
            raise MechanismFailed(f"round {number} has votes; a round votes once")
        self._append({"kind": "votes", "round": number, "votes": votes.tolist()})

    def _of(self, kind: str, number: int | None = None) -> dict[str, Any] | None:
        found = (line for line in self._lines if line["kind"] == kind and line.get("round") == number)
        return next(found, None)

    def _append(self, line: dict[str, Any]) -> None:
        content = _line(line)
        while content:
            content = content[os.write(self._descriptor, content) :]
        os.fsync(self._descriptor)
        self._lines.append(line)


def has_begun(directory: Path) -> bool:
    """Whether a model directory has a journal."""
    return (directory / FILE_NAME).exists()


def has_counted(directory: Path) -> bool:
    """Whether the existing journal says that counting the columns began. Reads it without a lock."""
    return _line(_COUNTED) in (directory / FILE_NAME).read_bytes().splitlines(keepends=True)


def _line(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _parsed(content: bytes) -> list[dict[str, Any]]:
    try:
        return [dict(json.loads(line)) for line in content.split(b"\n")[:-1]]
    except (ValueError, TypeError):
        raise ResumeRefused(f"the journal of the evolution is damaged; {_OVER}") from None
