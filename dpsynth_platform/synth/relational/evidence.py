"""States of some columns given those of all others, for many rows with different evidence at once.

What belongs here: exact inference in a graphical model whose evidence differs from row to row. What does not: evidence
that all rows share (`tabular.conditioning`), and values (`tabular.placing`).

Given its evidence, a row's distribution over the other columns is a graphical model of these alone: each potential is
read at the row's known states. So the junction tree is of the drawn columns only, however many are known, and a batch
passes through it together: messages up, then states down (Koller & Friedman 2009, sections 9.3, 10.2 and 12.1).
Messages of branches that no evidence reaches are computed once for all rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.synth.tabular.domain import Codes
from dpsynth_platform.synth.tabular.junction import Attributes, Clique, JunctionTree, junction_tree

BATCH_CELLS = 2**23
"""Cells of all cliques, over all rows that are in memory at once."""
MOST_CODES = 2**62
"""Combinations of evidence that have a number."""
_NEVER = -1e300
"""In place of -inf, so that differences are numbers."""


@dataclass(frozen=True)
class _Factor:
    """A potential over known and drawn columns.

    Attributes:
        known: the known columns, in the order of the table's first axis.
        drawn: the drawn ones, as places in the tree.
        table: logarithms, shape (combinations of the known, sizes of the drawn); one combination where none is known.
    """

    known: tuple[int, ...]
    drawn: Clique
    table: Array


@dataclass(frozen=True)
class GivenEvidence:
    """The distribution of the drawn columns given the known ones.

    Attributes:
        sizes: states of each column.
        drawn: the columns to draw, ascending; all others are known.
    """

    sizes: tuple[int, ...]
    drawn: tuple[int, ...]
    factors: tuple[_Factor, ...]
    tree: JunctionTree

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        groups: Sequence[npt.NDArray[np.int64] | None],
        potentials: Mapping[Clique, Array],
        known: Collection[int],
    ) -> GivenEvidence:
        """Args:
        sizes: states of each column.
        groups: of each column, the group of every state, or None; in cliques, `n + i` are the groups of column i.
        potentials: logarithms, by clique.
        known: columns whose states every row has.
        """
        columns = len(sizes)
        drawn = tuple(index for index in range(columns) if index not in known)
        places = {index: place for place, index in enumerate(drawn)}
        factors = []
        for clique, values in potentials.items():
            plain = [index % columns for index in clique]
            if not any(index in places for index in plain):
                continue
            for axis, index in enumerate(clique):
                if index >= columns:
                    group = groups[index - columns]
                    assert group is not None  # noqa: S101  (the clique names it)
                    values = values.take(group, axis=axis)
            merged, axes = _without_repeats(values, plain)
            given = [axis for axis, index in enumerate(axes) if index not in places]
            free = sorted((axis for axis, index in enumerate(axes) if index in places), key=lambda axis: axes[axis])
            shape = [merged.shape[axis] for axis in free]
            table = merged.transpose([*given, *free]).reshape([-1, *shape])
            factors.append(
                _Factor(
                    tuple(axes[axis] for axis in given),
                    tuple(places[axes[axis]] for axis in free),
                    np.ascontiguousarray(np.maximum(table, _NEVER)),
                )
            )
        attributes = Attributes.of([sizes[index] for index in drawn])
        return cls(tuple(sizes), drawn, tuple(factors), junction_tree(attributes, [item.drawn for item in factors]))

    @cached_property
    def known(self) -> tuple[int, ...]:
        """The known columns that matter."""
        return tuple(sorted({index for item in self.factors for index in item.known}))

    def draw(self, states: Codes, rng: np.random.Generator) -> None:
        """Fills in the states of the drawn columns, shape (rows, columns)."""
        step = max(1, BATCH_CELLS // max(1, self.tree.cells))
        for first in range(0, len(states), step):
            part = slice(first, first + step)
            states[part, list(self.drawn)] = self._drawn(states[part], rng)

    def _drawn(self, states: Codes, rng: np.random.Generator) -> Codes:
        """The drawn columns' states, shape (rows, drawn)."""
        given, row_of = self._distinct(states)
        scores = self._up(given)
        found = np.zeros((len(states), len(self.drawn)), dtype=states.dtype)
        for index, axes in enumerate(self.tree.axes):
            separator = self.tree.separators[index]
            rest = axes[len(separator) :]
            if not rest:
                continue
            weights = scores[index].reshape(scores[index].shape[0], self.tree.shape_cells(separator), -1)
            cell = np.zeros(len(states), dtype=np.int64)
            for place in separator:
                cell = cell * self.tree.sizes[place] + found[:, place]
            row = np.zeros_like(row_of) if weights.shape[0] == 1 else row_of
            drawn = _categorical(weights, row, cell, rng)
            for place in reversed(rest):
                drawn, found[:, place] = np.divmod(drawn, self.tree.sizes[place])
        return found

    def _distinct(self, states: Codes) -> tuple[Codes, npt.NDArray[np.int64]]:
        """Distinct rows of evidence, and which of them each row has; all rows where there are too many values."""
        every = math.prod(self.sizes[index] for index in self.known)
        if every >= MOST_CODES:
            return states, np.arange(len(states))
        code = np.zeros(len(states), dtype=np.int64)
        for index in self.known:
            code = code * self.sizes[index] + states[:, index]
        _, first, row_of = np.unique(code, return_index=True, return_inverse=True)
        return states[first], row_of

    def _up(self, given: Codes) -> list[Array]:
        """For each clique its unnormalized logarithms, given the messages of all below: [rows or 1, sizes of axes]."""
        tree = self.tree
        scores = [np.zeros((1, *(tree.sizes[place] for place in axes))) for axes in tree.axes]
        for item in self.factors:
            home = tree.home(item.drawn)
            assert home is not None  # noqa: S101  (the tree covers all factors)
            row = np.zeros(len(given), dtype=np.int64)
            for index in item.known:
                row = row * self.sizes[index] + given[:, index]
            table = item.table[row] if item.known else item.table
            scores[home] = scores[home] + _spread(table, item.drawn, tree.axes[home])
        for index in range(len(tree.cliques) - 1, -1, -1):
            if (parent := tree.parents[index]) < 0:
                continue
            axes, separator = tree.axes[index], tree.separators[index]
            message = _log_sum(scores[index], len(separator))
            scores[parent] = scores[parent] + _spread(message, axes[: len(separator)], tree.axes[parent])
        return scores


