"""Trains a network on pictures through all seams: the journal, checkpoints, health, and the result on disk.

What belongs here: the records of a training, and the order of these parts for any network. What does not: the parts
(`training`), and what is trained: a network with its loss, rows and gate (`diffusion_training`, `gan_training`). A
directory holds

    unread          until training begins to read records
    training/       the journal of executed steps and the encrypted checkpoints, during the training
    weights.safetensors, trained.json     the weights that are kept, once the training is complete
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsynth_platform.foundation.errors import GrantRefused, ResumeRefused
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.storage import EXAMPLES, HeldByAnother, held
from dpsynth_platform.privacy.events import DpEvent, Sampled
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.images.diffusion_loss import as_records
from dpsynth_platform.synth.images.layout import Classes, ImageLayout, Pictures
from dpsynth_platform.synth.images.picture_codecs import Codec
from dpsynth_platform.synth.interface import Checkpoints as Job
from dpsynth_platform.synth.interface import MechanismRun
from dpsynth_platform.synth.text.unread import begin_reading, declare_unread, is_unread
from dpsynth_platform.training.checkpoints import CheckpointPolicy, Checkpoints, newest_step
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.health import Watch
from dpsynth_platform.training.interface import Averages, Batch
from dpsynth_platform.training.journal import StepJournal
from dpsynth_platform.training.journal import can_resume as journal_can_resume
from dpsynth_platform.training.loop import train_by
from dpsynth_platform.training.memory import remembered_size
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.resuming import ResumableJournal
from dpsynth_platform.training.rows import Draws, Make, RowDivision, first_rows
from dpsynth_platform.training.spending_progress import SpendingProgress
from dpsynth_platform.training.trial import Losses
from dpsynth_platform.training.weights import is_trained, save_weights

TRAINING, CHECKPOINTS, SIZE = "training", "checkpoints", "physical-batch"
"""Names within the directory."""
_PIXELS = "pixels.u1"


class TrainedPictures(Protocol):
    """What a training needs of sealed parameters. Public."""

    @property
    def layout(self) -> ImageLayout: ...

    @property
    def training(self) -> TrainingPlan: ...

    def event_of(self, steps: int, guarantee: Guarantee) -> DpEvent:
        """The cost of so many executed steps, and of all else that the plan pays for."""


class Kept(Averages, Protocol):
    """Weights that follow those of the trained network: all that a complete training keeps."""

    @property
    def values(self) -> Mapping[str, Tensor]:
        """By name."""


@dataclass(frozen=True)
class Prepared:
    """A network that the gate has tried with these losses and rows, and what its training needs.

    Attributes:
        codec: from pictures to what it learns.
        losses: of each row.
        drawn: makes so many rows of each record.
        made_up: makes rows that read no record.
        draws: rows of each record.
        kept: from the trainable parameters, by name, to what follows them.
        warm_up: trains the network on pictures that cost nothing more; called until a first checkpoint is kept. It must
            be able to continue after an interruption, and its cost, if any, is in the plan's event.
    """

    network: nn.Module
    codec: Codec
    losses: Losses
    drawn: Draws
    made_up: Make
    draws: int
    kept: Callable[[Mapping[str, Tensor]], Kept]
    warm_up: Callable[[], None] = lambda: None


class PictureRecords:
    """The records of a training, `training.interface.Examples`. Sensitive, including their number.

    Args:
        pixels: or latents; shape (records, height, width, channels).
        classes: shape (records,).
        owners: a number for each record's owner; None where they are not needed.
        draws: rows of a record.
    """

    def __init__(
        self, pixels: npt.NDArray[Any], classes: Classes, owners: npt.NDArray[np.int64] | None = None, draws: int = 1
    ) -> None:
        self._pixels, self._classes, self._owners, self.max_length = pixels, classes, owners, draws

    def __len__(self) -> int:
        return len(self._classes)

    def batch(self, indices: Sequence[int]) -> Batch:
        """`pixels` and `classes`, as `diffusion_loss.Rows` takes them."""
        chosen = np.asarray(indices, dtype=np.int64)
        return {"pixels": as_records(self._pixels[chosen]), "classes": torch.from_numpy(self._classes[chosen])}

    def units(self, sampled: Sampled) -> list[list[int]] | None:
        """The positions of each owner's records, where owners are sampled; None: each record is a unit."""
        if sampled == "record" or self._owners is None:
            return None
        order = np.argsort(self._owners, kind="stable")
        ends = np.flatnonzero(np.diff(self._owners[order])) + 1
        return [part.tolist() for part in np.split(order, ends)] if len(order) else []


