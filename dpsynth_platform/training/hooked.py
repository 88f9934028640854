"""Sums of clipped gradients of the units of a batch, by hooks on a network's layers.

What belongs here: one forward and one backward pass with hooks, the norm of each unit's gradient over all trainable
parameters, and the sum of the clipped gradients. What does not: how a batch passes through a kind of network
(`clipping` for language models, `grids` for others), the arithmetic of single layers (`layers`, `grids`), which units
are in a batch (`loop`), noise (`noise`).

A unit is a record, or a user with all its records; a unit's rows are next to each other in a batch. A unit's loss is
the weighted mean of its rows' losses, so its mean gradient is clipped (Charles et al. 2024, DP-SGD-ULS). A unit too
large for one pass is summed up part by part (`HookedSums.add_large`).

A unit whose gradient is not finite counts as zero: a spoiled sum would reveal it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.layers import Grams, Rule, Use, slack_of, square_norms
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.precision import exact_products

STABILITY = 0.01
"""Gamma of automatic clipping (Bu et al. 2023, section 4)."""
# Covers the rounding of norms, which are of single precision, and of coefficients.
ROUNDING = 2.0**-20


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


class HookedSums(ABC):
    """Sums of clipped gradients over a network's trainable parameters.

    Inside the context, parameters take no part in autograd, since their gradients are computed here, and products in
    single precision use no faster, coarser mode.

    Attributes:
        parameters: the trainable ones, by name; tied ones have one of their names.
        totals: the sums so far, by name, in double precision, on the model's device. In single precision the sum over
            tens of thousands of units would round away a part of each, which would depend on the others.

    Args:
        rule_for: from a layer's name and the layer to its gradients' rule.

    Raises:
        MechanismFailed: nothing is trainable, or a layer's gradients are not known.
    """

    def __init__(self, model: nn.Module, plan: TrainingPlan, rule_for: Callable[[str, nn.Module], Rule]) -> None:
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
        self.totals = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in self.parameters.items()}
        self._hooks: list[Any] = []
        self._exact = ExitStack()
        self._uses: dict[str, list[Use]] | None = None
        self._called: set[str] = set()
        self._units = 0

    def __enter__(self) -> Self:
        self._exact.enter_context(exact_products())
        for parameter in self.parameters.values():
            parameter.requires_grad_(False)
        self._hooks = [
            layer.register_forward_hook(partial(self._watch, name)) for name, (layer, _) in self._layers.items()
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self._exact.close()
        for hook in self._hooks:
            hook.remove()
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)

    def reset(self) -> None:
        """Clears the sums; the weights must not change without a reset."""
        for total in self.totals.values():
            total.zero_()

    def add(self, batch: Batch, weights: Tensor) -> None:
        """Adds the clipped gradient of each unit of a batch of units * k rows, unit by unit.

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

    @abstractmethod
    def _backward(self, batch: Batch, weights: Tensor) -> None:
        """A forward pass, and a backward one from the sum of the rows' losses times their weights."""

    @abstractmethod
    def _by_unit(self, name: str, inputs: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's inputs and output gradients, [rows, ...], in the form of its rule.

        Raises:
            MechanismFailed: the layer's rows are not those of the batch.
        """

    def _own(self, layer: nn.Module) -> list[nn.Parameter]:
        return [value for value in layer.parameters(recurse=False) if id(value) in self._names]

    def _gradients(self, batch: Batch, weights: Tensor) -> dict[str, list[Use]]:
        """The gradients of all units by parameter, by one forward and one backward pass."""
        self._uses, self._units = defaultdict(list), len(weights)
        try:
            with torch.enable_grad():
                self._backward(batch, weights)
            return self._uses
        finally:
            self._uses = None

    def _watch(self, name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Forward hook: requests the gradient at the output."""
        if self._uses is None or not torch.is_grad_enabled():
            return
        if not output.requires_grad:
            output.requires_grad_()
        output.register_hook(partial(self._receive, name, inputs[0].detach()))  # type: ignore[no-untyped-call]

    def _receive(self, name: str, inputs: Tensor, gradients: Tensor) -> None:
        layer, rule = self._layers[name]
        if self._uses is None:
            raise MechanismFailed(f"layer {name}: a gradient outside of a pass; accepted: one backward pass a batch")
        inputs, gradients = self._by_unit(name, inputs, gradients)
        self._called.add(name)
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
