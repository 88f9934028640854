"""Trains any network through all seams: the journal, checkpoints, health, and the result on disk.

What belongs here: the order of these parts, for any network and any records. What does not: the parts (`training`), and
what is trained: a network with its loss, rows, records and gate (`images`, `neural`). A directory holds

    unread          until training begins to read records
    training/       the journal of executed steps and the encrypted checkpoints, during the training
    weights.safetensors, trained.json     the weights that are kept, once the training is complete
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsynth_platform.foundation.errors import GrantRefused, ResumeRefused
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.storage import HeldByAnother, held
from dpsynth_platform.privacy.events import DpEvent, Sampled
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import Checkpoints as Job
from dpsynth_platform.synth.interface import MechanismRun
from dpsynth_platform.synth.text.unread import begin_reading, declare_unread, is_unread
from dpsynth_platform.training.checkpoints import CheckpointPolicy, Checkpoints, newest_step
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.health import Watch
from dpsynth_platform.training.hooked import HookedSums
from dpsynth_platform.training.interface import Averages, Examples, Journal
from dpsynth_platform.training.journal import StepJournal
from dpsynth_platform.training.journal import can_resume as journal_can_resume
from dpsynth_platform.training.loop import train_by
from dpsynth_platform.training.memory import BatchSize, remembered_size
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.resuming import ResumableJournal
from dpsynth_platform.training.rows import MOST_ROWS, Draws, Make, RowDivision, first_rows
from dpsynth_platform.training.spending_progress import SpendingProgress
from dpsynth_platform.training.trial import Losses
from dpsynth_platform.training.weights import is_trained, save_weights

TRAINING, CHECKPOINTS, SIZE = "training", "checkpoints", "physical-batch"
"""Names within the directory."""


class TrainedNetwork(Protocol):
    """What a training needs of sealed parameters. Public."""

    @property
    def training(self) -> TrainingPlan: ...

    def event_of(self, steps: int, guarantee: Guarantee) -> DpEvent:
        """The cost of so many executed steps, and of all else that the plan pays for."""


class Kept(Averages, Protocol):
    """Weights that follow those of the trained network: all that a complete training keeps."""

    @property
    def values(self) -> Mapping[str, Tensor]:
        """By name."""


class TrainingRecords(Examples, Protocol):
    """The records of a training. Sensitive, including their number."""

    def units(self, sampled: Sampled) -> list[list[int]] | None:
        """The positions of each owner's records, where owners are sampled; None: each record is a unit."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A network that the gate has tried with these losses and rows, and what its training needs.

    Attributes:
        losses: of each row.
        drawn: makes so many rows of each record.
        made_up: makes rows that read no record.
        draws: rows of each record.
        kept: from the trainable parameters, by name, to what follows them.
        warm_up: trains the network on what costs nothing more; called until a first checkpoint is kept. It must be able
            to continue after an interruption, and its cost, if any, is in the plan's event.
        sums: how clipped sums are taken.
        most_rows: of a pass on a CPU.
    """

    network: nn.Module
    losses: Losses
    drawn: Draws
    made_up: Make
    draws: int
    kept: Callable[[Mapping[str, Tensor]], Kept]
    warm_up: Callable[[], None] = lambda: None
    sums: Callable[[nn.Module, TrainingPlan, Losses], HookedSums] = GridSums
    most_rows: int = MOST_ROWS["cpu"]


Ready = TypeVar("Ready", bound=Prepared)


def units_by_owner(owners: npt.NDArray[np.int64]) -> list[list[int]]:
    """The positions of each owner's records, from a number for each record's owner."""
    order = np.argsort(owners, kind="stable")
    ends = np.flatnonzero(np.diff(owners[order])) + 1
    return [part.tolist() for part in np.split(order, ends)] if len(order) else []


def train_network(
    run: MechanismRun,
    parameters: TrainedNetwork,
    directory: Path,
    prepare: Callable[[], Ready],
    read: Callable[[Ready], TrainingRecords],
) -> None:
    """Trains until the weights are complete, then deletes what only training needed.

    Continues an interrupted training within the steps that its plan has paid for.

    Args:
        prepare: called before any record is read for training; raises if the gate finds a fault.
        read: the records; called once they may be read.

    Raises:
        GrantRefused: the job has no key for checkpoints.
        ResumeRefused: the journal is missing, damaged or in use.
        MechanismFailed: training stopped; its cost stays spent.
    """
    if run.checkpoints is None:
        raise GrantRefused("the job has no key for checkpoints; accepted: a job of a training, with its key")
    try:
        with held(directory):
            if not is_trained(directory):
                _train(run, run.checkpoints, parameters, directory, prepare(), read)
    except HeldByAnother:
        raise ResumeRefused(f"{directory}: another process is training here; wait for its end, or end it") from None


def _train(
    run: MechanismRun,
    job: Job,
    parameters: TrainedNetwork,
    directory: Path,
    ready: Ready,
    read: Callable[[Ready], TrainingRecords],
) -> None:
    training, place = parameters.training, directory / TRAINING
    if not job.resume:
        declare_unread(directory)
    if newest_step(place / CHECKPOINTS) == 0:
        ready.warm_up()
    begins = is_unread(directory)
    if begins:
        begin_reading(directory)
    guarantee = Guarantee.from_json(run.plan.guarantee)
    with ExitStack() as stack:
        steps = stack.enter_context(StepJournal(place, training.steps, training.replay_allowance, resuming=not begins))
        size = stack.enter_context(remembered_size(place / SIZE))
        states = Checkpoints(place / CHECKPOINTS, job.key, plan_digest=run.plan.digest, entry_id=run.grant.entry_id)
        policy = CheckpointPolicy.for_allowance(training.replay_allowance)
        progress = SpendingProgress(
            run.progress,
            lambda executed: parameters.event_of(executed, guarantee),
            guarantee.delta,
            training,
            lambda: steps.executed,
        )
        journal = ResumableJournal(steps, states, policy, lambda stage: run.progress(stage, 1, 1))
        weights = train_once(ready, training, read(ready), journal, progress=progress, device=run.device, size=size)
        save_weights(weights, directory, steps.executed)
        shutil.rmtree(place)  # while the journal is held: no other process can continue what is complete


def train_once(
    ready: Prepared,
    training: TrainingPlan,
    records: TrainingRecords,
    journal: Journal,
    *,
    progress: Progress,
    device: str = "cpu",
    size: BatchSize | None = None,
) -> Mapping[str, Tensor]:
    """Trains from the journal's last state; the weights that are kept, by name."""
    place = torch.device(device)
    with ready.sums(ready.network, training, ready.losses) as sums:
        kept = ready.kept(sums.parameters)
        rows = first_rows(sums, ready.network, ready.made_up, place, ready.most_rows)
        train_by(
            sums,
            training,
            records,
            RowDivision(rows, ready.draws, ready.drawn, training.batch_size, place),
            journal=journal,
            health=Watch(training, sums.parameters),
            units=records.units(training.sampled),
            progress=progress,
            device=device,
            size=size,
            averages=kept,
        )
    return kept.values


def can_continue(directory: Path) -> bool:
    """Whether an interrupted training is complete, has not read a record, or has enough paid steps left to finish."""
    place = directory / TRAINING
    return is_trained(directory) or is_unread(directory) or journal_can_resume(place, newest_step(place / CHECKPOINTS))
