"""How one column's cells map to the states of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsynth_platform.synth.tabular.domain import Codes

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ColumnStates:
    """How one column's cells map to states.

    Attributes:
        state_of: state of each cell, shape (cells,).
        share: P[cell | its state], shape (cells,); a state's shares sum to one.
        fitted: where known, estimated records in each cell from all of the column's noisy counts, shape (cells,); all
            columns' counts determine their sum.
    """

    state_of: Codes
    share: Array
    fitted: Array | None = None

    @property
    def size(self) -> int:
        return int(self.state_of.max()) + 1

    def merge(self, values: Array) -> Array:
        """Sums of the cells' values by state, shape (states,)."""
        return np.bincount(self.state_of, weights=values, minlength=self.size).astype(np.float64)

    def allowed(self, cells: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return self.merge(cells.astype(np.float64)) > 0
