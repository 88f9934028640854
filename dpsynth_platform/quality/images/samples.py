"""Pictures and labels of one side of a comparison: random samples of them, and pictures of less detail.

What belongs here: what several measures need before they measure. What does not: the measures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import Pixels

Labels = npt.NDArray[np.int64]
SIDE = 32
"""The classifier and pixel distances see pictures whose longer side is at most this, which bounds their time."""
_BATCH = 1_000


@dataclass(frozen=True)
class Pictures:
    """Pictures of one table.

    Attributes:
        pixels: shape (pictures, height, width, channels).
        labels: indices of classes, shape (pictures,); None: there are no classes.
    """

    pixels: Pixels
    labels: Labels | None

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, rows: npt.NDArray[np.intp]) -> Pictures:
        return Pictures(self.pixels[rows], None if self.labels is None else self.labels[rows])

    def some(self, most: int, rng: np.random.Generator) -> Pictures:
        """At most so many, at random."""
        return self if len(self) <= most else self.take(rng.choice(len(self), most, replace=False))

    def of_class(self, index: int) -> npt.NDArray[np.intp]:
        """Places of a class."""
        return np.flatnonzero(self.labels == index) if self.labels is not None else np.zeros(0, dtype=np.intp)


def reduced(pixels: Pixels) -> Pixels:
    """Pictures whose longer side is at most `SIDE`, by means over areas; smaller ones as they are."""
    height, width = pixels.shape[1:3]
    scale = SIDE / max(height, width)
    if scale >= 1:
        return pixels
    import torch

    size = max(1, round(height * scale)), max(1, round(width * scale))
    found = np.zeros((len(pixels), *size, pixels.shape[3]), dtype=np.uint8)
    for start in range(0, len(pixels), _BATCH):
        batch = writable(pixels[start : start + _BATCH].transpose(0, 3, 1, 2))
        means = torch.nn.functional.interpolate(torch.from_numpy(batch).float(), size, mode="area")
        found[start : start + _BATCH] = means.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return found


def writable(pixels: Pixels) -> Pixels:
    """The same values in an array of its own where this one is read-only or not contiguous: torch warns of those."""
    return np.require(pixels, requirements=["C", "W"])
