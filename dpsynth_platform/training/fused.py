"""Linear layers with a low-rank adapter, as one operation.

What belongs here: y = x W^T + b + s (x A^T) B^T with W and b frozen, its way back, and handing on what the gradients of
A and B are made of. What does not: those gradients (`layers`). An adapter in parts makes three more passes over the
layer's output, forward and backward, than are needed; with narrow adapters that is dearer than all their products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

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
    """Takes the place of an adapted layer's `forward`.

    Args:
        name: of the layer.
        layer: which `is_fusible`.
        receive: told of the inputs and gradients of both of the adapter's layers.
    """

    def __init__(self, name: str, layer: Any, receive: Receive) -> None:
        adapter = layer.active_adapters[0]
        self._base, self._scale, self._receive = layer.base_layer, float(layer.scaling[adapter]), receive
        self._down, self._up = layer.lora_A[adapter], layer.lora_B[adapter]
        self.names = (f"{name}.lora_A.{adapter}", f"{name}.lora_B.{adapter}")

    def __call__(self, inputs: Tensor) -> Tensor:
        """The layer's output; as from `peft`."""
        # The first layer's inputs ask for no gradient, but what is behind it must be run backward all the same.
        asked = torch.zeros((), device=inputs.device, requires_grad=True)
        output: Tensor = _Fused.apply(inputs, asked, self)  # type: ignore[no-untyped-call]
        return output

    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the layer and of both of the adapter's, as they are at present."""
        return self._base.weight, self._down.weight, self._up.weight

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Output and inner values of [tokens, width] inputs."""
        base, down, up = self.weights()
        output = functional.linear(inputs, base, self._base.bias)
        inner = inputs @ down.T
        return output.addmm_(inner, up.T, alpha=self._scale), inner

    def backward(
        self, weights: tuple[Tensor, Tensor, Tensor], inputs: Tensor, inner: Tensor, gradients: Tensor, wanted: bool
    ) -> Tensor | None:
        """The gradient at the inputs, if it is wanted; the inputs' shape is [examples, tokens, width]."""
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
    def forward(ctx: Any, inputs: Tensor, asked: Tensor, adapter: FusedAdapter) -> Tensor:
        output, inner = adapter.forward(inputs.flatten(0, 1))
        ctx.save_for_backward(inputs, inner, *adapter.weights())
        ctx.adapter = adapter
        return output.view(*inputs.shape[:2], -1)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, None, None]:  # type: ignore[override]
        inputs, inner, *weights = ctx.saved_tensors
        inner = inner.view(*inputs.shape[:2], -1)
        return ctx.adapter.backward(weights, inputs, inner, gradients, ctx.needs_input_grad[0]), None, None
