"""Pictures of a declared public table, deformed and mixed with their neighbours.

What belongs here: a public table as a foundation. What does not: reading it, and whether it is public, which its
contract declares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.synth.images import simulators_deformations as deformations
from dpsynth_platform.synth.images.encoders import Encoder, WholeFeatures
from dpsynth_platform.synth.images.foundations import Simulator, Values
from dpsynth_platform.synth.images.simulators_deformations import Deformation, read_at

NEIGHBOURS = 16
"""Of a picture, with which it mixes, and by which a variation replaces it."""
_LESS = 0.5
"""A picture's share when it mixes is 1 / 2 at least."""
CHANGES = Deformation(rotation=0.12, shear=0.1, scale=0.08, aspect=0.08, elastic=0.03)


@dataclass(frozen=True, eq=False)
class PublicTable(Simulator):
    """Public pictures as sources.

    Attributes:
        pictures: shape (pictures, height, width, channels), of the wanted form.
        labels: of each picture, or None where there are none.
        of: the table's labels for each wanted label; those that are left out, and all without labels, get any picture.
        encoder: by its features pictures are neighbours.

    Raises:
        ConfigurationError: there is no picture, or none with a declared label.
    """

    pictures: Pixels = field(repr=False)
    labels: Sequence[str] | None = field(repr=False)
    encoder: Encoder
    of: Mapping[str, Sequence[str]] = field(default_factory=dict)
    deformation: Deformation = CHANGES
    name: str = field(default="public_table", init=False)
    genes: int = field(default=deformations.GENES + 2, init=False)

    def __post_init__(self) -> None:
        if not len(self.pictures):
            raise ConfigurationError("a public table of images: it has no picture; accepted: one at least")
        for label in self.of:
            self.sources(label)

    @property
    def form(self) -> ImageForm:  # type: ignore[override]
        return ImageForm(*self.pictures.shape[1:])

    @cached_property
    def digest(self) -> str:
        content = hashlib.sha256(self.pictures.tobytes())
        content.update(repr((self.form, self.labels, sorted(self.of.items()), self.deformation)).encode())
        content.update(self.encoder.digest.encode())
        return content.hexdigest()

    def sources(self, label: str) -> npt.NDArray[np.int64]:
        if self.labels is None or label not in self.of:
            return np.arange(len(self.pictures))
        found = np.flatnonzero(np.isin(np.asarray(self.labels), list(self.of[label])))
        if not len(found):
            raise ConfigurationError(
                f"a public table of images: no picture has a label of {list(self.of[label])}, declared for {label!r}; "
                "accepted: labels that occur"
            )
        return found

    @cached_property
    def _features(self) -> WholeFeatures:
        return self.encoder.features(self.pictures)

    def _near(self, sources: npt.NDArray[np.int64], among: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The `NEIGHBOURS` nearest pictures among some, nearest first; shape (sources, neighbours)."""
        found = np.empty((len(sources), min(NEIGHBOURS, len(among))), dtype=np.int64)
        compared = self._features[among].astype(np.float32)
        squares = (compared * compared).sum(axis=1)
        for start in range(0, len(sources), 256):
            own = slice(start, start + 256)
            distances = squares - 2 * self._features[sources[own]].astype(np.float32) @ compared.T
            distances[sources[own][:, None] == among[None, :]] = np.inf
            nearest = np.argpartition(distances, found.shape[1] - 1, axis=1)[:, : found.shape[1]]
            order = np.take_along_axis(distances, nearest, axis=1).argsort(axis=1)
            found[own] = among[np.take_along_axis(nearest, order, axis=1)]
        return found

    def neighbour(
        self, sources: npt.NDArray[np.int64], label: str, generator: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        near = self._near(sources, self.sources(label))
        return near[np.arange(len(near)), generator.integers(near.shape[1], size=len(near))]

    def rendered(self, sources: npt.NDArray[np.int64], values: Values) -> Pixels:
        pixels = np.empty((len(sources), *self.form.shape), dtype=np.uint8)
        distinct, places = np.unique(sources, return_inverse=True)
        near = self._near(distinct, np.arange(len(self.pictures)))
        for start in range(0, len(sources), deformations.CHUNK):
            own = slice(start, start + deformations.CHUNK)
            genes = values[own]
            which = np.clip(np.abs(genes[:, -2]) / 2 * near.shape[1], 0, near.shape[1] - 1).astype(np.int64)
            share = np.clip(_LESS * (np.abs(genes[:, -1]) - np.float32(0.7)), 0, _LESS)[:, None, None, None]
            at = self.deformation.coordinates(genes, self.form.height, self.form.width)
            mixed = self._read(sources[own], at) * (1 - share) + self._read(near[places[own], which], at) * share
            pixels[own] = np.rint(mixed)
        return pixels

    def _read(self, sources: npt.NDArray[np.int64], at: Values) -> Values:
        """Pictures read at places; beyond the edge, each pixel is that at the edge."""
        distinct, places = np.unique(sources, return_inverse=True)
        pictures = np.pad(self.pictures[distinct], ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge").astype(np.float32)
        return read_at(pictures, places, np.clip(at, -1, 1) * _inner(self.form), 0.0)


def _inner(form: ImageForm) -> Values:
    """A picture's size within the one that has a further pixel on each side."""
    return np.array([form.width / (form.width + 2), form.height / (form.height + 2)], dtype=np.float32)
