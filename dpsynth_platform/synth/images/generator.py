"""The common part of all generators of pictures.

What belongs here: the parameters, description, check and estimation that all of them share, and putting pictures into
the rows of the columns' model. What does not: where the pictures come from (the methods' own modules).

A model directory holds

    claim.json       the ledger entry's one-time claim
    no-columns       where no column is counted
    columns/         measurements and model of the columns, where some are counted (`counted`)
    pictures/        the method's own measurements or model
    plan.json        written last: the model is complete
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa

from dpsynth_platform.foundation.errors import ContractError, MechanismFailed
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import PICTURES, write_durably
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.sources.pictures import encoded
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.images.layout import NO_CLASS, Classes, ImageLayout
from dpsynth_platform.synth.images.measured_sums import Floats, MeasuredSums
from dpsynth_platform.synth.interface import Drawing, DrawRequest, Generator, MechanismRun, PlanInputs, SealedPlan
from dpsynth_platform.synth.sealed_parameters import Readers, SealedParameters
from dpsynth_platform.synth.tabular import measurements
from dpsynth_platform.synth.tabular.restore import ReleaseSchema

COLUMNS, PLAN = "columns", "plan.json"
"""Names within a model directory."""
UNCOUNTED = "no-columns"
"""Says that no column is counted, so that none is missing."""
DRAWING = "pictures drawn"
"""Stage of progress."""
DRAWN_TOGETHER = 50_000_000
"""Bytes of pixels, about, that are drawn together."""

Draw = Callable[[int, int, np.random.Generator], Pixels]
"""Draws a number of pictures of a class: (class, number, generator) -> shape (number, height, width, channels)."""


@dataclass(frozen=True, kw_only=True)
class ImageParameters(SealedParameters):
    """The shared parts of the `parameters` in sealed plans with pictures.

    Attributes:
        layout: the image column, and the columns that a picture is made for.
        memory_bytes: about how much the method takes in addition to the program itself.
    """

    SHARED: ClassVar[Readers] = {"layout": ImageLayout.from_json}

    layout: ImageLayout
    memory_bytes: int

    @classmethod
    @abstractmethod
    def calibrated(cls, inputs: PlanInputs) -> Self:
        """The parameters with the least noise of the guarantee.

        Raises:
            ContractError: the columns cannot be modelled.
            AccountingError: no noise meets the guarantee.
        """


def columns_plan(inputs: PlanInputs) -> counted.Columns:
    """The plan of the modelled columns, with `generate.image.columns_share` of the guarantee; None where none is."""
    part = columns_part(inputs)
    return None if part is None else counted.planned(inputs, part)


def columns_part(inputs: PlanInputs) -> Guarantee | None:
    """The part of the guarantee that counting the columns may cost; None where none is counted.

    Raises:
        ContractError: no picture is made, or weighted rows.
    """
    image, guarantee = inputs.contract.generate.image, inputs.guarantee
    if image is None:
        raise ContractError(f"{inputs.contract.dataset}: generate: no picture is made; accepted: generate.image")
    if guarantee.weighting != "rows":
        raise ContractError(
            f"{inputs.contract.dataset}: privacy.weighting: {guarantee.weighting!r} with pictures, which count in "
            "full; accepted: rows"
        )
    if not counted.counts_columns(inputs.contract):
        return None
    share = image.columns_share
    return replace(guarantee, epsilon=share * guarantee.epsilon, delta=share * guarantee.delta)


P = TypeVar("P", bound=ImageParameters)


class ImageGenerator(Generator, Generic[P]):
    """A generator whose rows come from a model of the columns, and each of which gets a picture.

    Attributes:
        kind: of the plan's parameters.
    """

    kind: type[P]

    def parts(self, inputs: PlanInputs) -> Any:
        return self.kind.calibrated(inputs).parts(inputs)

    @abstractmethod
    def description(self, plan: SealedPlan, parameters: P) -> tuple[str, dict[str, Any]]:
        """The pictures' mechanism in words, and the plan's figures about it."""

    @abstractmethod
    def learn(self, run: MechanismRun, parameters: P, directory: Path) -> None:
        """The pictures' mechanism: leaves its durable result in `directory`, and continues what it finds there."""

    @abstractmethod
    def opened(self, plan: SealedPlan, parameters: P, directory: Path, request: DrawRequest) -> Draw:
        """Draws from the result in `directory`: post-processing."""

    def fitted(self, plan: SealedPlan, parameters: P, directory: Path, progress: Progress) -> None:
        """Fits the method's model to its durable result: post-processing. By default there is nothing to do."""

    def measured_sums(self, directory: Path, pictures: Pixels) -> MeasuredSums | None:
        """The noisy sums by class of a complete model, for attacks with some pictures; None where none are measured."""
        return None

    def picture_losses(self, directory: Path, pictures: Pixels, classes: Classes) -> Floats | None:
        """A complete model's loss of each picture, shape (pictures,), for attacks; None where a model has none.

        Args:
            classes: shape (pictures,); `NO_CLASS` where one has none.
        """
        return None

    def can_continue(self, directory: Path) -> bool:
        """Whether the interrupted mechanism in `directory` may continue at no further cost. By default it may not."""
        return False

    def describe(self, plan: SealedPlan) -> dict[str, Any]:
        parameters = self.kind.of(plan)
        mechanism, figures = self.description(plan, parameters)
        columns = counted.described(parameters.columns, mechanism)
        memory = columns["predicted_memory_bytes"] + parameters.memory_bytes
        return columns | figures | {"predicted_memory_bytes": memory}

    def check(self, plan: SealedPlan) -> None:
        self.kind.checked(plan)

    def run(self, run: MechanismRun) -> None:
        """Counts the columns, then learns the pictures."""
        parameters, directory = self.kind.checked(run.plan), run.directory
        if parameters.columns is None:
            write_durably(directory / UNCOUNTED, "")
        elif not measurements.is_complete(directory / COLUMNS):
            counted.measure(parameters.columns, run.bounded, directory / COLUMNS, run.progress, run.engine)
        self.learn(run, parameters, private_directory(directory / PICTURES))
        write_durably(directory / PLAN, run.plan.to_json())
        self.estimate(run.plan, directory, device=run.device, progress=run.progress)

    def is_complete(self, directory: Path) -> bool:
        return (directory / PLAN).is_file()

    def can_resume(self, directory: Path) -> bool:
        """Whether the columns are counted, and the method itself may continue."""
        if self.is_complete(directory) or not (directory / PICTURES).is_dir():
            return False
        counted_once = measurements.is_complete(directory / COLUMNS) or (directory / UNCOUNTED).exists()
        return counted_once and self.can_continue(directory / PICTURES)

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        """Fits the model of the columns and that of the pictures again."""
        parameters = self.complete(directory)[1]
        counted.estimate(parameters.columns, directory / COLUMNS, device=device, progress=progress)
        self.fitted(plan, parameters, directory / PICTURES, progress)

    def drawn(self, request: DrawRequest) -> Drawing:
        """Rows from the model of the columns, each with a picture of its class as a PNG file."""
        plan, parameters = self.complete(request.directory)
        release = ReleaseSchema.from_json(plan.release)
        rows = counted.draw(
            parameters.columns, release, replace(request, directory=request.directory / COLUMNS, texts=None)
        )
        draw = self.opened(plan, parameters, request.directory / PICTURES, request)
        batches = _with_pictures(rows, release, parameters.layout, draw, request.progress)
        return Drawing(release.schema, rows.rows, batches, missing=rows.missing, measured=rows.measured)

    def complete(self, directory: Path) -> tuple[SealedPlan, P]:
        """The plan of the complete model in a directory. Raises `MechanismFailed` if it is not complete."""
        if not self.is_complete(directory):
            raise MechanismFailed(
                "the pictures' mechanism is not complete; there is no model to draw from or to fit again"
            )
        plan = SealedPlan.from_json((directory / PLAN).read_text(encoding="utf-8"))
        return plan, self.kind.of(plan)


