"""A decoder of attention over one table's columns, its rows and its loss (DP-TBART, Castellon et al. 2023).

What belongs here: the network, rows as sequences of tokens, and its gate. What does not: the order of a training's
parts (`network_training`), the plan (`network_plan`), and drawing (`columnwise`).

A row is a sequence with one token for each column, in any order. Tokens are states: no two columns share one, and only
a column's own tokens are possible at its place. Each place sees the tokens before it and which column comes next. To
the logarithms of that column's shares by the noisy counts the network adds its scores, so that training starts near
independent columns.
"""

from __future__ import annotations

import math
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

LAYERS, HEADS, WIDER = 3, 4, 2
"""Of the decoder; the middle of a feed-forward network is so many times as wide."""
LAST = 0.1
"""Deviation of the first scores, about: they begin near zero."""
MOST_ROWS = 256
"""Of a pass on a CPU."""


class _Layer(nn.Module):
    """Causal attention, then a feed-forward network, each added to its normalized input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = math.gcd(HEADS, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.answered = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, WIDER * width), nn.Linear(WIDER * width, width)

    def forward(self, values: Tensor, later: Tensor) -> Tensor:
        rows, places, width = values.shape
        parts = self.asked(self.first(values)).view(rows, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3]) + later
        seen = (scores.softmax(3) @ value).transpose(1, 2).reshape(rows, places, width)
        values = values + self.answered(seen)
        found: Tensor = values + self.narrow(functional.gelu(self.wide(self.second(values))))
        return found


class TbartNetwork(nn.Module):
    """From states in an order of columns to the logarithms of probabilities.

    First weights are of the operating system's randomness.

    Args:
        shares: of each column's states, shape (states,), without zeros.
        width: of a token.
    """

    first: Tensor
    allowed: Tensor
    later: Tensor

    def __init__(self, shares: Sequence[Array], width: int) -> None:
        super().__init__()
        self.sizes = [len(share) for share in shares]
        states, columns, sizes = sum(self.sizes), len(shares), torch.tensor(self.sizes)
        own = torch.repeat_interleave(torch.arange(columns), sizes)
        known = torch.from_numpy(np.concatenate(shares)).float().log()
        self.register_buffer("first", sizes.cumsum(0) - sizes)
        self.register_buffer("allowed", torch.where(own == torch.arange(columns)[:, None], known, -torch.inf))
        self.register_buffer("later", torch.full((columns, columns), -torch.inf).triu_(1))
        self.token, self.next = nn.Embedding(states + 1, width), nn.Embedding(columns, width)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(LAYERS))
        self.last, self.scores = nn.LayerNorm(width), nn.Linear(width, states, bias=False)
        source = torch.Generator().manual_seed(secrets.randbits(63))
        with torch.no_grad():
            for layer in self.modules():
                if isinstance(layer, nn.Embedding):
                    layer.weight.normal_(0, 0.5, generator=source)
                elif isinstance(layer, nn.Linear):
                    layer.weight.normal_(0, layer.weight.shape[1] ** -0.5, generator=source)
                    if layer.bias is not None:
                        layer.bias.zero_()
            self.scores.weight.mul_(LAST)

    def forward(self, tokens: Tensor, order: Tensor) -> Tensor:
        """Of each place, [rows, places, all states]: only states of its column are possible.

        Args:
            tokens: that each place sees last, [rows, places].
            order: columns of the places, [rows, places].
        """
        values = self.token(tokens) + self.next(order)
        later = self.later[: tokens.shape[1], : tokens.shape[1]]
        for layer in self.layers:
            values = layer(values, later)
        scores: Tensor = self.scores(self.last(values)) + self.allowed[order]
        return scores.log_softmax(2)

    @torch.no_grad()
    def conditional(self, states: Tensor, known: Sequence[int], column: int) -> Tensor:
        """Logarithms of the probabilities of a column's states, [rows, states], given the known columns of each row."""
        order = torch.tensor([*known, column], device=states.device).expand(len(states), -1)
        start = int(self.first[column])
        return self(*self.sequence(states, order))[:, -1, start : start + self.sizes[column]]

    def sequence(self, states: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens before each place of an order, and the order."""
        found = self.targets(states, order)
        begin = torch.full_like(found[:, :1], sum(self.sizes))
        return torch.cat([begin, found[:, :-1]], 1), order

    def targets(self, states: Tensor, order: Tensor) -> Tensor:
        """The token of each place, [rows, places]."""
        return (states + self.first).gather(1, order)


class Sequences(OrderedRows):
    """Rows with their orders of columns, and the weight of each place's loss."""

    def arranged(self, states: Tensor, places: Tensor) -> Batch:
        return {"states": states, "order": places.argsort(1), "weights": torch.ones_like(states, dtype=torch.float32)}

    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        states, order = rows["states"], rows["order"]
        found = network(*network.sequence(states, order))  # type: ignore[operator]
        targets = network.targets(states, order)  # type: ignore[operator]
        losses: Tensor = -(rows["weights"] * found.gather(2, targets[:, :, None])[:, :, 0]).sum(1)
        return losses


def prepared(parameters: NetworkParameters, shares: Sequence[Array], device: str = "cpu") -> Prepared:
    """The network with its first weights, tried on random rows before any record is read for training.

    Args:
        shares: of each column's states, by the noisy counts.

    Raises:
        TrainingRefused: training it would not be differentially private; names all faults.
    """
    place = torch.device(device)
    network = TbartNetwork(shares, parameters.width).to(place).eval()
    rows = Sequences(network.sizes, parameters.fixed_order, place)
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
