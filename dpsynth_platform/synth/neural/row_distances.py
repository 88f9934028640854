"""A loss that knows the order of numbers: how far the tokens that a model expects lead from the true number.

What belongs here: this loss, at the tokens of one value each. What does not: the loss of tokens (`row_training`), and
which ranges a column has (`row_words`).

Cross-entropy does not tell a near number from a far one. Tran & Xiong 2024 (DP-LLMTGen, arXiv 2406.01457) add the
distance of the predicted number. Here, where several tokens continue values of a column, they are put in the order of
the ranges behind them, and the model's distribution over them has the ranked probability score (Epstein 1969):

    sum over neighbouring tokens of (their distance) * (P[at or before] - 1[true one at or before])^2

For a model that is certain this is the distance itself. The score is proper: the true distribution has the least
expected loss. An expected distance would be least for a model that is certain of the median. The score is of one row's
own tokens alone, as clipping needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsynth_platform.synth.neural.row_tokens import RowTokens


@dataclass(frozen=True)
class NumberDistances:
    """Where the values of ordered columns part, and how far apart their tokens lead.

    At each such place, tokens are in the order of the mean rank of the ranges behind them. What leads to no range, as
    a missing value, is left out.

    Attributes:
        edges: of each token of all states of all columns, [all states, tokens], the number of its choice, -1: none.
            Choice `place * most + number` is a place's token of this number.
        tokens: to choose from, [places, most].
        valid: which of them there are, [places, most].
        gaps: from each to the next, in ranges; 0 after the last: [places, most].
        columns: of the table.
    """

    edges: Tensor
    tokens: Tensor
    valid: Tensor
    gaps: Tensor
    columns: int

    @classmethod
    def of(cls, rows: RowTokens, ranks: Sequence[Sequence[int | None]], device: torch.device) -> NumberDistances:
        """From the ranks of each column's states, None where a state is no range (`row_words.ranks_of`)."""
        choices: dict[tuple[int, tuple[int, ...]], list[tuple[float, int]]] = {}
        for index, (column, own) in enumerate(zip(rows.columns, ranks, strict=True)):
            behind = defaultdict[tuple[int, ...], defaultdict[int, list[int]]](lambda: defaultdict(list))
            for value, rank in zip(column.values, own, strict=True):
                for depth, token in enumerate(value if rank is not None else ()):
                    behind[value[:depth]][token].append(rank)  # type: ignore[arg-type]
            for begun, following in behind.items():
                if len(following) > 1:
                    means = [(sum(found) / len(found), token) for token, found in following.items()]
                    choices[index, begun] = sorted(means)
        most = max(map(len, choices.values()), default=1)
        tokens = torch.zeros(len(choices), most, dtype=torch.long)
        valid, gaps = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros(len(choices), most)
        numbers: dict[tuple[int, tuple[int, ...], int], int] = {}
        for place, ((index, begun), choice) in enumerate(choices.items()):
            tokens[place, : len(choice)] = torch.tensor([token for _, token in choice])
            valid[place, : len(choice)] = True
            gaps[place, : len(choice) - 1] = torch.tensor([rank for rank, _ in choice]).diff()
            numbers |= {(index, begun, token): place * most + number for number, (_, token) in enumerate(choice)}
        edges = []
        for index, column in enumerate(rows.columns):
            for value in column.values:
                own_edges = [numbers.get((index, value[:depth], token), -1) for depth, token in enumerate(value)]
                filler = rows.longest_cell - len(column.name) - len(value)
                edges.append([-1] * len(column.name) + own_edges + [-1] * filler)
        return cls(torch.tensor(edges).to(device), tokens.to(device), valid.to(device), gaps.to(device), len(ranks))

    def losses(self, scores: Tensor, edges: Tensor) -> Tensor:
        """The sum of each row's scores, divided by the number of columns, [rows] in single precision.

        Args:
            scores: of a model, [rows, tokens, vocabulary].
            edges: `edges` of the tokens of the rows, [rows, tokens].
        """
        most = self.tokens.shape[1]
        row, place = (edges[:, 1:] >= 0).nonzero(as_tuple=True)
        chosen = edges[row, place + 1]
        at = chosen.div(most, rounding_mode="floor")
        expected = scores[row, place].float().gather(1, self.tokens[at]).masked_fill(~self.valid[at], -torch.inf)
        reached = expected.softmax(1).cumsum(1)
        true = torch.arange(most, device=edges.device) >= (chosen % most)[:, None]
        found = (self.gaps[at] * (reached - true.float()).square()).sum(1)
        return found.new_zeros(len(edges)).index_add(0, row, found) / self.columns
