"""A network that takes noise off the states of a table's columns, its rows and its loss (TableDiffusion, Truda 2023).

What belongs here: the network, rows with their noise, the loss, and the points that rows are drawn from. What does not:
what networks over states share (`states_network`), and the mixture that is drawn from (`mixture_generator`).

A row is the vector of its states' indicators less their shares. Noise of a level is added; the network sees the sum and
the level, and says which states the row has: it predicts the values, not the noise. Each of a record's rows has a
random level. To draw, pure noise is replaced step by step by what the network makes of it and less noise.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.synth.neural.states_network import StateRows, StatesNetwork, cross_entropies
from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.training.interface import Batch

LEVELS = (0.2, 4.0)
"""Deviations of the noise, from the last step to the first."""
STEPS = 24
"""From noise to rows."""


class DiffusionNetwork(StatesNetwork):
    """From noisy rows and their levels to the logarithms of probabilities.

    First weights are of the operating system's randomness, and first scores zero.

    Args:
        shares: of each column's states, shape (states,), without zeros.
        width: of the two hidden layers.
    """

    def __init__(self, shares: Sequence[Array], width: int) -> None:
        super().__init__(shares)
        states = sum(self.sizes)
        self.read, self.level = nn.Linear(states, width), nn.Linear(3, width, bias=False)
        self.middle, self.heads = nn.Linear(width, width), self.heads_of(width)
        source = torch.Generator().manual_seed(secrets.randbits(63))
        with torch.no_grad():
            for name, values in self.named_parameters():
                if name.endswith("bias") or name.startswith("heads"):
                    values.zero_()
                else:
                    values.normal_(0, values.shape[1] ** -0.5, generator=source)

    def forward(self, noisy: Tensor, levels: Tensor) -> list[Tensor]:
        """Logarithms of probabilities by column, [rows, its states].

        Args:
            noisy: [rows, all states].
            levels: deviations of the noise, [rows].
        """
        scale = (1 + levels[:, None] ** 2).rsqrt()
        place = levels.log()[:, None]
        seen = self.read(noisy * scale) + self.level(torch.cat([place, place.sin(), place.cos()], 1))
        features = functional.silu(seen)
        features = features + functional.silu(self.middle(features))
        return [self.predicted(column, features) for column in range(len(self.sizes))]

    def denoised(self, rows: int, source: torch.Generator) -> list[Tensor]:
        """As `forward`, of rows that start from noise alone."""
        steps = torch.linspace(math.log(LEVELS[1]), math.log(LEVELS[0]), STEPS).exp()
        noisy = steps[0] * torch.randn(rows, len(self.shares), generator=source)
        for level, after in itertools.pairwise(steps):
            values = torch.cat(self(noisy, level.expand(rows)), 1).exp() - self.shares
            noisy = values + (noisy - values) * (after / level)
        found: list[Tensor] = self(noisy, steps[-1].expand(rows))
        return found


class DiffusionRows(StateRows):
    """Rows with noise of a random level each."""

    most_rows = 512

    def drawn(self, records: Batch, draws: int) -> Batch:
        return self._with_noise(records["states"].repeat_interleave(draws, 0))

    def made_up(self, rows: int) -> Batch:
        return self._with_noise(self.random_states(rows))

    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        states, levels = rows["states"], rows["levels"]
        noisy = network.indicators(states) + levels[:, None] * rows["noise"]  # type: ignore[operator]
        return cross_entropies(network(noisy, levels), states).sum(1)

    def _with_noise(self, states: Tensor) -> Batch:
        places = torch.rand(len(states), generator=self.source, device=self.device)
        low, high = map(math.log, LEVELS)
        noise = torch.randn(len(states), sum(self.sizes), generator=self.source, device=self.device)
        return {"states": states, "levels": (low + (high - low) * places).exp(), "noise": noise}
