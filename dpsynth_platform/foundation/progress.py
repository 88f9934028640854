"""Progress: what is reported, bars for people, and estimates of the remaining time from the pace so far.

What belongs here: these and their words. What does not: reporting (`worker`, commands). The times are those that
every reader of the progress can measure, so they reveal nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

LEAST_SECONDS = 1.0
"""A shorter time gives no estimate."""


class Progress(Protocol):
    """Called as `progress(stage, done, total)`: a public stage name and counts of steps, never of a table's records.

    The numbers follow from the plan and from noisy measurements. Where the number of steps depends on the number of
    records, a stage reports only its start and end (0 and 1 of 1). Synthetic rows count as steps: their number is
    declared, or follows from noisy counts. The time of calls is not hidden.
    """

    def __call__(self, stage: str, done: int, total: int, beside: str = "", /) -> None:
        """Reports a step; `beside` has further public words, such as the epsilon so far."""


def silent(stage: str, done: int, total: int, beside: str = "") -> None:
    """Reports nothing."""


@contextmanager
def bars(console: Console, *, transient: bool = False) -> Iterator[Progress]:
    """A bar for each stage, on a terminal or in a notebook with ipywidgets; if `transient`, until the block ends."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    in_notebook = console.is_jupyter and find_spec("ipywidgets") is not None
    silenced = console.quiet or not (console.is_terminal or in_notebook)
    with Bars(
        *columns,
        console=console,
        transient=transient,
        disable=silenced,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as shown:
        known: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int, beside: str = "", /) -> None:
            if stage not in known:
                known[stage] = shown.add_task(stage, total=total)
            words = stage + (f" ({beside})" if beside else "")
            shown.update(known[stage], description=words, completed=done, total=total)

        yield report


class Pace:
    """The pace of consecutive stages, whose steps may grow slower."""

    def __init__(self) -> None:
        self._stage, self._began, self._first, self._last = "", 0.0, 0, 0
        self._earlier = self._later = (0.0, 0)

    def left(self, stage: str, done: int, total: int) -> str:
        """`, about 40 s left`, or "" without an estimate. Call it at every step.

        By the slower of the whole stage's pace and that of its last part, at least the last half of its steps; never
        before a tenth is done: the first steps say too little of the others.
        """
        rate = self.rate(stage, done)
        if rate is None or done >= total or 10 * done < total:
            return ""
        at, then = self._earlier
        lately = (done - then) / max(time.monotonic() - at, LEAST_SECONDS)
        return f", about {in_words((total - done) / min(rate, lately))} left"

    def rate(self, stage: str, done: int) -> float | None:
        """Steps per second of this stage, or None without an estimate. Call it at every step."""
        now = time.monotonic()
        if stage != self._stage or done < self._last:
            self._stage, self._began, self._first = stage, now, done
            self._earlier = self._later = (now, done)
        if done - self._first >= 2 * (self._later[1] - self._first):  # whenever the steps have doubled
            self._earlier, self._later = self._later, (now, done)
        self._last = done
        elapsed, made = now - self._began, done - self._first
        return made / elapsed if made and elapsed >= LEAST_SECONDS else None


def in_words(seconds: float) -> str:
    """Seconds in the largest unit of which there are at least two, rounded up: `90 s`, `2 min`, `3 h`."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{-(-seconds // size):.0f} {unit}"
    return f"{-(-seconds // 1):.0f} s"
