"""Gaussian noise on sums of clipped gradients.

What belongs here: the one draw that makes gradients private. What does not: how much noise (`plan.noise_deviation`).
No argument turns it off.

**How exact it is.** Normal deviates are made by Box and Muller's transform from 128 bits of a cryptographic stream for
two of them, in double precision, and added in double precision; only the sum is rounded to the gradient's precision,
which is post-processing. What is left is the rounding of the transform itself (about 2^-50 of the noise), and tails
that end at 9.4 deviations (a chance of 5e-21 for each coordinate). Unlike the noise on counts (`synth.tabular.noise`)
it is not exactly the distribution that accounting assumes: the attack of Mironov (2012) on the gaps between floating-
point numbers is made hard by the rounding, but not proven away.
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
# Words are read as whole numbers from -2^63 to 2^63 - 1, or without their sign.
SCALE = 2.0**-63
MASK = 2**63 - 1


class GaussianNoise:
    """Independent normal deviates from a stream of its own."""

    def __init__(self) -> None:
        self._stream = SecureStream()

    def add_(self, sums: torch.Tensor, deviation: float) -> None:
        """Adds independent N(0, deviation^2) to every coordinate, in place.

        Args:
            sums: contiguous, floating point, on any device.
            deviation: of the noise, in the unit of the sums.
        """
        flat = sums.view(-1)
        for start in range(0, flat.numel(), CHUNK):
            part = flat[start : start + CHUNK]
            part.copy_(part.double() + deviation * self._normal(part.numel(), part.device))

    def _normal(self, number: int, device: torch.device) -> torch.Tensor:
        """[number] standard normal deviates in double precision."""
        import torch

        pairs = -(-number // 2)
        words = torch.from_numpy(self._stream.words(2 * pairs).view(np.int64)).to(device)
        # 63 bits, moved by half of the last one where it counts: never 0, of which there is no logarithm.
        uniform = ((words[:pairs] & MASK).double() + 0.5).mul_(SCALE)
        angle = words[pairs:].double().mul_(math.pi * SCALE)
        radius = uniform.log_().mul_(-2).sqrt_()
        return torch.cat([radius * angle.cos(), radius.mul_(angle.sin())])[:number]
