"""The progress of a training in words: the epsilon of its executed steps so far, and their speed.

What belongs here: a text from public numbers: step, time and cost of a privacy event. What does not: results of a step
(losses, norms, sizes of samples), which must not be reported: records or owners a second are the planned ones, never
those that were drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpsynth_platform.foundation.figures import upper_bound
from dpsynth_platform.foundation.progress import Pace, Progress, silent
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.training.plan import TrainingPlan

MOST_COSTS = 10
"""Most numbers of steps whose cost is computed: each may take seconds."""


class SpendingProgress:
    """Passes progress on, with an upper bound on the epsilon so far, for example `epsilon so far: at most 3.2`.

    `event_of` gives the total cost of a number of executed steps, with all earlier costs; `executed` returns their
    number, in all attempts.
    """

    def __init__(
        self,
        progress: Progress,
        event_of: Callable[[int], DpEvent],
        delta: float,
        plan: TrainingPlan,
        executed: Callable[[], int],
    ) -> None:
        self._progress, self._event_of, self._delta, self._executed = progress, event_of, delta, executed
        self._plan, self._every = plan, math.ceil(plan.paid_steps / MOST_COSTS)
        self._known: dict[int, float] = {}
        self._pace = Pace()

    def __call__(self, stage: str, done: int, total: int, beside: str = "") -> None:
        if self._progress is silent:
            return  # what nobody reads costs no seconds
        spent = f"epsilon so far: at most {upper_bound(self.bound(self._executed()), 3)}"
        rate = self._pace.rate(stage, done)
        self._progress(stage, done, total, spent if rate is None else f"{spent}; {self._speed(rate)}")

    def _speed(self, rate: float) -> str:
        units = "records" if self._plan.sampled == "record" else "owners"
        return f"{_number(60 * rate)} steps a minute, {_number(self._plan.batch_size * rate)} planned {units} a second"

    def bound(self, executed: int) -> float:
        """An upper bound on the epsilon of so many executed steps: the next number of steps with a computed cost."""
        steps = min(self._plan.paid_steps, self._every * math.ceil(executed / self._every))
        if steps not in self._known:
            self._known[steps] = epsilon(self._event_of(steps), self._delta).epsilon
        return self._known[steps]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
