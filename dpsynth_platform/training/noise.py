"""Gaussian noise on sums of clipped gradients.

What belongs here: the one draw that makes gradients private. What does not: how much noise (`plan.noise_deviation`).
No argument turns it off.

**How exact it is.** Normal deviates are made by Box and Muller's transform in double precision. A radius is made of 126
bits of a cryptographic stream, for with the 63 of one word the longest radii would be few and far between, which shows
in 10^11 coordinates (tails end at 13.2 deviations). Sum and noise are added in double precision and rounded to whole
multiples of a power of two, `STEP` of a deviation or down to half of that: without this, results near zero would keep
all digits, and by these it could be told which numbers add up to them (Mironov 2012). So what is published of a
coordinate is which step it falls on, and of that the transform's rounding (about 2^-50 of a deviation) changes the
chance by a factor of some 1 +- 2^-32. The further rounding to the gradient's precision is post-processing. Unlike the
noise on counts (`synth.tabular.noise`) it is not exactly the distribution that accounting assumes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_platform.training.stream import SecureStream

if TYPE_CHECKING:
    import torch

# Coordinates that get their noise at once, so that what is in between stays small.
CHUNK = 2**20
# Of a deviation: far below it, so that nothing is lost, and far above what double precision cannot tell apart.
STEP = 2.0**-16
# Words are read as whole numbers from -2^63 to 2^63 - 1, or without their sign.
SCALE = 2.0**-63
MASK = 2**63 - 1


class GaussianNoise:
    """Independent normal deviates from a stream of its own."""

    def __init__(self) -> None:
        self._stream = SecureStream()

    def add_(self, sums: torch.Tensor, deviation: float) -> None:
        """Adds independent N(0, deviation^2) to every coordinate, in place, rounded to whole steps.

        Args:
            sums: contiguous, floating point, on any device.
            deviation: of the noise, in the unit of the sums.
        """
        flat = sums.view(-1)
        step = 2.0 ** math.floor(math.log2(deviation)) * STEP
        for start in range(0, flat.numel(), CHUNK):
            part = flat[start : start + CHUNK]
            noised = part.double().add_(self._normal(part.numel(), part.device), alpha=deviation)
            part.copy_(noised.div_(step).round_().mul_(step))

    def _normal(self, number: int, device: torch.device) -> torch.Tensor:
        """[number] standard normal deviates in double precision."""
        import torch

        pairs = -(-number // 2)
        words = torch.from_numpy(self._stream.words(3 * pairs).view(np.int64)).to(device).view(3, pairs)
        # 126 bits, moved by half of the last one where it counts: never 0, of which there is no logarithm.
        finer = (words[1] & MASK).double().add_(0.5).mul_(SCALE)
        uniform = (words[0] & MASK).double().add_(finer).mul_(SCALE)
        angle = words[2].double().mul_(math.pi * SCALE)
        radius = uniform.log_().mul_(-2).sqrt_()
        return torch.cat([radius * angle.cos(), radius.mul_(angle.sin())])[:number]
