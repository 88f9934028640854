"""An autoregressive network over one table's columns, its rows and its loss (TabularARGN, arXiv 2501.12012).

What belongs here: the network, rows with random orders of columns, and its gate. What does not: the order of a
training's parts (`network_training`), the plan (`network_plan`), and drawing (`columnwise`).

Each state of each column has an embedding. A column's prediction sees the sum of the embeddings of those columns that
stand before it, and passes through a hidden layer that all columns share, and a last layer of its own. Orders are
random, so one network knows the conditional distribution of each column given any others. The last layers begin with
the shares of the noisy counts, so that training starts from independent columns.
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
from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.training.averages import ExponentialAverage
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.unit_probe import refuse_unsound_grid
from dpsynth_platform.training.vectors import VectorSums

STATES, HEADS = 0.5, 0.1
"""Scales of the first weights of embeddings and of last layers."""
MOST_ROWS = 512
"""Of a pass on a CPU."""


class ArnNetwork(nn.Module):
    """From states, and which columns each prediction sees, to the logarithms of probabilities.

    First weights are of the operating system's randomness.

    Args:
        sizes: states of each column.
        width: of embeddings and of the hidden layer.
    """

    first: Tensor

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        self.register_buffer("first", torch.tensor([0, *np.cumsum(sizes)[:-1].tolist()]), persistent=False)
        self.states, self.columns = nn.Embedding(sum(sizes), width), nn.Embedding(len(sizes), width)
        self.hidden = nn.Linear(width, width)
        self.heads = nn.ModuleList(nn.Linear(width, size) for size in sizes)
        source = torch.Generator().manual_seed(secrets.randbits(63))
        with torch.no_grad():
            self.states.weight.normal_(0, STATES, generator=source)
            self.columns.weight.normal_(0, 1, generator=source)
            for layer, scale in ((self.hidden, 1.0), *((head, HEADS) for head in self.heads)):
                layer.weight.normal_(0, scale * width**-0.5, generator=source)
                layer.bias.zero_()

    def forward(self, states: Tensor, seen: Tensor) -> list[Tensor]:
        """Of each column [rows, its states].

        Args:
            states: whole numbers [rows, columns].
            seen: [rows, columns, columns], 1 where the prediction of a column sees another one, else 0.
        """
        rows, columns = states.shape
        each = torch.arange(columns, device=states.device).expand(rows, columns)
        found = self._hidden(torch.bmm(seen, self.states(states + self.first)) + self.columns(each))
        return [functional.log_softmax(head(found[:, index]), 1) for index, head in enumerate(self.heads)]

    @torch.no_grad()
    def conditional(self, states: Tensor, known: Sequence[int], column: int) -> Tensor:
        """Logarithms of the probabilities of a column's states, [rows, states], given the known columns of each row."""
        places = torch.tensor(known, dtype=torch.long, device=states.device)
        context = self.states(states[:, places] + self.first[places]).sum(1) + self.columns.weight[column]
        return functional.log_softmax(self.heads[column](self._hidden(context)), 1)

    def _hidden(self, context: Tensor) -> Tensor:
        units = functional.silu(context)
        return units + functional.silu(self.hidden(units))


class Rows:
    """Rows of records, each with a random order of the columns, and their loss.

    The orders hide nothing: a record's are independent of others' and of the noise of training.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self._sizes, self._device = list(sizes), device
        self._source = torch.Generator(device).manual_seed(secrets.randbits(63))

    def drawn(self, records: Batch, draws: int) -> Batch:
        """So many rows of each record, one record after the other, from `states` [records, columns]."""
        states = records["states"].repeat_interleave(draws, 0)
        places = torch.rand(states.shape, generator=self._source, device=self._device)
        return {"states": states, "seen": (places[:, None, :] < places[:, :, None]).float()}

    def made_up(self, rows: int) -> Batch:
        """Rows of random states, which read no record."""
        shares = torch.rand(rows, len(self._sizes), generator=self._source, device=self._device)
        states = (shares * torch.tensor(self._sizes, device=self._device)).long()
        return self.drawn({"states": states}, 1)

    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        """Of each row, [rows]: the cross entropy of all columns together."""
        predicted, states = network(rows["states"], rows["seen"]), rows["states"]
        found = [values.gather(1, states[:, index : index + 1]) for index, values in enumerate(predicted)]
        return -torch.cat(found, 1).sum(1)


def prepared(
    parameters: NetworkParameters, sizes: Sequence[int], shares: Sequence[Array] | None, device: str = "cpu"
) -> Prepared:
    """The network with its first weights, tried on random rows before any record is read for training.

    Args:
        shares: of each column's states, with which the last layers begin; None: equal ones.

    Raises:
        TrainingRefused: training it would not be differentially private; names all faults.
    """
    place = torch.device(device)
    network, rows = ArnNetwork(sizes, parameters.width).to(place).eval(), Rows(sizes, place)
    with torch.no_grad():
        for head, share in zip(network.heads, shares or (), strict=False):
            head.bias.copy_(torch.from_numpy(np.log(share)))  # type: ignore[operator]
    refuse_unsound_grid(network, parameters.training, rows.losses, rows.made_up, VectorSums)
    return Prepared(
        network=network,
        losses=rows.losses,
        drawn=rows.drawn,
        made_up=rows.made_up,
        draws=parameters.orders,
        kept=lambda trained: ExponentialAverage(trained, parameters.average),
        sums=VectorSums,
        most_rows=MOST_ROWS,
    )
