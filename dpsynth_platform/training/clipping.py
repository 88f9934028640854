"""Clipped gradients of language models: how their batches of tokens pass through a model.

What belongs here: forward and backward passes of language models, their losses, and layers replaced by faster ones.
What does not: hooks, norms and sums (`hooked`), the arithmetic of single layers (`layers`), which units are in a batch
(`loop`), noise (`noise`).
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.attention import ShortCausalAttention
from dpsynth_platform.training.families import IGNORED, as_called, has_encoder
from dpsynth_platform.training.fused import FusedAdapter, FusedNorm, is_fusible
from dpsynth_platform.training.head import FrozenHead, is_plain
from dpsynth_platform.training.hooked import HookedSums
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.layers import multiplies_by_weights, rule_for
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.precision import EXACT, lowered


def example_losses(logits: Tensor, labels: Tensor, token_weights: Tensor | None = None) -> Tensor:
    """The weighted sum of the cross-entropies of each example's labelled tokens, each predicted from those before it.

    From logits [examples, tokens, vocabulary] and labels [examples, tokens], where -100 is not predicted, to [examples]
    in single precision. Without weights, [examples, tokens], it is their mean; 0 without any label.
    """
    targets, shares = _predictions(labels, token_weights)
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return (losses.view_as(targets) * shares).sum(1)


def _predictions(labels: Tensor, token_weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The target of each position, and its share of its example's loss: [examples, tokens]."""
    targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    predicted = targets != IGNORED
    if token_weights is None:
        return targets, predicted / predicted.sum(1, keepdim=True).clamp(min=1)
    return targets, predicted * functional.pad(token_weights[:, 1:], (0, 1))


class ClippedSums(HookedSums):
    """Sums of clipped gradients over the trainable parameters of a language model, causal or with an encoder.

    A causal model is called without an attention mask: padding is on the right, where no relevant token attends to it.
    A mask of all rows would select kernels, and so round a row's gradient by the others' lengths. An encoder needs one
    (`families`): all batches of a shape have one of the same kind.

    The model is from transformers, with or without adapters of peft. Finer trained weights are rounded to the layers'
    precision, for passes only. A batch is [units * k, tokens].

    Raises:
        MechanismFailed: nothing is trainable, or a layer's gradients are not known (`layers.rule_for`).
    """

    def __init__(self, model: nn.Module, plan: TrainingPlan, precision: torch.dtype = EXACT) -> None:
        super().__init__(model, plan, rule_for)
        self.precision = precision
        self._replaced: list[nn.Module] = []
        self._head: FrozenHead | None = None
        self._lowered: dict[str, Tensor] | None = None

    def __enter__(self) -> Self:
        if self._on_cpu():
            self._fuse()
        self._replace_head()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for layer in self._replaced:
            del layer.forward
        self._replaced = []
        self._restore_head()
        self._lowered = None

    def reset(self) -> None:
        """Clears the sums, and rereads the weights, which must not change without a reset."""
        self._lowered = None
        super().reset()

    def _on_cpu(self) -> bool:
        return all(value.device.type == "cpu" for value in self._model.parameters())

    def _fuse(self) -> None:
        """Replaces layers by single operations that need fewer passes over memory."""
        for name, layer in self._model.named_modules():
            fused: Any = None
            if is_fusible(layer):
                fused = FusedAdapter(name, layer, self._receive)
            elif multiplies_by_weights(layer):
                fused = FusedNorm(layer)
            if fused is not None:
                layer.forward = fused
                self._replaced.append(layer)

    def _replace_head(self) -> None:
        layer = self._model.get_output_embeddings()  # type: ignore[operator]
        # BART and similar models add a bias to the scores of their head, so they need the scores.
        biased = getattr(self._model, "final_logits_bias", None) is not None
        if is_plain(layer) and not biased and not self._own(layer):
            self._head = FrozenHead(layer)
            layer.forward = self._head

    def _restore_head(self) -> None:
        if self._head is not None:
            del self._head.layer.forward
        self._head = None

    def _backward(self, batch: Batch, weights: Tensor) -> None:
        inputs, labels = self._inputs(batch)
        token_weights = batch.get("token_weights")
        targets, shares = _predictions(labels, token_weights)
        logits = self._forward(inputs)
        if self._head is not None and not self._head.gave(logits):
            # The model processes its head's scores further, so it needs them.
            self._restore_head()
            logits = self._forward(inputs)
        if self._head is not None:
            parts = shares * weights.flatten()[:, None]
            logits.backward(self._head.gradients(targets, parts))  # type: ignore[no-untyped-call]
        else:
            (example_losses(logits, labels, token_weights) * weights.flatten()).sum().backward()  # type: ignore[no-untyped-call]

    def _inputs(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Arguments of the model, and the labels of its scores."""
        if has_encoder(self._model):
            return as_called(self._model, batch)
        return {name: batch[name] for name in ("input_ids", "position_ids")}, batch["labels"]

    def _forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """The model's logits, or the output of its replaced head."""
        if self._lowered is None:
            self._lowered = lowered(self._model, self.precision)
        with ShortCausalAttention():
            logits: Tensor = functional_call(self._model, self._lowered, kwargs=inputs | {"use_cache": False}).logits
        return logits

    def _by_unit(self, name: str, inputs: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Both as [units, tokens, ...]."""
        if gradients.dim() != 3 or inputs.shape[:2] != gradients.shape[:2]:
            raise MechanismFailed(
                f"layer {name}: inputs of shape {tuple(inputs.shape)}, gradients of shape {tuple(gradients.shape)}; "
                "accepted: layers of [examples, tokens]"
            )
        inputs, gradients = (values.reshape(self._units, -1, *values.shape[2:]) for values in (inputs, gradients))
        return inputs, gradients
