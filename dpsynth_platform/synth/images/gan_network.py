"""A discriminator that is trained with privacy, its loss, and the generator that learns from it alone (DP-GAN).

What belongs here: these networks, the rows of a picture, and the generator's steps. What does not: the order of a
training's parts (`picture_training`), the generator's own layers (`embedding_network`), and the plan (`gan_plan`).

The mechanism is the discriminator's training: each record, or owner, has rows of private and of generated pictures of
the same classes, and its gradient is clipped (Xie et al., "Differentially Private Generative Adversarial Network",
2018). The generator reads the discriminator's noised weights and random numbers, so that its steps are post-processing.
"""

from __future__ import annotations

import secrets
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.synth.images.diffusion_loss import random_records
from dpsynth_platform.synth.images.embedding_network import LATENT, PictureNetwork, fresh
from dpsynth_platform.synth.images.gan_plan import ROWS, WIDTHS, GanParameters, features, halvings
from dpsynth_platform.synth.images.picture_codecs import AsPixels
from dpsynth_platform.synth.images.picture_training import PreparedPictures
from dpsynth_platform.synth.images.unet import initialize
from dpsynth_platform.training.following import Following
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.unit_probe import refuse_unsound_grid
from dpsynth_platform.training.weights import load_weights

PICTURES = 128
"""Generated pictures of a generator's step."""


class Discriminator(nn.Module):
    """From pictures and classes to a score, which is high for private ones; each row is scored alone.

    Convolutions halve the picture; a linear score is added to one by class (Miyato & Koyama, "cGANs with Projection
    Discriminator", 2018). The latter is scaled, since each class has few of the gradients and all of the noise. First
    weights are of the operating system's randomness.
    """

    def __init__(self, form: ImageForm, classes: int) -> None:
        super().__init__()
        widths, wide = [form.channels, WIDTHS[0], *[WIDTHS[1]] * (halvings(form) - 1)], features(form)
        self.halved = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for width in widths[2:])
        self._scale = classes**0.5
        self.score, self.classes = nn.Linear(wide, 1), nn.Embedding(classes, wide)
        initialize(self)
        with torch.no_grad():
            self.classes.weight.mul_(wide**-0.5)

    def forward(self, pictures: Tensor, classes: Tensor) -> Tensor:
        """Scores [rows] of pictures [rows, channels, height, width] of values between -1 and 1, and classes [rows]."""
        found = functional.leaky_relu(self.halved[0](pictures), 0.2)
        for norm, halved in zip(self.norms, self.halved[1:], strict=True):
            found = functional.leaky_relu(norm(halved(found)), 0.2)
        found = found.flatten(1)
        scores: Tensor = self.score(found).squeeze(1) + self._scale * (self.classes(classes) * found).sum(1)
        return scores


class Rows:
    """Rows of private and generated pictures, and their loss.

    A row has its own random numbers, from which the loss generates its picture, so that the gate tries the generator
    too: a generated picture that depends on other rows is found (`training.unit_probe`). The randomness hides nothing;
    a record's is independent of others' and of the noise of training, as in `diffusion_loss.Rows`.
    """

    def __init__(self, generator: PictureNetwork, form: ImageForm, classes: int, device: torch.device) -> None:
        self._generator, self._form, self._classes = generator, form, classes
        self._source, self._device = torch.Generator(device).manual_seed(secrets.randbits(63)), device

    def drawn(self, records: Batch, draws: int) -> Batch:
        """So many rows of each picture, by turns private (target 1) and generated (-1); which is first is a coin.

        Args:
            records: `pixels` [pictures, channels, height, width] of bytes, and `classes` [pictures].
        """
        number = len(records["classes"])
        first = torch.randint(2, (number, 1), generator=self._source, device=self._device)
        turns = (first + torch.arange(draws, device=self._device)) % 2
        return {
            "pictures": records["pixels"].repeat_interleave(draws, 0).float() / 127.5 - 1,
            "classes": records["classes"].repeat_interleave(draws, 0),
            "target": 1.0 - 2 * turns.flatten(),
            "latent": torch.randn(number * draws, LATENT, generator=self._source, device=self._device),
        }

    def made_up(self, rows: int) -> Batch:
        """Rows of random pictures and classes, which read no record."""
        return self.drawn(random_records(self._form, self._classes, rows, self._source), 1)

    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        """Of each row, [rows]: how badly the score tells a private picture from a generated one (cross entropy)."""
        target = rows["target"]
        with torch.no_grad():
            made = generated(self._generator, rows["latent"], rows["classes"])
        pictures = torch.where((target > 0).view(-1, 1, 1, 1), rows["pictures"], made)
        found: Tensor = functional.softplus(-target * network(pictures, rows["classes"]))
        return found


def generated(generator: PictureNetwork, latent: Tensor, classes: Tensor) -> Tensor:
    """Pictures as the discriminator takes them."""
    pictures: Tensor = generator(latent, classes).permute(0, 3, 1, 2)
    return 2 * pictures - 1


class Follower(Following):
    """The generator's steps after each step of the discriminator: post-processing.

    Args:
        discriminator: the live one, whose weights need no gradients.
        classes: their number; each is equally frequent, since a score is by class.
        steps: of the generator, in the whole training.
        average: the part of the weights' average that remains in a step of the discriminator.
    """

    def __init__(
        self,
        discriminator: nn.Module,
        generator: PictureNetwork,
        classes: int,
        plan: TrainingPlan,
        steps: int,
        average: float,
    ) -> None:
        super().__init__(dict(generator.named_parameters()), plan, steps, average)
        self._discriminator, self._generator, self._classes = discriminator, generator, classes
        self._device = next(generator.parameters()).device
        self._source = torch.Generator(self._device).manual_seed(secrets.randbits(63))

    def _gradients(self) -> dict[str, Tensor]:
        """Of how badly generated pictures pass for private ones (Goodfellow et al. 2014, section 3)."""
        latent = torch.randn(PICTURES, LATENT, generator=self._source, device=self._device)
        classes = torch.randint(self._classes, (PICTURES,), generator=self._source, device=self._device)
        with torch.enable_grad():
            scores = self._discriminator(generated(self._generator, latent, classes), classes)
            found = torch.autograd.grad(functional.softplus(-scores).mean(), list(self._parameters.values()))
        return dict(zip(self._parameters, found, strict=True))


def prepared(parameters: GanParameters, device: str = "cpu") -> PreparedPictures:
    """Both networks with their first weights, tried on random pictures before any record is read.

    Raises:
        TrainingRefused: training it would not be differentially private; names all faults.
    """
    place, layout, training = torch.device(device), parameters.layout, parameters.training
    discriminator = Discriminator(layout.form, layout.number).to(place).eval()
    generator = fresh(layout.form, layout.number).to(place)
    rows = Rows(generator, layout.form, layout.number, place)
    refuse_unsound_grid(discriminator, training, rows.losses, rows.made_up)
    return PreparedPictures(
        network=discriminator,
        codec=AsPixels(layout.form),
        losses=rows.losses,
        drawn=rows.drawn,
        made_up=rows.made_up,
        draws=ROWS,
        kept=lambda _: Follower(
            discriminator, generator, layout.number, training, parameters.generator_steps, parameters.average
        ),
    )


def load_generator(parameters: GanParameters, directory: Path) -> PictureNetwork:
    """The trained generator with its averaged weights.

    Raises:
        MechanismFailed: the weights are incomplete, damaged or of another plan.
    """
    network = PictureNetwork(parameters.layout.form, parameters.layout.number)
    load_weights(dict(network.named_parameters()), directory)
    return network.eval()
