"""The public numbers of a diffusion model: its loss, its warm-up, and how pictures are drawn.

What belongs here: the numbers and their limits. What does not: what is computed with them (`diffusion_loss`,
`diffusion_sampling`, `diffusion_training`). Planning reads them without torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsynth_platform.foundation.errors import AccountingError


@dataclass(frozen=True)
class DiffusionLoss:
    """The numbers of the loss. Public; none of them changes what a training costs.

    Attributes:
        draws: of noise for a picture in a step, K.
        level_mean: mean of the logarithm of the noise's deviation.
        level_deviation: its deviation.
        without_class: the part of rows that are learned without their class, which guidance needs.
        shift: the most pixels by which a row's picture is moved in each direction.
        flip: whether a row's picture is mirrored, half of the time.

    Raises:
        AccountingError: a number is impossible.
    """

    draws: int = 8
    level_mean: float = -1.2
    level_deviation: float = 1.2
    without_class: float = 0.1
    shift: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        checks = {
            "draws": (self.draws >= 1, "a whole number from 1"),
            "level_mean": (math.isfinite(self.level_mean), "a finite number"),
            "level_deviation": (0 < self.level_deviation < math.inf, "a finite number above 0"),
            "without_class": (0 <= self.without_class < 1, "a number from 0 to below 1"),
            "shift": (self.shift >= 0, "a whole number from 0"),
        }
        for name, (fits, accepted) in checks.items():
            if not fits:
                raise AccountingError(f"loss: {name} {getattr(self, name)!r}; accepted: {accepted}")


@dataclass(frozen=True)
class Solver:
    """The numbers of drawing: post-processing.

    Attributes:
        steps: levels of noise; each but the last takes two passes of the network.
        highest: the first level, and
        lowest: the last one above 0.
        curve: exponent by which levels are spaced (rho).
        churn: how much new noise the steps add together; 0 is a deterministic path.
        guidance: how far the estimate with the class is taken beyond the one without (Ho & Salimans 2022); 0: not.

    Raises:
        AccountingError: a number is impossible.
    """

    steps: int = 10
    highest: float = 80.0
    lowest: float = 0.002
    curve: float = 7.0
    churn: float = 0.0
    guidance: float = 0.0

    def __post_init__(self) -> None:
        fits = self.steps >= 2 and 0 < self.lowest < self.highest and self.curve > 0
        if not (fits and self.churn >= 0 and self.guidance >= 0):
            raise AccountingError(
                "solver: impossible numbers; accepted: steps from 2, 0 < lowest < highest, curve above 0, churn and "
                "guidance from 0"
            )

    @property
    def levels(self) -> list[float]:
        """All levels of noise, and 0 (EDM, equation 5)."""
        first, last = self.highest ** (1 / self.curve), self.lowest ** (1 / self.curve)
        between = np.linspace(first, last, self.steps) ** self.curve
        return [*between.tolist(), 0.0]


@dataclass(frozen=True)
class WarmUpNumbers:
    """How the network first learns from pictures that cost nothing more: post-processing.

    Attributes:
        pictures: how many are drawn.
        steps: of Adam, each on `batch` of them.
        learning_rate: the highest one, which falls to 0 in the second half.

    Raises:
        AccountingError: a number is impossible.
    """

    pictures: int = 20_000
    steps: int = 1200
    batch: int = 64
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        if min(self.pictures, self.steps, self.batch) < 1 or not 0 < self.learning_rate <= 1:
            raise AccountingError(
                "warm-up: impossible numbers; accepted: pictures, steps and batch from 1, learning_rate above 0 and at "
                "most 1"
            )
