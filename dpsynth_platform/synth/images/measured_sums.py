"""Noisy sums of pictures by class, as an attacker who has the model sees them.

What belongs here: the sums with the vectors that pictures add to them. What does not: measuring, and attacks (`audit`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredSums:
    """Sums with noise, and what some pictures would add to them.

    Attributes:
        sums: shape (classes, entries); vectors of a record have norm 1 at most.
        vectors: of the pictures, shape (pictures, entries).
        deviation: of the noise of each entry.
    """

    sums: Floats
    vectors: Floats
    deviation: float
