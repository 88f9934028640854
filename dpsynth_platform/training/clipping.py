"""Sums of clipped gradients of the units of a batch: the only function of the data that leaves this module.

What belongs here: a forward and a backward pass with hooks on the layers, the norm of each unit's gradient over all
trainable parameters, and the sum of the clipped gradients. What does not: the arithmetic of single layers (`layers`),
which units are in a batch (`loop`), noise (`noise`).

A unit is a record, or a user with all its records. A user's loss is the mean of its records' losses, whose rows form
one long row, so its mean gradient is clipped (Charles et al. 2024, DP-SGD-ULS). A user too large for one pass is summed
up record by record (`ClippedSums.add_large`).

A unit whose gradient is not finite counts as zero: a spoiled sum would reveal it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
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
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.layers import Grams, Use, multiplies_by_weights, rule_for, slack_of, square_norms
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.precision import EXACT, lowered

STABILITY = 0.01
"""Gamma of automatic clipping (Bu et al. 2023, section 4)."""
# Covers the rounding of norms, which are of single precision, and of coefficients.
ROUNDING = 2.0**-20


def example_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy over each example's labelled tokens, each predicted from those before it; 0 without any.

    From logits [examples, tokens, vocabulary] and labels [examples, tokens], where -100 is not predicted, to [examples]
    in single precision.
    """
    targets, counts = _predictions(labels)
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return losses.view_as(targets).sum(1) / counts


