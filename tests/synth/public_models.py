"""Small public diffusion models in directories of diffusers, for tests of what starts from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, DDPMPipeline, DDPMScheduler, LDMPipeline, UNet2DModel

WHY = "strokes that were made up for tests"


def tiny_unet(size: tuple[int, int] = (8, 6), channels: int = 1, **changes: Any) -> Any:
    """Two resolutions, attention at the lower one: 29,000 weights."""
    usual: dict[str, Any] = {
        "sample_size": size,
        "in_channels": channels,
        "out_channels": channels,
        "block_out_channels": (8, 16),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("UpBlock2D", "UpBlock2D"),
        "attention_head_dim": 8,
    }
    return UNet2DModel(**(usual | changes))


ONE_BLOCK: dict[str, Any] = {
    "block_out_channels": (8,),
    "down_block_types": ("AttnDownBlock2D",),
    "up_block_types": ("UpBlock2D",),
}
"""Of a network for latents with sides of 2. Halved, attention would have one position, and nothing would move it."""


def saved_model(directory: Path, unet: Any = None, *, prediction: str = "epsilon", **changes: Any) -> Path:
    """A pipeline of a network and a scheduler; see `tiny_unet`."""
    unet = tiny_unet(**changes) if unet is None else unet
    DDPMPipeline(unet, DDPMScheduler(prediction_type=prediction)).save_pretrained(directory)
    return directory


def tiny_autoencoder(channels: int = 1, kind: Any = AutoencoderKL, **changes: Any) -> Any:
    """Latents of three channels, of a fourth of a picture's sides: 11,000 weights."""
    usual: dict[str, Any] = {
        "in_channels": channels,
        "out_channels": channels,
        "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3,
        "block_out_channels": (8, 8, 8),
        "norm_num_groups": 4,
        "latent_channels": 3,
        "scaling_factor": 0.6,
    }
    return kind(**(usual | changes))


def saved_latent_model(
    directory: Path, size: tuple[int, int] = (2, 2), autoencoder: Any = None, name: str = "vae", **changes: Any
) -> Path:
    """A pipeline of an autoencoder, a network for its latents of a size, and a scheduler."""
    autoencoder = tiny_autoencoder() if autoencoder is None else autoencoder
    LDMPipeline(autoencoder, tiny_unet(size, 3, **changes), DDPMScheduler()).save_pretrained(directory)
    if name != "vqvae":  # as pipelines with text call it
        (directory / "vqvae").rename(directory / name)
        index = directory / "model_index.json"
        index.write_text(index.read_text().replace('"vqvae"', f'"{name}"'))
    return directory


def trained_unet(pixels: np.ndarray, steps: int, **changes: Any) -> Any:
    """A network that has learned from pictures [number, height, width, channels] as diffusers' own examples do."""
    pictures = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    unet, scheduler = tiny_unet(tuple(pixels.shape[1:3]), pixels.shape[3], **changes), DDPMScheduler()
    optimizer = torch.optim.Adam(unet.parameters(), 3e-3)
    for _ in range(steps):
        clean = pictures[torch.randint(len(pictures), (32,))]
        noise, time = torch.randn_like(clean), torch.randint(1000, (32,))
        found = unet(scheduler.add_noise(clean, noise, time), time).sample
        optimizer.zero_grad()
        (found - noise).square().mean().backward()
        optimizer.step()
    return unet.eval()
