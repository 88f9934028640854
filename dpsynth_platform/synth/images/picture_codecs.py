"""What a diffusion model learns of a picture: its pixels, or its latents by a frozen public autoencoder.

What belongs here: both as one interface, and the trial of an autoencoder. What does not: reading an autoencoder from
disk (`finetune_checkpoint`), and the network that learns (`unet`, `finetune_network`).

Latents are a function of one picture and of public weights, up to rounding (`training.physical`). So clipping bounds
what an owner moves as it does for pixels. Latent diffusion: Rombach et al. 2022; with privacy: Liu et al.,
"Differentially Private Latent Diffusion Models", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.synth.images.diffusion_loss import as_records, as_values
from dpsynth_platform.training.precision import exact_products
from dpsynth_platform.training.validators import refuse

MOST_NUMBERS = 2**25
"""Numbers that the widest layer of an autoencoder makes together, about; a picture that needs more is alone."""
TRIED, NEAR = 3, 1e-3
"""Random pictures of a trial, and the share of their norm by which latents may differ: rounding is far below."""


class Codec(Protocol):
    """From pictures to what a network learns, and back.

    Attributes:
        pictures: their form.
        form: of what the network learns and draws.
        latent: whether it is numbers of single precision, which training keeps in memory, and not bytes.
    """

    latent: ClassVar[bool]

    @property
    def pictures(self) -> ImageForm: ...

    @property
    def form(self) -> ImageForm: ...

    def encoded(self, pixels: Pixels, device: str) -> npt.NDArray[Any]:
        """Bytes, or numbers of single precision, of shape (pictures, height, width, channels) by `form`."""

    def decoded(self, drawn: Tensor) -> Tensor:
        """Pictures of values about -1 to 1 from what a network drew, both with channels first."""

    def check(self, device: str) -> None:
        """Raises `TrainingRefused` if what is learned of a random picture depends on other pictures or on chance."""


@dataclass(frozen=True)
class AsPixels:
    """Pictures as they are."""

    latent: ClassVar[bool] = False

    pictures: ImageForm

    @property
    def form(self) -> ImageForm:
        return self.pictures

    def encoded(self, pixels: Pixels, device: str) -> npt.NDArray[Any]:
        return pixels

    def decoded(self, drawn: Tensor) -> Tensor:
        return drawn

    def check(self, device: str) -> None:
        pass


@dataclass(frozen=True)
class AsLatents:
    """Latents of an autoencoder, in passes of bounded memory.

    A picture whose sides the autoencoder's factor does not divide is continued by its last row and column; what is
    drawn is cut to the pictures' form.

    Attributes:
        autoencoder: an `AutoencoderKL` or `VQModel` of diffusers in evaluation mode. It is frozen.
        pictures: their form.
        channels: of latents.
        shift, scale: a latent is what the autoencoder makes, less the shift, times the scale; both are public.
    """

    latent: ClassVar[bool] = True

    autoencoder: Any
    pictures: ImageForm
    channels: int
    shift: float
    scale: float

    @property
    def form(self) -> ImageForm:
        factor = self._factor
        return ImageForm(-(-self.pictures.height // factor), -(-self.pictures.width // factor), self.channels)

    def encoded(self, pixels: Pixels, device: str) -> npt.NDArray[np.float32]:
        """The mean latents of each picture: nothing is drawn."""
        found = np.empty((len(pixels), *self.form.shape), np.float32)
        right, below = -self.pictures.width % self._factor, -self.pictures.height % self._factor
        network = self.autoencoder.to(device)
        with torch.no_grad(), exact_products():
            for own in self._passes(len(pixels)):
                values = as_values(as_records(pixels[own].copy()).to(device))
                made = network.encode(functional.pad(values, (0, right, 0, below), mode="replicate"))
                latents = made.latent_dist.mode() if hasattr(made, "latent_dist") else made.latents
                found[own] = ((latents - self.shift) * self.scale).permute(0, 2, 3, 1).cpu().numpy()
        return found

    def decoded(self, drawn: Tensor) -> Tensor:
        network = self.autoencoder.to(drawn.device)
        with torch.no_grad():
            parts = [network.decode(drawn[own] / self.scale + self.shift).sample for own in self._passes(len(drawn))]
        return torch.cat(parts)[:, :, : self.pictures.height, : self.pictures.width]

    def check(self, device: str) -> None:
        """Encodes random pictures together, alone and in another order, and decodes what comes."""
        pixels = np.random.default_rng().integers(0, 256, (TRIED, *self.pictures.shape), np.uint8)
        try:
            together = self.encoded(pixels, device)
            others = {
                "alone": np.concatenate([self.encoded(pixels[own : own + 1], device) for own in range(TRIED)]),
                "in another order": self.encoded(pixels[::-1], device)[::-1],
                "again": self.encoded(pixels, device),
            }
            decoded = self.decoded(as_records(together).to(device))
        except Exception as error:  # random pictures only: its message cannot quote the data
            kind = type(error).__name__
            refuse([f"the autoencoder fails on random pictures with {kind} ({error}); start from a whole checkpoint"])
        faults = [
            f"the autoencoder: latents of random pictures are others {how}, so they depend on other pictures or on "
            "chance; freeze it, in evaluation mode, and let no layer mix pictures"
            for how, found in others.items()
            if not np.linalg.norm(found - together) <= NEAR * np.linalg.norm(together)
        ]
        if decoded.shape[2:] != (self.pictures.height, self.pictures.width) or not decoded.isfinite().all():
            faults.append(
                f"the autoencoder: random pictures come back with sides {list(decoded.shape[2:])}, or not finite; "
                "start from a whole checkpoint"
            )
        refuse(faults)

    @property
    def _factor(self) -> int:
        return int(2 ** (len(self.autoencoder.config.block_out_channels) - 1))

    def _passes(self, number: int) -> list[slice]:
        widest = max(self.autoencoder.config.block_out_channels)
        together = max(1, MOST_NUMBERS // (widest * self.pictures.height * self.pictures.width))
        return [slice(start, start + together) for start in range(0, number, together)]
