"""Utility: a small classifier of pictures, trained on synthetic ones or on real ones, tested on held-out real ones.

What belongs here: the network, its training, its accuracy, and the classifier score. What does not: which pictures
train and which test (`report`).

All settings are fixed. They were chosen once on parts of the training sets of MNIST and Fashion-MNIST, so no choice
looks at test pictures (as Gong et al., "DPImageBench", CCS 2025, demand). The network is two convolutions
and two linear layers; it serves to compare, and larger ones reach more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.quality.images.samples import Labels, reduced, writable

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_PICTURES = 20_000
"""A random sample of so many pictures trains."""
STEPS, BATCH, RATE = 500, 128, 6e-3
"""Steps of AdamW on a one-cycle schedule with this highest rate."""
_DECAY = 1e-2
_FILTERS = (24, 48)
_HIDDEN = 128
_TEST_BATCH = 1_000


class PictureClassifier:
    """A network trained on pictures of one form.

    Args:
        pixels: shape (pictures, height, width, channels), at least one picture.
        labels: indices of classes, shape (pictures,).
        classes: number of classes.
        seed: of the start and of the order of pictures; the global random state is left as it is.
    """

    def __init__(self, pixels: Pixels, labels: Labels, classes: int, seed: int) -> None:
        import torch

        pixels = reduced(pixels)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._network = _network(pixels.shape[1], pixels.shape[2], pixels.shape[3], classes)
            self._train(torch.from_numpy(writable(pixels)), torch.from_numpy(labels.astype(np.int64)))
        self._network.eval()

    def probabilities(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        """Of each class, shape (pictures, classes)."""
        import torch

        x = torch.from_numpy(writable(reduced(pixels)))
        parts = (x[start : start + _TEST_BATCH] for start in range(0, len(x), _TEST_BATCH))
        with torch.inference_mode():
            found = [self._network(_input(part)).softmax(dim=1) for part in parts]
        return np.asarray(torch.cat(found).numpy(), dtype=np.float32)

    def _train(self, pixels: Tensor, labels: Tensor) -> None:
        import torch

        optimizer = torch.optim.AdamW(self._network.parameters(), lr=RATE, weight_decay=_DECAY)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
        passes = -(-STEPS * BATCH // len(pixels))
        order = torch.cat([torch.randperm(len(pixels)) for _ in range(passes)])
        for step in range(STEPS):
            batch = order[step * BATCH : (step + 1) * BATCH]
            loss = torch.nn.functional.cross_entropy(self._network(_input(pixels[batch])), labels[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


def accuracy(probabilities: npt.NDArray[np.float32], labels: Labels) -> float:
    """Share of pictures whose most probable class is theirs."""
    return float((probabilities.argmax(axis=1) == labels).mean())


def accuracy_by_class(probabilities: npt.NDArray[np.float32], labels: Labels) -> list[float]:
    """The same for the pictures of each class; NaN for classes without pictures."""
    right = probabilities.argmax(axis=1) == labels
    classes = (labels == index for index in range(probabilities.shape[1]))
    return [float(right[places].mean()) if places.any() else float("nan") for places in classes]


def classifier_score(probabilities: npt.NDArray[np.float32]) -> float:
    """exp of the mean divergence of a picture's class probabilities from their mean, from 1 to the number of classes.

    It is the inception score (Salimans et al., "Improved Techniques for Training GANs", NeurIPS 2016, section 4) of
    another classifier, so values of that score are not comparable. High: each picture is clearly of one class, and all
    classes occur equally.
    """
    exact = probabilities.astype(np.float64)
    means = exact.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(exact > 0, exact * (np.log(exact) - np.log(means)), 0.0)
    return float(np.exp(terms.sum(axis=1).mean()))


def _network(height: int, width: int, channels: int, classes: int) -> nn.Module:
    from torch import nn

    first, second = _FILTERS
    area = -(-height // 4) * -(-width // 4)
    return nn.Sequential(
        nn.Conv2d(channels, first, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(second * area, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, classes),
    )


def _input(pixels: Tensor) -> Tensor:
    """Bytes of shape (pictures, height, width, channels) as numbers in [-1, 1], channels first."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
