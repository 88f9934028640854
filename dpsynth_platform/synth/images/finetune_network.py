"""A public diffusion model as a network of which a part is trained, with an embedding of the contract's classes.

What belongs here: which weights are trained, and the network in the form that the loss and the solver call
(`diffusion_loss`). What does not: reading a checkpoint (`finetune_checkpoint`), and training (`diffusion_training`).

Low-rank matrices: Hu et al., "LoRA", 2021; in diffusion models with privacy: Tsai et al., "Differentially Private
Fine-Tuning of Diffusion Models", 2024. Attention alone: Liu et al., "Differentially Private Latent Diffusion Models",
2023.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.images.diffusion_loss import DATA_DEVIATION
from dpsynth_platform.synth.images.finetune_checkpoint import Loaded
from dpsynth_platform.training.plan import Adapter


class Pretrained(nn.Module):
    """A `UNet2DModel` that predicts noise, called as `unet.UNet` is: it returns the output that the loss compares.

    Args:
        loaded: its network has a class embedding of `classes` + 1 rows.
        classes: their number; class number `classes` means none.
    """

    levels: Tensor

    def __init__(self, loaded: Loaded, classes: int) -> None:
        super().__init__()
        self.unet, self.codec, self.no_class = loaded.unet, loaded.codec, classes
        self._of_noise = loaded.prediction == "epsilon"
        self._fold = 2 ** (len(loaded.unet.config.block_out_channels) - 1)
        self.register_buffer("levels", torch.from_numpy(np.log(loaded.levels)).float(), persistent=False)

    def forward(self, pictures: Tensor, level: Tensor, classes: Tensor) -> Tensor:
        """See `unet.UNet.forward`; the level is a fourth of the logarithm of the noise's deviation.

        The network knows pictures that lose as much as noise gains (VP). From its estimate follows the denoised picture
        (Karras et al. 2022, table 1), and from that the output which has the scales of their own network.
        """
        deviation = (4 * level).exp().view(-1, 1, 1, 1)
        total = (deviation.square() + DATA_DEVIATION**2).sqrt()
        kept = (deviation.square() + 1).rsqrt()
        height, width = pictures.shape[2:]
        entering = functional.pad(pictures * total * kept, (0, -width % self._fold, 0, -height % self._fold))
        found: Tensor = self.unet(entering, self._time(4 * level), classes).sample[:, :, :height, :width]
        if self._of_noise:
            return (pictures * deviation - found * total) / DATA_DEVIATION
        own = (1 - DATA_DEVIATION**2) * kept.square()
        return (pictures * deviation * own - found * total * kept) / DATA_DEVIATION

    def _time(self, wanted: Tensor) -> Tensor:
        """The time step of a level's logarithm, between two steps in proportion; the last one beyond."""
        place = torch.searchsorted(self.levels, wanted).clamp(1, len(self.levels) - 1)
        low, high = self.levels[place - 1], self.levels[place]
        return place - 1 + ((wanted - low) / (high - low)).clamp(0, 1)


def adapted(
    loaded: Loaded, classes: int, adapter: Adapter | None, known: Sequence[int | None] | None = None
) -> Pretrained:
    """The network with a part that is trained: that of low rank, else its attention; and an embedding of the classes.

    The embedding starts as the only row that the network has one for all classes, or at zero. So at first the network
    is what it was.

    Args:
        known: for each class the checkpoint's number of it, whose embedding is where it starts instead, or None.

    Raises:
        ConfigurationError: its attention is to be trained, and it has none; or it has no class of a number.
    """
    from diffusers.models.attention_processor import Attention
    from peft import LoraConfig, inject_adapter_in_model

    unet = loaded.unet
    wide = int(unet.time_embedding.linear_2.out_features)
    first = torch.zeros(1, wide) if unet.class_embedding is None else unet.class_embedding.weight.detach()
    start = first.repeat(classes + 1, 1)
    for place, number in enumerate(known or ()):
        if number is not None:
            start[place] = _row(loaded, number)
    unet.class_embedding = nn.Embedding(classes + 1, wide, _weight=start)
    unet.requires_grad_(False)
    attention = [module for module in unet.modules() if isinstance(module, Attention)]
    if adapter is not None:
        layers = [
            name
            for name, layer in unet.named_modules()
            if type(layer) in (nn.Linear, nn.Conv2d) and not name.startswith(("conv_in", "conv_out"))
        ]
        inject_adapter_in_model(
            LoraConfig(r=adapter.rank, lora_alpha=adapter.alpha, lora_dropout=0.0, target_modules=layers), unet
        )
    elif not attention:
        raise ConfigurationError(
            "generate.image.finetune.trained: 'attention', and the checkpoint has no attention; accepted: lora, or a "
            "checkpoint with blocks of attention"
        )
    else:
        for module in attention:
            module.requires_grad_(True)
    unet.class_embedding.requires_grad_(True)
    return Pretrained(loaded, classes)


def _row(loaded: Loaded, number: int) -> Tensor:
    count = 0 if loaded.classes is None else len(loaded.classes)
    if number >= count:
        raise ConfigurationError(
            f"generate.image.finetune.classes: {number}, and the checkpoint has "
            f"{f'classes 0 to {count - 1}' if count else 'no classes'}; accepted: numbers of its classes"
        )
    row: Tensor = loaded.classes[number]
    return row
