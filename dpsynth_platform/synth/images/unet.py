"""A small network that takes noise from pictures, conditioned by class and level of noise.

What belongs here: the network, its sizes and its first weights. What does not: the loss and the levels of noise
(`diffusion_loss`), training (`diffusion_training`), and drawing pictures (`diffusion_sampling`).

A U-Net (Ronneberger et al. 2015) in the form of Ho et al. 2020 and Karras et al., "Elucidating the Design Space of
Diffusion-Based Generative Models", 2022 (EDM). Every layer computes each row of a batch alone, and belongs to those of
which training knows gradients of single units (`training.grids`): group normalization, and attention made of linear
layers.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.synth.images.picture_codecs import AsPixels

EMBEDDED = 4
"""Width of the embedding of class and noise, in the network's widths."""
_FREQUENCIES = 1e4


@dataclass(frozen=True)
class UNetSize:
    """Channels at the finest resolution, and their multiple at each resolution."""

    width: int
    multiples: tuple[int, ...]


SIZES = {"small": UNetSize(16, (1, 1, 2)), "medium": UNetSize(32, (1, 1, 2)), "large": UNetSize(48, (1, 2, 2))}
"""About 0.1, 0.5 and 1.6 million weights, for one channel and ten classes."""


class UNet(nn.Module):
    """From pictures with noise, its level and a class to pictures.

    Args:
        form: of the pictures; any height and width, which are padded inside.
        classes: their number; class number `classes` means none.
        size: by name (`SIZES`).

    The first weights come from the operating system's randomness.
    """

    def __init__(self, form: ImageForm, classes: int, size: str) -> None:
        super().__init__()
        chosen = SIZES[size]
        width, wide = chosen.width, chosen.width * EMBEDDED
        widths = [width * multiple for multiple in chosen.multiples]
        self.no_class, self._width, self._fold = classes, width, 2 ** (len(widths) - 1)
        self.codec = AsPixels(form)
        self.level = nn.Linear(width, wide)
        self.classes = nn.Embedding(classes + 1, wide)
        self.joined = nn.Linear(wide, wide)
        self.enter = nn.Conv2d(form.channels, width, 3, padding=1)
        self.down, self.narrow = nn.ModuleList(), nn.ModuleList()
        now = width
        for number, channels in enumerate(widths):
            if number:
                self.narrow.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
            self.down.append(Block(now, channels, wide))
            now = channels
        self.middle = nn.ModuleList([Attention(now), Block(now, now, wide)])
        self.up, self.widen = nn.ModuleList(), nn.ModuleList()
        for number, channels in reversed(list(enumerate(widths))):
            self.up.append(Block(now + channels, channels, wide))
            now = channels
            if number:
                self.widen.append(nn.Conv2d(now, widths[number - 1], 3, padding=1))
                now = widths[number - 1]
        self.last = _normalized(now)
        self.leave = nn.Conv2d(now, form.channels, 3, padding=1)
        initialize(self)

    def forward(self, pictures: Tensor, level: Tensor, classes: Tensor) -> Tensor:
        """The network's output, of the pictures' shape [rows, channels, height, width].

        Args:
            level: of noise, a number for each row.
            classes: of each row, whole numbers; `no_class` for none.
        """
        height, width = pictures.shape[2:]
        found = functional.pad(pictures, (0, -width % self._fold, 0, -height % self._fold))
        given = functional.silu(self.level(_waves(level, self._width)) + self.classes(classes))
        given = functional.silu(self.joined(given))
        found = self.enter(found)
        kept: list[Tensor] = []
        for number, block in enumerate(self.down):
            if number:
                found = self.narrow[number - 1](found)
            found = block(found, given)
            kept.append(found)
        attention, block = self.middle
        found = block(attention(found), given)
        for number, block in enumerate(self.up):
            found = block(torch.cat([found, kept.pop()], dim=1), given)
            if number < len(self.widen):
                found = self.widen[number](functional.interpolate(found, scale_factor=2.0, mode="nearest"))
        whole: Tensor = self.leave(functional.silu(self.last(found)))
        return whole[:, :, :height, :width]


class Block(nn.Module):
    """Two convolutions with a way around them; the embedding scales and shifts what is between."""

    def __init__(self, channels: int, outputs: int, embedded: int) -> None:
        super().__init__()
        self.first_norm, self.first = _normalized(channels), nn.Conv2d(channels, outputs, 3, padding=1)
        self.given = nn.Linear(embedded, 2 * outputs)
        self.second_norm, self.second = _normalized(outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.around = nn.Conv2d(channels, outputs, 1) if channels != outputs else nn.Identity()

    def forward(self, inputs: Tensor, given: Tensor) -> Tensor:
        found = self.first(functional.silu(self.first_norm(inputs)))
        scale, shift = self.given(given)[:, :, None, None].chunk(2, dim=1)
        found = functional.silu(self.second_norm(found) * (1 + scale) + shift)
        sum_of_both: Tensor = self.around(inputs) + self.second(found)
        return sum_of_both * math.sqrt(0.5)


class Attention(nn.Module):
    """Attention of one head between the places of a picture, made of linear layers."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _normalized(channels)
        self.asked, self.answered = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, inputs: Tensor) -> Tensor:
        places = self.norm(inputs).flatten(2).transpose(1, 2)
        query, key, value = self.asked(places).chunk(3, dim=2)
        weights = (query @ key.transpose(1, 2) / math.sqrt(query.shape[2])).softmax(dim=2)
        found = self.answered(weights @ value).transpose(1, 2).reshape(inputs.shape)
        sum_of_both: Tensor = inputs + found
        return sum_of_both * math.sqrt(0.5)


@torch.no_grad()
def initialize(network: nn.Module) -> None:
    """First weights, of the operating system's randomness: uniform (Glorot & Bengio 2010), and 0 for last layers.

    Last layers are those of the network and of each sum: at first a block passes its input on.
    """
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    for name, layer in network.named_modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            inputs = layer.weight[0].numel()
            outputs = layer.weight.numel() // layer.weight.shape[1]
            most = math.sqrt(6 / (inputs + outputs))
            at_end = name.endswith(("second", "answered", "leave"))
            drawn = torch.rand(layer.weight.shape, generator=generator).mul_(2 * most).sub_(most)
            layer.weight.copy_(torch.zeros_like(drawn) if at_end else drawn)
            if layer.bias is not None:
                layer.bias.zero_()
        elif isinstance(layer, nn.Embedding):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) * 0.5)


def weights_of(network: nn.Module) -> int:
    """How many weights a network has."""
    return sum(value.numel() for value in network.parameters())


def _normalized(channels: int) -> nn.GroupNorm:
    groups = max(number for number in range(1, 9) if channels % number == 0 and channels // number >= min(4, channels))
    return nn.GroupNorm(groups, channels)


def _waves(level: Tensor, width: int) -> Tensor:
    """[rows, width] from [rows]: waves of several lengths (Vaswani et al. 2017, section 3.5)."""
    half = width // 2
    powers = torch.arange(half, dtype=level.dtype, device=level.device) / half
    angles = 1e3 * level[:, None] * _FREQUENCIES ** (-powers)
    return torch.cat([angles.cos(), angles.sin()], dim=1)
