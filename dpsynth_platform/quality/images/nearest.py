"""Nearness: are synthetic pictures nearer to the mechanism's real pictures than held-out real pictures are?

What belongs here: distances to the nearest of those pictures in pixels and in features, exact copies, and a sheet of
the nearest pairs. What does not: claims about privacy; only the guarantee protects. Distances and sheets come from real
pictures, so they are for reviewers only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.contact_sheet import ContactSheet
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.quality.closeness import NEIGHBOURS, Closeness, closeness_of
from dpsynth_platform.quality.images.features import Features
from dpsynth_platform.quality.images.samples import reduced

MOST_PICTURES = 1_000
"""A random sample of so many synthetic and held-out pictures is compared with the mechanism's real ones."""
PERCENTILES = (1, 5)
"""Of held-out pictures' distances: a synthetic picture below is nearer than that share of held-out ones."""
PAIRS = 10
"""Pairs on a sheet: the synthetic pictures that are nearest to a real one."""
_MOST_NUMBERS = 50_000_000
"""Of the real pictures' vectors."""


@dataclass(frozen=True)
class Nearness:
    """Distances of synthetic and held-out pictures to the mechanism's real ones, by one kind of vectors.

    Attributes:
        among: number of the mechanism's pictures that were searched.
        closeness: distances, their percentiles, and exact copies.
        nearer: for each of `PERCENTILES` (as `1%`), the share of synthetic pictures nearer than that percentile
            of the distances of held-out ones. Without copying, about that percentage is expected.
    """

    among: int
    closeness: Closeness
    nearer: dict[str, float]


@dataclass(frozen=True)
class Neighbours:
    """Nearest real pictures of each synthetic one: their places and distances, shapes (pictures, neighbours)."""

    places: npt.NDArray[np.intp]
    distances: npt.NDArray[np.float64]


def pixel_vectors(pixels: Pixels) -> Features:
    """Pixels in [0, 1] of pictures with a longer side of at most 32, shape (pictures, values)."""
    return (reduced(pixels).reshape(len(pixels), -1) / np.float32(255)).astype(np.float32)


def neighbours(vectors: Features, among: Features) -> Neighbours:
    """The nearest of `among` by Euclidean distance, in bounded memory."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(among)), algorithm="brute").fit(among)
    distances, places = index.kneighbors(vectors)
    return Neighbours(places, np.asarray(distances, dtype=np.float64))


def most_among(values: int) -> int:
    """How many real pictures of so many values are searched."""
    return max(1, _MOST_NUMBERS // values)


def nearness(
    synthetic: Neighbours, held_out: Neighbours, among: int, copies: tuple[int, int], rows: tuple[int, int]
) -> Nearness:
    """Compares the distances of both.

    Args:
        synthetic, held_out: of samples of synthetic and of held-out pictures.
        among: number of the mechanism's pictures that were searched.
        copies, rows: exact copies of any of the mechanism's pictures, and pictures, of both tables.
    """
    made, real = synthetic.distances, held_out.distances
    limits = {percentile: float(np.percentile(real[:, 0], percentile)) for percentile in PERCENTILES}
    return Nearness(
        among=among,
        closeness=closeness_of(made, real, copies, rows),
        nearer={f"{percentile}%": float((made[:, 0] < limit).mean()) for percentile, limit in limits.items()},
    )


def exact_copies(pixels: Pixels, among: Pixels) -> int:
    """How many pictures equal one of `among` in every pixel."""
    known = {_digest(picture) for picture in among}
    return sum(_digest(picture) in known for picture in pixels)


def pairs_sheet(
    synthetic: Pixels, real: Pixels, by_pixels: Neighbours, real_sample: Pixels, by_features: Neighbours
) -> ContactSheet:
    """Synthetic pictures beside their nearest real ones in pixels and in features, the nearest pairs first."""
    first = np.argsort(by_pixels.distances[:, 0], kind="stable")[:PAIRS]
    return ContactSheet(
        tuple(
            (
                f"pair {rank + 1}",
                np.stack(
                    [synthetic[at], real[by_pixels.places[at, 0]], real_sample[by_features.places[at, 0]]],
                ),
            )
            for rank, at in enumerate(first)
        )
    )


def _digest(picture: Pixels) -> bytes:
    return hashlib.blake2b(picture.tobytes(), digest_size=16).digest()
