"""Poisson sampling: each unit is in a logical batch by its own coin, as the accountant assumes.

What belongs here: drawing one logical batch. What does not: what a unit is (a record, or a user with all its records:
`loop`), and how much of a batch is computed at once. Nothing is shuffled and no size is fixed: batches of a shuffled
epoch, or of exactly planned size, have no such guarantee (Chua et al. 2024, "How private are DP-SGD implementations?").
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.stream import WORD, SecureStream


class PoissonSampler:
    """Draws logical batches by the plan's q, each independent of all others.

    A coin is heads if a uniform 64-bit word is below 2^64 q, rounded down: q is met up to 2^-64, and not exceeded.

    Args:
        plan: gives q = batch_size / units.
        number: how many units there are. Sensitive, and not what q is computed from.
    """

    def __init__(self, plan: TrainingPlan, number: int) -> None:
        self._number = number
        self._threshold = (plan.batch_size << (8 * WORD)) // plan.units
        self._stream = SecureStream()

    def draw(self) -> npt.NDArray[np.int64]:
        """The positions of the units in the next batch, ascending; maybe none. Sensitive."""
        words = self._stream.words(self._number)
        if self._threshold > np.iinfo(np.uint64).max:  # q = 1
            return np.arange(self._number)
        return np.flatnonzero(words < np.uint64(self._threshold))
