"""Trains a diffusion model through all seams: the gate, the journal, checkpoints, health, and the result on disk.

What belongs here: the order of these parts, the records of a training, and the warm-up on pictures that cost nothing
more. What does not: the parts (`training`), the network (`unet`) and its loss (`diffusion_loss`). A directory holds

    unread          until training begins to read records
    training/       the journal of executed steps and the encrypted checkpoints, during the training
    weights.safetensors, trained.json     the averaged weights, once the training is complete
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dpsynth_platform.foundation.errors import GrantRefused, ResumeRefused
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import EXAMPLES, HeldByAnother, held
from dpsynth_platform.privacy.events import DpEvent, Sampled
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.images.diffusion_loss import Rows, as_records, losses
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss, WarmUpNumbers
from dpsynth_platform.synth.images.finetune_network import Pretrained
from dpsynth_platform.synth.images.layout import Classes, ImageLayout, Pictures
from dpsynth_platform.synth.images.picture_codecs import Codec
from dpsynth_platform.synth.images.unet import UNet
from dpsynth_platform.synth.interface import Checkpoints as Job
from dpsynth_platform.synth.interface import MechanismRun
from dpsynth_platform.synth.text.unread import begin_reading, declare_unread, is_unread
from dpsynth_platform.training.averages import ExponentialAverage
from dpsynth_platform.training.checkpoints import CheckpointPolicy, Checkpoints, newest_step
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.health import Watch
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.journal import StepJournal
from dpsynth_platform.training.journal import can_resume as journal_can_resume
from dpsynth_platform.training.loop import train_by
from dpsynth_platform.training.memory import remembered_size
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.resuming import ResumableJournal
from dpsynth_platform.training.rows import RowDivision, first_rows
from dpsynth_platform.training.spending_progress import SpendingProgress
from dpsynth_platform.training.unit_probe import refuse_unsound_grid
from dpsynth_platform.training.weights import is_trained, load_weights, save_weights

TRAINING, CHECKPOINTS, SIZE = "training", "checkpoints", "physical-batch"
"""Names within the directory."""
_PIXELS = "pixels.u1"


Network = UNet | Pretrained
"""What can be trained: called with pictures, level and class."""


class Trained(Protocol):
    """What a training needs of sealed parameters. Public; see `diffusion_plan.DiffusionParameters`."""

    @property
    def layout(self) -> ImageLayout: ...

    @property
    def training(self) -> TrainingPlan: ...

    @property
    def average(self) -> float: ...

    @property
    def loss(self) -> DiffusionLoss: ...

    def network(self) -> Network:
        """The network with its first weights; those that are trained require gradients."""

    def event_of(self, steps: int, guarantee: Guarantee) -> DpEvent:
        """The cost of so many executed steps, and of all else that the plan pays for."""


@dataclass(frozen=True)
class WarmUp:
    """Pictures that cost nothing more, public or drawn with privacy, and how a network learns from them first.

    Attributes:
        pixels: shape (pictures, height, width, channels), at least one.
        classes: shape (pictures,); the number of classes for pictures without one.
        then: what it learns from next.
    """

    pixels: Pixels = field(repr=False)
    classes: Classes = field(repr=False)
    numbers: WarmUpNumbers = field(default_factory=WarmUpNumbers)
    then: WarmUp | None = None


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


def prepared(parameters: Trained, device: str = "cpu") -> tuple[Network, Rows]:
    """The network with its first weights and its rows, both checked on random pictures before any record is read.

    Raises:
        TrainingRefused: training it would not be differentially private; names all faults.
    """
    place = torch.device(device)
    network = parameters.network().to(place).eval()
    network.codec.check(device)
    rows = Rows(parameters.loss, network.codec.form, parameters.layout.number, place)
    refuse_unsound_grid(network, parameters.training, losses, rows.made_up)
    return network, rows


def train_pictures(
    run: MechanismRun,
    parameters: Trained,
    directory: Path,
    *,
    warm_up: Callable[[], WarmUp | None] = lambda: None,
) -> None:
    """Trains until the averaged weights are complete, then deletes what only training needed.

    Continues an interrupted training within the steps that its plan has paid for.

    Args:
        warm_up: makes the pictures of the warm-up; called until a first checkpoint is kept. It must be able to
            continue after an interruption, and its cost, if any, is in the plan's event.

    Raises:
        GrantRefused: the job has no key for checkpoints.
        TrainingRefused: see `prepared`.
        ResumeRefused: the journal is missing, damaged or in use.
        MechanismFailed: training stopped; its cost stays spent.
    """
    if run.checkpoints is None:
        raise GrantRefused("the job has no key for checkpoints; accepted: a job of a training, with its key")
    try:
        with held(directory):
            if not is_trained(directory):
                _train(run, run.checkpoints, parameters, directory, warm_up)
    except HeldByAnother:
        raise ResumeRefused(f"{directory}: another process is training here; wait for its end, or end it") from None


def _train(
    run: MechanismRun,
    job: Job,
    parameters: Trained,
    directory: Path,
    warm_up: Callable[[], WarmUp | None],
) -> None:
    training, place, device = parameters.training, directory / TRAINING, torch.device(run.device)
    network, rows = prepared(parameters, run.device)
    if not job.resume:
        declare_unread(directory)
    pictures = warm_up() if newest_step(place / CHECKPOINTS) == 0 else None
    while pictures is not None:
        warm(network, rows, pictures, run.progress)
        pictures = pictures.then
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
            network.codec,
            directory / EXAMPLES,
            owners=by_owner,
            draws=parameters.loss.draws,
            device=run.device,
        )
        policy = CheckpointPolicy.for_allowance(training.replay_allowance)
        sums = stack.enter_context(GridSums(network, training, losses))
        average = ExponentialAverage(sums.parameters, parameters.average)
        train_by(
            sums,
            training,
            records,
            RowDivision(first_rows(sums, network, rows.made_up, device), parameters.loss.draws, rows.drawn, device),
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
            averages=average,
        )
        save_weights(average.values, directory, steps.executed)
        shutil.rmtree(place)  # while the journal is held: no other process can continue what is complete


def can_continue(directory: Path) -> bool:
    """Whether an interrupted training is complete, has not read a record, or has enough paid steps left to finish."""
    place = directory / TRAINING
    return is_trained(directory) or is_unread(directory) or journal_can_resume(place, newest_step(place / CHECKPOINTS))


def load_network(parameters: Trained, directory: Path, device: str) -> Network:
    """The trained network with its averaged weights, in evaluation mode.

    Raises:
        MechanismFailed: the weights are incomplete, damaged or of another plan.
    """
    network = parameters.network()
    load_weights({name: value for name, value in network.named_parameters() if value.requires_grad}, directory)
    return network.to(device).eval()


def warm(network: Network, rows: Rows, pictures: WarmUp, progress: Progress = silent) -> None:
    """Trains a network without privacy, on pictures that need none. Its weights change in place."""
    records, numbers = PictureRecords(pictures.pixels, pictures.classes), pictures.numbers
    parameters = list(network.parameters())
    device = parameters[0].device
    optimizer = torch.optim.Adam(parameters, numbers.learning_rate)
    generator = np.random.default_rng()
    for step in range(1, numbers.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = numbers.learning_rate * min(1.0, 2 * (numbers.steps - step + 1) / numbers.steps)
        chosen = generator.integers(len(records), size=numbers.batch)
        batch = {name: value.to(device) for name, value in records.batch(chosen.tolist()).items()}
        losses(network, rows.drawn(batch, 1)).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        progress("warm-up", step, numbers.steps)
