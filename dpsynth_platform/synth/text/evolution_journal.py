"""The durable record of an evolution: *draw, append durably, use*.

What belongs here: the append-only file of candidates and their noisy votes, round by round, and reading it back. What
does not: drawing votes (`evolution_votes`), and what follows from them (`evolution_loop`).

A round's votes are on disk before anything depends on them, so that an evolution that was cut short goes on with them,
and draws none of them a second time. The file is there before the first record is read, and says whether columns are
counted: who goes on and does not find it, or not the counts, cannot know what was drawn, and draws nothing. Votes whose
line a crash cut off were seen by nobody: the line is taken out, and the round votes again, as the plan has paid for.
Everything in the file is public or was shown with noise.
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
    """The file while it grows; each call that appends returns only when its line is on disk."""

    def __init__(self, descriptor: int, lines: list[dict[str, Any]]) -> None:
        self._descriptor = descriptor
        self._lines = lines

    @classmethod
    @contextmanager
    def opened(cls, directory: Path, plan_digest: str, *, resuming: bool) -> Iterator[EvolutionJournal]:
        """The journal of a model directory, begun or gone on with, for one process at a time.

        Args:
            directory: of the model.
            plan_digest: of the plan that is run.
            resuming: whether records may have been read before; then a missing journal is refused.

        Raises:
            ResumeRefused: another process holds it, it is missing, damaged, or of another plan.
        """
        path, header = directory / FILE_NAME, {"kind": "header", "plan": plan_digest}
        if not path.exists():
            if resuming:
                raise ResumeRefused(f"{path}: the journal is missing, so that nobody can tell what was drawn; {_OVER}")
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
        """Appends that the columns are counted. Raises `ResumeRefused` if that was begun before."""
        if _COUNTED in self._lines:
            raise ResumeRefused(f"counting the columns was begun before, and what it found is not there; {_OVER}")
        self._append(_COUNTED)

    @property
    def groups(self) -> dict[tuple[str | None, ...], int] | None:
        """How many candidates each group keeps, by what its texts are told; None where that is not settled yet."""
        found = self._of("groups")
        return None if found is None else {tuple(told): size for told, size in found["sizes"]}

    def settle(self, groups: dict[tuple[str | None, ...], int]) -> None:
        """Appends the groups."""
        self._append({"kind": "groups", "sizes": [[list(told), size] for told, size in groups.items()]})

    def candidates(self, number: int) -> tuple[list[Any], list[int]] | None:
        """The candidates of a round and their groups, or None where there are none yet."""
        found = self._of("candidates", number)
        return None if found is None else (found["samples"], found["groups"])

    def propose(self, number: int, samples: Sequence[Any], groups: Sequence[int]) -> None:
        """Appends a round's candidates, JSON values each."""
        self._append({"kind": "candidates", "round": number, "samples": list(samples), "groups": list(groups)})

    def votes(self, number: int) -> Counts | None:
        """The noisy votes of a round, or None where nobody has voted."""
        found = self._of("votes", number)
        return None if found is None else np.array(found["votes"], dtype=np.int64)

    def count(self, number: int, votes: Counts) -> None:
        """Appends a round's noisy votes. Raises `MechanismFailed` if there are some already."""
        if self.votes(number) is not None:
            raise MechanismFailed(f"round {number} has voted; nobody votes twice")
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
    """Whether there is a journal."""
    return (directory / FILE_NAME).exists()


def has_counted(directory: Path) -> bool:
    """Whether the journal that is there says that counting the columns was begun. Looks without holding it."""
    return _line(_COUNTED) in (directory / FILE_NAME).read_bytes().splitlines(keepends=True)


def _line(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _parsed(content: bytes) -> list[dict[str, Any]]:
    try:
        return [dict(json.loads(line)) for line in content.split(b"\n")[:-1]]
    except (ValueError, TypeError):
        raise ResumeRefused(f"the journal of the evolution is damaged; {_OVER}") from None
