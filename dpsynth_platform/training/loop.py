"""DP-SGD and DP-Adam: sample, clip, sum, add noise, step; as often as one sealed plan says.

What belongs here: the order of things, and what happens when memory runs out or training goes on after a crash. What
does not: each of the things (`sampler`, `clipping`, `noise`, `optimizer`), and where examples come from.

**What is private.** Every step is one `SampledGaussianEvent` of the plan: units are drawn by `PoissonSampler` with the
plan's q; the sum of their gradients, each clipped to the plan's norm C, gets noise of the plan's deviation once; the
denominator is the planned batch size. Whatever follows is post-processing. An empty sample is a step like any other.
A step is counted durably before its units are drawn. After a crash the last steps are executed again with other
samples and other noise: each execution is a mechanism of its own, and the plan has paid for as many as may occur.
A training that is told to stop ends the step under way and keeps its state, so that no step is lost; where a step takes
longer than a launcher waits, the state before it is kept, and that step is.

**What leaves.** Parameters, the optimizer's state and the noised gradients, all of them private; step numbers. No loss,
norm or size of a sample is returned, logged or handed on. How long a step takes is not hidden from the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.training import physical
from dpsynth_platform.training.adapter import check_trainable
from dpsynth_platform.training.clipping import ClippedSums
from dpsynth_platform.training.interface import Batch, Examples, Health, Journal, TrainingState
from dpsynth_platform.training.memory import BatchSize
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.optimizer import Optimizer
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.precision import EXACT, lower_frozen, precision_of_training
from dpsynth_platform.training.sampler import PoissonSampler
from dpsynth_platform.training.stopping import Stopping
from dpsynth_platform.training.world import World


@dataclass(frozen=True)
class Trained:
    """What may be said about a complete training.

    Attributes:
        steps: how many steps the model has taken.
        executed: how many were executed, those that a crash made void included.
    """

    steps: int
    executed: int


def train(
    model: Any,
    plan: TrainingPlan,
    examples: Examples,
    *,
    journal: Journal,
    health: Health,
    units: Sequence[Sequence[int]] | None = None,
    rows: int = 1,
    progress: Progress = silent,
    device: str = "cpu",
    precision: torch.dtype | None = None,
    size: BatchSize | None = None,
) -> Trained:
    """Trains a causal language model in place; goes on from the journal's last state.

    Dropout is off: noise regularizes enough. Layers compute in the precision that suits device and model
    (`precision.precision_of_training`), and frozen weights are left in it; trained ones are of single precision
    throughout.
    Where several processes train together (`world`), each is given its own share of examples, and only the first one's
    journal is used.

    Args:
        model: from transformers, as `adapter.with_adapter` leaves it.
        plan: the one that was paid for.
        examples: the records. Sensitive.
        journal: counts executed steps and keeps states.
        health: is shown the noised gradients.
        units: the positions of the examples of each unit, at least one: a user's, where users are sampled, or a
            record's where records are chunked. Sampled together, and their mean gradient clipped as one. None: each
            example is a record. Sensitive.
        rows: the most examples of a unit. Public.
        progress: called as `progress("training", step, plan.steps)`.
        device: torch's.
        precision: in which layers compute; None: the device's.
        size: of physical batches in earlier attempts, where a device does not say that its memory is short.

    Raises:
        MechanismFailed: the model is not the plan's, a record does not fit in memory, health says stop, a state is
            of another model, or all steps that were paid for have been executed. What was executed stays spent.
        KeyboardInterrupt: SIGINT or SIGTERM came, in the main thread; raised once the state is kept.
    """
    if plan.sampled == "user" and units is None:
        raise MechanismFailed("the plan samples users; accepted: the positions of each one's examples")
    check_trainable(model, plan)
    place = torch.device(device)
    precision = precision or precision_of_training(place, model)
    model.to(place).eval()
    lower_frozen(model, precision)
    with ClippedSums(model, plan, precision) as sums:
        training = _Training(model, plan, examples, units, sums, place, size, rows)
        start = training.resume(journal)
        executed = start
        with Stopping() as stopping:
            for step in range(start + 1, plan.steps + 1):
                if stopping.asked:
                    training.keep(step - 1, journal)
                    break
                executed = training.execute(step, journal, health, stopping)
                progress("training", step, plan.steps)
        if stopping.asked:  # what was the signal's handler before may have let it pass
            raise KeyboardInterrupt
    return Trained(plan.steps, executed)


class _Training:
    """The parts of one training."""

    def __init__(
        self,
        model: Any,
        plan: TrainingPlan,
        examples: Examples,
        units: Sequence[Sequence[int]] | None,
        sums: ClippedSums,
        device: torch.device,
        size: BatchSize | None,
        rows: int = 1,
    ) -> None:
        self._plan, self._examples, self._units, self._sums, self._device = plan, examples, units, sums, device
        self._sampler = PoissonSampler(plan, len(examples) if units is None else len(units))
        self._noise = GaussianNoise()
        self._optimizer = Optimizer(plan, sums.parameters)
        self._world = World()
        self._tokens = physical.first_size(sums, model, examples.max_length, device, rows)
        if device.type not in physical.TRIED:  # all processes share the machine's memory
            if size is not None:
                self._tokens = size.begun(self._tokens, examples.max_length)
            self._tokens = self._world.number(self._tokens, device)

    def resume(self, journal: Journal) -> int:
        """Takes over the last state; returns how many steps the model has taken."""
        state = journal.latest() if self._world.first else None
        if state is not None:
            self._load(state)
        self._world.share_(self._tensors().values())
        return self._world.number(0 if state is None else state.step, self._device)

    def execute(self, step: int, journal: Journal, health: Health, stopping: Stopping) -> int:
        """One step of DP-SGD; returns how many were executed so far."""
        executed = self._world.number(journal.begin_step() if self._world.first else 0, self._device)
        if executed > self._plan.paid_steps:
            raise MechanismFailed(
                f"step {executed} of {self._plan.paid_steps} that were paid for; accepted: a new entry for another "
                "training, with a larger replay allowance where it is interrupted often"
            )
        units = [[int(unit)] if self._units is None else self._units[unit] for unit in self._sampler.draw()]
        self._sum_up(units, partial(self._heed, step, journal, stopping))
        gradients = self._noised_means()
        health.step(step, gradients)
        self._optimizer.step(step, gradients)
        if self._world.first:
            journal.save(TrainingState(step, self._tensors()))
        return executed

    def keep(self, step: int, journal: Journal) -> None:
        """Keeps the state after a step, which is the last that is complete."""
        if self._world.first:
            journal.save(TrainingState(step, self._tensors()), now=True)

    def _heed(self, step: int, journal: Journal, stopping: Stopping) -> None:
        """Before the optimizer's step the model is as it was after the step before: that much is kept at once."""
        if stopping.asked:
            self.keep(step - 1, journal)
        if stopping.overdue:
            raise KeyboardInterrupt

    def _sum_up(self, units: list[Sequence[int]], heed: Callable[[], None]) -> None:
        """Sums the clipped gradients of a logical batch; where memory runs out, again in smaller parts.

        Args:
            units: the rows of each.
            heed: called before each part.
        """
        rows = self._examples.batch([record for unit in units for record in unit]) if units else {}
        sizes, tokens = [len(unit) for unit in units], self._tokens

        def work() -> None:
            self._sums.reset()
            for parts in self._parts(rows, sizes, tokens) if units else ():
                heed()
                if len(parts) == 1:
                    self._sums.add(parts[0].batch, parts[0].weights)
                else:
                    self._sums.add_large((part.batch, part.weights) for part in parts)

        while not physical.fits(work):  # for this step alone: that it did not fit may hang on its records
            tokens = physical.smaller(tokens, self._examples.max_length)

    def _parts(self, rows: Batch, sizes: list[int], tokens: int) -> Iterator[list[physical.Part]]:
        if self._sums.precision != EXACT:
            longest, planned = self._examples.max_length, self._plan.batch_size
            return physical.parts_alike(rows, sizes, tokens, self._device, longest, planned)
        return physical.parts_of(rows, sizes, tokens, self._device)

    def _noised_means(self) -> dict[str, torch.Tensor]:
        """Sums over all processes, noised once, over the planned batch size: private from here on."""
        totals = self._sums.totals
        self._world.sum_(totals.values())
        if self._world.first:
            for total in totals.values():
                self._noise.add_(total, self._plan.noise_deviation)
        self._world.share_(totals.values())
        return {name: (total / self._plan.batch_size).float() for name, total in totals.items()}

    def _tensors(self) -> dict[str, torch.Tensor]:
        """All that a state holds, by name."""
        return {f"parameter.{name}": value for name, value in self._sums.parameters.items()} | self._optimizer.state

    @torch.no_grad()
    def _load(self, state: TrainingState) -> None:
        wanted = self._tensors()
        if {name: value.shape for name, value in wanted.items()} != {
            name: value.shape for name, value in state.tensors.items()
        }:
            raise MechanismFailed("the saved state is of another model or optimizer; accepted: one of this plan's")
        for name, value in wanted.items():
            value.copy_(state.tensors[name])
