"""Small public diffusion models in directories of diffusers, for tests of what starts from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

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


def saved_model(directory: Path, unet: Any = None, *, prediction: str = "epsilon", **changes: Any) -> Path:
    """A pipeline of a network and a scheduler; see `tiny_unet`."""
    unet = tiny_unet(**changes) if unet is None else unet
    DDPMPipeline(unet, DDPMScheduler(prediction_type=prediction)).save_pretrained(directory)
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
