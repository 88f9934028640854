"""Clipped gradients of the units of a batch, summed: the only thing about the data that leaves this module.

What belongs here: one pass forward and one backward through a model with its layers watched, the norm of each unit's
gradient over all trainable parameters, and the sum of the clipped gradients. What does not: the arithmetic of single
layers (`layers`), which units are in a batch (`loop`), noise (`noise`).

A unit is a record, or a user with all its records: then the loss of a user is the mean of the losses of its records,
whose rows are taken together as one long row, so that what is clipped is the user's mean gradient (Charles et al. 2024,
DP-SGD-ULS). A user that is too large for one pass is summed up record by record (`ClippedSums.add_large`).

A unit whose gradient is not finite counts as zero: whatever it is, it must not spoil the sum, for that would show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.errors import MechanismFailed
from dpsynth_platform.training.fused import FusedAdapter, is_fusible
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.layers import Grams, Use, rule_for, square_norms
from dpsynth_platform.training.plan import TrainingPlan

IGNORED = -100
"""The label of a token that is not predicted."""
STABILITY = 0.01
"""Gamma of automatic clipping (Bu et al. 2023, section 4)."""
# Norms are of single precision; this much on top covers their rounding and that of the coefficients.
ROUNDING = 2.0**-20


def example_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy over each example's labelled tokens, each predicted from those before it; 0 without any.

    Args:
        logits: [examples, tokens, vocabulary].
        labels: [examples, tokens]; -100 is not predicted.

    Returns:
        [examples] in single precision.
    """
    targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return losses.view_as(targets).sum(1) / (targets != IGNORED).sum(1).clamp(min=1)


def clipping_coefficients(norms: Tensor, plan: TrainingPlan) -> Tensor:
    """By what each unit's gradient is multiplied, so that it is at most `plan.clipping_norm` long.

    Args:
        norms: [units], upper bounds on the gradients' norms; in double precision. What is not finite gets 0.
        plan: gives the kind of clipping and its norm.

    Returns:
        [units] in single precision; 0 where it would be subnormal and thus rounded by more than `ROUNDING`.
    """
    safe = norms * (1 + ROUNDING)
    if plan.clipping == "automatic":
        coefficients = plan.clipping_norm / (safe + STABILITY)
    else:
        coefficients = (plan.clipping_norm / safe).clamp(max=1.0)
    kept = torch.isfinite(norms) & (coefficients >= torch.finfo(torch.float32).tiny)
    return torch.where(kept, coefficients, 0.0).float()