def _with_pictures(
    rows: Drawing, release: ReleaseSchema, layout: ImageLayout, draw: Draw, progress: Progress
) -> Iterator[pa.RecordBatch]:
    """The rows with pictures, in pieces of bounded memory."""
    generator = np.random.default_rng(secrets.randbits(256))
    most, done = max(1, DRAWN_TOGETHER // layout.form.values), 0
    for batch in rows.batches:
        for start in range(0, batch.num_rows, most):
            part = batch.slice(start, most)
            pictures = pictures_of(layout, layout.classes_of(part), draw, generator)
            arrays = [
                pictures.cast(field.type) if field.name == layout.column else part.column(field.name)
                for field in release.schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=release.schema)
            done += part.num_rows
            progress(DRAWING, done, rows.rows)


def pictures_of(
    layout: ImageLayout, classes: np.ndarray[Any, np.dtype[np.int64]], draw: Draw, generator: np.random.Generator
) -> pa.Array:
    """A PNG file for each row by its class; a row without a class, which no model of the columns draws, has none."""
    found = np.full(len(classes), None, dtype=object)
    for number in np.unique(classes[classes != NO_CLASS]).tolist():
        places = np.flatnonzero(classes == number)
        for place, picture in zip(places, draw(number, len(places), generator), strict=True):
            found[place] = encoded(picture, "png")
    return pa.array(found, pa.binary())
