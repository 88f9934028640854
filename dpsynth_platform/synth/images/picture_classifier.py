"""A DP classifier of pictures: features that are learned from drawn pictures, and a last layer by noisy gradients.

What belongs here: training the features on pictures that are post-processing, the exact gradient sum of the last layer
on records, and the step that follows from it once it is noisy. What does not: noise and files (`moments_measuring`).

**Whole numbers.** The features are a small convolutional network whose weights are rounded to whole numbers, so that
every sum stays below 2^24 and is exact in single precision, in any order. So a record's features do not depend on its
batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.images.exact_sums import ROUNDING, UNIT, Batch, Sums, Whole, norms
from dpsynth_platform.synth.images.moments_fitting import Floats

if TYPE_CHECKING:
    import torch

CHANNELS = (16, 32)
FEATURES = 96
LARGEST_SUM = 2**23
"""Of the products in one sum, in absolute value; biases are within it, too."""
LARGEST_ACTIVATION = 255
FEATURE_UNIT = 2**12
"""Bound on the norm of a record's features with their constant."""
GRADIENT_UNIT = FEATURE_UNIT * UNIT
"""The norm of a record's gradient of weight 1."""
FEATURE_PART, CONSTANT_PART = 0.957, 0.287
"""Parts of the norm: 0.957^2 + 0.287^2 is below 1."""
LOGIT_STEPS = 2**8
"""Weights of the last layer are whole numbers of 1 / (LOGIT_STEPS * FEATURE_UNIT)."""
STEP = 0.7
"""The part of a Newton step that is taken."""
TABLE_STEPS = 2**6
"""Exponentials are tabulated at multiples of 1 / TABLE_STEPS."""
EXPONENTIALS = np.floor(np.exp(-np.arange(16 * TABLE_STEPS) / TABLE_STEPS) * 2.0**20)
LEARNING_RATE, BATCH = 4e-3, 128
PREDICTED_AT_ONCE = 1024


