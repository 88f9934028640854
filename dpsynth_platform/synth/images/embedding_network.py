"""A small network that makes pictures of each class, trained to have the noisy mean features of an embedding.

What belongs here: the network, its training and its file. What does not: measuring (`embedding_sums`). All of it is
post-processing: it sees noisy means only.
"""

from __future__ import annotations

import math
import secrets
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.synth.images.embedding_sums import TURN, Embedding
from dpsynth_platform.synth.images.moments_model import read_arrays, write_arrays

WIDTH, LATENT = 32, 16
"""Channels of the coarsest pictures, and random numbers of a picture."""
PICTURES, LEAST, MOST_CLASSES = 250, 8, 25
"""Pictures of a step, the least of a class, and the most classes of a step."""
LEARNING_RATE = 1e-2
TOGETHER = 256


class PictureNetwork(nn.Module):
    """From random numbers and classes to pictures of values between 0 and 1, by two transposed convolutions."""

    def __init__(self, form: ImageForm, classes: int) -> None:
        super().__init__()
        self._form, self._classes = form, classes
        self._coarse = WIDTH, math.ceil(form.height / 4), math.ceil(form.width / 4)
        self.enter = nn.Linear(LATENT + classes, math.prod(self._coarse))
        self.first_norm, self.first = nn.GroupNorm(4, WIDTH), nn.ConvTranspose2d(WIDTH, WIDTH // 2, 4, 2, 1)
        self.second_norm = nn.GroupNorm(4, WIDTH // 2)
        self.second = nn.ConvTranspose2d(WIDTH // 2, form.channels, 4, 2, 1)

    def forward(self, latent: Tensor, classes: Tensor) -> Tensor:
        """Pictures [rows, height, width, channels] from [rows, LATENT] and [rows]."""
        given = functional.one_hot(classes, self._classes).float()
        found = self.enter(torch.cat([latent, given], dim=1)).view(-1, *self._coarse)
        found = self.first(functional.relu(self.first_norm(found)))
        found = self.second(functional.relu(self.second_norm(found))).sigmoid()
        pictures: Tensor = found[:, :, : self._form.height, : self._form.width].permute(0, 2, 3, 1)
        return pictures


def fresh(form: ImageForm, classes: int) -> PictureNetwork:
    """A network with first weights of the operating system's randomness."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbits(63))
        return PictureNetwork(form, classes)


def matched(embedding: Embedding, form: ImageForm, steps: int, progress: Progress) -> PictureNetwork:
    """A network whose pictures have the embedding's mean features.

    The loss is the squared distance of means, without the bias of few pictures (a U-statistic; Gretton et al. 2012,
    lemma 6). A class counts for less where noise is most of its mean.
    """
    network = fresh(form, len(embedding.counts))
    source = torch.Generator().manual_seed(secrets.randbits(63))
    frequencies = torch.from_numpy(embedding.frequencies * (2 * math.pi * 255 / TURN)).float()
    means = torch.from_numpy(embedding.means).float()
    blur = embedding.deviations * math.sqrt(means.shape[1])
    weights = torch.from_numpy(1 / (1 + blur)).float()
    number = min(len(means), MOST_CLASSES)
    each = max(LEAST, PICTURES // number)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, 2 * (steps - step + 1) / steps)
        chosen = torch.randperm(len(means), generator=source)[:number]
        latent = torch.randn(number * each, LATENT, generator=source)
        phases = network(latent, chosen.repeat_interleave(each)).flatten(1) @ frequencies
        own = torch.cat([phases.cos(), phases.sin()], dim=1).view(number, each, -1).mean(1)
        own = own / math.sqrt(frequencies.shape[1])
        distances = each / (each - 1) * own.square().sum(1) - 2 * (own * means[chosen]).sum(1)
        optimizer.zero_grad(set_to_none=True)
        (weights[chosen] * distances).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        progress("matching the noisy means", step, steps)
    return network.eval()


@torch.no_grad()
def drawn(network: PictureNetwork, number: int, pictures: int, generator: np.random.Generator) -> Pixels:
    """So many pictures of a class; shape (pictures, height, width, channels)."""
    found = [np.zeros((0, *network._form.shape), dtype=np.uint8)]
    for start in range(0, pictures, TOGETHER):
        latent = generator.standard_normal((min(TOGETHER, pictures - start), LATENT))
        made = network(torch.from_numpy(latent).float(), torch.full((len(latent),), number))
        found.append((made * 255).round().to(torch.uint8).numpy())
    return np.concatenate(found)


def save(network: PictureNetwork, path: Path) -> None:
    """Writes the network as one durable file."""
    write_arrays(path, {name: value.numpy() for name, value in network.state_dict().items()})


def load(path: Path, form: ImageForm, classes: int) -> PictureNetwork:
    """Raises `MechanismFailed` if the file is missing, damaged or of another plan."""
    network = PictureNetwork(form, classes)
    try:
        network.load_state_dict({name: torch.from_numpy(value) for name, value in read_arrays(path).items()})
    except RuntimeError:
        raise MechanismFailed(f"{path.name}: the network is of another plan; fit the measurements again") from None
    return network.eval()
