"""Linear layers with a low-rank adapter, and RMSNorm, each as one operation.

What belongs here: y = x W^T + b + s (x A^T) B^T with W and b frozen; y = w x / rms(x); their backward passes, and the
inputs for the gradients of A and B. What does not: gradients of A, B and w (`layers`). An unfused adapter makes three
additional passes over the layer's output, forward and backward; for narrow adapters they cost more than all matrix
products. An unfused norm makes ten passes over copies in single precision. Here each token's root mean square is
computed in single precision and rounded to that of the inputs; all else has the inputs' precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.training.layers import norm_epsilon

Receive = Callable[[str, Tensor, Tensor], None]
"""Called with a layer's name, its inputs and the gradient at its outputs, both [examples, tokens, width]."""


def is_fusible(layer: nn.Module) -> bool:
    """Whether a layer is a plain frozen linear layer of peft with one plain adapter."""
    from peft.tuners.lora.layer import Linear

    if type(layer) is not Linear or type(layer.base_layer) is not nn.Linear:
        return False
    name, *others = layer.active_adapters
    frozen = not any(value.requires_grad for value in layer.base_layer.parameters())
    plain = name not in layer.lora_variant and isinstance(layer.lora_dropout[name], nn.Identity)
    unbiased = layer.lora_A[name].bias is None and layer.lora_B[name].bias is None
    trained = layer.lora_A[name].weight.requires_grad and layer.lora_B[name].weight.requires_grad
    active = not others and not layer.merged and not layer.disable_adapters
    return bool(active and frozen and plain and unbiased and trained)


class FusedAdapter:
    """Replaces the `forward` of a layer that `is_fusible`; `receive` gets inputs and gradients of A and B."""

    def __init__(self, name: str, layer: Any, receive: Receive) -> None:
        adapter = layer.active_adapters[0]
        self._base, self._scale, self._receive = layer.base_layer, float(layer.scaling[adapter]), receive
        self._down, self._up = layer.lora_A[adapter], layer.lora_B[adapter]
        self.names = (f"{name}.lora_A.{adapter}", f"{name}.lora_B.{adapter}")

    def __call__(self, inputs: Tensor) -> Tensor:
        """The layer's output, as from `peft`."""
        # The first layer's inputs require no gradient, but its backward pass must run.
        dummy = torch.zeros((), device=inputs.device, requires_grad=True)
        output: Tensor = _Fused.apply(inputs, dummy, self)  # type: ignore[no-untyped-call]
        return output

    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Current weights of the layer, A and B."""
        return self._base.weight, self._down.weight, self._up.weight

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Output and x A^T of [tokens, width] inputs."""
        base, down, up = self.weights()
        output = functional.linear(inputs, base, self._base.bias)
        inner = inputs @ down.T
        return output.addmm_(inner, up.T, alpha=self._scale), inner

    def backward(
        self, weights: tuple[Tensor, Tensor, Tensor], inputs: Tensor, inner: Tensor, gradients: Tensor, wanted: bool
    ) -> Tensor | None:
        """The gradient at the inputs, [examples, tokens, width], if it is wanted."""
        base, down, up = weights
        scaled = (gradients @ up).mul_(self._scale)
        self._receive(self.names[0], inputs.detach(), scaled)
        self._receive(self.names[1], inner.mul_(self._scale), gradients)
        if not wanted:
            return None
        whole: Tensor = (gradients.flatten(0, 1) @ base).addmm_(scaled.flatten(0, 1), down).view_as(inputs)
        return whole


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, dummy: Tensor, adapter: FusedAdapter) -> Tensor:
        output, inner = adapter.forward(inputs.flatten(0, 1))
        ctx.save_for_backward(inputs, inner, *adapter.weights())
        ctx.adapter = adapter
        return output.view(*inputs.shape[:2], -1)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, None, None]:  # type: ignore[override]
        inputs, inner, *weights = ctx.saved_tensors
        inner = inner.view(*inputs.shape[:2], -1)
        return ctx.adapter.backward(weights, inputs, inner, gradients, ctx.needs_input_grad[0]), None, None


class FusedNorm:
    """Replaces the `forward` of an RMSNorm that `layers.multiplies_by_weights`."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def __call__(self, inputs: Tensor) -> Tensor:
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
