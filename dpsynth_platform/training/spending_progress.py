"""The progress of a training in words: the epsilon that its executed steps have cost so far, and how fast they go.

What belongs here: joining public numbers, a step, the time and what a privacy event costs, for whoever reports
progress. What does not: anything that a step found (losses, norms, sizes of samples), which nobody may be told: where
records or owners a second are told, they are as many as the plan expects in a step, never those that were drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpsynth_platform.foundation.figures import upper_bound
from dpsynth_platform.foundation.progress import Pace, Progress
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.training.plan import TrainingPlan

TOLD = 10
"""Of how many numbers of steps, at most, the cost is computed: it may take seconds each."""


class SpendingProgress:
    """Hands progress on, and with each step of training an upper bound on what was spent up to there.

    Args:
        progress: is told everything, with `epsilon so far: at most 3.2` beside steps of training.
        event_of: of a number of executed steps, all that they and what came before them cost.
        delta: at which epsilon is told.
        plan: says how many steps may be executed, and how many records or owners a step is planned for.
        executed: says how many were, in all attempts.
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
        self._plan, self._every = plan, math.ceil(plan.paid_steps / TOLD)
        self._known: dict[int, float] = {}
        self._pace = Pace()

    def __call__(self, stage: str, done: int, total: int, beside: str = "") -> None:
        spent = f"epsilon so far: at most {upper_bound(self.bound(self._executed()), 3)}"
        rate = self._pace.rate(stage, done)
        self._progress(stage, done, total, spent if rate is None else f"{spent}; {self._speed(rate)}")

    def _speed(self, rate: float) -> str:
        units = "records" if self._plan.sampled == "record" else "owners"
        return f"{_number(60 * rate)} steps a minute, {_number(self._plan.batch_size * rate)} planned {units} a second"

    def bound(self, executed: int) -> float:
        """An upper bound on the epsilon of so many executed steps: the cost of the next number that is computed."""
        steps = min(self._plan.paid_steps, self._every * math.ceil(executed / self._every))
        if steps not in self._known:
            self._known[steps] = epsilon(self._event_of(steps), self._delta).epsilon
        return self._known[steps]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
