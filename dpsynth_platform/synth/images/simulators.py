"""Pictures of characters, from font files in a declared public directory.

What belongs here: glyphs as distance fields, and rendering them deformed, thicker or thinner, sharper or softer. What
does not: the numbers of a sample (`foundations`), and deformations (`simulators_deformations`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.synth.images import simulators_deformations as deformations
from dpsynth_platform.synth.images.encoders import overlaps
from dpsynth_platform.synth.images.foundations import Simulator, Values
from dpsynth_platform.synth.images.simulators_deformations import Deformation, read_at

SUFFIXES = (".ttf", ".otf")
FIELD = 48
"""Pixels on each side of a distance field."""
_SIZE = 72
"""Pixels of a glyph's larger side when it is drawn to measure distances."""
_FAR = 0.5
"""The largest distance that a field holds, relative to half its side."""
CHANGES = Deformation()


@dataclass(frozen=True)
class Ink:
    """How a glyph is drawn. Lengths are relative to half the picture's side.

    Attributes:
        fill: half the larger side of an undeformed glyph.
        thickness, thickness_spread: mean and deviation of what is added to both sides of a stroke.
        softness: of edges, a mean; each sample's is this times exp(`softness_spread` z).
        paper, ink: the values of pixels, 0 to 255, in each channel.
    """

    fill: float = 0.7
    thickness: float = 0.0
    thickness_spread: float = 0.05
    softness: float = 0.06
    softness_spread: float = 0.3
    paper: int = 0
    ink: int = 255


INK = Ink()


@dataclass(frozen=True, eq=False)
class Fonts(Simulator):
    """Glyphs of a label's characters in public fonts.

    Attributes:
        directory: holds font files, also in folders within. A file that lacks a character, or is damaged, is left out.
        characters: of each label; each sample shows one of them.
        most: fonts that are used at most, the first ones by name.

    Raises:
        ConfigurationError: no font has the characters of a label.
    """

    directory: Path
    form: ImageForm
    characters: Mapping[str, str]
    deformation: Deformation = CHANGES
    ink: Ink = INK
    most: int = 2000
    name: str = field(default="fonts", init=False)
    genes: int = field(default=deformations.GENES + 2, init=False)

    @cached_property
    def _glyphs(self) -> tuple[Values, dict[str, npt.NDArray[np.int64]], str]:
        """Distance fields, those of each character, and the digest of the fonts that have any."""
        wanted = sorted({character for characters in self.characters.values() for character in characters})
        fields: list[Values] = []
        found: dict[str, list[int]] = {character: [] for character in wanted}
        digest, seen = hashlib.sha256(repr(wanted).encode()), set()
        for file in font_files(self.directory)[: self.most]:
            content = file.read_bytes()
            if (own := hashlib.sha256(content).digest()) in seen:
                continue
            seen.add(own)
            glyphs = glyphs_of(content, wanted)
            if glyphs:
                digest.update(own)
            for character, mask in glyphs.items():
                found[character].append(len(fields))
                fields.append(_distances(mask))
        missing = [label for label, own in self.characters.items() if not any(found[character] for character in own)]
        if missing:
            raise ConfigurationError(
                f"fonts in {self.directory}: no glyph for the label {missing[0]!r}; accepted: a directory of .ttf or "
                ".otf files with the declared characters"
            )
        return (
            np.stack(fields)[..., None],
            {character: np.array(own, dtype=np.int64) for character, own in found.items()},
            digest.hexdigest(),
        )

    @property
    def digest(self) -> str:
        settings = repr((self.form, dict(self.characters), self.deformation, self.ink, self.most))
        return hashlib.sha256(f"{self._glyphs[2]} {settings}".encode()).hexdigest()

    def sources(self, label: str) -> npt.NDArray[np.int64]:
        _, found, _ = self._glyphs
        return np.concatenate([found[character] for character in self.characters[label]])

    def rendered(self, sources: npt.NDArray[np.int64], values: Values) -> Pixels:
        """Ink where the distance to the glyph, with what is added to its strokes, is inside; edges are soft."""
        glyphs, form, ink = self._glyphs[0], self.form, self.ink
        pixels = np.empty((len(sources), *form.shape), dtype=np.uint8)
        for start in range(0, len(sources), deformations.CHUNK):
            own = slice(start, start + deformations.CHUNK)
            genes = values[own]
            places = self.deformation.coordinates(genes, form.height, form.width) / ink.fill * _INSIDE
            inside = read_at(glyphs, sources[own], places, -_FAR) * ink.fill / _INSIDE
            thickness = ink.thickness + ink.thickness_spread * genes[:, -2]
            softness = ink.softness * np.exp(ink.softness_spread * genes[:, -1])
            covered = np.clip(
                0.5 + (inside + thickness[:, None, None, None]) / (2 * softness[:, None, None, None]), 0, 1
            )
            pixels[own] = np.rint(ink.paper + (ink.ink - ink.paper) * covered)
        return pixels


_INSIDE = 0.75
"""Half the larger side of a glyph in its field; the rest is room for distances outside."""


def font_files(directory: Path) -> list[Path]:
    """Font files in a directory and the folders within, by name."""
    return sorted(file for file in directory.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())


def glyphs_of(font: bytes, characters: Sequence[str]) -> dict[str, npt.NDArray[np.bool_]]:
    """Masks of the characters that a font has, cropped to their ink; none if the file is no usable font.

    A character that looks as the font's picture for unknown ones, or as an empty one, is not among them.
    """
    import io

    from PIL import ImageFont

    try:
        loaded = ImageFont.truetype(io.BytesIO(font), _SIZE)
        unknown = _mask(loaded, "\uffff")
        masks = {character: _mask(loaded, character) for character in characters}
    except (OSError, ValueError, SyntaxError):
        return {}
    blank = None if unknown is None else unknown.tobytes()
    return {character: mask for character, mask in masks.items() if mask is not None and mask.tobytes() != blank}


def _mask(font: Any, character: str) -> npt.NDArray[np.bool_] | None:
    found = font.getmask(character, mode="L")
    if 0 in found.size or max(found.size) > 4 * _SIZE:
        return None
    mask = np.array(found, dtype=np.uint8).reshape(found.size[::-1]) > 127
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return None
    return mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _distances(mask: npt.NDArray[np.bool_]) -> Values:
    """Signed distances to the glyph's edge, above 0 inside, of a centred glyph; shape (FIELD, FIELD).

    The larger side of the glyph takes `_INSIDE` of the field; 1 is half the field's side.
    """
    from scipy.ndimage import distance_transform_edt

    side = round(max(mask.shape) / _INSIDE)
    room = np.zeros((side, side), dtype=bool)
    top, left = (side - mask.shape[0]) // 2, (side - mask.shape[1]) // 2
    room[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    distances = (distance_transform_edt(room) - distance_transform_edt(~room)) * 2 / side
    averaging = overlaps(FIELD, side) / side
    found: Values = np.clip(averaging @ distances @ averaging.T, -_FAR, _FAR).astype(np.float32)
    return found
