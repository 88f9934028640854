"""The resolutions at which columns are measured jointly.

What belongs here: the groups of a column's states, and cliques in terms of groups. What does not: how cells become
states (`compression`). The groups follow from noisy one-way counts: post-processing.

Noise is the same for small and large counts. A link between two columns that is weak in every fine cell may be clear in
few coarse ones, such as age and working hours in eight classes each. So a mechanism may measure a clique with each
column at one of two resolutions: all states, or `COARSE_GROUPS` groups of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain
from dpsynth_platform.synth.tabular.junction import Clique

if TYPE_CHECKING:
    from dpsynth_platform.synth.tabular.column_states import ColumnStates

COARSE_GROUPS = 8

Groups = Sequence[Sequence[npt.NDArray[np.int64]]]
"""For each attribute and resolution, the group of every state, shape (states,); at resolution 0 each is a group."""


@dataclass(frozen=True)
class View:
    """A clique of ascending attribute indices, with the resolution of each (`levels`)."""

    clique: Clique
    levels: tuple[int, ...]

    @classmethod
    def finest(cls, clique: Clique) -> View:
        """The clique at the resolution of all states."""
        return cls(clique, (0,) * len(clique))

    def attributes(self, columns: int) -> Clique:
        """The attributes in a junction tree, in this order: `columns + i` for the groups of `i`."""
        return tuple(index + columns * level for index, level in zip(self.clique, self.levels, strict=True))

    def cells(self, groups: Groups) -> npt.NDArray[np.int64]:
        """The view's cell of each cell of the clique's states, both flat; shape (cells of the clique's states,)."""
        found = np.zeros(1, dtype=np.int64)
        for index, level in zip(self.clique, self.levels, strict=True):
            group = groups[index][level]
            found = (found[:, None] * (int(group.max()) + 1) + group).ravel()
        return found

    def shape(self, groups: Groups) -> tuple[int, ...]:
        return tuple(int(groups[index][level].max()) + 1 for index, level in zip(self.clique, self.levels, strict=True))

    def sums(self, values: npt.NDArray[np.float64], groups: Groups) -> npt.NDArray[np.float64]:
        """Sums of values over the clique's states, by cell of the view; of the view's shape."""
        if not any(self.levels):
            return values
        shape = self.shape(groups)
        sums = np.bincount(self.cells(groups), weights=values.ravel(), minlength=math.prod(shape))
        return sums.astype(np.float64).reshape(shape)

    def counts(self, values: npt.NDArray[np.int64], groups: Groups) -> npt.NDArray[np.int64]:
        """The sums of whole numbers, exact below 2^53."""
        return self.sums(values.astype(np.float64), groups).astype(np.int64)


def coarse(groups: Groups) -> list[npt.NDArray[np.int64] | None]:
    """The groups of each attribute's states, None for attributes with one resolution."""
    return [levels[1] if len(levels) > 1 else None for levels in groups]


def views_of(clique: Clique, groups: Groups) -> Iterator[View]:
    """The clique at every combination of its columns' resolutions."""
    for levels in itertools.product(*(range(len(groups[index])) for index in clique)):
        yield View(clique, levels)


class Sums:
    """Sums values over cliques' states at every combination of the columns' resolutions at once."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._starts = [[0, *itertools.accumulate(int(group.max()) + 1 for group in levels[:-1])] for levels in groups]
        self._matrices = [np.hstack([np.eye(int(group.max()) + 1)[group] for group in levels]) for levels in groups]
        self._views: dict[Clique, tuple[View, ...]] = {}

    def views(self, clique: Clique) -> tuple[View, ...]:
        if clique not in self._views:
            self._views[clique] = tuple(views_of(clique, self._groups))
        return self._views[clique]

    def side_by_side(self, values: npt.NDArray[np.float64], clique: Clique) -> npt.NDArray[np.float64]:
        """The sums of all views: a column's axis has the groups of all resolutions. Whole sums are exact below 2^53."""
        for index in clique:
            # Each axis is first in turn, and becomes the last.
            values = values.reshape(len(self._matrices[index]), -1).T @ self._matrices[index]
        return values.reshape([self._matrices[index].shape[1] for index in clique])

    def by_view(self, values: npt.NDArray[Any], clique: Clique) -> npt.NDArray[Any]:
        """Totals of an array as of `side_by_side` for each of `views`, in that order."""
        for axis, index in enumerate(clique):
            values = np.add.reduceat(values, self._starts[index], axis=axis)
        return values.ravel()


def resolutions(
    domain: Domain, states: Sequence[ColumnStates], one_way: Sequence[npt.NDArray[np.float64]]
) -> list[list[npt.NDArray[np.int64]]]:
    """The resolutions of every column: all states, and groups of more than `COARSE_GROUPS`, by the states' counts."""
    return [_levels(column, merged, counts) for column, merged, counts in zip(domain, states, one_way, strict=True)]


def _levels(column: ColumnDomain, states: ColumnStates, counts: npt.NDArray[np.float64]) -> list[npt.NDArray[np.int64]]:
    finest = np.arange(states.size)
    if states.size <= COARSE_GROUPS:
        return [finest]
    if not column.ordered:
        return [finest, _largest_and_rest(counts)]
    # States are in the order of their values; missing values have no neighbours.
    coarse = np.full(states.size, -1, dtype=np.int64)
    missing = int(states.state_of[column.missing])
    present = finest != missing
    coarse[present] = _lightest_together(counts[present], COARSE_GROUPS - 1)
    coarse[missing] = coarse.max() + 1
    return [finest, coarse]


def _largest_and_rest(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """A group for each of the largest states, and one for all others."""
    groups = np.full(counts.size, COARSE_GROUPS - 1, dtype=np.int64)
    groups[np.argsort(-counts, kind="stable")[: COARSE_GROUPS - 1]] = np.arange(COARSE_GROUPS - 1)
    return groups


def _lightest_together(counts: npt.NDArray[np.float64], most: int) -> npt.NDArray[np.int64]:
    """Groups of neighbours: the two with the least sum are merged until at most `most` are left."""
    masses = counts.clip(0).tolist()
    members = [1] * len(masses)
    while len(masses) > most:
        place = min(range(len(masses) - 1), key=lambda index: masses[index] + masses[index + 1])
        masses[place] += masses.pop(place + 1)
        members[place] += members.pop(place + 1)
    return np.repeat(np.arange(len(members)), members)
