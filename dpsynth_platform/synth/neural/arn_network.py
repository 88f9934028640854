"""An autoregressive network over one table's columns, its rows and its loss (TabularARGN, arXiv 2501.12012).

What belongs here: the network, rows with orders of columns, and its gate. What does not: the order of a training's
parts (`network_training`), the plan (`network_plan`), and drawing (`columnwise`).

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

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.synth.network_training import Prepared
from dpsynth_platform.synth.neural.network_plan import NetworkParameters
from dpsynth_platform.synth.neural.ordered_rows import OrderedRows
from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.training.averages import ExponentialAverage
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.unit_probe import refuse_unsound_grid
from dpsynth_platform.training.vectors import VectorSums

INNER, OUTER = 0.5, 0.1
"""Deviations of the first weights into and out of the hidden layer; scores of single states begin with zero."""
MOST_ROWS = 512
"""Of a pass on a CPU."""


class ArnNetwork(nn.Module):
    """From states, and which columns each prediction sees, to the logarithms of probabilities.

    First weights are of the operating system's randomness.

    Args:
        shares: of each column's states, shape (states,), without zeros.
        width: of the hidden layer.
    """

    first: Tensor
    column: Tensor
    shares: Tensor

    def __init__(self, shares: Sequence[Array], width: int) -> None:
        super().__init__()
        self.sizes = [len(share) for share in shares]
        states, sizes = sum(self.sizes), torch.tensor(self.sizes)
        self.register_buffer("first", sizes.cumsum(0) - sizes)
        self.register_buffer("column", torch.repeat_interleave(torch.arange(len(sizes)), sizes))
        self.register_buffer("shares", torch.from_numpy(np.concatenate(shares)).float())
        self.columns, self.hidden = nn.Embedding(len(sizes), width), nn.Linear(states, width, bias=False)
        self.heads = nn.ModuleDict(
            {
                str(index): nn.Linear(states + width, size, bias=False)
                for index, size in enumerate(self.sizes)
                if size > 1
            }
        )
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
        values = self._indicators(states)[:, None, :] * seen[:, :, self.column]
        found = self._features(values, torch.arange(columns, device=states.device).expand(rows, columns))
        return [self._predicted(index, found[:, index]) for index in range(columns)]

    @torch.no_grad()
    def conditional(self, states: Tensor, known: Sequence[int], column: int) -> Tensor:
        """Logarithms of the probabilities of a column's states, [rows, states], given the known columns of each row."""
        seen = torch.zeros(len(self.sizes), device=states.device)
        seen[list(known)] = 1
        values = self._indicators(states) * seen[self.column]
        return self._predicted(column, self._features(values, torch.full_like(states[:, 0], column)))

    def _indicators(self, states: Tensor) -> Tensor:
        """Of each row's states, less their shares: [rows, all states]."""
        found = -self.shares.expand(len(states), -1)
        return found.scatter_add(1, states + self.first, torch.ones_like(states, dtype=found.dtype))

    def _features(self, values: Tensor, column: Tensor) -> Tensor:
        """Seen states, and the hidden layer for a column, [..., states + width]."""
        own = self.columns(column)
        return torch.cat([values, functional.silu(self.hidden(values) + own) - functional.silu(own)], -1)

    def _predicted(self, column: int, features: Tensor) -> Tensor:
        start = int(self.first[column])
        if self.sizes[column] == 1:  # noise merged all of its values into one state
            return features.new_zeros((*features.shape[:-1], 1))
        scores = self.heads[str(column)](features) + self.shares[start : start + self.sizes[column]].log()
        return functional.log_softmax(scores, -1)


class Rows(OrderedRows):
    """Rows with the columns that each prediction sees."""

    def arranged(self, states: Tensor, places: Tensor) -> Batch:
        return {"states": states, "seen": (places[:, None, :] < places[:, :, None]).float()}

    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        predicted, states = network(rows["states"], rows["seen"]), rows["states"]
        found = [values.gather(1, states[:, index : index + 1]) for index, values in enumerate(predicted)]
        return -torch.cat(found, 1).sum(1)


def prepared(parameters: NetworkParameters, shares: Sequence[Array], device: str = "cpu") -> Prepared:
    """The network with its first weights, tried on random rows before any record is read for training.

    Args:
        shares: of each column's states, by the noisy counts.

    Raises:
        TrainingRefused: training it would not be differentially private; names all faults.
    """
    place = torch.device(device)
    network = ArnNetwork(shares, parameters.width).to(place).eval()
    rows = Rows(network.sizes, parameters.fixed_order, place)
    refuse_unsound_grid(network, parameters.training, rows.losses, rows.made_up, VectorSums)
    return Prepared(
        network=network,
        losses=rows.losses,
        drawn=rows.drawn,
        made_up=rows.made_up,
        draws=1,
        kept=lambda trained: ExponentialAverage(trained, parameters.average),
        sums=VectorSums,
        most_rows=MOST_ROWS,
    )
