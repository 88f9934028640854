"""Exact sums of clipped vectors, one for each picture: what noise is added to.

What belongs here: clipping, fixed point and sums in whole numbers. What does not: noise (`synth.tabular.noise`), and
which vectors are summed (`moments_measuring`).

**Why whole numbers.** The last bits of a floating-point product depend on the other rows of its batch, so removing one
record would change what others add. Here every product and sum is of whole numbers below 2^53 in double precision,
hence exact in any order. What is rounded is rounded for one record by itself: square root, division, product, and last
the cut toward zero. So a record's vector depends on that record and on public or noisy numbers only, and its norm is
within the bound exactly.

**The bound.** A record of weight w (1 for each row; 1/k where an owner's k rows weigh one record together) adds a
vector of L2 norm w `UNIT` at most, or a matrix y y' of Frobenius norm |y|^2 <= w `UNIT`^2. An owner's rows together add
at most the sum of their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.privacy.units import RECORD_PARTS

Whole = npt.NDArray[np.float64]
"""Whole numbers in double precision, below 2^53, so that their sums and products are exact."""
Sums = npt.NDArray[np.int64]

UNIT = 2**16
"""The norm of a clipped vector of weight 1."""
CHUNK = 2**11
"""Records whose products are summed in double precision: 2^11 UNIT^2 is 2^43."""
ROUNDING = 1 - 2.0**-40
"""A factor that outweighs the relative rounding of a root, a division and two products (some 2^-51)."""
DIAGONAL_SHARE = 46341 / 65536
"""Just above 1 / sqrt(2): the noise of a matrix's off-diagonal entries, which one record moves twice, over that of its
diagonal. So the upper triangle with off-diagonals times sqrt(2), whose norm is the whole matrix's, has even noise."""


@dataclass(frozen=True)
class Batch:
    """Some records. Sensitive, including their number.

    Attributes:
        pixels: shape (records, height, width, channels).
        classes: numbers from 0; shape (records,).
        weights: each record's weight in `RECORD_PARTS`, at most that; None where each record weighs 1.
    """

    pixels: Pixels
    classes: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64] | None = None

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """Weights between 0 and 1; shape (records, 1)."""
        if self.weights is None:
            return np.ones((len(self.classes), 1))
        return self.weights.reshape(-1, 1) / RECORD_PARTS

    def chunks(self) -> Iterator[Batch]:
        for start in range(0, len(self.classes), CHUNK):
            part = slice(start, start + CHUNK)
            weights = None if self.weights is None else self.weights[part]
            yield Batch(self.pixels[part], self.classes[part], weights)


Batches = Callable[[], Iterator[Batch]]
"""Begins a pass over the records; every pass has the same ones."""


def norms(vectors: Whole) -> npt.NDArray[np.float64]:
    """L2 norms, correctly rounded; shape (rows, 1). Entries' squares must sum below 2^53."""
    squares: npt.NDArray[np.float64] = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    return squares


def clipped(vectors: Whole, norm: float, shares: npt.NDArray[np.float64]) -> Whole:
    """Each row times share * UNIT / max(norm, its own norm), cut toward zero: of norm share * UNIT at most.

    Args:
        vectors: shape (rows, entries).
        norm: the clipping norm C, above 0, in the vectors' unit.
        shares: of 1; shape (rows, 1).
    """
    scales = (UNIT * ROUNDING) * shares / np.maximum(norms(vectors), norm)
    return np.trunc(vectors * scales)


def class_sums(vectors: Whole, classes: npt.NDArray[np.int64], number: int) -> Sums:
    """The sum of the rows of each class; shape (classes, entries)."""
    of_class = (classes[None, :] == np.arange(number)[:, None]).astype(np.float64)
    sums: Sums = (of_class @ vectors).astype(np.int64)
    return sums


def cells(places: npt.NDArray[np.int64], batch: Batch, number: int) -> Sums:
    """Records in each cell, weighted, in `RECORD_PARTS`, which are as many as `UNIT`; shape (number,)."""
    sums = np.zeros(number, dtype=np.int64)
    weights = np.full(len(places), RECORD_PARTS, dtype=np.int64) if batch.weights is None else batch.weights
    np.add.at(sums, places, weights)
    return sums


def second_moments(vectors: Whole) -> Sums:
    """The sum of y y' over rows y; shape (entries, entries)."""
    sums: Sums = (vectors.T @ vectors).astype(np.int64)
    return sums


def class_second_moments(vectors: Whole, classes: npt.NDArray[np.int64], number: int) -> Sums:
    """The same for each class; shape (classes, entries, entries)."""
    return np.stack([second_moments(vectors[classes == index]) for index in range(number)])
