"""Smooth changes of pictures by numbers: affine maps and elastic deformations.

What belongs here: from standard normal numbers to a map of the plane, and reading pictures through it. What does not:
which pictures (`simulators`, `simulators_table`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpsynth_platform.synth.images.foundations import Values

CONTROLS = 4
"""Control points on each side of the grid of an elastic deformation (Simard et al. 2003: smoothed displacements)."""
AFFINE = 6
GENES = AFFINE + 2 * CONTROLS**2
CHUNK = 2048
"""Pictures that are read at once."""


@dataclass(frozen=True)
class Deformation:
    """Standard deviations of the changes, for standard normal numbers. Lengths are relative to half the picture's side.

    Attributes:
        rotation, shear: in radians, and as a tangent.
        scale: of the logarithm of both sides together; `aspect`: of their ratio.
        shift: of the centre.
        elastic: of each control point's displacement.
    """

    rotation: float = 0.2
    shear: float = 0.2
    scale: float = 0.12
    aspect: float = 0.15
    shift: float = 0.06
    elastic: float = 0.05

    def coordinates(self, genes: Values, height: int, width: int) -> Values:
        """Where each pixel reads its source: (x, y) within [-1, 1]^2; shape (pictures, height, width, 2)."""
        turn, shear, scale, aspect, right, down = genes[:, :AFFINE].T
        angle = self.rotation * turn
        wide = np.exp(-self.scale * scale - self.aspect * aspect / 2)
        high = np.exp(-self.scale * scale + self.aspect * aspect / 2)
        cosine, sine, slope = np.cos(angle), np.sin(angle), self.shear * shear
        # Source = scaling * shearing * rotation * (pixel - shift).
        maps = np.empty((len(genes), 2, 2), dtype=np.float32)
        maps[:, 0, 0] = wide * (cosine + slope * sine)
        maps[:, 0, 1] = wide * (slope * cosine - sine)
        maps[:, 1, 0] = high * sine
        maps[:, 1, 1] = high * cosine
        grid = _grid(height, width)
        moved = grid[None] - (self.shift * np.stack([right, down], axis=1))[:, None].astype(np.float32)
        found: Values = moved @ maps.transpose(0, 2, 1)
        if self.elastic:
            controls = genes[:, AFFINE:GENES].reshape(len(genes), CONTROLS**2, 2)
            found += np.float32(self.elastic) * (_blending(height, width) @ controls)
        return found.reshape(len(genes), height, width, 2)


def read_at(pictures: Values, sources: npt.NDArray[np.int64], places: Values, outside: float) -> Values:
    """Pictures read at places between their pixels, by bilinear interpolation.

    Args:
        pictures: shape (sources, height, width, channels).
        sources: the picture of each result.
        places: see `Deformation.coordinates`.
        outside: the value beyond a picture's edge.

    Returns:
        shape (*places' first three axes, channels).
    """
    _, height, width, channels = pictures.shape
    padded = np.pad(pictures, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=outside)
    flat = padded.reshape(-1, channels)
    stride = width + 2
    x = np.clip((places[..., 0] + 1) * (width / 2) + 0.5, 0, width + 0.999)
    y = np.clip((places[..., 1] + 1) * (height / 2) + 0.5, 0, height + 0.999)
    left, top = x.astype(np.int32), y.astype(np.int32)
    x, y = (x - left)[..., None], (y - top)[..., None]
    at = sources[:, None, None] * ((height + 2) * stride) + top * stride + left
    upper = flat[at] * (1 - x) + flat[at + 1] * x
    lower = flat[at + stride] * (1 - x) + flat[at + stride + 1] * x
    found: Values = upper * (1 - y) + lower * y
    return found


@lru_cache(maxsize=8)
def _grid(height: int, width: int) -> Values:
    """Centres of all pixels, as (x, y) within [-1, 1]^2; shape (pixels, 2)."""
    down = (np.arange(height, dtype=np.float32) + 0.5) * 2 / height - 1
    right = (np.arange(width, dtype=np.float32) + 0.5) * 2 / width - 1
    return np.stack([np.tile(right, height), np.repeat(down, width)], axis=1)


@lru_cache(maxsize=8)
def _blending(height: int, width: int) -> Values:
    """The weight of each control point at each pixel: a product of Gaussian bumps; shape (pixels, control points)."""
    centres = np.linspace(-0.75, 0.75, CONTROLS)
    spread = centres[1] - centres[0]
    grid = _grid(height, width)
    bumps = [np.exp(-((grid[:, axis, None] - centres[None]) ** 2) / (2 * spread**2)) for axis in (0, 1)]
    found: Values = (bumps[1][:, :, None] * bumps[0][:, None, :]).reshape(len(grid), -1).astype(np.float32)
    return found
