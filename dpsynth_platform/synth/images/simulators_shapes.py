"""Pictures of coloured shapes and textures, for images of which nothing else is public.

What belongs here: ellipses, boxes, stripes and rings over a gradient, of any form and channels. What does not: the
numbers of a sample (`foundations`), and deformations (`simulators_deformations`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.synth.images import simulators_deformations as deformations
from dpsynth_platform.synth.images.foundations import Simulator, Values
from dpsynth_platform.synth.images.simulators_deformations import Deformation

OBJECTS = 3
_COLOUR = 3
_BACKGROUND = 2 * _COLOUR + 2
_OBJECT = 7 + _COLOUR


def _ellipse(x: Values, y: Values) -> Values:
    found: Values = 1 - np.sqrt(x * x + y * y)
    return found


def _box(x: Values, y: Values) -> Values:
    found: Values = 1 - np.maximum(np.abs(x), np.abs(y))
    return found


def _ring(x: Values, y: Values) -> Values:
    found: Values = np.float32(0.3) - np.abs(np.sqrt(x * x + y * y) - np.float32(0.8))
    return found


def _triangle(x: Values, y: Values) -> Values:
    found: Values = np.minimum(np.float32(0.7) - y, (y + np.float32(1.3) - 2 * np.abs(x)) / np.float32(2.2))
    return found


def _stripes(x: Values, y: Values) -> Values:
    found: Values = np.minimum(np.sin(x * np.float32(6.3)) * np.float32(0.3), _box(x, y))
    return found


def _nothing(x: Values, y: Values) -> Values:
    return np.full_like(x, -9)


KINDS: tuple[Callable[[Values, Values], Values], ...] = (_ellipse, _box, _ring, _triangle, _stripes, _nothing)
"""Each gives distances to an edge, above 0 inside, of a shape of about half-width 1."""
CHANGES = Deformation(shift=0.15)


@dataclass(frozen=True, eq=False)
class Shapes(Simulator):
    """Up to `OBJECTS` shapes over a gradient, each with its own place, size, direction, colour and softness.

    A source is the kinds of its shapes; every label has all sources.
    """

    form: ImageForm
    deformation: Deformation = CHANGES
    name: str = field(default="shapes", init=False)
    genes: int = field(default=deformations.GENES + _BACKGROUND + OBJECTS * _OBJECT, init=False)

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"shapes 1 {self.form} {self.deformation}".encode()).hexdigest()

    def sources(self, label: str) -> npt.NDArray[np.int64]:
        return np.arange(len(KINDS) ** OBJECTS, dtype=np.int64)

    def rendered(self, sources: npt.NDArray[np.int64], values: Values) -> Pixels:
        pixels = np.empty((len(sources), *self.form.shape), dtype=np.uint8)
        for start in range(0, len(sources), deformations.CHUNK):
            own = slice(start, start + deformations.CHUNK)
            pixels[own] = np.rint(self._rendered(sources[own], values[own]) * 255)
        return pixels

    def _rendered(self, sources: npt.NDArray[np.int64], values: Values) -> Values:
        """Values of pixels within [0, 1]."""
        places = self.deformation.coordinates(values, self.form.height, self.form.width)
        genes = values[:, deformations.GENES :]
        one, other, (turn, offset) = _colours(genes[:, :3]), _colours(genes[:, 3:6]), genes[:, 6:8].T
        along = _turned(places, turn * np.float32(np.pi))[0]
        mixed = _between((along + offset[:, None, None]) / 2 + 0.5)[..., None]
        found: Values = one * mixed + other * (1 - mixed)
        for number in range(OBJECTS):
            kinds = sources // len(KINDS) ** number % len(KINDS)
            first = _BACKGROUND + number * _OBJECT
            right, down, size, aspect, angle, soft, see = genes[:, first : first + 7].T[:, :, None, None]
            centre = (np.float32(0.35) * np.stack([right, down], axis=-1)).astype(np.float32)
            x, y = _turned(places - centre, angle[:, 0, 0])
            half = np.float32(0.45) * np.exp(np.float32(0.4) * size)
            x, y = x / (half * np.exp(np.float32(0.3) * aspect)), y / (half * np.exp(np.float32(-0.3) * aspect))
            inside = np.full_like(x, -9)
            for kind in np.unique(kinds):
                inside[kinds == kind] = KINDS[kind](x[kinds == kind], y[kinds == kind])
            softness = np.float32(0.1) * np.exp(np.float32(0.5) * soft)
            covered = _between(np.float32(0.5) + inside / softness) * _between(1 + np.float32(0.3) * see)
            found += covered[..., None] * (_colours(genes[:, first + 7 : first + _OBJECT]) - found)
        return found.mean(axis=-1, keepdims=True) if self.form.channels == 1 else found


def _colours(genes: Values) -> Values:
    """From normal numbers to colours, shape (pictures, 1, 1, 3); nearly uniform within [0, 1]."""
    found: Values = 1 / (1 + np.exp(np.float32(-1.7) * genes))
    return found[:, None, None, :]


def _turned(places: Values, angle: Values) -> tuple[Values, Values]:
    cosine, sine = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    x, y = places[..., 0], places[..., 1]
    return (cosine * x + sine * y).astype(np.float32), (cosine * y - sine * x).astype(np.float32)


def _between(values: Values) -> Values:
    return np.clip(values, 0, 1)
