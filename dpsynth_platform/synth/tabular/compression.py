"""Rare values told apart no longer: the smaller domain in which pairs of columns are measured.

What belongs here: merging a column's cells by their noisy one-way counts, and giving merged cells back. All of it is
post-processing of noisy counts. What does not: the counts themselves.

As in MST (McKenna, Miklau & Sheldon 2021): a cell whose noisy count is below three standard deviations is not
measurable, so all such cells of a column become one *state*. Where the merged state has to be split again, each of its
cells gets the share that its own noisy count suggests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsynth_platform.synth.tabular.domain import Codes, Domain
from dpsynth_platform.synth.tabular.estimation import Array, Measurement, project
from dpsynth_platform.synth.tabular.measurements import NoisyCounts

THRESHOLD_SIGMAS = 3.0


@dataclass(frozen=True)
class ColumnStates:
    """How one column's cells map to states.

    Attributes:
        state_of: state of each cell, shape (cells,).
        share: P[cell | its state], shape (cells,); a state's shares sum to one.
    """

    state_of: Codes
    share: Array

    @property
    def size(self) -> int:
        """Number of states."""
        return int(self.state_of.max()) + 1

    def merge(self, values: Array) -> Array:
        """Sums of the cells' values by state, shape (states,)."""
        return np.bincount(self.state_of, weights=values, minlength=self.size).astype(np.float64)

    def allowed(self, cells: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """States with at least one allowed cell."""
        return self.merge(cells.astype(np.float64)) > 0


def compress(domain: Domain, one_way: Sequence[NoisyCounts]) -> tuple[ColumnStates, ...]:
    """The states of every column, from its noisy one-way counts."""
    return tuple(
        _states(column.size, measured.counts, measured.sigma) for column, measured in zip(domain, one_way, strict=True)
    )


def one_way_measurements(one_way: Sequence[NoisyCounts], states: Sequence[ColumnStates]) -> list[Measurement]:
    """The one-way counts over states; a merged state's variance is the sum of its cells'."""
    return [
        Measurement(
            measured.clique,
            column.merge(measured.counts.astype(np.float64)),
            column.merge(np.full(measured.counts.shape, measured.variance)),
        )
        for measured, column in zip(one_way, states, strict=True)
    ]


def _states(size: int, counts: npt.NDArray[np.int64], sigma: float) -> ColumnStates:
    rare = counts < THRESHOLD_SIGMAS * sigma
    if rare.sum() <= 1:
        return ColumnStates(np.arange(size, dtype=np.int32), np.ones(size))
    state_of = np.cumsum(~rare) - 1
    state_of[rare] = (~rare).sum()
    share = np.ones(size)
    share[rare] = _shares(counts[rare].astype(np.float64), sigma)
    return ColumnStates(state_of.astype(np.int32), share)


def _shares(counts: Array, sigma: float) -> Array:
    """Shares of merged cells: the nearest non-negative counts to the noisy ones, or equal where nothing is left."""
    total = counts.sum()
    if total <= 0:
        return np.full(counts.size, 1 / counts.size)
    projected = project(counts, np.full(counts.size, sigma**2), float(total))
    return np.asarray(projected / total, dtype=np.float64)
