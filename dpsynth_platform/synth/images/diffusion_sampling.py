"""Draws pictures from a trained network: post-processing.

What belongs here: the solver of the reverse process (EDM, Karras et al. 2022, algorithm 2), with guidance by class.
What does not: the network and its loss. It reads no record.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.synth.images.diffusion_loss import as_pixels, denoised
from dpsynth_platform.synth.images.diffusion_numbers import Solver
from dpsynth_platform.synth.images.picture_codecs import Codec

TOGETHER = 256
"""Pictures of a pass."""
_CHURN_SCALE = 1.003
_CHURNED = (0.05, 50.0)


@torch.no_grad()
def sample(
    network: nn.Module, codec: Codec, classes: Tensor, generator: np.random.Generator, solver: Solver, no_class: int
) -> Pixels:
    """One picture of each class in `classes`, shape (number, height, width, channels), in passes of bounded memory.

    Args:
        network: in evaluation mode.
        codec: from what the network draws to pictures.
        classes: [number], on the network's device.
        generator: of all randomness.
        no_class: the number that means no class.
    """
    source = torch.Generator(classes.device).manual_seed(int(generator.integers(2**63)))
    found = np.empty((len(classes), *codec.pictures.shape), dtype=np.uint8)
    for start in range(0, len(classes), TOGETHER):
        part = classes[start : start + TOGETHER]
        drawn = _solved(network, codec.form, part, source, solver, no_class)
        found[start : start + len(part)] = as_pixels(codec.decoded(drawn))
    return found


def _solved(
    network: nn.Module, form: ImageForm, classes: Tensor, source: torch.Generator, solver: Solver, no_class: int
) -> Tensor:
    """Heun's method of second order from pure noise to pictures."""

    def noise() -> Tensor:
        shape = (len(classes), form.channels, form.height, form.width)
        return torch.randn(shape, generator=source, device=classes.device)

    def slope(pictures: Tensor, level: float) -> Tensor:
        return (pictures - _estimate(network, pictures, level, classes, solver.guidance, no_class)) / level

    levels = solver.levels
    pictures = noise() * levels[0]
    for now, following in pairwise(levels):
        if solver.churn and _CHURNED[0] <= now <= _CHURNED[1]:
            raised = now * (1 + min(solver.churn / solver.steps, 2**0.5 - 1))
            pictures = pictures + (raised**2 - now**2) ** 0.5 * _CHURN_SCALE * noise()
        else:
            raised = now
        first = slope(pictures, raised)
        moved = pictures + (following - raised) * first
        if following > 0:
            moved = pictures + (following - raised) * (first + slope(moved, following)) / 2
        pictures = moved
    return pictures


def _estimate(
    network: nn.Module, pictures: Tensor, level: float, classes: Tensor, guidance: float, no_class: int
) -> Tensor:
    levels = torch.full((len(pictures),), level, device=pictures.device)
    with_class = denoised(network, pictures, levels, classes)
    if guidance == 0:
        return with_class
    without = denoised(network, pictures, levels, torch.full_like(classes, no_class))
    return with_class + guidance * (with_class - without)
