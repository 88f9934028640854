"""Numerical tests, on random rows, of the clipped sums of any network, before any spend.

What belongs here: comparing clipped sums of this very network with gradients by automatic differentiation alone, unit
by unit; and the gate for networks on grids. What does not: networks on tokens (`probe`, `soundness`), lists of layers
(`validators`), and real records.

It detects rules that are wrong for a layer, a size or a memory layout, clipping of rows instead of units, and rows that
depend on other units. Results may differ by the share `trial.tolerance`, as in `probe`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from dpsynth_platform.training import probe, trial, validators
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.hooked import HookedSums
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.loop import train_by
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.precision import exact_products
from dpsynth_platform.training.probe import Sums, length_of
from dpsynth_platform.training.rows import Make, RowDivision
from dpsynth_platform.training.soundness import NoWatch, draws_of, noise_alone
from dpsynth_platform.training.trial import Losses

UnitSums = Callable[[nn.Module, TrainingPlan, Batch, Tensor], Sums]
"""From network, plan, batch and weights [units, rows of each] to the sum of the units' clipped gradients, by name."""

ROWS = 3
"""Rows of a unit in a trial."""
WEIGHTS = ((1 / 3, 1 / 3, 1 / 3), (0.5, 0.25, 0.25), (0.5, 0.5, 0.0), (1.0, 0.0, 0.0))
"""Of the rows of each unit in a trial."""
CLIPS_NOTHING = 1e6
STABILITY = 0.01
_RECORDS = 4


def refuse_unsound_grid(
    model: nn.Module, plan: TrainingPlan, losses: Losses, make: Make, sums: type[GridSums] = GridSums
) -> None:
    """Checks a network and a plan for `loop.train_by`; the network is unchanged afterwards.

    Args:
        losses: the loss of each row.
        make: random rows.
        sums: how its training takes clipped sums.

    Raises:
        TrainingRefused: names every fault: place, reason, solution.
    """
    faults = validators.faults_of_model(model, longest=1, vocabulary=0, supports=sums.has_rule, tied_embedding=False)
    faults += probe.faults_of_sampler(draws_of(plan), probability=0.25)
    if not faults:  # numerical trials of an unsound network show nothing more
        faults += faults_of_unit_sums(model, unit_sums(losses, sums), losses, make, plan)
        faults += probe.faults_of_noise(noise_alone(model, plan), model, deviation=plan.noise_deviation)
        with trial.left_as_found(model):
            faults += probe.faults_of_step(model, lambda: _one_step(model, plan, losses, make, sums))
    validators.refuse(faults)


def unit_sums(losses: Losses, kind: Callable[[nn.Module, TrainingPlan, Losses], HookedSums] = GridSums) -> UnitSums:
    """The clipped sums that training takes of one physical batch."""

    def sums_of(model: nn.Module, plan: TrainingPlan, batch: Batch, weights: Tensor) -> Sums:
        with kind(model, plan, losses) as sums:
            sums.add(batch, weights)
        return sums.totals

    return sums_of


def faults_of_unit_sums(model: nn.Module, sums: UnitSums, losses: Losses, make: Make, plan: TrainingPlan) -> list[str]:
    """Faults of the clipped sums of this network. The network is restored.

    It is tested at random weights near the network's, since the last layer may be zero at first; in evaluation and in
    train mode; with the plan's clipping norm, one that clips about half of the units, and one that clips none.
    """
    found = _Trial(model, sums, losses, make, plan, trial.tolerance(model))
    frozen = trial.frozen_digests(model)
    with trial.left_as_found(model), exact_products():
        try:
            found.names()
            for training in (False, True):
                model.train(training)
                if not found.faults:
                    with probe.moved(model, found.generator):
                        found.at_these_weights()
        except Exception as error:  # random rows only: its message cannot quote the data
            found.add(f"the clipped sum fails on random rows with {type(error).__name__} ({error}); fix that first")
    for name, digest in trial.frozen_digests(model).items():
        if digest != frozen[name]:
            found.add(f"{name}: is frozen, but changes when the clipped sum is taken; nothing may write it")
    return list(found.faults)