@dataclass(frozen=True)
class PictureClassifier:
    """A classifier in whole numbers.

    Attributes:
        weights: whole numbers: kernels and biases of two convolutions and a dense layer, and the scales to which sums
            are reduced after each.
        head: the last layer, shape (FEATURES + 1, classes), real numbers.
    """

    weights: Mapping[str, npt.NDArray[np.float32]]
    head: Floats

    def features(self, pixels: Pixels) -> Whole:
        """Whole numbers, of norm `FEATURE_UNIT` at most; shape (pictures, FEATURES + 1)."""
        found = np.concatenate(
            [np.zeros((0, FEATURES))]
            + [
                self._activations(pixels[at : at + PREDICTED_AT_ONCE])
                for at in range(0, len(pixels), PREDICTED_AT_ONCE)
            ]
        )
        scaled = np.trunc(found * (FEATURE_UNIT * FEATURE_PART * ROUNDING / np.maximum(norms(found), 1)))
        constant = np.full((len(found), 1), np.trunc(FEATURE_UNIT * CONSTANT_PART))
        return np.hstack([scaled, constant])

    def _activations(self, pixels: Pixels) -> Whole:
        import torch
        from torch.nn.functional import conv2d

        def reduced(sums: torch.Tensor, name: str) -> torch.Tensor:
            bias, scale = (part.reshape(-1, *(1 for _ in sums.shape[2:])) for part in self._of(name, "bias", "scale"))
            return torch.floor((sums + bias) * scale).clamp(0, LARGEST_ACTIVATION)

        with torch.no_grad():
            held = torch.from_numpy(pixels.astype(np.float32).transpose(0, 3, 1, 2).copy())
            held = reduced(conv2d(held, self._of("first", "kernel")[0], stride=2, padding=2), "first")
            held = reduced(conv2d(held, self._of("second", "kernel")[0], stride=2, padding=1), "second")
            held = reduced(held.flatten(1) @ self._of("dense", "kernel")[0].T, "dense")
            found: Whole = held.numpy().astype(np.float64)
        return found

    def _of(self, name: str, *parts: str) -> list[torch.Tensor]:
        import torch

        return [torch.from_numpy(np.asarray(self.weights[f"{name}.{part}"])) for part in parts]

    def logits(self, features: Whole) -> Whole:
        """Whole numbers, in 1 / `LOGIT_STEPS`; shape (pictures, classes)."""
        weights = np.rint(np.clip(self.head, -1e4, 1e4) * LOGIT_STEPS)
        found: Whole = np.floor((features @ weights) / FEATURE_UNIT)
        return found

    def predict(self, pixels: Pixels) -> npt.NDArray[np.int64]:
        """The class of each picture."""
        return np.asarray(self.logits(self.features(pixels)).argmax(axis=1), dtype=np.int64)

    def probabilities(self, features: Whole) -> Floats:
        """Softmax of the logits, from tabulated exponentials; each row from that row only."""
        logits = self.logits(features)
        behind = (logits.max(axis=1, keepdims=True) - logits) // (LOGIT_STEPS // TABLE_STEPS)
        found = EXPONENTIALS[np.minimum(behind, len(EXPONENTIALS) - 1).astype(np.int64)]
        shares: Floats = found / found.sum(axis=1, keepdims=True)
        return shares

    def gradient(self, batch: Batch) -> Sums:
        """The sum of the records' gradients of the last layer; a record's norm is its weight * `GRADIENT_UNIT` at most.

        A record's gradient is features (p - y)', of norm |features| |p - y|, where p - y is clipped to 1. Shape
        (FEATURES + 1, classes).
        """
        total = np.zeros(self.head.shape, dtype=np.int64)
        for chunk in batch.chunks():
            features = self.features(chunk.pixels)
            total += (features.T @ self._errors(features, chunk)).astype(np.int64)
        return np.asarray(total)

    def correct(self, batch: Batch) -> Sums:
        """The records that get their own class, weighted, in `RECORD_PARTS`; shape (1,)."""
        hit = self.predict(batch.pixels) == batch.classes
        weights = np.full(len(hit), RECORD_PARTS, dtype=np.int64) if batch.weights is None else batch.weights
        return np.array([weights[hit].sum()], dtype=np.int64)

    def _errors(self, features: Whole, batch: Batch) -> Whole:
        errors = self.probabilities(features)
        errors[np.arange(len(errors)), batch.classes] -= 1
        scales = UNIT * ROUNDING * batch.shares / np.maximum(np.sqrt(_row_squares(errors)), 1.0)
        return np.trunc(errors * scales)

    def stepped(self, gradient: Floats, drawn: Whole, records: float, deviation: float) -> PictureClassifier:
        """The classifier after a damped Newton step by a noisy gradient.

        The Hessian is that of drawn pictures: no record is needed for it.

        Args:
            gradient: the noisy sum in units of records (features of norm 1).
            drawn: features of drawn pictures.
            records: the noisy number of records.
            deviation: the noise of the gradient, per entry.
        """
        held = drawn / FEATURE_UNIT
        shares = self.probabilities(drawn)
        head = self.head.copy()
        damping = (1.5 * deviation + 1e-3 * records / held.shape[1]) * np.eye(held.shape[1])
        for index in range(head.shape[1]):
            curvature = shares[:, index] * (1 - shares[:, index]) + 0.01
            hessian = (held * curvature[:, None]).T @ held * (records / max(1, len(held)))
            head[:, index] -= STEP * np.linalg.solve(hessian + damping, gradient[:, index])
        return PictureClassifier(self.weights, head)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """For saving."""
        return {**self.weights, "head": self.head}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> PictureClassifier:
        return cls({name: array for name, array in arrays.items() if name != "head"}, arrays["head"])


