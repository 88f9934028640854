"""The generator `image_moments`: pictures drawn from noisy moments of each class, without public pictures.

What belongs here: the order of its parts as a generator. What does not: plan (`moments_plan`), measurements
(`moments_measuring`), model (`moments_model`), and the shared part of all methods for pictures (`generator`).

An interrupted mechanism continues at no further cost: every noisy result is on disk before anything follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dpsynth_platform.foundation.errors import GrantRefused
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.storage import PICTURES
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.images import moments_measuring, moments_plan
from dpsynth_platform.synth.images.exact_sums import Batch
from dpsynth_platform.synth.images.generator import Draw, ImageGenerator, ImageParameters, columns_plan
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.images.measured_sums import MeasuredSums
from dpsynth_platform.synth.images.moments_model import Model
from dpsynth_platform.synth.images.moments_plan import MomentsPlan
from dpsynth_platform.synth.interface import DrawRequest, MechanismRun, PlanInputs, SealedPlan
from dpsynth_platform.synth.sealed_parameters import Readers

MODEL = "model.npz"
"""Within the directory of the pictures: the fitted model."""


@dataclass(frozen=True, kw_only=True)
class MomentsParameters(ImageParameters):
    """The parameters of noisy moments.

    Attributes:
        federated: of a run over several participants, which has its own noise and cost: its terms.
    """

    KIND = "moments of pictures"
    READERS: ClassVar[Readers] = {"moments": MomentsPlan.from_json}

    moments: MomentsPlan
    federated: Mapping[str, Any] | None = None

    @classmethod
    def calibrated(cls, inputs: PlanInputs) -> MomentsParameters:
        columns, layout = columns_plan(inputs), ImageLayout.of(inputs.contract)
        expected = inputs.contract.privacy.expected_units
        plan = moments_plan.planned(layout.form, layout.number, expected, inputs.guarantee, counted.event_of(columns))
        memory = int(moments_plan.describe(plan)["predicted_memory_bytes"])
        return cls(columns=columns, layout=layout, memory_bytes=memory, moments=plan)

    def own_event(self, guarantee: Guarantee) -> DpEvent:
        if self.federated is not None:
            raise GrantRefused("the plan of a federated run; accepted: its participants, each with its own ledger")
        return moments_plan.event(self.moments, guarantee)


class ImageMoments(ImageGenerator[MomentsParameters]):
    """The generator `image_moments`."""

    method = "image_moments"
    kind = MomentsParameters

    def description(self, plan: SealedPlan, parameters: MomentsParameters) -> tuple[str, dict[str, Any]]:
        described = moments_plan.describe(parameters.moments)
        return str(described["event"]), {"noise_multipliers": described["noise_multipliers"]}

    def learn(self, run: MechanismRun, parameters: MomentsParameters, directory: Path) -> None:
        measure(run, parameters.layout, parameters.moments, directory)

    def can_continue(self, directory: Path) -> bool:
        return True

    def fitted(self, plan: SealedPlan, parameters: MomentsParameters, directory: Path, progress: Progress) -> None:
        fit(parameters.moments, directory)

    def measured_sums(self, directory: Path, pictures: Pixels) -> MeasuredSums:
        parameters = self.complete(directory)[1]
        return sums_of(parameters.moments, directory / PICTURES, pictures)

    def opened(self, plan: SealedPlan, parameters: MomentsParameters, directory: Path, request: DrawRequest) -> Draw:
        return drawing(directory)


def measure(run: MechanismRun, layout: ImageLayout, plan: MomentsPlan, directory: Path) -> None:
    """Measures the moments of the bounded table's pictures, or what an interrupted run has not measured."""

    def batches() -> Iterator[Batch]:
        for pictures in layout.read(run.bounded):
            yield Batch(pictures.pixels, pictures.classes)

    moments_measuring.measure(plan, batches, directory, run.progress)


def fit(plan: MomentsPlan, directory: Path) -> None:
    """Fits the model to complete measurements, at no cost."""
    moments_measuring.fit(directory, plan).save(directory / MODEL)


def sums_of(plan: MomentsPlan, directory: Path, pictures: Pixels) -> MeasuredSums:
    """The noisy class sums of complete measurements, for attacks with some pictures."""
    return moments_measuring.class_sums_of(directory, plan, pictures)


def drawing(directory: Path) -> Draw:
    """Draws from the fitted model in a directory."""
    return Model.load(directory / MODEL).draw
