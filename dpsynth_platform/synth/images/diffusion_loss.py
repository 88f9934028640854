"""Levels of noise, what the network predicts at each, and the loss of a picture (EDM, Karras et al. 2022).

What belongs here: the loss, its random draws, and the denoised picture. What does not: the network (`unet`), and how a
picture's gradient is clipped (`training`). A picture becomes several rows, each with its own noise and level; training
clips the gradient of their mean (noise multiplicity; Dockhorn et al. 2023, section 3.2).
"""

from __future__ import annotations

import secrets
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss
from dpsynth_platform.synth.images.layout import Classes
from dpsynth_platform.synth.images.measured_sums import Floats
from dpsynth_platform.training.interface import Batch

DATA_DEVIATION = 0.5
"""Assumed deviation of values between -1 and 1; public, and never estimated."""
COMPARED = 64
"""Draws of noise by which losses of pictures are compared."""
TOGETHER = 256
"""Pictures of a pass."""
_HALF = 127.5


class Rows:
    """Makes rows of pictures.

    Its randomness hides nothing. The guarantee asks only that a record's draws are independent of others' and of the
    sampler and the noise of training: then neighbouring tables have the same distribution of draws of common records.
    """

    def __init__(self, loss: DiffusionLoss, form: ImageForm, classes: int, device: torch.device) -> None:
        self._loss, self._form, self._classes = loss, form, classes
        self._generator = torch.Generator(device).manual_seed(secrets.randbits(63))
        self._device = device

    def drawn(self, records: Batch, draws: int) -> Batch:
        """So many rows of each picture, one picture after the other, as `losses` takes them.

        Args:
            records: `pixels` [pictures, channels, height, width], see `as_values`; and `classes` [pictures].
        """
        pictures = as_values(records["pixels"].repeat_interleave(draws, 0))
        classes = records["classes"].repeat_interleave(draws, 0)
        rows = len(pictures)
        loss = self._loss
        if loss.flip:
            pictures = torch.where(self._coins(rows, 0.5).view(-1, 1, 1, 1), pictures.flip(3), pictures)
        if loss.shift:
            pictures = self._shifted(pictures)
        level = (self._normal(rows) * loss.level_deviation + loss.level_mean).exp()
        return {
            "pictures": pictures,
            "classes": torch.where(self._coins(rows, loss.without_class), self._classes, classes),
            "level": level,
            "noise": self._normal(*pictures.shape),
        }

    def made_up(self, rows: int) -> Batch:
        """Rows of random pictures and classes, which read no record."""
        return self.drawn(random_records(self._form, self._classes + 1, rows, self._generator), 1)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device)

    def _coins(self, rows: int, probability: float) -> Tensor:
        return torch.rand(rows, generator=self._generator, device=self._device) < probability

    def _shifted(self, pictures: Tensor) -> Tensor:
        """Each row moved by up to `shift` pixels; what moves in continues the edge."""
        most, (height, width) = self._loss.shift, pictures.shape[2:]
        wide = functional.pad(pictures, (most, most, most, most), mode="replicate")
        places = torch.randint(2 * most + 1, (2, len(pictures)), generator=self._generator, device=self._device)
        down = places[0][:, None, None, None] + torch.arange(height, device=self._device)[None, None, :, None]
        right = places[1][:, None, None, None] + torch.arange(width, device=self._device)[None, None, None, :]
        row = torch.arange(len(pictures), device=self._device)[:, None, None, None]
        channel = torch.arange(pictures.shape[1], device=self._device)[None, :, None, None]
        moved: Tensor = wide[row, channel, down, right]
        return moved


def losses(network: nn.Module, rows: Batch) -> Tensor:
    """The weighted square error of each row's denoised picture, mean over its values: [rows] (EDM, equation 8).

    The weights make all levels count alike: what is compared is the network's own output with what it should be.
    """
    pictures, level = rows["pictures"], rows["level"].view(-1, 1, 1, 1)
    noisy = pictures + level * rows["noise"]
    kept, scale = _kept(level), _scale(level)
    found: Tensor = network(noisy * _entering(level), rows["level"].log() / 4, rows["classes"])
    errors: Tensor = (found - (pictures - kept * noisy) / scale).square().flatten(1).mean(1)
    return errors


@torch.no_grad()
def mean_losses(network: nn.Module, loss: DiffusionLoss, learned: npt.NDArray[Any], classes: Classes) -> Floats:
    """The mean loss of each picture, shape (pictures,), over the same `COMPARED` levels and noises for all pictures.

    Args:
        network: in evaluation mode, on the CPU.
        learned: pixels or latents, with channels last (`picture_codecs`).
        classes: shape (pictures,), of the network's.
    """
    records, labels = as_records(learned.copy()), torch.from_numpy(classes)
    found = torch.zeros(len(records), dtype=torch.float64)
    for place in (np.arange(COMPARED) + 0.5) / COMPARED:
        level = np.exp(loss.level_mean + loss.level_deviation * NormalDist().inv_cdf(place))
        noise = torch.randn(1, *records.shape[1:])
        for start in range(0, len(records), TOGETHER):
            part = slice(start, start + TOGETHER)
            pictures = as_values(records[part])
            rows = {
                "pictures": pictures,
                "classes": labels[part],
                "level": torch.full((len(pictures),), level),
                "noise": noise.expand_as(pictures),
            }
            found[part] += losses(network, rows) / COMPARED
    return found.numpy()


def denoised(network: nn.Module, noisy: Tensor, level: Tensor, classes: Tensor) -> Tensor:
    """The network's estimate of pictures without noise, [rows, channels, height, width], of values about -1 to 1.

    Args:
        level: the noise's deviation, [rows].
        classes: [rows].
    """
    wide = level.view(-1, 1, 1, 1)
    found: Tensor = network(noisy * _entering(wide), level.log() / 4, classes)
    return _kept(wide) * noisy + _scale(wide) * found


def random_records(form: ImageForm, classes: int, number: int, source: torch.Generator) -> Batch:
    """So many pictures of random bytes and classes, as `Rows.drawn` takes them, on the source's device."""
    shape, device = (number, form.channels, form.height, form.width), source.device
    return {
        "pixels": torch.randint(256, shape, generator=source, device=device, dtype=torch.uint8),
        "classes": torch.randint(classes, (number,), generator=source, device=device),
    }


def as_values(records: Tensor) -> Tensor:
    """Values between -1 and 1 of bytes; other numbers, such as latents (`picture_codecs`), stay as they are."""
    return records if records.is_floating_point() else records.float() / _HALF - 1


def as_records(pixels: npt.NDArray[Any]) -> Tensor:
    """[pictures, channels, height, width] of pictures, or latents, with channels last."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def as_pixels(pictures: Tensor) -> Pixels:
    """Pictures with channels last, from values between -1 and 1; others are cut off."""
    values = ((pictures + 1) * _HALF).round().clamp(0, 255).to(torch.uint8)
    found: Pixels = values.permute(0, 2, 3, 1).contiguous().cpu().numpy()
    return found


def _kept(level: Tensor) -> Tensor:
    """The part of the noisy picture in the estimate (EDM, table 1: c_skip)."""
    return DATA_DEVIATION**2 / (level.square() + DATA_DEVIATION**2)


def _scale(level: Tensor) -> Tensor:
    """The scale of the network's output (c_out)."""
    return level * DATA_DEVIATION / (level.square() + DATA_DEVIATION**2).sqrt()


def _entering(level: Tensor) -> Tensor:
    """The scale of the network's input (c_in)."""
    return (level.square() + DATA_DEVIATION**2).rsqrt()