def weight_shapes(form: ImageForm) -> dict[str, tuple[int, ...]]:
    """The shape of each array in `PictureClassifier.weights`, for pictures of a form."""
    first, second = CHANNELS
    flat = second * -(-form.height // 4) * -(-form.width // 4)
    kernels = {"first": (first, form.channels, 5, 5), "second": (second, first, 3, 3), "dense": (FEATURES, flat)}
    found: dict[str, tuple[int, ...]] = {}
    for name, kernel in kernels.items():
        found |= {f"{name}.kernel": kernel, f"{name}.bias": kernel[:1], f"{name}.scale": kernel[:1]}
    return found


def _row_squares(rows: Floats) -> Floats:
    """Sums of squares, column by column, so that each is computed alike in every batch."""
    total = np.zeros((len(rows), 1))
    for column in range(rows.shape[1]):
        total[:, 0] += rows[:, column] ** 2
    return total


def trained(
    pixels: Pixels,
    labels: npt.NDArray[np.int64],
    classes: int,
    generator: np.random.Generator,
    epochs: int,
) -> PictureClassifier:
    """A classifier of drawn pictures: features in whole numbers, and the last layer fitted to the same pictures.

    Args:
        pixels: post-processing, never records; at least one.
        labels: numbers from 0; shape (pictures,).
        generator: seeded by the operating system.
    """
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator.integers(2**62)))
        form = ImageForm(*pixels.shape[1:])
        (first, second), (_, flat) = CHANNELS, weight_shapes(form)["dense.kernel"]
        network = nn.Sequential(
            nn.Conv2d(form.channels, first, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(flat, FEATURES),
            nn.ReLU(),
            nn.Linear(FEATURES, classes),
        )
        held = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
        wanted = torch.from_numpy(np.asarray(labels, dtype=np.int64))
        _optimize(network, held, wanted, epochs, generator)
        weights = _whole(network, held[: 2 * PREDICTED_AT_ONCE].float())
    made = PictureClassifier(weights, np.zeros((FEATURES + 1, classes)))
    return PictureClassifier(weights, _fitted_head(made.features(pixels), labels, classes))


def _optimize(
    network: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor, epochs: int, generator: np.random.Generator
) -> None:
    """Adam with a triangular learning rate; each batch is moved by a pixel at most."""
    import torch

    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=1e-3)
    steps = epochs * -(-len(pixels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps + 1)
    for _ in range(epochs):
        order = torch.from_numpy(generator.permutation(len(pixels)))
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            down, right = (int(number) for number in generator.integers(-1, 2, 2))
            moved = torch.roll(pixels[places].float() / 255, (down, right), (2, 3))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(moved), labels[places]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


def _whole(network: Any, pixels: torch.Tensor) -> dict[str, npt.NDArray[np.float32]]:
    """The network's first three layers in whole numbers; `pixels` are drawn ones, which set the activations' scales.

    Each output's weights are scaled so that the largest is 127 at most, and the sum of absolute products `LARGEST_SUM`.
    """
    import torch

    found: dict[str, npt.NDArray[np.float32]] = {}
    levels = 1 / 255.0
    """What one step of the inputs is worth to the network."""
    with torch.no_grad():
        held = pixels / 255
        for name, layer in (("first", network[0]), ("second", network[2]), ("dense", network[5])):
            if name == "dense":
                held = held.flatten(1)
            held = torch.relu(layer(held))
            kernel = layer.weight.detach().numpy().astype(np.float64)
            flat = np.abs(kernel.reshape(len(kernel), -1))
            scale = np.minimum(
                127 / np.maximum(flat.max(axis=1), 1e-9),
                (LARGEST_SUM / LARGEST_ACTIVATION) / np.maximum(flat.sum(axis=1), 1e-9),
            )
            shape = (-1, *(1 for _ in kernel.shape[1:]))
            whole = np.trunc(kernel * scale.reshape(shape))
            bias = np.rint(layer.bias.detach().numpy() * scale / levels)
            top = float(np.quantile(held.numpy(), 0.999)) or 1.0
            found[f"{name}.kernel"] = whole.astype(np.float32)
            found[f"{name}.bias"] = np.clip(bias, -LARGEST_SUM, LARGEST_SUM).astype(np.float32)
            # sums * levels / scale is the layer's output, of which `top` becomes the largest activation
            found[f"{name}.scale"] = (levels / scale * LARGEST_ACTIVATION / top).astype(np.float32)
            levels = top / LARGEST_ACTIVATION
    return found


def _fitted_head(features: Whole, labels: npt.NDArray[np.int64], classes: int) -> Floats:
    """Multinomial logistic regression with a small ridge."""
    import torch

    held = torch.from_numpy(features / FEATURE_UNIT).float()
    wanted = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    head = torch.zeros(features.shape[1], classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([head], max_iter=60)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        found = torch.nn.functional.cross_entropy(held @ head, wanted) + 1e-5 * (head**2).sum()
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return np.nan_to_num(head.detach().numpy().astype(np.float64))
