"""The classifier learns what can be learned, and its figures are those of their definitions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from toy_pictures import bars

from dpsynth_platform.quality.images import classifier
from dpsynth_platform.quality.images.classifier import (
    PictureClassifier,
    accuracy,
    accuracy_by_class,
    classifier_score,
)
from dpsynth_platform.quality.images.samples import SIDE, reduced


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "STEPS", 60)
    monkeypatch.setattr(classifier, "BATCH", 32)


def test_classes_that_differ_are_learned_and_shuffled_ones_are_not() -> None:
    pixels, labels = bars(400, 1)
    test, truth = bars(300, 2)
    assert accuracy(PictureClassifier(pixels, labels, 3, 0).probabilities(test), truth) > 0.95
    shuffled = np.random.default_rng(0).permutation(labels)
    assert accuracy(PictureClassifier(pixels, shuffled, 3, 0).probabilities(test), truth) < 0.7


def test_a_seed_repeats_and_the_global_state_stays() -> None:
    pixels, labels = bars(100, 1)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, second, other = (PictureClassifier(pixels, labels, 3, seed).probabilities(pixels) for seed in (0, 0, 1))
    assert (first == second).all() and (first != other).any()
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 9, 3), (8, 8, 1), (70, 40, 3)])
def test_every_form_is_taken(shape: tuple[int, int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, *shape), dtype=np.uint8)
    pixels.flags.writeable = False  # as pictures of a table are
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = PictureClassifier(pixels, np.arange(40) % 2, 2, 0).probabilities(pixels)
    assert found.shape == (40, 2)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)


def test_accuracies_are_shares_of_right_guesses() -> None:
    probabilities = np.array([[0.9, 0.1, 0], [0.2, 0.8, 0], [0.6, 0.4, 0], [0.1, 0.9, 0]], dtype=np.float32)
    labels = np.array([0, 1, 1, 1])
    assert accuracy(probabilities, labels) == 0.75
    found = accuracy_by_class(probabilities, labels)
    assert found[:2] == pytest.approx([1, 2 / 3]) and np.isnan(found[2])


def test_the_score_is_the_exponent_of_the_mean_divergence() -> None:
    assert classifier_score(np.eye(4, dtype=np.float32)) == pytest.approx(4)
    assert classifier_score(np.full((9, 4), 0.25, dtype=np.float32)) == pytest.approx(1)
    assert classifier_score(np.repeat(np.eye(4, dtype=np.float32)[:1], 9, axis=0)) == pytest.approx(1)
    # One picture in four of class 1: entropy of (3/4, 1/4).
    few = np.eye(2, dtype=np.float32)[[0, 0, 0, 1]]
    assert classifier_score(few) == pytest.approx(np.exp(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25))))
    unsure = np.array([[0.9, 0.1], [0.1, 0.9]], dtype=np.float32)
    assert classifier_score(unsure) == pytest.approx(np.exp(0.9 * np.log(1.8) + 0.1 * np.log(0.2)))


def test_large_pictures_are_reduced_to_means() -> None:
    pixels = np.zeros((2, 64, 128, 3), dtype=np.uint8)
    pixels[:, :, ::2] = 200
    found = reduced(pixels)
    assert found.shape == (2, SIDE // 2, SIDE, 3) and (found == 100).all()
    small = pixels[:, :10, :10]
    assert reduced(small) is small
