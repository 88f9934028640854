"""Features of pictures: whole, of bounded length, and the same in a batch of one and in a batch of all."""

import math
from functools import cache

import numpy as np
import pytest

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.synth.images import encoders_network
from dpsynth_platform.synth.images.encoders import LENGTH, AveragedPixels, overlaps, whole
from dpsynth_platform.synth.images.encoders_network import EXACT, MOST, Layer, NetworkEncoder, grey, patches, trained
from dpsynth_platform.synth.images.simulators_shapes import Shapes

FORMS = [ImageForm(28, 28, 1), ImageForm(28, 28, 3), ImageForm(17, 40, 3), ImageForm(64, 64, 1), ImageForm(5, 9, 1)]


@cache
def network():
    return trained(Shapes(ImageForm(28, 28, 1)), ["a", "b"], pictures=512, epochs=2, generator=np.random.default_rng(1))


def pictures(form, number=40):
    random = np.random.default_rng(7)
    found = random.integers(0, 256, (number, *form.shape), dtype=np.uint8)
    found[1], found[2], found[3:6] = 0, 255, found[3:6] // 200
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["averaged", "network"])
def test_features_of_a_picture_do_not_depend_on_the_others(form, name):
    encoder = {
        "averaged": AveragedPixels(14),
        "network": network(),
    }[name]
    own = pictures(form)
    together = encoder.features(own)
    assert together.dtype == np.int16
    for at in range(len(own)):
        assert (encoder.features(own[at : at + 1])[0] == together[at]).all()
    for some in (slice(3, 24), slice(39, None, -1), slice(0, 40, 7)):
        assert (encoder.features(own[some]) == together[some]).all()
    assert (together.astype(np.int64) ** 2).sum(axis=1).max() < (LENGTH + 1) ** 2
    assert together.any()


def test_a_chunk_s_end_changes_nothing(monkeypatch):
    own = pictures(FORMS[0])
    before = network().features(own)
    monkeypatch.setattr(encoders_network, "CHUNK", 7)
    assert (network().features(own) == before).all()
    assert network().features(own[:0]).shape == (0, before.shape[1])


def test_averages_are_those_of_cells():
    own = pictures(ImageForm(28, 28, 1))
    cells = own.reshape(len(own), 14, 2, 14, 2).sum(axis=(2, 4), dtype=np.int64).reshape(len(own), -1)
    expected = cells / np.maximum(np.linalg.norm(cells, axis=1, keepdims=True), 1) * LENGTH
    found = AveragedPixels(14).features(own)
    # Cells are sums of four bytes, kept as a 256th of 784 / 196 of them: no rounding here but the last one.
    assert np.abs(found - expected).max() <= 1
    assert (found[1] == 0).all()
    for cells, pixels in ((14, 28), (14, 17), (28, 5)):
        assert (overlaps(cells, pixels).sum(axis=1) == pixels).all()
        assert (overlaps(cells, pixels).sum(axis=0) == cells).all()


def test_whole_rows_are_no_longer_than_the_length():
    random = np.random.default_rng(3)
    rows = random.integers(-(2**20), 2**20, (500, 64)).astype(np.float64)
    rows[:60, 1:] = 0
    found = whole(rows).astype(object)
    assert max(math.isqrt(sum(int(v) ** 2 for v in row)) for row in found) <= LENGTH
    assert np.abs(found - rows / np.linalg.norm(rows, axis=1, keepdims=True) * LENGTH).max() < 1 + 1e-9


# The network


def test_a_network_s_sums_are_those_of_whole_numbers():
    """Against Python's integers, at the largest inputs and at random ones."""
    for layer, inputs in zip(network().layers, (25, 9 * 16, 9 * 32, 16 * 32), strict=True):
        assert layer.weights.shape[0] == inputs
        for own in (np.full(inputs, MOST), np.random.default_rng(5).integers(0, MOST + 1, inputs)):
            sums = [int(w) for w in own.astype(object) @ layer.weights.astype(object) + layer.bias.astype(object)]
            assert max(map(abs, sums)) < EXACT
            assert layer.sums(own.astype(np.float32)[None])[0].astype(object).tolist() == sums
            outputs = [min(MOST, max(0, (total + 2**layer.shift // 2) // 2**layer.shift)) for total in sums]
            if layer.shift:
                assert layer(own.astype(np.float32)[None])[0].tolist() == outputs


def test_lengths_are_computed_from_exact_sums():
    largest = (EXACT // 2**encoders_network._DROPPED) ** 2 * encoders_network.FEATURES
    assert largest <= 2**53
    assert network().layers[-1].bias.size == encoders_network.FEATURES


def test_a_network_whose_sums_may_be_inexact_is_refused():
    with pytest.raises(ConfigurationError, match="float32 holds exactly"):
        Layer(np.full((1000, 2), 127, dtype=np.int32), np.zeros(2, dtype=np.int32), 4)


def test_patches_are_what_a_convolution_sums_over():
    import torch

    values = np.random.default_rng(1).integers(0, 9, (3, 7, 6, 2)).astype(np.float32)
    filters = np.random.default_rng(2).integers(-4, 5, (5, 2, 3, 3)).astype(np.float32)
    rows, shape = patches(values, 3)
    found = (rows @ filters.reshape(5, -1).T).reshape(*shape, 5)
    expected = torch.nn.functional.conv2d(
        torch.from_numpy(values).permute(0, 3, 1, 2), torch.from_numpy(filters), None, 2, 1
    )
    assert (found == expected.permute(0, 2, 3, 1).numpy()).all()


def test_a_stored_network_is_the_same_and_another_file_is_refused(tmp_path):
    network().save(tmp_path / "encoder")
    again = NetworkEncoder.load(tmp_path / "encoder")
    assert again.digest == network().digest
    assert (again.features(pictures(FORMS[1])) == network().features(pictures(FORMS[1]))).all()
    (tmp_path / "encoder").write_bytes(b"no network")
    for file in ("encoder", "nothing"):
        with pytest.raises(ConfigurationError, match="no stored encoder"):
            NetworkEncoder.load(tmp_path / file)
    changed = Layer(network().layers[0].weights + 1, network().layers[0].bias, network().layers[0].shift)
    assert NetworkEncoder((changed, *network().layers[1:])).digest != again.digest


def test_grey_pictures_are_averages():
    own = pictures(ImageForm(28, 28, 3))
    assert (grey(own) == own.sum(axis=3, dtype=int) // 3).all()
    assert grey(np.full((1, 50, 31, 3), 200, dtype=np.uint8)).tolist() == np.full((1, 28, 28), 200).tolist()


def test_a_trained_network_tells_pictures_apart():
    """Pictures of two labels that differ in brightness; nearest neighbours by its features."""

    class Bright(Shapes):
        def rendered(self, sources, values):
            return (super().rendered(sources, values) // 2 + 120 * (sources % 2)[:, None, None, None]).astype(np.uint8)

        def sources(self, label):
            return np.flatnonzero(np.arange(216) % 2 == int(label))

    bright = Bright(ImageForm(28, 28, 1))
    random = np.random.default_rng(4)
    encoder = trained(bright, ["0", "1"], pictures=1000, epochs=3, generator=random)
    known, asked = (
        [encoder.features(bright.pixels(bright.random(label, 100, random))).astype(float) for label in "01"]
        for _ in range(2)
    )
    nearest = (np.concatenate(asked) @ np.concatenate(known).T).argmax(axis=1) // 100
    # All draws are fixed by their seeds.
    assert (nearest == np.repeat([0, 1], 100)).mean() > 0.8
