"""DP-SGD and DP-Adam: sample, clip, sum, add noise, step; as often as one sealed plan says.

What belongs here: the order of these operations, and the handling of short memory and crashes. What does not: the
operations (`sampler`, `clipping`, `noise`, `optimizer`), and the origin of examples.

**Privacy.** Every step is one `SampledGaussianEvent` of the plan: `PoissonSampler` draws units with the plan's q; the
sum of their gradients, each clipped to the plan's norm C, gets noise of the plan's deviation once; the denominator is
the planned batch size. All else is post-processing. An empty sample is an ordinary step. A step is counted durably
before its units are drawn. After a crash the last steps are executed again with other samples and other noise: each
execution is a separate mechanism, which the plan's allowance pays for. On a request to stop, the training completes the
current step and keeps its state, so that no step is lost; if a step takes longer than a launcher waits, the state
before it is kept, and that step is lost.

**Output.** Parameters, the optimizer's state and the noised gradients, all differentially private; step numbers. No
loss, norm or sample size is returned, logged or passed on. The duration of a step is visible to the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.training import physical
from dpsynth_platform.training.adapter import check_trainable
from dpsynth_platform.training.clipping import ClippedSums
from dpsynth_platform.training.hooked import HookedSums
from dpsynth_platform.training.interface import Averages, Division, Examples, Health, Journal, TrainingState
from dpsynth_platform.training.memory import BatchSize
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.optimizer import Optimizer
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.precision import lower_frozen, precision_of_training
from dpsynth_platform.training.sampler import PoissonSampler
from dpsynth_platform.training.stopping import Stopping
from dpsynth_platform.training.world import World


@dataclass(frozen=True)
class Trained:
    """The public facts of a complete training: the model's steps, and executed ones including those lost in crashes."""

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
    """Trains a language model in place, from the journal's last state.

    Dropout is off: noise regularizes enough. Layers compute in the precision for device and model
    (`precision.precision_of_training`), and frozen weights stay in it; trained ones have single precision. Of several
    processes (`world`), each has its own share of examples, and only the first one's journal is used.

    Args:
        model: from transformers, by `adapter.with_adapter`.
        plan: the paid one.
        units: positions of the examples of each unit, at least one: a user's, or those of a chunked record. They are
            sampled together, and their mean gradient is clipped. None: each example is a unit. Sensitive.
        rows: the most examples of a unit. Public.
        precision: of the layers; None: the device's.
        size: of physical batches in earlier attempts, for devices without errors on short memory.

    Raises:
        MechanismFailed: the model or a state is not the plan's, a record does not fit in memory, `health` stops the
            training, or all paid steps have been executed. Executed steps stay spent.
        KeyboardInterrupt: SIGINT or SIGTERM came, in the main thread; raised after keeping the state.
    """
    check_trainable(model, plan)
    place = torch.device(device)
    precision = precision or precision_of_training(place, model)
    model.to(place).eval()
    lower_frozen(model, precision)
    with ClippedSums(model, plan, precision) as sums:
        division = physical.TokenDivision(sums, model, plan, examples.max_length, place, rows)
        return train_by(
            sums,
            plan,
            examples,
            division,
            journal=journal,
            health=health,
            units=units,
            progress=progress,
            device=device,
            size=size,
        )


def train_by(
    sums: HookedSums,
    plan: TrainingPlan,
    examples: Examples,
    division: Division,
    *,
    journal: Journal,
    health: Health,
    units: Sequence[Sequence[int]] | None = None,
    progress: Progress = silent,
    device: str = "cpu",
    size: BatchSize | None = None,
    averages: Averages | None = None,
) -> Trained:
    """Trains any network in place by its entered `sums`, from the journal's last state.

    Other arguments and errors are those of `train`.

    Args:
        sums: over the network's trainable parameters, which are on the device.
        division: of logical batches into parts that fit in memory.
        averages: of parameters, which follow every step.
    """
    if plan.sampled == "user" and units is None:
        raise MechanismFailed("the plan samples users, but no units are given; accepted: positions of their examples")
    training = _Training(sums, plan, examples, units, division, torch.device(device), size, averages)
    start = training.resume(journal)
    executed = start
    with Stopping() as stopping:
        for step in range(start + 1, plan.steps + 1):
            if stopping.requested:
                training.keep(step - 1, journal)
                break
            executed = training.execute(step, journal, health, stopping)
            progress("training", step, plan.steps)
    if stopping.requested:  # the signal's previous handler may have ignored it
        raise KeyboardInterrupt
    return Trained(plan.steps, executed)


