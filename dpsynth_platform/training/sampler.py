"""Poisson sampling: a separate coin decides for each unit whether it is in a logical batch, as accounting assumes.

What belongs here: drawing one logical batch. What does not: the definition of units (`loop`), and physical batches.
Batches of a shuffled epoch, or of a fixed size, have no such guarantee (Chua et al. 2024, "How private are DP-SGD
implementations?").
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.stream import WORD, SecureStream


class PoissonSampler:
    """Draws independent logical batches by the plan's q.

    A coin is heads if a uniform 64-bit word is below 2^64 q, rounded down: q is met up to 2^-64, and not exceeded. The
    actual `number` of units is sensitive; q does not depend on it.
    """

    def __init__(self, plan: TrainingPlan, number: int) -> None:
        self._number = number
        self._threshold = (plan.batch_size << (8 * WORD)) // plan.units
        self._stream = SecureStream()

    def draw(self) -> npt.NDArray[np.int64]:
        """Positions of the units in the next batch, ascending; possibly none. Sensitive."""
        words = self._stream.words(self._number)
        if self._threshold > np.iinfo(np.uint64).max:  # q = 1
            return np.arange(self._number)
        return np.flatnonzero(words < np.uint64(self._threshold))