def read_records(
    batches: Iterable[Pictures],
    codec: Codec,
    directory: Path,
    *,
    owners: bool,
    draws: int,
    device: str = "cpu",
) -> PictureRecords:
    """The records of the bounded table (`ImageLayout.read`): pixels in a file that has no name, latents in memory.

    The file loses its name before the first byte is written, so that pixels are deleted when the process ends, however
    it ends. `directory` is a new one.
    """
    shutil.rmtree(directory, ignore_errors=True)
    classes: list[Classes] = []
    named: list[str] = []
    with _unnamed(directory) if not codec.latent else nullcontext(io.BytesIO()) as stream:
        for part in batches:
            stream.write(np.ascontiguousarray(codec.encoded(part.pixels, device)).tobytes())
            classes.append(part.classes)
            if owners:
                named.extend(part.owners or ())
        numbers = np.concatenate([np.empty(0, np.int64), *classes])
        shape = (len(numbers), *codec.form.shape)
        pixels: npt.NDArray[Any]
        if isinstance(stream, io.BytesIO):
            pixels = np.frombuffer(stream.getbuffer(), np.float32).reshape(shape)
        else:
            stream.flush()
            pixels = np.memmap(stream, np.uint8, "r", shape=shape) if len(numbers) else np.empty(shape, np.uint8)
    mine = np.unique(np.array(named, dtype=np.str_), return_inverse=True)[1].astype(np.int64) if owners else None
    return PictureRecords(pixels, numbers, mine, draws)


@contextmanager
def _unnamed(directory: Path) -> Iterator[BinaryIO]:
    with private_files(), (private_directory(directory) / _PIXELS).open("x+b") as stream:
        shutil.rmtree(directory)
        yield stream


def train_prepared(
    run: MechanismRun, parameters: TrainedPictures, directory: Path, prepare: Callable[[], Prepared]
) -> None:
    """Trains until the weights are complete, then deletes what only training needed.

    Continues an interrupted training within the steps that its plan has paid for.

    Args:
        prepare: called before any record is read; raises if the gate finds a fault.

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
                _train(run, run.checkpoints, parameters, directory, prepare())
    except HeldByAnother:
        raise ResumeRefused(f"{directory}: another process is training here; wait for its end, or end it") from None


def _train(run: MechanismRun, job: Job, parameters: TrainedPictures, directory: Path, ready: Prepared) -> None:
    training, place, device = parameters.training, directory / TRAINING, torch.device(run.device)
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
        by_owner = training.sampled == "user"
        records = read_records(
            parameters.layout.read(run.bounded, owners=by_owner),
            ready.codec,
            directory / EXAMPLES,
            owners=by_owner,
            draws=ready.draws,
            device=run.device,
        )
        policy = CheckpointPolicy.for_allowance(training.replay_allowance)
        sums = stack.enter_context(GridSums(ready.network, training, ready.losses))
        kept = ready.kept(sums.parameters)
        train_by(
            sums,
            training,
            records,
            RowDivision(first_rows(sums, ready.network, ready.made_up, device), ready.draws, ready.drawn, device),
            journal=ResumableJournal(steps, states, policy, lambda stage: run.progress(stage, 1, 1)),
            health=Watch(training, sums.parameters),
            units=records.units(training.sampled),
            progress=SpendingProgress(
                run.progress,
                lambda executed: parameters.event_of(executed, guarantee),
                guarantee.delta,
                training,
                lambda: steps.executed,
            ),
            device=run.device,
            size=size,
            averages=kept,
        )
        save_weights(kept.values, directory, steps.executed)
        shutil.rmtree(place)  # while the journal is held: no other process can continue what is complete


def can_continue(directory: Path) -> bool:
    """Whether an interrupted training is complete, has not read a record, or has enough paid steps left to finish."""
    place = directory / TRAINING
    return is_trained(directory) or is_unread(directory) or journal_can_resume(place, newest_step(place / CHECKPOINTS))
