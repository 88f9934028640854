"""The gate before any spend: a model and a plan pass all checks together, or are refused with all faults at once.

What belongs here: the list of checks for `loop.train` (its own clipped sums, noise, sampler and step), and made-up
records for the step. What does not: the checks (`validators`, `probe`), and real records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from dpsynth_platform.training import physical, probe, trial, validators
from dpsynth_platform.training.clipping import ClippedSums, example_losses
from dpsynth_platform.training.families import as_called
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.loop import train
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.precision import EXACT, frozen_lowered, has_experts, precision_of_training
from dpsynth_platform.training.sampler import PoissonSampler
from dpsynth_platform.training.trial import ClippedSum, Maker

_RECORDS, _LENGTH = 4, 16
_PLANNED = 16
"""Most planned units of a logical batch in a trial: larger parts would take much longer."""


def refuse_unsound(
    model: nn.Module, plan: TrainingPlan, *, vocabulary: int, longest: int, precision: torch.dtype | None = None
) -> None:
    """Checks a model and a plan for `loop.train`, on random tokens; the model is unchanged afterwards.

    With 135 million weights it takes half a minute of one core for an adapter; two minutes and 5.5 GB for all weights.

    Results are compared in single precision, which detects most faults. A trial in the precision of training checks
    whether examples change each other's rounding, unless experts do, which compute in single precision.

    Args:
        model: by `adapter.with_adapter`.
        vocabulary: number of token ids in examples.
        longest: tokens of the longest planned example.
        precision: of the layers in training; None: the device's.

    Raises:
        TrainingRefused: names every fault: place, reason, solution.
    """
    faults = validators.faults_of_model(model, longest=longest, vocabulary=vocabulary)
    faults += validators.faults_of_forward(model, losses, vocabulary=vocabulary, length=min(longest, _LENGTH))
    if not faults and longest > _LENGTH:
        faults += validators.faults_of_width(model, losses, vocabulary=vocabulary, short=_LENGTH, longest=longest)
    faults += probe.faults_of_sampler(draws_of(plan), probability=0.25)
    if not faults:  # numerical trials of an unsound model show nothing more
        faults += probe.faults_of_clipping(
            model,
            clipped_sum(plan),
            losses,
            clipping_norm=plan.clipping_norm,
            vocabulary=vocabulary,
            length=min(longest, _LENGTH),
        )
        faults += probe.faults_of_noise(noise_alone(model, plan), model, deviation=plan.noise_deviation)
        with trial.left_as_found(model):
            faults += probe.faults_of_step(model, lambda: _one_step(model, plan, vocabulary, min(longest, _LENGTH)))
        faults += _of_rounding(model, plan, vocabulary, longest, precision)
    validators.refuse(faults)


def losses(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of each example, whose gradient `clipping` clips: [examples]."""
    inputs, labels = as_called(model, batch)
    return example_losses(model(**inputs, use_cache=False).logits, labels)


def clipped_sum(plan: TrainingPlan) -> ClippedSum:
    """The clipped sum that `loop` takes of one physical batch, each row a unit."""

    def clipped_sum_of(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with ClippedSums(model, plan) as sums:
            sums.add(batch, torch.ones(len(batch["input_ids"]), 1, device=batch["input_ids"].device))
        return sums.totals

    return clipped_sum_of


def logical_sum(plan: TrainingPlan, precision: torch.dtype, longest: int) -> ClippedSum:
    """The clipped sum of `loop` for a logical batch in the precision of training, each row a unit."""

    def logical_sum_of(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        device = trial.device_of(model)
        tokens = physical.MOST_TOKENS.get(device.type, physical.MOST_TOKENS["cpu"])
        sizes, planned = [1] * len(batch["input_ids"]), min(plan.batch_size, _PLANNED)
        with ClippedSums(model, plan, precision) as sums:
            for (part,) in physical.fixed_shape_parts(batch, sizes, tokens, device, longest, planned):
                sums.add(part.batch, part.weights)
        return sums.totals

    return logical_sum_of


def _of_rounding(
    model: nn.Module, plan: TrainingPlan, vocabulary: int, longest: int, precision: torch.dtype | None
) -> list[str]:
    if has_experts(model):
        return []
    precision = precision or precision_of_training(trial.device_of(model), model)
    with frozen_lowered(model, precision):
        return probe.faults_of_rounding(
            model,
            logical_sum(plan, precision, longest),
            clipping_norm=plan.clipping_norm,
            vocabulary=vocabulary,
            length=min(longest, _LENGTH),
        )


def draws_of(plan: TrainingPlan) -> probe.Draw:
    """Training's sampler over made-up units."""
    units = probe.SAMPLER_UNITS
    sampler = PoissonSampler(replace(plan, units=units, batch_size=units // 4), units)
    return lambda: sampler.draw().tolist()


def noise_alone(model: nn.Module, plan: TrainingPlan) -> dict[str, Tensor]:
    """Training's noised sum of an empty batch, by the name of each trainable parameter."""
    noised = {name: torch.zeros_like(parameter) for name, parameter in trial.trainable(model).items()}
    noise = GaussianNoise()
    for total in noised.values():
        noise.add_(total, plan.noise_deviation)
    return noised


def _one_step(model: nn.Module, plan: TrainingPlan, vocabulary: int, length: int) -> None:
    """One step of the loop at the full learning rate with all made-up records."""
    once = replace(plan, units=plan.batch_size, steps=1, warmup_steps=0)
    units = None if plan.sampled == "record" else [list(range(_RECORDS))]
    device = trial.device_of(model)
    train(
        model,
        once,
        _MadeUp(model, vocabulary, length),
        journal=trial.NoJournal(),
        health=NoWatch(),
        units=units,
        device=str(device),
        precision=EXACT,
    )


class _MadeUp:
    """Random records: `interface.Examples`."""

    def __init__(self, model: nn.Module, vocabulary: int, length: int) -> None:
        maker = Maker.like(model, vocabulary, length, torch.device("cpu"))
        self.max_length = maker.length
        self._rows = maker.batch([maker.example(maker.length) for _ in range(_RECORDS)])

    def __len__(self) -> int:
        return _RECORDS

    def batch(self, indices: Sequence[int]) -> Batch:
        return {name: rows[list(indices)] for name, rows in self._rows.items()}


class NoWatch:
    """One step needs no `interface.Health`."""

    def step(self, step: int, gradients: object) -> None:
        pass
