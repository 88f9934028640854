"""RMSNorm as one operation.

What belongs here: y = w x / rms(x), its way back, and putting it in the place of a layer's `forward`. What does not:
the gradient of w (`layers`). In parts it makes ten passes over copies in single precision. Here each token's root mean
square is taken in single precision and rounded to that of the inputs; nothing else leaves their precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpsynth_platform.training.layers import norm_epsilon


class FusedNorm:
    """Takes the place of a norm's `forward`.

    Args:
        layer: an RMSNorm that multiplies by its weights (`layers.multiplies_by_weights`).
    """

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def __call__(self, inputs: Tensor) -> Tensor:
        """The layer's output."""
        weight: Tensor = self._layer.weight  # type: ignore[assignment]
        output: Tensor = _Norm.apply(inputs, weight, norm_epsilon(self._layer, inputs))  # type: ignore[no-untyped-call]
        return output


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        length = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True, dtype=torch.float32)
        inverse = length.square_().div_(inputs.shape[-1]).add_(epsilon).rsqrt_().to(inputs.dtype)
        ctx.save_for_backward(inputs, inverse, weight)
        output: Tensor = (inputs * inverse).mul_(weight)
        return output

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        inputs, inverse, weight = ctx.saved_tensors
        weighted = gradients * weight
        along = (weighted * inputs).sum(-1, keepdim=True, dtype=torch.float32)
        share = (along * inverse.float().pow(3)).div_(inputs.shape[-1]).to(inputs.dtype)
        return weighted.mul_(inverse).addcmul_(inputs, share, value=-1), None, None