class _Training:
    def __init__(
        self,
        sums: HookedSums,
        plan: TrainingPlan,
        examples: Examples,
        units: Sequence[Sequence[int]] | None,
        division: Division,
        device: torch.device,
        size: BatchSize | None,
        averages: Averages | None,
    ) -> None:
        self._plan, self._examples, self._units, self._sums, self._device = plan, examples, units, sums, device
        self._sampler = PoissonSampler(plan, len(examples) if units is None else len(units))
        self._noise = GaussianNoise()
        self._optimizer, self._averages = Optimizer(plan, sums.parameters), averages
        self._world = World()
        self._division, self._size = division, division.size
        if device.type not in physical.TRIED:  # all processes share the machine's memory
            if size is not None:
                self._size = size.begin(self._size, division.least)
            self._size = self._world.number(self._size, device)

    def resume(self, journal: Journal) -> int:
        """Loads the last state; returns the number of the model's steps."""
        state = journal.latest() if self._world.first else None
        if state is not None:
            self._load(state)
        self._world.share_(self._tensors().values())
        return self._world.number(0 if state is None else state.step, self._device)

    def execute(self, step: int, journal: Journal, health: Health, stopping: Stopping) -> int:
        """One step of DP-SGD; returns the number of executed steps."""
        executed = self._world.number(journal.begin_step() if self._world.first else 0, self._device)
        if executed > self._plan.paid_steps:
            raise MechanismFailed(
                f"step {executed}, but the plan pays for {self._plan.paid_steps}; accepted: a new entry for another "
                "training, with a larger replay allowance where it is interrupted often"
            )
        units = [[int(unit)] if self._units is None else self._units[unit] for unit in self._sampler.draw()]
        self._sum_up(units, partial(self._check_stop, step, journal, stopping))
        gradients = self._noised_means()
        health.step(step, gradients)
        self._optimizer.step(step, gradients)
        if self._averages is not None:
            self._averages.step(step)
        if self._world.first:
            journal.save(TrainingState(step, self._tensors()))
        return executed

    def keep(self, step: int, journal: Journal) -> None:
        """Keeps the state after the last complete step."""
        if self._world.first:
            journal.save(TrainingState(step, self._tensors()), now=True)

    def _check_stop(self, step: int, journal: Journal, stopping: Stopping) -> None:
        """Before the optimizer's step the model is in the state after the previous step, which is kept at once."""
        if stopping.requested:
            self.keep(step - 1, journal)
        if stopping.overdue:
            raise KeyboardInterrupt

    def _sum_up(self, units: list[Sequence[int]], check_stop: Callable[[], None]) -> None:
        """Sums the clipped gradients of a logical batch; if memory runs out, again in smaller parts.

        `units` has the rows of each unit; `check_stop` is called before each part.
        """
        rows = self._examples.batch([record for unit in units for record in unit]) if units else {}
        sizes, size = [len(unit) for unit in units], self._size

        def work() -> None:
            self._sums.reset()
            for parts in self._division.parts(rows, sizes, size) if units else ():
                check_stop()
                if len(parts) == 1:
                    self._sums.add(parts[0].batch, parts[0].weights)
                else:
                    self._sums.add_large((part.batch, part.weights) for part in parts)

        while not physical.fits(work):  # for this step alone: its records may be the reason
            size = self._division.smaller(size)

    def _noised_means(self) -> dict[str, torch.Tensor]:
        """Sums over all processes, noised once, over the planned batch size: differentially private."""
        totals = self._sums.totals
        self._world.sum_(totals.values())
        if self._world.first:
            for total in totals.values():
                self._noise.add_(total, self._plan.noise_deviation)
        self._world.share_(totals.values())
        return {name: (total / self._plan.batch_size).float() for name, total in totals.items()}

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The content of a state, by name."""
        averages = {} if self._averages is None else dict(self._averages.state)
        parameters = {f"parameter.{name}": value for name, value in self._sums.parameters.items()}
        return parameters | self._optimizer.state | averages

    @torch.no_grad()
    def _load(self, state: TrainingState) -> None:
        wanted = self._tensors()
        if {name: value.shape for name, value in wanted.items()} != {
            name: value.shape for name, value in state.tensors.items()
        }:
            raise MechanismFailed("the saved state is of another model or optimizer; accepted: one of this plan")
        for name, value in wanted.items():
            value.copy_(state.tensors[name])