class ClippedSums:
    """Sums of clipped gradients over the trainable parameters of a causal language model.

    As a context: meanwhile no parameter takes part in autograd by itself, since their gradients are computed here, and
    products of matrices in single precision are that, and no less.

    Args:
        model: from transformers, with adapters of peft or without. Its calls give `logits`.
        plan: says how to clip.

    Attributes:
        parameters: the trainable ones, by name; one of several names where they are tied.
        totals: the sums so far, by name, in single precision, on the model's device.

    Raises:
        MechanismFailed: nothing is trainable, or a layer's gradients are not known; see `layers.rule_for`.
    """

    def __init__(self, model: nn.Module, plan: TrainingPlan) -> None:
        self._model, self._plan = model, plan
        self.parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        if not self.parameters:
            raise MechanismFailed("no parameter of the model is trainable; accepted: at least one")
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        self._layers = {
            name: (layer, rule_for(name, layer)) for name, layer in model.named_modules() if self._own(layer)
        }
        owners = [id(parameter) for layer, _ in self._layers.values() for parameter in self._own(layer)]
        self._shared = {one for one in owners if owners.count(one) > 1}
        self.totals = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in self.parameters.items()}
        self._hooks: list[Any] = []
        self._fused: dict[str, Any] = {}
        self._precision = "highest"
        self._uses: dict[str, list[Use]] | None = None
        self._called: set[str] = set()
        self._units = 0

    def __enter__(self) -> Self:
        self._precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        self._fused = self._fusible()
        for parameter in self.parameters.values():
            parameter.requires_grad_(False)
        self._hooks = [
            layer.register_forward_hook(partial(self._watch, name)) for name, (layer, _) in self._layers.items()
        ]
        for name, adapted in self._fused.items():
            adapted.forward = FusedAdapter(name, adapted, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        torch.set_float32_matmul_precision(self._precision)
        for hook in self._hooks:
            hook.remove()
        for adapted in self._fused.values():
            del adapted.forward
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)

    def reset(self) -> None:
        """Forgets what was summed up."""
        for total in self.totals.values():
            total.zero_()

    def add(self, batch: Batch, weights: Tensor) -> None:
        """Adds the clipped gradient of each unit of a batch.

        Args:
            batch: [units * k, tokens], the rows of a unit one after the other, padded with rows of weight 0.
            weights: [units, k], each row's part in its unit's loss; sum 1 for each unit.
        """
        uses = self._gradients(batch, weights)
        norms = self._norms(uses)
        self._accumulate(uses, clipping_coefficients(norms, self._plan), ~torch.isfinite(norms))

    def add_large(self, parts: Iterable[tuple[Batch, Tensor]]) -> None:
        """Adds the clipped gradient of one unit that comes in several parts, as for `add`, each with one unit.

        The unit's gradient is made in full, so it takes another copy of the trainable parameters.
        """
        before = self.totals
        self.totals = {name: torch.zeros_like(total) for name, total in before.items()}
        for batch, weights in parts:
            uses = self._gradients(batch, weights)
            whole = torch.ones(len(weights), device=weights.device)
            self._accumulate(uses, whole, torch.zeros_like(whole, dtype=torch.bool))
        norm = torch.stack([total.double().square().sum() for total in self.totals.values()]).sum().sqrt()
        unit, self.totals = self.totals, before
        coefficient = clipping_coefficients(norm, self._plan)
        if coefficient > 0:
            for name, total in self.totals.items():
                total.addcmul_(unit[name], coefficient)

    def unused_layers(self) -> list[str]:
        """Trainable layers through which no batch has passed so far: their gradients would be missing."""
        return sorted(self._layers.keys() - self._called)

    def _fusible(self) -> dict[str, Any]:
        """Adapted layers that are computed as one operation: on the CPU, where passes over memory are dear."""
        if any(value.device.type != "cpu" for value in self._model.parameters()):
            return {}
        return {name: layer for name, layer in self._model.named_modules() if is_fusible(layer)}

    def _own(self, layer: nn.Module) -> list[nn.Parameter]:
        return [value for value in layer.parameters(recurse=False) if id(value) in self._names]

    def _gradients(self, batch: Batch, weights: Tensor) -> dict[str, list[Use]]:
        """One pass forward and one backward; the gradients of all units by parameter."""
        self._uses, self._units = defaultdict(list), len(weights)
        try:
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
            with torch.enable_grad():
                with torch.autocast("cuda", torch.bfloat16, enabled=weights.is_cuda):
                    logits = self._model(**inputs, use_cache=False).logits
                (example_losses(logits, batch["labels"]) * weights.flatten()).sum().backward()  # type: ignore[no-untyped-call]
            return self._uses
        finally:
            self._uses = None

    def _watch(self, name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Forward hook: asks for the gradient at the output."""
        if self._uses is None or not torch.is_grad_enabled():
            return
        if not output.requires_grad:
            output.requires_grad_()
        output.register_hook(partial(self._receive, name, inputs[0].detach()))  # type: ignore[no-untyped-call]

    def _receive(self, name: str, inputs: Tensor, gradients: Tensor) -> None:
        layer, rule = self._layers[name]
        if self._uses is None or gradients.dim() != 3 or inputs.shape[:2] != gradients.shape[:2]:
            raise MechanismFailed(f"layer {name} does not take [examples, tokens]; accepted: layers that do")
        self._called.add(name)
        inputs, gradients = (values.reshape(self._units, -1, *values.shape[2:]) for values in (inputs, gradients))
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            for parameter, use in rule(layer, inputs, gradients, self._is_shared):
                if id(parameter) in self._names:
                    self._uses[self._names[id(parameter)]].append(use)

    def _is_shared(self, parameter: Tensor) -> bool:
        return id(parameter) in self._shared

    @torch.no_grad()
    def _norms(self, uses: dict[str, list[Use]]) -> Tensor:
        """[units] in double precision: the norms of the units' gradients over all parameters, or a little more."""
        grams = Grams()
        squares = [square_norms(of_one, grams) for of_one in uses.values()]
        return torch.stack(squares).sum(0).clamp(min=0).sqrt()

    @torch.no_grad()
    def _accumulate(self, uses: dict[str, list[Use]], coefficients: Tensor, spoiled: Tensor) -> None:
        any_spoiled = bool(spoiled.any())
        for name, of_one in uses.items():
            for use in of_one:
                (use.without(spoiled) if any_spoiled else use).add_(self.totals[name], coefficients)
