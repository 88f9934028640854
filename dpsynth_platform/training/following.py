"""Steps of a network that follows another one, whose weights have privacy: post-processing.

What belongs here: these steps, and their state. What does not: the two networks, and what the following one learns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from dpsynth_platform.training.averages import PREFIX, ExponentialAverage
from dpsynth_platform.training.optimizer import Optimizer
from dpsynth_platform.training.plan import TrainingPlan


class Following(ABC):
    """Steps after each step of the trained network, `network_training.Kept`.

    Its own weights, Adam's averages and the average of the weights are kept with the training's state. Learning rate
    and decay are those of the plan.

    Args:
        parameters: the live ones, by name.
        steps: in the whole training.
        average: the part of the weights' average that remains in a step of the trained network.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        plan: TrainingPlan,
        steps: int,
        average: float,
    ) -> None:
        self._parameters, self._steps, self._of = dict(parameters), steps, plan.steps
        self._optimizer = Optimizer(plan, self._parameters)
        self._average = ExponentialAverage(self._parameters, average)

    @property
    def state(self) -> Mapping[str, Tensor]:
        live = {f"live.{name}": value.detach() for name, value in self._parameters.items()} | self._optimizer.state
        return {PREFIX + name: value for name, value in live.items()} | self._average.state

    @property
    def values(self) -> Mapping[str, Tensor]:
        """The averaged weights."""
        return self._average.values

    def step(self, number: int) -> None:
        for _ in range(number * self._steps // self._of - (number - 1) * self._steps // self._of):
            self._optimizer.step(number, self._gradients())
        self._average.step(number)

    @abstractmethod
    def _gradients(self) -> dict[str, Tensor]:
        """Of the live parameters, from the trained network's weights, public numbers and random ones."""
