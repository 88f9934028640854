"""A joint distribution of columns' states that is no graphical model: that of a network (`synth.neural`).

What belongs here: what reading a model and drawing rows need of it. What does not: any network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.synth.tabular.domain import Codes
from dpsynth_platform.synth.tabular.junction import Clique


class Joint(Protocol):
    """A distribution of all columns' states."""

    def log_likelihood(self, states: Codes) -> Array:
        """Natural log-probability of each row's states, shape (rows,), from states (rows, columns)."""

    def draw(
        self,
        weights: Mapping[Clique, Array],
        parents: Sequence[npt.NDArray[np.int64]],
        first: Collection[int],
        rows: int,
        rng: np.random.Generator,
    ) -> Codes:
        """Parts of states (`conditioning`), shape (rows, columns).

        Args:
            weights: logarithms of further weights over parts; rows with a factor of zero are drawn only where no other
                value is left.
            parents: the state of each part, by column.
            first: columns that all others follow: rows are conditioned on their weights.
        """

    def fill(
        self,
        parts: Codes,
        weights: Mapping[Clique, Array],
        parents: Sequence[npt.NDArray[np.int64]],
        known: Collection[int],
        rng: np.random.Generator,
    ) -> None:
        """Draws all but the known columns of each row given these, in place; see `draw`."""
