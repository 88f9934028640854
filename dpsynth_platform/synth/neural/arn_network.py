"""An autoregressive network over one table's columns, its rows and its loss (TabularARGN, arXiv 2501.12012).

What belongs here: the network, and what it takes of rows. What does not: what such networks share
(`columnwise_network`), and drawing (`columnwise`).

A column's prediction sees the states of the columns that stand before it, and adds up scores: the logarithms of its own
shares by the noisy counts, a score for each seen state, and what a hidden layer makes of all seen states together. Seen
states are indicators less their shares, and the hidden layer is zero where nothing is seen. So training starts from
independent columns, gradients are of what columns say about each other alone, and clipping leaves more of that.

Parts of the rows have the fixed order in which rows are drawn, the others random ones, so that the network knows the
distribution of each column given any others.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.synth.neural.columnwise import Reading
from dpsynth_platform.synth.neural.columnwise_network import ColumnwiseNetwork, OrderedRows
from dpsynth_platform.synth.neural.states_network import cross_entropies
from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.training.interface import Batch

INNER, OUTER = 0.5, 0.1
"""Deviations of the first weights into and out of the hidden layer; scores of single states begin with zero."""


class ArnNetwork(ColumnwiseNetwork):
    """From states, and which columns each prediction sees, to the logarithms of probabilities.

    First weights are of the operating system's randomness.

    Args:
        shares: of each column's states, shape (states,), without zeros.
        width: of the hidden layer.
    """

    column: Tensor

    def __init__(self, shares: Sequence[Array], width: int) -> None:
        super().__init__(shares)
        states, sizes = sum(self.sizes), torch.tensor(self.sizes)
        self.register_buffer("column", torch.repeat_interleave(torch.arange(len(sizes)), sizes))
        self.columns, self.hidden = nn.Embedding(len(sizes), width), nn.Linear(states, width, bias=False)
        self.heads = self.heads_of(states + width)
        source = torch.Generator().manual_seed(secrets.randbits(63))
        with torch.no_grad():
            self.columns.weight.normal_(0, 1, generator=source)
            self.hidden.weight.normal_(0, INNER, generator=source)
            for head in self.heads.parameters():
                head[:, :states].zero_()
                head[:, states:].normal_(0, OUTER * width**-0.5, generator=source)

    def forward(self, states: Tensor, seen: Tensor) -> list[Tensor]:
        """Of each column [rows, its states].

        Args:
            states: whole numbers [rows, columns].
            seen: [rows, columns, columns], 1 where the prediction of a column sees another one, else 0.
        """
        rows, columns = states.shape
        values = self.indicators(states)[:, None, :] * seen[:, :, self.column]
        found = self.features(values, torch.arange(columns, device=states.device).expand(rows, columns))
        return [self.predicted(index, found[:, index]) for index in range(columns)]

    @property
    def kept(self) -> int:
        return sum(self.sizes)

    def reading(self, rows: int) -> Reading:
        return _Read(self, rows)

    def features(self, values: Tensor, column: Tensor) -> Tensor:
        """Seen states, and the hidden layer for a column, [..., states + width]."""
        own = self.columns(column)
        return torch.cat([values, functional.silu(self.hidden(values) + own) - functional.silu(own)], -1)


class _Read:
    """See `columnwise.Reading`: by the indicators of what was read."""

    def __init__(self, network: ArnNetwork, rows: int) -> None:
        self._network, self._column = network, 0
        self._values = torch.zeros(rows, sum(network.sizes))

    @torch.no_grad()
    def predict(self, column: int) -> Tensor:
        self._column = column
        columns = torch.full((len(self._values),), column)
        return self._network.predicted(column, self._network.features(self._values, columns))

    def read(self, states: Tensor) -> None:
        own = self._network.own(self._column)
        self._values[:, own] = functional.one_hot(states, own.stop - own.start) - self._network.shares[own]


class Rows(OrderedRows):
    """Rows with the columns that each prediction sees."""

    most_rows = 512

    def arranged(self, states: Tensor, places: Tensor) -> Batch:
        return {"states": states, "seen": (places[:, None, :] < places[:, :, None]).float()}

    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        return (self.weights * cross_entropies(network(rows["states"], rows["seen"]), rows["states"])).sum(1)
