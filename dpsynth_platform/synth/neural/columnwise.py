"""Drawing rows column by column from a network that knows each column's distribution given others.

What belongs here: the order of columns, conditions on their values, and the correction by noisy counts. What does not:
the networks, and values within states (`tabular.sampling`). All of it is post-processing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.synth.tabular.domain import Codes
from dpsynth_platform.synth.tabular.junction import Clique

TOGETHER = 2**13
"""Rows of a pass."""
CORRECTED_ROWS = 2**14
"""Drawn rows by which columns are corrected."""
ROUNDS, MOST_STEP = 30, 5.0
"""Of fitting a column's weights to its shares, and the most that one changes a weight."""


class Columnwise(Protocol):
    """A network that predicts a column from any others."""

    def conditional(self, states: Tensor, known: Sequence[int], column: int) -> Tensor:
        """Logarithms of the probabilities of a column's states, [rows, states], given the known columns of each row."""


@dataclass(frozen=True)
class ColumnwiseJoint:
    """The distribution of rows that are drawn column by column, `tabular.joint.Joint`.

    Attributes:
        shares: of each column's states by the noisy counts, which drawn rows have.
    """

    network: Columnwise
    shares: Sequence[Array]

    @property
    def columns(self) -> int:
        return len(self.shares)

    def log_likelihood(self, states: Codes) -> Array:
        """By the order of the columns, without the correction."""
        found = np.zeros(len(states))
        for column in range(self.columns):
            for rows, values in self._predicted(states, range(column), column):
                found[rows] += values[np.arange(len(values)), states[rows, column]]
        return found

    @cached_property
    def correction(self) -> list[Array]:
        """Logarithms of weights by which a sample, drawn in the order of the columns, has their shares."""
        rng, states = np.random.default_rng(), np.zeros((CORRECTED_ROWS, self.columns), dtype=np.int32)
        found: list[Array] = []
        for column, share in enumerate(self.shares):
            values = np.concatenate([part for _, part in self._predicted(states, range(column), column)])
            found.append(np.log(_fitted(np.exp(values), share)))
            states[:, column] = _drawn(values + found[-1], rng)
        return found

    def draw(
        self,
        weights: Mapping[Clique, Array],
        parents: Sequence[npt.NDArray[np.int64]],
        first: Collection[int],
        rows: int,
        rng: np.random.Generator,
    ) -> Codes:
        """See `tabular.joint.Joint`: columns in `first`, then the others in their order."""
        states = np.zeros((rows, self.columns), dtype=np.int32)
        parts = np.zeros_like(states)
        known: list[int] = []
        for column in [*first, *(index for index in range(self.columns) if index not in first)]:
            alone = weights.get((column,), np.zeros(len(parents[column])))
            joint = {
                clique: values
                for clique, values in weights.items()
                if len(clique) > 1 and column in clique and {*clique} <= {*known, column}
            }
            for place, values in self._predicted(states, known, column):
                scores = (values + self.correction[column])[:, parents[column]] + alone
                kept = scores + sum(_seen(clique, table, column, parts[place]) for clique, table in joint.items())
                lost = ~np.isfinite(kept).any(axis=1)
                kept[lost] = scores[lost]
                parts[place, column] = _drawn(kept, rng)
            states[:, column] = parents[column][parts[:, column]]
            known.append(column)
        return parts

    def _predicted(self, states: Codes, known: Sequence[int], column: int) -> Iterator[tuple[slice, Array]]:
        """The network's logarithms for a column, in pieces of rows."""
        for start in range(0, len(states), TOGETHER):
            rows = slice(start, start + TOGETHER)
            given = torch.from_numpy(states[rows].astype(np.int64))
            yield rows, self.network.conditional(given, list(known), column).double().numpy()


def _seen(clique: Clique, table: Array, column: int, parts: Codes) -> Array:
    """A factor's values for all parts of a column, [rows, parts], given the other columns of each row."""
    last = np.moveaxis(table, clique.index(column), -1)
    return np.asarray(last[tuple(parts[:, index] for index in clique if index != column)])


def _fitted(probabilities: Array, share: Array) -> Array:
    """Weights of states by which rows' probabilities, each of sum 1 again, have these mean shares."""
    weights = np.ones_like(share)
    for _ in range(ROUNDS):
        found = probabilities * weights
        found /= found.sum(axis=1, keepdims=True)
        step = share / np.maximum(found.mean(axis=0), np.finfo(np.float64).tiny)
        weights *= np.clip(step, 1 / MOST_STEP, MOST_STEP)
    return weights


def _drawn(scores: Array, rng: np.random.Generator) -> Codes:
    """An outcome of each row by the logarithms of its weights.

    Each row's point is uniform, and all points are spread evenly, in random order: so the shares of outcomes vary less
    than those of independent draws, the less the more rows are alike.
    """
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    sums, rows = np.cumsum(weights, axis=1), len(weights)
    points = (rng.permutation(rows) + rng.random(rows)) / rows
    return np.asarray((sums > (points * sums[:, -1])[:, None]).argmax(axis=1), dtype=np.int32)
