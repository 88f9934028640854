"""A variational autoencoder over the states of a table's columns, its rows and its loss (Kingma & Welling 2014).

What belongs here: the network, rows with their random points, and the loss. What does not: what networks over states
share (`states_network`), and the mixture that is drawn from (`mixture_generator`).

The encoder reads all states of a row, as indicators less their shares, and says where among the hidden points the row
is: a normal distribution. The decoder makes scores of every column from a point. A row's loss is what its columns lose
at one random point, and the divergence of its distribution of points from the standard one. A record's gradient is that
of this whole loss, which is clipped as one.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.synth.neural.states_network import StateRows, StatesNetwork, cross_entropies
from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.training.interface import Batch

POINTS = 8
"""Numbers of a hidden point."""
FIRST = 0.3
"""Deviation of the first scores, about."""


class VaeNetwork(StatesNetwork):
    """From states and random numbers to scores of all columns.

    First weights are of the operating system's randomness.

    Args:
        shares: of each column's states, shape (states,), without zeros.
        width: of the two hidden layers.
    """

    def __init__(self, shares: Sequence[Array], width: int) -> None:
        super().__init__(shares)
        states = sum(self.sizes)
        self.read, self.place = nn.Linear(states, width), nn.Linear(width, 2 * POINTS)
        self.spread = nn.Linear(POINTS, width)
        self.heads = self.heads_of(width)
        source = torch.Generator().manual_seed(secrets.randbits(63))
        with torch.no_grad():
            for name, values in self.named_parameters():
                if name.endswith("bias"):
                    values.zero_()
                else:
                    scale = FIRST if name.startswith("heads") else 1.0
                    values.normal_(0, scale * values.shape[1] ** -0.5, generator=source)

    def forward(self, states: Tensor, points: Tensor) -> tuple[list[Tensor], Tensor]:
        """Logarithms of probabilities by column, [rows, its states], and divergences of hidden points, [rows].

        Args:
            states: whole numbers [rows, columns].
            points: of the standard normal distribution, [rows, POINTS].
        """
        middle, spread = self.place(functional.silu(self.read(self.indicators(states)))).chunk(2, 1)
        spread = spread.clamp(-8.0, 8.0)
        divergences = (middle**2 + spread.exp() - 1 - spread).sum(1) / 2
        return self.decoded(middle + points * (spread / 2).exp()), divergences

    def decoded(self, points: Tensor) -> list[Tensor]:
        """Logarithms of probabilities by column, [rows, its states], at hidden points [rows, POINTS]."""
        features = functional.silu(self.spread(points))
        return [self.predicted(column, features) for column in range(len(self.sizes))]


class VaeRows(StateRows):
    """Rows with a random point each."""

    most_rows = 512

    def drawn(self, records: Batch, draws: int) -> Batch:
        return self._with_points(records["states"].repeat_interleave(draws, 0))

    def made_up(self, rows: int) -> Batch:
        return self._with_points(self.random_states(rows))

    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        predicted, divergences = network(rows["states"], rows["points"])
        losses: Tensor = cross_entropies(predicted, rows["states"]).sum(1) + divergences
        return losses

    def _with_points(self, states: Tensor) -> Batch:
        points = torch.randn(len(states), POINTS, generator=self.source, device=self.device)
        return {"states": states, "points": points}
