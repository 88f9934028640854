"""Weights of EfficientNet-lite0's form that need no package: random, and the same every time."""

from __future__ import annotations

import torch

STAGES = (
    (1, 1, 3, 1, 16),
    (2, 6, 3, 2, 24),
    (2, 6, 5, 2, 40),
    (3, 6, 3, 2, 80),
    (3, 6, 5, 1, 112),
    (4, 6, 5, 2, 192),
    (1, 6, 3, 1, 320),
)
"""Blocks, expansion, kernel, stride, channels."""


def random_weights() -> dict[str, torch.Tensor]:
    """Weights under the package's names, of a fixed seed and of a size that keeps values within [0, 6] mostly."""
    generator = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}

    def layer(convolution: str, norm: str, outputs: int, inputs: int, size: int) -> None:
        kernel = torch.randn(outputs, inputs, size, size, generator=generator)
        weights[f"{convolution}.weight"] = kernel * (2 / (inputs * size * size)) ** 0.5
        weights[f"{norm}.weight"] = 0.5 + torch.rand(outputs, generator=generator)
        weights[f"{norm}.bias"] = 0.1 * torch.randn(outputs, generator=generator)
        weights[f"{norm}.running_mean"] = 0.1 * torch.randn(outputs, generator=generator)
        weights[f"{norm}.running_var"] = 0.5 + torch.rand(outputs, generator=generator)

    layer("_conv_stem", "_bn0", 32, 3, 3)
    block, inputs = 0, 32
    for blocks, expansion, size, _, outputs in STAGES:
        for _ in range(blocks):
            inner = inputs * expansion
            if expansion > 1:
                layer(f"_blocks.{block}._expand_conv", f"_blocks.{block}._bn0", inner, inputs, 1)
            layer(f"_blocks.{block}._depthwise_conv", f"_blocks.{block}._bn1", inner, 1, size)
            layer(f"_blocks.{block}._project_conv", f"_blocks.{block}._bn2", outputs, inner, 1)
            block, inputs = block + 1, outputs
    layer("_conv_head", "_bn1", 1280, 320, 1)
    return weights
