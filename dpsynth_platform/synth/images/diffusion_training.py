"""Trains a diffusion model: the network, its gate, and the warm-up on pictures that cost nothing more.

What belongs here: what a diffusion model has beside other networks that learn from pictures. What does not: the order
of a training's parts and its records (`picture_training`), the network (`unet`) and its loss (`diffusion_loss`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.images.diffusion_loss import Rows, losses
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss, WarmUpNumbers
from dpsynth_platform.synth.images.finetune_network import Pretrained
from dpsynth_platform.synth.images.layout import Classes
from dpsynth_platform.synth.images.picture_training import (
    PictureRecords,
    PreparedPictures,
    TrainedPictures,
    train_prepared,
)
from dpsynth_platform.synth.images.unet import UNet
from dpsynth_platform.synth.interface import MechanismRun
from dpsynth_platform.training.averages import ExponentialAverage
from dpsynth_platform.training.unit_probe import refuse_unsound_grid
from dpsynth_platform.training.weights import load_weights

Network = UNet | Pretrained
"""What can be trained: called with pictures, level and class."""


class Trained(TrainedPictures, Protocol):
    """What a diffusion model's training needs of sealed parameters; see `diffusion_plan.DiffusionParameters`."""

    @property
    def average(self) -> float: ...

    @property
    def loss(self) -> DiffusionLoss: ...

    def network(self) -> Network:
        """The network with its first weights; those that are trained require gradients."""


@dataclass(frozen=True)
class WarmUp:
    """Pictures that cost nothing more, public or drawn with privacy, and how a network learns from them first.

    Attributes:
        pixels: shape (pictures, height, width, channels), at least one.
        classes: shape (pictures,); the number of classes for pictures without one.
        then: what it learns from next.
    """

    pixels: Pixels = field(repr=False)
    classes: Classes = field(repr=False)
    numbers: WarmUpNumbers = field(default_factory=WarmUpNumbers)
    then: WarmUp | None = None


def prepared(parameters: Trained, device: str = "cpu") -> tuple[Network, Rows]:
    """The network with its first weights and its rows, both checked on random pictures before any record is read.

    Raises:
        TrainingRefused: training it would not be differentially private; names all faults.
    """
    place = torch.device(device)
    network = parameters.network().to(place).eval()
    network.codec.check(device)
    rows = Rows(parameters.loss, network.codec.form, parameters.layout.number, place)
    refuse_unsound_grid(network, parameters.training, losses, rows.made_up)
    return network, rows


def train_pictures(
    run: MechanismRun,
    parameters: Trained,
    directory: Path,
    *,
    warm_up: Callable[[], WarmUp | None] = lambda: None,
) -> None:
    """Trains a diffusion model until its averaged weights are complete.

    Args:
        warm_up: makes the pictures of the warm-up (`Prepared.warm_up`).

    Raises:
        TrainingRefused: see `prepared`.
        GrantRefused, ResumeRefused, MechanismFailed: as `network_training.train_network`.
    """

    def prepare() -> PreparedPictures:
        network, rows = prepared(parameters, run.device)

        def warm_all() -> None:
            pictures = warm_up()
            while pictures is not None:
                warm(network, rows, pictures, run.progress)
                pictures = pictures.then

        return PreparedPictures(
            network=network,
            codec=network.codec,
            losses=losses,
            drawn=rows.drawn,
            made_up=rows.made_up,
            draws=parameters.loss.draws,
            kept=lambda trained: ExponentialAverage(trained, parameters.average),
            warm_up=warm_all,
        )

    train_prepared(run, parameters, directory, prepare)


def load_network(parameters: Trained, directory: Path, device: str) -> Network:
    """The trained network with its averaged weights, in evaluation mode.

    Raises:
        MechanismFailed: the weights are incomplete, damaged or of another plan.
    """
    network = parameters.network()
    load_weights({name: value for name, value in network.named_parameters() if value.requires_grad}, directory)
    return network.to(device).eval()


def warm(network: Network, rows: Rows, pictures: WarmUp, progress: Progress = silent) -> None:
    """Trains a network without privacy, on pictures that need none. Its weights change in place."""
    records, numbers = PictureRecords(pictures.pixels, pictures.classes), pictures.numbers
    parameters = list(network.parameters())
    device = parameters[0].device
    optimizer = torch.optim.Adam(parameters, numbers.learning_rate)
    generator = np.random.default_rng()
    for step in range(1, numbers.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = numbers.learning_rate * min(1.0, 2 * (numbers.steps - step + 1) / numbers.steps)
        chosen = generator.integers(len(records), size=numbers.batch)
        batch = {name: value.to(device) for name, value in records.batch(chosen.tolist()).items()}
        losses(network, rows.drawn(batch, 1)).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        progress("warm-up", step, numbers.steps)
