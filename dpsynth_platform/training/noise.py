"""Gaussian noise on sums of clipped gradients.

What belongs here: the draw that makes gradients private. What does not: the amount of noise (`plan.noise_deviation`).
No argument turns it off.

**Exactness.** Box and Muller's transform gives normal deviates in double precision. A radius uses 126 bits of a
cryptographic stream: with the 63 of one word the largest radii would be sparse, which is visible in 10^11 coordinates
(tails end at 13.2 deviations). Sum and noise are added in double precision and rounded to whole multiples of a power of
two, between `STEP` and half of `STEP` of a deviation: otherwise results near zero would keep all digits, which reveal
the summands (Mironov 2012). So the output of a coordinate is its step, whose probability the transform's rounding
(about 2^-50 of a deviation) changes by a factor of some 1 +- 2^-32; that of adding it to a sum of M deviations, M 2^-53
of one, by some 1 +- M 2^-36 more. The further rounding to the gradient's precision is
post-processing. Unlike the noise on counts (`synth.tabular.noise`) it is not exactly the distribution that accounting
assumes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_platform.training.stream import SecureStream

if TYPE_CHECKING:
    import torch

# Coordinates that get their noise at once; it limits temporary memory.
CHUNK = 2**20
# Of a deviation: far below 1, so that nothing is lost, and far above the resolution of double precision.
STEP = 2.0**-16
# Words are whole numbers from -2^63 to 2^63 - 1, or without their sign.
SCALE = 2.0**-63
MASK = 2**63 - 1


class GaussianNoise:
    """Independent normal deviates from a separate stream."""

    def __init__(self) -> None:
        self._stream = SecureStream()

    def add_(self, sums: torch.Tensor, deviation: float) -> None:
        """Adds independent N(0, deviation^2) to every coordinate, in place, rounded to whole steps.

        `sums` are contiguous, floating point, on any device.
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
        # 126 bits plus half of the last one: never 0, which has no logarithm.
        finer = (words[1] & MASK).double().add_(0.5).mul_(SCALE)
        uniform = (words[0] & MASK).double().add_(finer).mul_(SCALE)
        angle = words[2].double().mul_(math.pi * SCALE)
        radius = uniform.log_().mul_(-2).sqrt_()
        return torch.cat([radius * angle.cos(), radius.mul_(angle.sin())])[:number]