def _predictions(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The target of each position, [examples, tokens], and the number of targets in each example, at least 1."""
    targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return targets, (targets != IGNORED).sum(1).clamp(min=1)


def clipping_coefficients(norms: Tensor, plan: TrainingPlan) -> Tensor:
    """Factors that bring each unit's gradient to a norm of at most `plan.clipping_norm`: [units], single precision.

    `norms` are upper bounds on the gradients' norms, [units] in double precision. The factor is 0 where the norm is not
    finite, or the factor would be subnormal and thus rounded by more than `ROUNDING`.
    """
    safe = norms * (1 + ROUNDING)
    if plan.clipping == "automatic":
        coefficients = plan.clipping_norm / (safe + STABILITY)
    else:
        coefficients = (plan.clipping_norm / safe).clamp(max=1.0)
    kept = torch.isfinite(norms) & (coefficients >= torch.finfo(torch.float32).tiny)
    return torch.where(kept, coefficients, 0.0).float()


class ClippedSums:
    """Sums of clipped gradients over the trainable parameters of a language model, causal or with an encoder.

    Inside the context, parameters take no part in autograd, since their gradients are computed here, and matrix
    products in single precision use no faster, coarser mode.

    A causal model is called without an attention mask: padding is on the right, where no relevant token attends to it.
    A mask of all rows would select kernels, and so round a row's gradient by the others' lengths. An encoder needs one
    (`families`); where layers compute coarsely, all batches of a shape have one of the same kind.

    The model is from transformers, with or without adapters of peft. Finer trained weights are rounded to the layers'
    precision, for passes only.

    Attributes:
        parameters: the trainable ones, by name; tied ones have one of their names.
        totals: the sums so far, by name, in double precision, on the model's device. In single precision the sum over
            tens of thousands of units would round away a part of each, which would depend on the others.

    Raises:
        MechanismFailed: nothing is trainable, or a layer's gradients are not known (`layers.rule_for`).
    """

    def __init__(self, model: nn.Module, plan: TrainingPlan, precision: torch.dtype = EXACT) -> None:
        self._model, self._plan, self.precision = model, plan, precision
        self.parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        if not self.parameters:
            raise MechanismFailed("no parameter of the model is trainable; accepted: at least one")
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        self._layers = {
            name: (layer, rule_for(name, layer)) for name, layer in model.named_modules() if self._own(layer)
        }
        owners = [id(parameter) for layer, _ in self._layers.values() for parameter in self._own(layer)]
        self._shared = {one for one in owners if owners.count(one) > 1}
        self.totals = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in self.parameters.items()}
        self._hooks: list[Any] = []
        self._replaced: list[nn.Module] = []
        self._products = "highest"
        self._head: FrozenHead | None = None
        self._lowered: dict[str, Tensor] | None = None
        self._uses: dict[str, list[Use]] | None = None
        self._called: set[str] = set()
        self._units = 0

    def __enter__(self) -> Self:
        self._products = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        if self._on_cpu():
            self._fuse()
        self._replace_head()
        for parameter in self.parameters.values():
            parameter.requires_grad_(False)
        self._hooks = [
            layer.register_forward_hook(partial(self._watch, name)) for name, (layer, _) in self._layers.items()
        ]
        return self

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision(self._products)
        for hook in self._hooks:
            hook.remove()
        for layer in self._replaced:
            del layer.forward
        self._replaced = []
        self._restore_head()
        self._lowered = None
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)

    def reset(self) -> None:
        """Clears the sums, and rereads the weights, which must not change without a reset."""
        self._lowered = None
        for total in self.totals.values():
            total.zero_()

    def add(self, batch: Batch, weights: Tensor) -> None:
        """Adds the clipped gradient of each unit of a batch of [units * k, tokens], unit by unit.

        `weights` are each row's share of its unit's loss, [units, k], with sum 1 for each unit; 0 for padding rows.
        """
        uses = self._gradients(batch, weights)
        norms = self._norms(uses)
        self._accumulate(uses, clipping_coefficients(norms, self._plan), ~torch.isfinite(norms))

    def add_large(self, parts: Iterable[tuple[Batch, Tensor]]) -> None:
        """Adds the clipped gradient of one unit in several parts, each in the form for `add`.

        The unit's whole gradient is materialized, which takes as much memory as `totals`.
        """
        before = self.totals
        self.totals = {name: torch.zeros_like(total) for name, total in before.items()}
        lengths: defaultdict[str, list[Tensor | None]] = defaultdict(list)
        for batch, weights in parts:
            uses = self._gradients(batch, weights)
            for name, of_one in uses.items():
                lengths[name] += [use.lengths for use in of_one]
            whole = torch.ones(len(weights), device=weights.device)
            self._accumulate(uses, whole, torch.zeros_like(whole, dtype=torch.bool))
        # The result does not depend on the number of parts, which may depend on other units' memory.
        squares = torch.stack([total.square().sum() for total in self.totals.values()]).sum()
        norm = (squares + sum(slack_of(found) for found in lengths.values())).squeeze().sqrt()
        unit, self.totals = self.totals, before
        coefficient = clipping_coefficients(norm, self._plan)
        if coefficient > 0:
            for name, total in self.totals.items():
                total.addcmul_(unit[name], coefficient.double())

    def unused_layers(self) -> list[str]:
        """Trainable layers through which no batch has passed so far."""
        return sorted(self._layers.keys() - self._called)

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

    def _own(self, layer: nn.Module) -> list[nn.Parameter]:
        return [value for value in layer.parameters(recurse=False) if id(value) in self._names]

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

    def _gradients(self, batch: Batch, weights: Tensor) -> dict[str, list[Use]]:
        """The gradients of all units by parameter, by one forward and one backward pass."""
        self._uses, self._units = defaultdict(list), len(weights)
        inputs, labels = self._inputs(batch)
        targets, counts = _predictions(labels)
        try:
            with torch.enable_grad():
                logits = self._forward(inputs)
                if self._head is not None and not self._head.gave(logits):
                    # The model processes its head's scores further, so it needs them.
                    self._restore_head()
                    logits = self._forward(inputs)
                if self._head is not None:
                    parts = (targets != IGNORED) * (weights.flatten() / counts)[:, None]
                    logits.backward(self._head.gradients(targets, parts))  # type: ignore[no-untyped-call]
                else:
                    (example_losses(logits, labels) * weights.flatten()).sum().backward()  # type: ignore[no-untyped-call]
            return self._uses
        finally:
            self._uses = None

    def _inputs(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Arguments of the model, and the labels of its scores."""
        if has_encoder(self._model):
            return as_called(self._model, batch, fixed_width=self.precision != EXACT)
        return {name: batch[name] for name in ("input_ids", "position_ids")}, batch["labels"]

    def _forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """The model's logits, or the output of its replaced head."""
        if self._lowered is None:
            self._lowered = lowered(self._model, self.precision)
        with ShortCausalAttention():
            logits: Tensor = functional_call(self._model, self._lowered, kwargs=inputs | {"use_cache": False}).logits
        return logits

    def _watch(self, name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Forward hook: requests the gradient at the output."""
        if self._uses is None or not torch.is_grad_enabled():
            return
        if not output.requires_grad:
            output.requires_grad_()
        output.register_hook(partial(self._receive, name, inputs[0].detach()))  # type: ignore[no-untyped-call]

    def _receive(self, name: str, inputs: Tensor, gradients: Tensor) -> None:
        layer, rule = self._layers[name]
        if self._uses is None or gradients.dim() != 3 or inputs.shape[:2] != gradients.shape[:2]:
            raise MechanismFailed(
                f"layer {name}: inputs of shape {tuple(inputs.shape)}, gradients of shape {tuple(gradients.shape)}; "
                "accepted: layers of [examples, tokens]"
            )
        self._called.add(name)
        inputs, gradients = (values.reshape(self._units, -1, *values.shape[2:]) for values in (inputs, gradients))
        with torch.no_grad():
            for parameter, use in rule(layer, inputs, gradients, self._is_shared):
                if id(parameter) in self._names:
                    self._uses[self._names[id(parameter)]].append(use)

    def _is_shared(self, parameter: Tensor) -> bool:
        return id(parameter) in self._shared

    @torch.no_grad()
    def _norms(self, uses: dict[str, list[Use]]) -> Tensor:
        """Upper bounds on the norms of the units' gradients over all parameters, [units] in double precision."""
        grams = Grams()
        squares = [square_norms(of_one, grams) for of_one in uses.values()]
        return torch.stack(squares).sum(0).clamp(min=0).sqrt()

    @torch.no_grad()
    def _accumulate(self, uses: dict[str, list[Use]], coefficients: Tensor, spoiled: Tensor) -> None:
        any_spoiled = bool(spoiled.any())
        for name, of_one in uses.items():
            for use in of_one:
                (use.without(spoiled) if any_spoiled else use).add_(self.totals[name], coefficients)
