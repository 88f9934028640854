"""Drawing rows column by column from a network that knows each column's distribution given others.

What belongs here: the order of columns, conditions on their values, and the correction by noisy counts. What does not:
the networks, and values within states (`tabular.sampling`). All of it is post-processing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

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
"""Drawn rows by which columns are corrected, of quick networks."""
MOST_PASSES = 256
"""By which columns are corrected: so many rows at least, of the largest networks."""
MOST_KEPT = 2**25
"""Numbers that readings keep together: of large networks, fewer rows are drawn at once."""
ROUNDS, MOST_STEP = 30, 5.0
"""Of fitting a column's weights to its shares, and the most that one changes a weight."""


class Reading(Protocol):
    """Rows whose columns are predicted and read one after the other, in any order."""

    def predict(self, column: int) -> Tensor:
        """Logarithms of the probabilities of a column's states, [rows, states], given the columns that were read."""

    def read(self, states: Tensor) -> None:
        """The states, [rows], of the column that was predicted last."""


class Columnwise(Protocol):
    """A network that predicts a column from any others."""

    @property
    def kept(self) -> int:
        """Numbers that a reading keeps of each row."""

    @property
    def corrected(self) -> int:
        """Drawn rows by which columns are corrected."""

    def reading(self, rows: int) -> Reading:
        """A reading of so many rows, on a CPU."""


@dataclass(frozen=True)
class ColumnwiseJoint:
    """The distribution of rows that are drawn column by column, `tabular.joint.Joint`.

    Attributes:
        shares: of each column's states by the noisy counts, which drawn rows have.
        order: in which columns are drawn; empty: their own.
        evidence: columns that are known when a row is drawn, before all others.
    """

    network: Columnwise
    shares: Sequence[Array]
    order: Sequence[int] = ()
    evidence: Sequence[int] = ()

    @property
    def columns(self) -> int:
        return len(self.shares)

    @property
    def _in_order(self) -> Sequence[int]:
        rest = [index for index in self.order or range(self.columns) if index not in self.evidence]
        return [*self.evidence, *rest]

    def log_likelihood(self, states: Codes) -> Array:
        """By the order of the columns, without the correction."""
        found = np.zeros(len(states))
        for rows in self._passes(len(states)):
            reading, part = self.network.reading(rows.stop - rows.start), states[rows]
            for column in self._in_order:
                found[rows] += _predicted(reading, column)[np.arange(len(part)), part[:, column]]
                _read(reading, part[:, column])
        return found

    @cached_property
    def correction(self) -> list[Array]:
        """Logarithms of weights by which a sample, drawn in the order of the columns, has their shares.

        None where rows are drawn given evidence: the network does not know how that is distributed.
        """
        if self.evidence:
            return [np.zeros_like(share) for share in self.shares]
        rng, size = np.random.default_rng(), min(self.network.corrected, self._most_rows)
        found: list[Array] = [np.zeros_like(share) for share in self.shares]
        predicted: list[list[Array]] = [[] for _ in self.shares]
        for _ in range(min(MOST_PASSES, -(-self.network.corrected // size))):
            reading = self.network.reading(size)
            for column in self._in_order:
                predicted[column].append(_predicted(reading, column))
                found[column] = np.log(fitted(np.exp(np.concatenate(predicted[column])), self.shares[column]))
                _read(reading, _drawn(predicted[column][-1] + found[column], rng))
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
        parts = np.zeros((rows, self.columns), dtype=np.int32)
        order = [*first, *(index for index in self._in_order if index not in first)]
        for place in self._passes(rows):
            self._draw(parts[place], weights, parents, order, (), rng)
        return parts

    def fill(
        self,
        parts: Codes,
        weights: Mapping[Clique, Array],
        parents: Sequence[npt.NDArray[np.int64]],
        known: Collection[int],
        rng: np.random.Generator,
    ) -> None:
        """See `tabular.joint.Joint`."""
        order = [*known, *(index for index in self._in_order if index not in known)]
        for place in self._passes(len(parts)):
            self._draw(parts[place], weights, parents, order, known, rng)

    def _draw(
        self,
        parts: Codes,
        weights: Mapping[Clique, Array],
        parents: Sequence[npt.NDArray[np.int64]],
        order: Sequence[int],
        given: Collection[int],
        rng: np.random.Generator,
    ) -> None:
        reading, known = self.network.reading(len(parts)), set[int]()
        for column in order:
            known.add(column)
            predicted = _predicted(reading, column)
            if column in given:
                _read(reading, parents[column][parts[:, column]])
                continue
            scores = (predicted + self.correction[column])[:, parents[column]]
            scores += weights.get((column,), 0.0)
            joint = [
                _seen(clique, values, column, parts)
                for clique, values in weights.items()
                if len(clique) > 1 and column in clique and {*clique} <= known
            ]
            kept = scores + sum(joint)
            lost = ~np.isfinite(kept).any(axis=1)
            kept[lost] = scores[lost]
            parts[:, column] = _drawn(kept, rng)
            _read(reading, parents[column][parts[:, column]])

    @property
    def _most_rows(self) -> int:
        return max(1, MOST_KEPT // self.network.kept)

    def _passes(self, rows: int) -> list[slice]:
        size = min(TOGETHER, self._most_rows)
        return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _predicted(reading: Reading, column: int) -> Array:
    return np.asarray(reading.predict(column).double().numpy())


def _read(reading: Reading, states: npt.NDArray[Any]) -> None:
    reading.read(torch.from_numpy(states.astype(np.int64)))


def _seen(clique: Clique, table: Array, column: int, parts: Codes) -> Array:
    """A factor's values for all parts of a column, [rows, parts], given the other columns of each row."""
    last = np.moveaxis(table, clique.index(column), -1)
    return np.asarray(last[tuple(parts[:, index] for index in clique if index != column)])


def fitted(probabilities: Array, share: Array) -> Array:
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