def _without_repeats(values: Array, axes: Sequence[int]) -> tuple[Array, list[int]]:
    """The values with each column as one axis: a column beside its own groups is read at its states alone."""
    kept = list(dict.fromkeys(axes))
    if len(kept) == len(axes):
        return values, kept
    letters = {index: chr(97 + place) for place, index in enumerate(kept)}
    named = "".join(letters[index] for index in axes)
    return np.einsum(f"{named}->{''.join(letters[index] for index in kept)}", values), kept


def _spread(table: Array, clique: Clique, axes: Clique) -> Array:
    """A table [rows, sizes of the clique] that broadcasts over [rows, sizes of the axes]."""
    order = sorted(range(len(clique)), key=lambda place: axes.index(clique[place]))
    moved = table.transpose([0, *(place + 1 for place in order)])
    sizes = iter(moved.shape[1:])
    return moved.reshape([len(table), *(next(sizes) if place in clique else 1 for place in axes)])


def _log_sum(scores: Array, kept: int) -> Array:
    """Logarithm of the sum over all axes after the first `kept` ones that follow the rows'."""
    flat = scores.reshape(*scores.shape[: kept + 1], -1)
    peak = flat.max(axis=-1, keepdims=True)
    found = peak[..., 0] + np.log(np.exp(flat - peak).sum(axis=-1))
    return np.asarray(np.maximum(found, _NEVER))


def _categorical(
    scores: Array, row: npt.NDArray[np.int64], cell: npt.NDArray[np.int64], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """An outcome for every row by the logarithms of its weights, scores[row, cell]; shape (rows,)."""
    code = row * scores.shape[1] + cell
    pairs, of = np.unique(code, return_inverse=True)
    weights = scores.reshape(-1, scores.shape[2])[pairs]
    weights = np.exp(weights - weights.max(axis=1, keepdims=True))
    sums = np.cumsum(weights, axis=1)
    sums /= sums[:, -1:]
    # One search for all rows: the sums of group g are in [g, g + 1].
    points = of + rng.random(len(of))
    found = np.searchsorted((sums + np.arange(len(sums))[:, None]).ravel(), points, side="right")
    outcome = np.clip(found - of * weights.shape[1], 0, weights.shape[1] - 1)
    # Rounding may reach an outcome without weight at a group's end; the last possible one is drawn then.
    last = weights.shape[1] - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
    first = np.argmax(weights > 0, axis=1)
    return np.asarray(np.clip(outcome, first[of], last[of]))
