"""Averages of a network's weights over the steps of its training: post-processing of differentially private values.

What belongs here: the exponential average. What does not: choosing between averages by looking at data, which is a
mechanism of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

PREFIX = "average."


class ExponentialAverage:
    """The exponential moving average of the weights (Polyak & Juditsky 1992), `interface.Averages`.

    Early steps are forgotten faster: after step n the decay is at most (1 + n) / (10 + n).

    Args:
        parameters: the live ones, by name. The average begins with their values.
        decay: the part of the average that remains in a step, from 0 to below 1.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self._parameters, self._decay = parameters, decay
        self.state = {PREFIX + name: value.detach().clone() for name, value in parameters.items()}

    @torch.no_grad()
    def step(self, number: int) -> None:
        kept = min(self._decay, (1 + number) / (10 + number))
        for name, value in self._parameters.items():
            self.state[PREFIX + name].lerp_(value, 1 - kept)

    @property
    def values(self) -> dict[str, Tensor]:
        """The averages, by the parameters' names."""
        return {name.removeprefix(PREFIX): value for name, value in self.state.items()}
