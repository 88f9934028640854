"""The optimizer's step on noised gradients, which is post-processing.

What belongs here: learning rate, AdamW and SGD, and their state. What does not: gradients. The state is by name instead
of in torch's optimizer, so that it goes into a `TrainingState` unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from dpsynth_platform.training.plan import TrainingPlan

BETAS = (0.9, 0.999)
EPSILON = 1e-8


def learning_rate(plan: TrainingPlan, step: int) -> float:
    """The learning rate of a step, counted from 1: linear warm-up, then the plan's decay towards 0 at its last step."""
    if step <= plan.warmup_steps:
        return plan.learning_rate * step / plan.warmup_steps
    rest = (step - 1 - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)
    if plan.decay == "linear":
        return plan.learning_rate * (1 - rest)
    if plan.decay == "cosine":
        return plan.learning_rate * (1 + math.cos(math.pi * rest)) / 2
    return plan.learning_rate


class Optimizer:
    """AdamW (Loshchilov & Hutter 2019) or plain SGD, with decoupled weight decay; changes the parameters in place.

    `state` has the averages by `optimizer.<slot>.<name>`; it is empty for SGD.
    """

    def __init__(self, plan: TrainingPlan, parameters: Mapping[str, Tensor]) -> None:
        self._plan, self._parameters = plan, parameters
        slots = ("mean", "square") if plan.optimizer == "adamw" else ()
        self.state = {
            f"optimizer.{slot}.{name}": torch.zeros_like(value, dtype=torch.float32)
            for slot in slots
            for name, value in parameters.items()
        }

    @torch.no_grad()
    def step(self, number: int, gradients: Mapping[str, Tensor]) -> None:
        """Updates the parameters by the noised mean gradients of step `number`, from 1."""
        rate = learning_rate(self._plan, number)
        for name, parameter in self._parameters.items():
            parameter.mul_(1 - rate * self._plan.weight_decay)
            if self._plan.optimizer == "sgd":
                parameter.sub_(gradients[name], alpha=rate)
            else:
                self._adam(name, parameter, gradients[name], number, rate)

    def _adam(self, name: str, parameter: Tensor, gradient: Tensor, number: int, rate: float) -> None:
        mean, square = self.state[f"optimizer.mean.{name}"], self.state[f"optimizer.square.{name}"]
        mean.lerp_(gradient, 1 - BETAS[0])
        square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        scale = (square / (1 - BETAS[1] ** number)).sqrt_().add_(EPSILON)
        parameter.addcdiv_(mean, scale, value=-rate / (1 - BETAS[0] ** number))
