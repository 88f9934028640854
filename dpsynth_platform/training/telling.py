"""The progress of a training in words: with the epsilon that its executed steps have cost so far.

What belongs here: joining public numbers, a step and what a privacy event costs, for whoever reports progress. What
does not: anything that a step found (losses, norms, sizes of samples), which nobody may be told.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.figures import upper_bound
from dpsynth_platform.synth.interface import Progress

TOLD = 10
"""Of how many numbers of steps, at most, the cost is computed: it may take seconds each."""


class SpendingProgress:
    """Hands progress on, and with each step of training an upper bound on what was spent up to there.

    Args:
        progress: is told everything, with `epsilon so far: at most 3.2` beside steps of training.
        event_of: of a number of executed steps, all that they and what came before them cost.
        delta: at which epsilon is told.
        paid_steps: the most steps that may be executed.
        executed: says how many were, in all attempts.
    """

    def __init__(
        self,
        progress: Progress,
        event_of: Callable[[int], DpEvent],
        delta: float,
        paid_steps: int,
        executed: Callable[[], int],
    ) -> None:
        self._progress, self._event_of, self._delta, self._executed = progress, event_of, delta, executed
        self._paid, self._every = paid_steps, math.ceil(paid_steps / TOLD)
        self._known: dict[int, float] = {}

    def __call__(self, stage: str, done: int, total: int, beside: str = "") -> None:
        """See `interface.Progress`."""
        self._progress(stage, done, total, f"epsilon so far: at most {upper_bound(self.bound(self._executed()), 3)}")

    def bound(self, executed: int) -> float:
        """An upper bound on the epsilon of so many executed steps: the cost of the next number that is computed."""
        steps = min(self._paid, self._every * math.ceil(executed / self._every))
        if steps not in self._known:
            self._known[steps] = epsilon(self._event_of(steps), self._delta).epsilon
        return self._known[steps]
