"""A small convolutional network on a simulator's pictures, with whole weights, as a public encoder.

What belongs here: training it on public pictures, rounding it, its file, and its exact features. What does not: the
simulator (`simulators`), and votes (`evolution_votes`).

It is trained once, stored, and named by its digest. Weights and activations are whole numbers. Each sum is below 2^24,
which is checked when a network is made, so that float32 holds it exactly, in any order (see `encoders`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.synth.images.encoders import WholeFeatures, overlaps, whole
from dpsynth_platform.synth.images.foundations import ImageFoundation

SIDE = 28
"""Pictures are averaged to this height and width, and to one channel."""
CHANNELS = (16, 32, 32)
FEATURES = 64
MOST = 255
"""The largest activation; they are whole numbers from 0."""
EXACT = 2**24
"""Below it, all whole numbers are exact in float32."""
WEIGHT = 127
_DROPPED = 2
"""Bits of the last sums: the squares of `FEATURES` sums below 2^(24 - 2) add up to less than 2^53."""
_KERNELS, _STRIDE = (5, 3, 3), 2
CHUNK = 1024

Whole = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Layer:
    """One layer: floor((weights . inputs + bias) / 2^shift + 1/2), limited to 0 and `MOST` except in the last one.

    Attributes:
        weights: shape (inputs of a sum, outputs).
        bias: shape (outputs,).
    """

    weights: Whole = field(repr=False)
    bias: Whole = field(repr=False)
    shift: int

    def __post_init__(self) -> None:
        largest = MOST * np.abs(self.weights.astype(np.int64)).sum(axis=0) + np.abs(self.bias.astype(np.int64))
        if largest.max() + 2**self.shift >= EXACT:
            raise ConfigurationError(
                f"an encoder's layer: sums up to {largest.max()}; accepted: below {EXACT}, which float32 holds "
                "exactly; train the encoder again"
            )

    def sums(self, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = inputs @ self.weights.astype(np.float32) + self.bias.astype(np.float32)
        return found

    def __call__(self, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = np.floor(self.sums(inputs) / np.float32(2**self.shift) + np.float32(0.5))
        return np.clip(found, 0, MOST, out=found)


@dataclass(frozen=True, eq=False)
class NetworkEncoder:
    """Features of a rounded network: the sums of its last layer, before any activation."""

    layers: tuple[Layer, ...]

    @cached_property
    def digest(self) -> str:
        content = hashlib.sha256(f"network {SIDE} {_KERNELS} {_STRIDE}".encode())
        for layer in self.layers:
            content.update(repr((layer.weights.shape, layer.shift)).encode())
            content.update(layer.weights.astype("<i4").tobytes() + layer.bias.astype("<i4").tobytes())
        return content.hexdigest()

    def features(self, pixels: Pixels) -> WholeFeatures:
        parts = [self._features(pixels[start : start + CHUNK]) for start in range(0, len(pixels), CHUNK)]
        return np.concatenate(parts) if parts else np.zeros((0, self.layers[-1].bias.size), dtype=np.int16)

    def _features(self, pixels: Pixels) -> WholeFeatures:
        values = grey(pixels)[..., None]
        for layer, kernel in zip(self.layers[:-1], _KERNELS, strict=True):
            places, shape = patches(values, kernel)
            values = layer(places).reshape(*shape, -1)
        sums = self.layers[-1].sums(values.reshape(len(values), -1)).astype(np.float64)
        return whole(np.trunc(sums / 2**_DROPPED))

    def save(self, file: Path) -> None:
        """Writes the network as safetensors."""
        from safetensors.numpy import save

        tensors: dict[str, Any] = {}
        for number, layer in enumerate(self.layers):
            tensors |= {
                f"{number}.weights": np.ascontiguousarray(layer.weights, dtype=np.int32),
                f"{number}.bias": np.ascontiguousarray(layer.bias, dtype=np.int32),
                f"{number}.shift": np.array([layer.shift], dtype=np.int32),
            }
        write_durably(file, save(tensors))

    @classmethod
    def load(cls, file: Path) -> NetworkEncoder:
        """Reads `save` back.

        Raises:
            ConfigurationError: the file is no such network.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            tensors = load(file.read_bytes())
            return cls(
                tuple(
                    Layer(tensors[f"{at}.weights"], tensors[f"{at}.bias"], int(tensors[f"{at}.shift"][0]))
                    for at in range(len(CHANNELS) + 1)
                )
            )
        except (OSError, SafetensorError, KeyError, ValueError):
            raise ConfigurationError(
                f"{file}: no stored encoder; accepted: a file that training an encoder wrote"
            ) from None


