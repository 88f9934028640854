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
from torch.func import functional_call
from torch.nn import functional

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.attention import ShortCausalAttention
from dpsynth_platform.training.families import IGNORED, as_called, has_encoder
from dpsynth_platform.training.fused import FusedAdapter, is_fusible
from dpsynth_platform.training.head import FrozenHead, is_plain
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.layers import Grams, Use, multiplies_by_weights, rule_for, slack_of, square_norms
from dpsynth_platform.training.norm import FusedNorm
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.precision import EXACT, lowered

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
    targets, counts = _predictions(labels)
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return losses.view_as(targets).sum(1) / counts


def _predictions(labels: Tensor) -> tuple[Tensor, Tensor]:
    """What each place should predict, [examples, tokens], and how many places of each example do, at least 1."""
    targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return targets, (targets != IGNORED).sum(1).clamp(min=1)


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
    """Sums of clipped gradients over the trainable parameters of a language model, causal or with an encoder.

    As a context: meanwhile no parameter takes part in autograd by itself, since their gradients are computed here, and
    products of matrices in single precision are that, and no less.

    A causal model is called without an attention mask: padding is on the right, where what counts cannot see it, and by
    a mask of all rows together kernels are chosen, which would round a row's gradient by the others' lengths. An
    encoder needs one (`families`); where layers compute coarsely, all batches of a shape have one of the same kind.

    Args:
        model: from transformers, with adapters of peft or without. Its calls give `logits`.
        plan: says how to clip.
        precision: in which layers compute. Trained weights that are finer are rounded to it, for passes only.

    Attributes:
        precision: in which layers compute.
        parameters: the trainable ones, by name; one of several names where they are tied.
        totals: the sums so far, by name, in double precision, on the model's device. In single precision the sum over
            tens of thousands of units would round away a part of each, and which part hangs on the others.

    Raises:
        MechanismFailed: nothing is trainable, or a layer's gradients are not known; see `layers.rule_for`.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        """Forgets what was summed up, and takes the weights as they are now: only before this may they change."""
        self._lowered = None
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

        The unit's gradient is made in full, so it takes as much as `totals` once more.
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
        # In parts or not, a unit is clipped alike: in how many it comes may hang on what memory the others take.
        squares = torch.stack([total.square().sum() for total in self.totals.values()]).sum()
        norm = (squares + sum(slack_of(found) for found in lengths.values())).squeeze().sqrt()
        unit, self.totals = self.totals, before
        coefficient = clipping_coefficients(norm, self._plan)
        if coefficient > 0:
            for name, total in self.totals.items():
                total.addcmul_(unit[name], coefficient.double())

    def unused_layers(self) -> list[str]:
        """Trainable layers through which no batch has passed so far: their gradients would be missing."""
        return sorted(self._layers.keys() - self._called)

    def _on_cpu(self) -> bool:
        return all(value.device.type == "cpu" for value in self._model.parameters())

    def _fuse(self) -> None:
        """Has layers compute as one operation what takes many passes over memory otherwise."""
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
        # BART's kin add a bias to the scores of their head, which must be there for that.
        biased = getattr(self._model, "final_logits_bias", None) is not None
        if is_plain(layer) and not biased and not self._own(layer):
            self._head = FrozenHead(layer)
            layer.forward = self._head

    def _restore_head(self) -> None:
        if self._head is not None:
            del self._head.layer.forward
        self._head = None

    def _gradients(self, batch: Batch, weights: Tensor) -> dict[str, list[Use]]:
        """One pass forward and one backward; the gradients of all units by parameter."""
        self._uses, self._units = defaultdict(list), len(weights)
        inputs, labels = self._inputs(batch)
        targets, counts = _predictions(labels)
        try:
            with torch.enable_grad():
                logits = self._forward(inputs)
                if self._head is not None and not self._head.gave(logits):
                    # The model makes something more of its head's scores, so they must be there.
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
        """What the model is called with, and the labels of its scores."""
        if has_encoder(self._model):
            return as_called(self._model, batch, alike=self.precision != EXACT)
        return {name: batch[name] for name in ("input_ids", "position_ids")}, batch["labels"]

    def _forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """The model's logits, or what its replaced head gives in their place."""
        if self._lowered is None:
            self._lowered = lowered(self._model, self.precision)
        with ShortCausalAttention():
            logits: Tensor = functional_call(self._model, self._lowered, kwargs=inputs | {"use_cache": False}).logits
        return logits

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
        with torch.no_grad():
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
