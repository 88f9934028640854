"""A decoder of attention over one table's columns (DP-TBART, Castellon et al. 2023).

What belongs here: the network, and rows as sequences of tokens. What does not: what such networks share
(`columnwise_network`), and drawing (`columnwise`).

A row is a sequence with one token for each column, in any order. Tokens are states: no two columns share one, and only
a column's own tokens are possible at its place. Each place sees the tokens before it and which column comes next. To
the logarithms of that column's shares by the noisy counts the network adds its scores. They are zero at first:
training starts from independent columns.
"""

from __future__ import annotations

import math
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

LAYERS, HEADS, WIDER = 3, 4, 2
"""Of the decoder; the middle of a feed-forward network is so many times as wide."""
TOKENS = 0.5
"""Deviation of the first embeddings of tokens and columns."""


class _Layer(nn.Module):
    """Causal attention, then a feed-forward network, each added to its normalized input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = math.gcd(HEADS, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.answered = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, WIDER * width), nn.Linear(WIDER * width, width)

    def forward(self, values: Tensor, later: Tensor, seen: list[Tensor] | None = None) -> Tensor:
        """Of values [rows, places, width].

        Args:
            later: added to the scores: minus infinity where a place may not see another one.
            seen: keys and values of the places before, to which those of these places are added.
        """
        rows, places, width = values.shape
        parts = self.asked(self.first(values)).view(rows, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        if seen:
            key, value = torch.cat([seen[0], key], 2), torch.cat([seen[1], value], 2)
        if seen is not None:
            seen[:] = [key, value]
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3]) + later
        found = (scores.softmax(3) @ value).transpose(1, 2).reshape(rows, places, width)
        values = values + self.answered(found)
        inner = functional.gelu(self.wide(self.second(values)))
        return values + self.narrow(inner)  # type: ignore[no-any-return]


class TbartNetwork(ColumnwiseNetwork):
    """From states in an order of columns to the logarithms of probabilities.

    First weights are of the operating system's randomness.

    Args:
        shares: of each column's states, shape (states,), without zeros.
        width: of a token.
    """

    later: Tensor

    def __init__(self, shares: Sequence[Array], width: int) -> None:
        super().__init__(shares)
        columns = len(shares)
        self.register_buffer("later", torch.full((columns, columns), -torch.inf).triu_(1))
        self.token, self.next = nn.Embedding(sum(self.sizes) + 1, width), nn.Embedding(columns, width)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(LAYERS))
        self.last, self.heads = nn.LayerNorm(width), self.heads_of(width)
        source = torch.Generator().manual_seed(secrets.randbits(63))
        with torch.no_grad():
            for layer in self.modules():
                if isinstance(layer, nn.Embedding):
                    layer.weight.normal_(0, TOKENS, generator=source)
                elif isinstance(layer, nn.Linear):
                    layer.weight.normal_(0, layer.in_features**-0.5, generator=source)
                    if layer.bias is not None:
                        layer.bias.zero_()
            for head in self.heads.parameters():
                head.zero_()

    def forward(self, states: Tensor, order: Tensor) -> list[Tensor]:
        """Of each column [rows, its states].

        Args:
            states: whole numbers [rows, columns].
            order: columns of the places, [rows, places].
        """
        tokens = (states + self.first).gather(1, order)
        begin = torch.full_like(tokens[:, :1], self.token.num_embeddings - 1)
        values = self.token(torch.cat([begin, tokens[:, :-1]], 1)) + self.next(order)
        for layer in self.layers:
            values = layer(values, self.later)
        found = self.last(values).gather(1, order.argsort(1)[:, :, None].expand_as(values))
        return [self.predicted(column, found[:, column]) for column in range(len(self.sizes))]

    @property
    def kept(self) -> int:
        return 2 * LAYERS * self.token.embedding_dim * len(self.sizes)

    def reading(self, rows: int) -> Reading:
        return _Read(self, rows)


class _Read:
    """See `columnwise.Reading`: a place after the other, by the kept keys and values of those before."""

    def __init__(self, network: TbartNetwork, rows: int) -> None:
        self._network, self._column = network, 0
        self._token = torch.full((rows, 1), network.token.num_embeddings - 1)
        self._seen: list[list[Tensor]] = [[] for _ in network.layers]

    @torch.no_grad()
    def predict(self, column: int) -> Tensor:
        network, self._column = self._network, column
        values = network.token(self._token) + network.next.weight[column]
        for layer, seen in zip(network.layers, self._seen, strict=True):
            values = layer(values, network.later[-1:, -1:], seen)
        return network.predicted(column, network.last(values)[:, 0])

    def read(self, states: Tensor) -> None:
        self._token = (states + self._network.first[self._column])[:, None]


class Sequences(OrderedRows):
    """Rows with their orders of columns, and the weight of each column's loss."""

    most_rows = 256

    def arranged(self, states: Tensor, places: Tensor) -> Batch:
        return {"states": states, "order": places.argsort(1), "weights": self.weights.expand(len(states), -1)}

    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        found = cross_entropies(network(rows["states"], rows["order"]), rows["states"])
        return (rows["weights"] * found).sum(1)
