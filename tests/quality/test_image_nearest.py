"""Copies are found, and pictures that are none are not called so."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from toy_pictures import bars

from dpsynth_platform.quality.images.nearest import (
    Neighbours,
    exact_copies,
    nearness,
    neighbours,
    pairs_sheet,
    pixel_vectors,
)


def test_neighbours_are_the_nearest() -> None:
    rng = np.random.default_rng(0)
    vectors, among = rng.normal(size=(7, 3)).astype(np.float32), rng.normal(size=(20, 3)).astype(np.float32)
    found = neighbours(vectors, among)
    every = np.linalg.norm(vectors[:, None] - among[None], axis=2)
    np.testing.assert_allclose(found.distances, np.sort(every, axis=1)[:, :5], rtol=1e-4)
    assert (found.places == np.argsort(every, axis=1)[:, :5]).all()
    assert neighbours(vectors, among[:2]).places.shape == (7, 2)


def nearer(synthetic: np.ndarray) -> dict[str, float]:
    """The report of `synthetic` beside 500 held-out pictures and 500 of the mechanism."""
    real, held_out = (pixel_vectors(bars(500, seed)[0]) for seed in (1, 2))
    found = (neighbours(pixel_vectors(side), real) for side in (synthetic,))
    return nearness(next(found), neighbours(held_out, real), 500, (0, 0), (500, 500)).nearer


def test_copies_are_nearer_than_held_out_pictures_and_fresh_ones_are_not() -> None:
    copies = bars(500, 1)[0]
    assert nearer(copies) == {"1%": 1, "5%": 1}
    close = (copies.astype(int) + np.random.default_rng(0).integers(-3, 4, copies.shape)).clip(0, 255).astype(np.uint8)
    assert nearer(close)["1%"] > 0.9
    fresh = nearer(bars(500, 3)[0])
    assert fresh["1%"] < 0.05 and fresh["5%"] < 0.15
    half = np.concatenate([copies[:250], bars(250, 4)[0]])
    assert nearer(half)["1%"] == pytest.approx(0.5, abs=0.05)


def test_exact_copies_are_counted() -> None:
    real = bars(50, 1)[0]
    made = bars(20, 2)[0]
    made[3], made[7] = real[11], real[11]
    assert exact_copies(made, real) == 2
    made[7, 0, 0, 0] ^= 1
    assert exact_copies(made, real) == 1


def test_distances_stand_in_the_form_of_other_reports() -> None:
    near, far = (Neighbours(np.zeros((4, 1), int), np.full((4, 1), value)) for value in (1.0, 2.0))
    found = nearness(near, far, 9, (2, 1), (4, 4))
    assert found.among == 9 and found.closeness.closer == 1
    assert found.closeness.synthetic.copied == 0.5 and found.closeness.real.copied == 0.25
    assert len(found.closeness.synthetic_percentiles) == 101


def test_the_sheet_shows_the_nearest_pairs_first() -> None:
    real, sample, made = (np.full((3, 48, 48, 1), value, dtype=np.uint8) for value in (10, 20, 30))
    real[2] = 99
    by_pixels = Neighbours(np.array([[0], [2], [0]]), np.array([[5.0], [1.0], [3.0]]))
    by_features = Neighbours(np.array([[0], [1], [2]]), np.zeros((3, 1)))
    sheet = pairs_sheet(made, real, by_pixels, sample, by_features)
    assert [int(found[1].max()) for _, found in sheet.rows] == [99, 10, 10]
    with Image.open(io.BytesIO(sheet.png())) as image:
        row = np.asarray(image)[24]
    assert row[-1] == 20 and row[-60] == 99 and row[-110] == 30
