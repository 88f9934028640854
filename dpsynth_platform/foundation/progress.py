"""How long what is under way will take, by how long it took so far.

What belongs here: the estimate and its words, for whatever reports progress in lines. What does not: reporting
(`worker`, commands). Times are those of a clock that everybody who sees the lines has, too.
"""

from __future__ import annotations

import time
from typing import Protocol

LEAST_SECONDS = 1.0
"""Below, a rate says little."""


class Progress(Protocol):
    """Called as `progress(stage, done, total)`: a public stage name and counts of steps, never of a table's records.

    The numbers follow from the plan and from what was measured with noise; where steps hang on the number of records, a
    stage tells of its beginning and its end (0 and 1 of 1). Synthetic rows count as steps: how many there are was asked
    for, or follows from noisy counts. When it is called is not hidden.
    """

    def __call__(self, stage: str, done: int, total: int, beside: str = "", /) -> None:
        """Is told a step; `beside` has more words about it, as public as the rest: the epsilon so far."""


def silent(stage: str, done: int, total: int, beside: str = "") -> None:
    """The progress callback that reports nothing."""


class Pace:
    """The pace of one stage after the other, each of equal steps."""

    def __init__(self) -> None:
        self._stage, self._began, self._first, self._last = "", 0.0, 0, 0

    def left(self, stage: str, done: int, total: int) -> str:
        """`, about 40 s left`, or nothing where that cannot be told yet. To be asked at every step."""
        rate = self.rate(stage, done)
        return "" if rate is None or done >= total else f", about {in_words((total - done) / rate)} left"

    def rate(self, stage: str, done: int) -> float | None:
        """Steps a second of this stage, or None where that cannot be told yet. To be asked at every step."""
        now = time.monotonic()
        if stage != self._stage or done < self._last:
            self._stage, self._began, self._first = stage, now, done
        self._last = done
        elapsed, made = now - self._began, done - self._first
        return made / elapsed if made and elapsed >= LEAST_SECONDS else None


def in_words(seconds: float) -> str:
    """Seconds in the largest unit of which there are at least two, rounded up: `90 s`, `2 min`, `3 h`."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{-(-seconds // size):.0f} {unit}"
    return f"{-(-seconds // 1):.0f} s"
