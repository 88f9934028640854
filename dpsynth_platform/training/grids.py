"""Clipped gradients of networks on grids: convolutions, group normalization, linear layers and embeddings.

What belongs here: the gradients of such layers for each unit of a batch, and how a batch passes through such a network.
What does not: hooks, norms and sums (`hooked`), language models (`clipping`), the loss, and physical batches (`rows`).

All gradients are summed over a unit's rows while they are computed, so that several draws of noise for one record
(noise multiplicity; Dockhorn et al., "Differentially Private Diffusion Models", 2023) take the memory of one gradient.
They are always materialized, so that the norm is that of the very sum which is clipped.

Tensors may have any memory layout: convolutions get contiguous copies. (Opacus 1.6.0 computes a convolution's gradients
by strides, and gets other numbers where channels come last in memory.)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.hooked import HookedSums
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.layers import Rule, Shared, Stacked, Uses
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.trial import Losses

ACCEPTED = "Conv2d, GroupNorm, Linear, Embedding"


class GridSums(HookedSums):
    """Sums of clipped gradients of a network on grids, by the loss of each row.

    Every layer has the batch's rows in its first dimension.

    Args:
        losses: from the network and a batch to the loss of each row, [rows], from that row alone.

    Raises:
        MechanismFailed: nothing is trainable, or a layer's gradients are not known (`rule_for`).
    """

    def __init__(self, model: nn.Module, plan: TrainingPlan, losses: Losses) -> None:
        super().__init__(model, plan, self.rule_for)
        self._losses = losses
        self._rows = 0

    @staticmethod
    def rule_for(name: str, layer: nn.Module) -> Rule:
        """See `rule_for` of the module."""
        return rule_for(name, layer)

    @classmethod
    def has_rule(cls, layer: nn.Module) -> bool:
        """Whether per-example gradients of such a layer are known (`rule_for`)."""
        try:
            cls.rule_for("", layer)
        except MechanismFailed:
            return False
        return True

    def _backward(self, batch: Batch, weights: Tensor) -> None:
        self._rows = weights.numel()
        losses = self._losses(self._model, batch)
        if losses.shape != (self._rows,):
            raise MechanismFailed(f"losses of shape {tuple(losses.shape)}; accepted: one for each of {self._rows} rows")
        (losses * weights.flatten()).sum().backward()  # type: ignore[no-untyped-call]

    def _by_unit(self, name: str, inputs: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Both as [units, rows, ...]."""
        if inputs.shape[:1] != (self._rows,) or gradients.shape[:1] != (self._rows,):
            raise MechanismFailed(
                f"layer {name}: inputs of shape {tuple(inputs.shape)}, gradients of shape {tuple(gradients.shape)}; "
                f"accepted: layers of the batch's {self._rows} rows, in the first dimension"
            )
        shape = (self._units, -1)
        return inputs.reshape(*shape, *inputs.shape[1:]), gradients.reshape(*shape, *gradients.shape[1:])


def rule_for(name: str, layer: nn.Module) -> Rule:
    """The function from a layer's inputs and output gradients, [units, rows, ...], to gradients of its parameters.

    Raises:
        MechanismFailed: per-example gradients of such a layer are not known.
    """
    kinds: tuple[tuple[type[nn.Module], Rule], ...] = (
        (nn.Conv2d, _convolution),
        (nn.GroupNorm, _group_norm),
        (nn.Linear, _linear),
        (nn.Embedding, _embedding),
    )
    for kind, rule in kinds:
        # A subclass may use the same weights differently.
        if type(layer) is kind and _is_plain(layer):
            return rule
    raise MechanismFailed(
        f"layer {name}: gradients of single examples are not known for {type(layer).__name__}; accepted: {ACCEPTED}, "
        "without groups or padding modes of convolutions"
    )


def _is_plain(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return not isinstance(layer, nn.Embedding) or not (
        layer.max_norm or layer.scale_grad_by_freq or layer.sparse or layer.padding_idx is not None
    )


def _convolution(layer: nn.Conv2d, inputs: Tensor, gradients: Tensor, shared: Shared) -> Uses:
    """From [units, rows, channels, height, width].

    Units become groups of channels of one convolution over the rows, whose gradient has a block for each unit (Rochette
    et al., "Efficient Per-Example Gradient Computations in Convolutional Neural Networks", 2019).
    """
    units = len(inputs)
    weights: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
        inputs.transpose(0, 1).flatten(1, 2).contiguous(),
        (units * layer.out_channels, *layer.weight.shape[1:]),
        gradients.transpose(0, 1).flatten(1, 2).contiguous(),
        layer.stride,
        layer.padding,
        layer.dilation,
        units,
    )
    yield layer.weight, Stacked(weights.view(units, *layer.weight.shape))
    if layer.bias is not None:
        yield layer.bias, Stacked(_over_all_but_channels(gradients))


def _group_norm(layer: nn.GroupNorm, inputs: Tensor, gradients: Tensor, shared: Shared) -> Uses:
    """From [units, rows, channels, ...]."""
    normalized = functional.group_norm(inputs.flatten(0, 1), layer.num_groups, eps=layer.eps).view(inputs.shape)
    yield layer.weight, Stacked(_over_all_but_channels(gradients * normalized))
    yield layer.bias, Stacked(_over_all_but_channels(gradients))


def _linear(layer: nn.Linear, inputs: Tensor, gradients: Tensor, shared: Shared) -> Uses:
    """From [units, rows, ..., width]."""
    outputs = gradients.flatten(1, -2)
    yield layer.weight, Stacked(torch.bmm(outputs.transpose(1, 2), inputs.flatten(1, -2)))
    if layer.bias is not None:
        yield layer.bias, Stacked(outputs.sum(1))


def _embedding(layer: nn.Embedding, inputs: Tensor, gradients: Tensor, shared: Shared) -> Uses:
    """From positions [units, rows, ...] and gradients [units, rows, ..., width]."""
    units, width = len(inputs), gradients.shape[-1]
    table = torch.zeros(units * layer.num_embeddings, width, dtype=gradients.dtype, device=gradients.device)
    firsts = layer.num_embeddings * torch.arange(units, device=inputs.device)
    table.index_add_(0, (inputs.flatten(1) + firsts[:, None]).flatten(), gradients.flatten(0, -2))
    yield layer.weight, Stacked(table.view(units, layer.num_embeddings, width))


def _over_all_but_channels(values: Tensor) -> Tensor:
    """[units, channels] from [units, rows, channels, ...]."""
    return values.flatten(3).sum((1, 3)) if values.dim() > 3 else values.sum(1)
