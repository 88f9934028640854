"""Features of pictures as whole numbers, so that no vote depends on other records.

What belongs here: the interface of a public, frozen encoder, and features from averaged pixels. What does not: a
network (`encoders_network`), and votes (`evolution_votes`).

**Features of a picture are a function of this picture alone, to the last bit.** Whole numbers below 2^53 (float64) or
2^24 (float32) are exact in floating point, in any order of summation and with or without fused multiply-add. So a
product of matrices of such numbers has the same rows in a batch of one and in a batch of all. Other operations here
are element by element (division, square root), which IEEE 754 rounds in one way only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import Pixels

WholeFeatures = npt.NDArray[np.int16]
LENGTH = 4095
"""Bound on the Euclidean length of whole features."""
CHUNK = 4096
"""Pictures that are encoded at once."""


class Encoder(Protocol):
    """A public encoder that is frozen."""

    @property
    def digest(self) -> str:
        """SHA-256 of all that its features depend on; for lineage and the sealed plan."""

    def features(self, pixels: Pixels) -> WholeFeatures:
        """Features of each picture, shape (pictures, features), of length `LENGTH` at most.

        Each row is a function of its picture alone, to the last bit.
        """


def whole(values: npt.NDArray[np.float64], length: float = LENGTH) -> WholeFeatures:
    """Rows of whole numbers as features: scaled to a length and rounded toward 0; rows of zeros stay zeros.

    Rounding toward 0 makes no row longer. The relative error of the scaling is below 2^-50, and `LENGTH` + 1 holds it.

    Args:
        values: whole numbers, with a sum of squares of each row below 2^53, so that it is exact.
        length: `LENGTH` at most.
    """
    lengths = np.sqrt((values * values).sum(axis=1, keepdims=True))
    found: WholeFeatures = np.trunc(values * (length / np.maximum(lengths, 1.0))).astype(np.int16)
    return found


@dataclass(frozen=True)
class AveragedPixels:
    """Pixels averaged over a grid of `side` by `side` cells, channel by channel."""

    side: int = 14

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"averaged pixels {self.side}".encode()).hexdigest()

    def features(self, pixels: Pixels) -> WholeFeatures:
        _, height, width, channels = pixels.shape
        rows, columns = overlaps(self.side, height), overlaps(self.side, width)
        found = np.empty((len(pixels), self.side**2 * channels), dtype=np.int16)
        for start in range(0, len(pixels), CHUNK):
            part = pixels[start : start + CHUNK].astype(np.float64)
            cells = np.einsum("sh,nhwc->nswc", rows, part, optimize=True)
            cells = np.einsum("tw,nswc->nstc", columns, cells, optimize=True)
            # Cells are below 2^8 h w: a sum of squares is exact, after a shift where pictures are large.
            found[start : start + CHUNK] = whole(np.trunc(cells / (height * width / 2**8)).reshape(len(part), -1))
        return found


@lru_cache(maxsize=256)
def overlaps(cells: int, pixels: int) -> npt.NDArray[np.float64]:
    """How much of each pixel lies in each cell, in 1 / cells of a pixel: whole numbers; shape (cells, pixels)."""
    edges = np.arange(pixels + 1) * cells
    starts, ends = np.arange(cells)[:, None] * pixels, (np.arange(cells)[:, None] + 1) * pixels
    shared = np.minimum(ends, edges[1:]) - np.maximum(starts, edges[:-1])
    found: npt.NDArray[np.float64] = np.maximum(shared, 0).astype(np.float64)
    return found
