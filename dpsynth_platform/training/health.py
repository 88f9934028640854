"""Stops trainings that learn nothing, judged by differentially private values only.

What belongs here: rules over noised gradients and parameters, with their error rates. What does not: values without
noise. A loss, a gradient's norm or a threshold on either would be another, unpaid access to the data; the reasons for a
stop are public.

**The rules.** D is the number of trainable coordinates, and the noise's deviation is known.

* *Not finite*: a noised gradient or a parameter. No false alarm.
* *Too little noise*: the squared length of noise plus a sum, over the noise's variance, stochastically dominates a
  chi-squared variable of D degrees of freedom. Below the bound of Laurent & Massart (2000, lemma 1) the noise is not
  the planned one; at random once in 1 / `FALSE_ALARM` trainings.
* *Nothing moves*: no parameter value has changed since the first step, after `WATCHED` steps and the warm-up. Noise
  alone moves them, so there is no false alarm and gradients are not needed.
* *No signal*: gradients of exactly zero (labels all ignored, an adapter without effect) leave pure noise. A weak signal
  looks the same, so a training counts as alive if its clipped sums are, in the mean of squares, at least as long as
  those of a planned batch whose gradients have a share `LIVE` of the clipping norm and are orthogonal. The plan alone
  gives the one step at which pure noise can be distinguished from that, with a power of 1 - `MISSED` and a false alarm
  of at most `FALSE_ALARM` (Birge 2001, lemma 8.1, for the tail of the noncentral chi-squared). If that step is beyond
  the training's end (many coordinates, small batches), the rule does not apply. It does not find gradients that are
  merely small, nor any other bad training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.plan import TrainingPlan

FALSE_ALARM = 1e-9
MISSED = 1e-6
WATCHED = 5
"""Steps after which a parameter must have moved."""
LIVE = {"automatic": 0.5, "flat": 0.01}
"""Least norm of a live gradient after clipping, in clipping norms. Automatic clipping brings nearly all to that norm;
flat clipping leaves short ones short, so it allows a judgement of very large batches only."""
_SAMPLED = 4096


class Watch:
    """The loop's `Health` for one training, until a crash; with its live trainable parameters by name.

    `judged_at` is the step at which a training without signal is detected; None if the plan has none.
    """

    def __init__(self, plan: TrainingPlan, parameters: Mapping[str, Tensor]) -> None:
        self._plan, self._parameters = plan, parameters
        self._coordinates = sum(parameter.numel() for parameter in parameters.values())
        needed = steps_to_judge(plan, self._coordinates)
        self.judged_at = needed if needed <= plan.steps else None
        self._squares = 0.0
        self._first: int | None = None
        self._before: dict[str, Tensor] = {}

    def step(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        """Judges step number `step`, from 1, before its noised mean gradients are applied; see `interface.Health`."""
        if self._first is None:
            self._first = step
            self._before = {name: _sample(parameter) for name, parameter in self._parameters.items()}
        _all_finite(gradients, "noised gradient")
        _all_finite(self._parameters, "value")
        deviation = self._plan.noise_deviation / self._plan.batch_size
        squares = sum(float(gradient.double().square().sum()) for gradient in gradients.values()) / deviation**2
        self._enough_noise(squares)
        self._squares += squares
        if self._first == 1:
            self._something_moves(step)
            if step == self.judged_at:
                self._some_signal(step)

    def _enough_noise(self, squares: float) -> None:
        x = math.log(self._plan.paid_steps / FALSE_ALARM)
        if squares < self._coordinates - 2 * math.sqrt(self._coordinates * x):
            raise MechanismFailed("training: a noised gradient has less noise than planned; do not release this model")

    def _something_moves(self, step: int) -> None:
        if step != max(WATCHED, self._plan.warmup_steps) + 1:
            return
        if all(torch.equal(_sample(parameter), self._before[name]) for name, parameter in self._parameters.items()):
            raise MechanismFailed(
                f"training: after {step - 1} steps no parameter has moved, not even by the noise; raise learning_rate, "
                "and check that the model's weights are in single precision"
            )

    def _some_signal(self, step: int) -> None:
        live = step * live_square(self._plan)
        freedom, x = step * self._coordinates, math.log(1 / FALSE_ALARM)
        if self._squares <= freedom + live - 2 * math.sqrt((freedom + 2 * live) * x):
            raise MechanismFailed(
                f"training: {step} steps of noised gradients contain noise without a signal; check labels, adapter "
                "and clipping_norm, and that the number of records is about expected_units"
            )


def live_square(plan: TrainingPlan) -> float:
    """The least squared length of a live clipped sum, in units of the noise's variance on one coordinate."""
    return LIVE[plan.clipping] ** 2 * plan.batch_size / plan.noise_multiplier**2


def steps_to_judge(plan: TrainingPlan, coordinates: int) -> int:
    """Number of steps after which pure noise and a live training are distinguishable.

    k steps suffice if pure noise stays below the threshold: with l = `live_square`, x = log(1 / FALSE_ALARM) and
    y = log(1 / MISSED), if kD + 2 sqrt(kDy) + 2y <= kD + kl - 2 sqrt(k(D + 2l)x), a quadratic in sqrt(k).
    """
    live, x, y = live_square(plan), math.log(1 / FALSE_ALARM), math.log(1 / MISSED)
    slope = 2 * math.sqrt(coordinates * y) + 2 * math.sqrt((coordinates + 2 * live) * x)
    return math.ceil(((slope + math.sqrt(slope**2 + 8 * y * live)) / (2 * live)) ** 2)


def _all_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    # One transfer from an accelerator for all of them.
    finite = torch.stack([torch.isfinite(tensor).all() for tensor in tensors.values()]).tolist()
    for name, good in zip(tensors, finite, strict=True):
        if not good:
            raise MechanismFailed(f"training: {name}: its {what} is not finite; lower learning_rate")


def _sample(parameter: Tensor) -> Tensor:
    """Up to `_SAMPLED` values, evenly spaced, copied."""
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLED)].clone()