@dataclass
class _Trial:
    """Trials of one function for clipped sums, with their findings in `faults`."""

    model: nn.Module
    sums: UnitSums
    losses: Losses
    make: Make
    plan: TrainingPlan
    near: float
    faults: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parameters = trial.trainable(self.model)
        self.generator = torch.Generator()
        self.generator.seed()

    def add(self, *sentences: str) -> None:
        self.faults.update(dict.fromkeys(sentences))

    def taken(self, plan: TrainingPlan, batch: Batch, weights: Tensor) -> dict[str, Tensor]:
        found = self.sums(self.model, plan, batch, weights)
        return {name: tensor.detach().double().clone() for name, tensor in found.items()}

    def names(self) -> None:
        self.add(*probe.faults_of_names(self.parameters, self.taken(self.plan, *self._units(1))))

    def at_these_weights(self) -> None:
        batch, weights = self._units(len(WEIGHTS))
        remembered = trial.state(self.model)
        gradients = [self._gradient(*_unit(batch, weights, unit)) for unit in range(len(weights))]
        norms = [length_of(gradient) for gradient in gradients]
        if not all(map(math.isfinite, norms)):
            self.add("the gradient of random rows is not finite; check the network's weights and precision")
            return
        for name in sorted(self.parameters):
            if not any(gradient[name].any() for gradient in gradients):
                self.add(f"{name}: no row moves it, so that training would add noise to it alone; freeze it")
        half = sum(sorted(norms)[1:3]) / 2
        for bound in (self.plan.clipping_norm, min(half, CLIPS_NOTHING), CLIPS_NOTHING):
            plan = replace(self.plan, clipping_norm=bound)
            expected = [
                {name: _factor(plan, norm) * value for name, value in gradient.items()}
                for gradient, norm in zip(gradients, norms, strict=True)
            ]
            self._clipped(plan, batch, weights, expected)
        self._not_finite(batch, weights)
        for path in trial.changed(remembered, trial.state(self.model)):
            self.add(f"{path}: changes when rows pass through; keep nothing from one batch for the next")

    def _clipped(self, plan: TrainingPlan, batch: Batch, weights: Tensor, expected: Sequence[Sums]) -> None:
        """Of each unit alone, of all together, and in another order."""
        lengths = list(map(length_of, expected))
        least = self.near * max(lengths)  # a gradient of zero may be a sum of terms that cancel up to rounding
        for unit, wanted in enumerate(expected):
            found = self.taken(plan, *_unit(batch, weights, unit))
            length = length_of(found)
            if not length <= plan.clipping_norm * (1 + self.near):
                self.add(
                    f"the contribution of one unit is {length / plan.clipping_norm:.3g} times as long as the clipping "
                    "norm; clip the mean gradient of each unit's rows, over all trainable parameters together"
                )
            self._compare(found, wanted, max(lengths[unit], least), "of one unit")
        reversed_rows = torch.arange(len(weights) * ROWS).view(-1, ROWS).flip(0).flatten()
        whole = {name: torch.stack([part[name] for part in expected]).sum(0) for name in expected[0]}
        self._compare(self.taken(plan, batch, weights), whole, sum(lengths), "of several units")
        other = {name: value[reversed_rows.to(value.device)] for name, value in batch.items()}
        self._compare(
            self.taken(plan, other, weights.flip(0)), whole, sum(lengths), "of several units in another order"
        )

    def _compare(self, found: Sums, wanted: Sums, length: float, what: str) -> None:
        difference = {name: found[name] - wanted[name] for name in wanted}
        distance = length_of(difference)
        if not distance <= 4 * self.near * length:
            worst = max(difference, key=lambda name: _of_nan(float(difference[name].norm())))
            share = distance / length if length else math.inf
            self.add(
                f"{worst}: its clipped gradient {what} is not that of automatic differentiation (by {share:.2g} of its "
                "norm); its layer's rule is wrong for this size or memory "
                "layout, a row depends on others, or rows are clipped before their mean"
            )

    def _not_finite(self, batch: Batch, weights: Tensor) -> None:
        """A unit whose gradient overflows contributes zero: a NaN in the sum would reveal it."""
        spoiled = {name: value.clone() for name, value in batch.items()}
        for value in spoiled.values():
            if value.is_floating_point():
                value[-ROWS:] = math.nan
        rest = {name: value[:-ROWS] for name, value in batch.items()}
        found, wanted = self.taken(self.plan, spoiled, weights), self.taken(self.plan, rest, weights[:-1])
        if not length_of({name: found[name] - wanted[name] for name in wanted}) <= 2 * self.near * length_of(wanted):
            self.add(
                "a unit whose gradient is not finite is not left out of the sum, and would be seen in spite of the "
                "noise; set its contribution to zero"
            )

    def _units(self, number: int) -> tuple[Batch, Tensor]:
        device = trial.device_of(self.model)
        batch = {name: value.to(device) for name, value in self.make(number * ROWS).items()}
        return batch, torch.tensor(WEIGHTS[:number], device=device)

    def _gradient(self, batch: Batch, weights: Tensor) -> dict[str, Tensor]:
        """The gradient of one unit's mean loss, row by row, by automatic differentiation alone."""
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in self.parameters.items()}
        for row, weight in enumerate(weights.flatten().tolist()):
            loss = self.losses(self.model, {name: value[row : row + 1] for name, value in batch.items()}).sum()
            gradients = torch.autograd.grad(loss, list(self.parameters.values()), allow_unused=True)
            for value, gradient in zip(total.values(), gradients, strict=True):
                if gradient is not None:
                    value.add_(gradient, alpha=weight)
        return total


def _unit(batch: Batch, weights: Tensor, unit: int) -> tuple[Batch, Tensor]:
    return {name: value[unit * ROWS : (unit + 1) * ROWS] for name, value in batch.items()}, weights[unit : unit + 1]


def _factor(plan: TrainingPlan, norm: float) -> float:
    """What clipping does to a gradient of a norm, by the definitions that `plan.TrainingPlan` names."""
    if plan.clipping == "automatic":
        return plan.clipping_norm / (norm + STABILITY)
    return min(1.0, plan.clipping_norm / norm) if norm else 1.0


def _of_nan(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _one_step(model: nn.Module, plan: TrainingPlan, losses: Losses, make: Make, kind: type[GridSums]) -> None:
    """One step of the loop at the full learning rate with all made-up records."""
    once = replace(plan, units=plan.batch_size, steps=1, warmup_steps=0)
    units = None if plan.sampled == "record" else [list(range(_RECORDS))]
    device = trial.device_of(model)
    with kind(model, once, losses) as sums:
        division = RowDivision(_RECORDS, 1, lambda rows, _: rows, plan.batch_size, device)
        train_by(
            sums,
            once,
            _MadeUp(make(_RECORDS)),
            division,
            journal=trial.NoJournal(),
            health=NoWatch(),
            units=units,
            device=str(device),
        )


class _MadeUp:
    """Random records, each one row: `interface.Examples`."""

    max_length = 1

    def __init__(self, rows: Mapping[str, Tensor]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return _RECORDS

    def batch(self, indices: Sequence[int]) -> Batch:
        return {name: rows[list(indices)] for name, rows in self._rows.items()}