def grey(pixels: Pixels) -> npt.NDArray[np.float32]:
    """Pictures averaged to one channel and `SIDE` by `SIDE`, as whole numbers from 0 to 255."""
    _, height, width, channels = pixels.shape
    sums = pixels.sum(axis=3, dtype=np.int64).astype(np.float64)
    if (height, width) != (SIDE, SIDE):
        sums = overlaps(SIDE, height) @ sums @ overlaps(SIDE, width).T / (height * width)
    found: npt.NDArray[np.float32] = np.trunc(sums / channels).astype(np.float32)
    return found


def patches(values: npt.NDArray[np.float32], kernel: int) -> tuple[npt.NDArray[np.float32], tuple[int, int, int]]:
    """What each output of a convolution sums over, as rows; and the shape of the outputs without channels."""
    room = kernel // 2
    padded = np.pad(values, ((0, 0), (room, room), (room, room), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(1, 2))[:, ::_STRIDE, ::_STRIDE]
    shape = windows.shape[:3]
    return np.ascontiguousarray(windows).reshape(int(np.prod(shape)), -1), shape


def trained(
    foundation: ImageFoundation[Any],
    labels: Sequence[str],
    *,
    pictures: int = 20_000,
    epochs: int = 4,
    generator: np.random.Generator | None = None,
) -> NetworkEncoder:
    """A network that tells a foundation's random pictures of some labels apart, rounded. It uses public pictures only.

    It takes about a minute for 20,000 pictures on one core.
    """
    import torch
    from torch.nn import functional

    random = generator or np.random.default_rng()
    each = max(1, pictures // len(labels))
    made = [foundation.pixels([s for s in foundation.random(label, each, random) if s is not None]) for label in labels]
    inputs = torch.from_numpy(grey(np.concatenate(made)))[:, None] / MOST
    targets = torch.from_numpy(np.repeat(np.arange(len(labels)), [len(own) for own in made]))
    sizes = [
        (before * kernel**2, after) for before, after, kernel in zip((1, *CHANNELS), CHANNELS, _KERNELS, strict=False)
    ]
    side = SIDE
    for _ in _KERNELS:
        side = -(-side // _STRIDE)
    sizes += [(CHANNELS[-1] * side**2, FEATURES), (FEATURES, len(labels))]
    weights = [
        torch.from_numpy(random.normal(0, (2 / size[0]) ** 0.5, size).astype(np.float32)).requires_grad_()
        for size in sizes
    ]
    biases = [torch.zeros(size[1]).requires_grad_() for size in sizes]

    def hidden(batch: Any) -> list[Any]:
        """The activations of each layer, the last one without activation."""
        found = [batch]
        for at, kernel in enumerate(_KERNELS):
            filters = weights[at].T.reshape(-1, found[-1].shape[1], kernel, kernel)
            found.append(functional.relu(functional.conv2d(found[-1], filters, biases[at], _STRIDE, kernel // 2)))
        flat = found[-1].permute(0, 2, 3, 1).flatten(1)
        found.append(flat @ weights[3] + biases[3])
        return found

    steps, batch_size = epochs * (len(inputs) // 128), 128
    optimizer = torch.optim.Adam([*weights, *biases], 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
    for _ in range(steps):
        batch = torch.from_numpy(random.integers(len(inputs), size=batch_size))
        scores = functional.relu(hidden(inputs[batch])[-1]) @ weights[4] + biases[4]
        loss = functional.cross_entropy(scores, targets[batch], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        sample = inputs[torch.from_numpy(random.permutation(len(inputs))[:2048])]
        largest = [
            float(part.abs().flatten().quantile(0.999)) if part.numel() < 2**24 else float(part.abs().max())
            for part in hidden(sample)
        ]
    return NetworkEncoder(
        _rounded([w.detach().numpy() for w in weights[:4]], [b.detach().numpy() for b in biases[:4]], largest)
    )


def _rounded(
    weights: list[npt.NDArray[Any]], biases: list[npt.NDArray[Any]], largest: list[float]
) -> tuple[Layer, ...]:
    """Layers with whole weights.

    Args:
        largest: of the inputs and of each layer's activations, nearly.
    """
    layers, unit = [], float(MOST)  # of whole activations in one of the trained network
    for weight, bias, most in zip(weights, biases, largest[1:], strict=True):
        norm = float((np.abs(weight).sum(axis=0) + np.abs(bias) / max(unit, 1.0) * MOST).max())
        scale = min(WEIGHT / float(np.abs(weight).max()), 0.9 * EXACT / (MOST * norm))
        shift = max(0, int(np.ceil(np.log2(max(scale * unit * most / MOST, 1.0)))))
        scale = min(scale, MOST * 2.0**shift / (unit * most))
        layers.append(
            Layer(np.rint(weight * scale).astype(np.int32), np.rint(bias * scale * unit).astype(np.int32), shift)
        )
        unit = scale * unit / 2**shift
    return tuple(layers)
