"""The generator `image_embedding`: a network makes pictures that have the noisy mean features of each class (DP-MERF).

What belongs here: its parameters, and the order of its parts as a generator. What does not: plan (`embedding_plan`),
sums (`embedding_sums`), network (`embedding_network`), and the shared part of all methods for pictures (`generator`).

An interrupted mechanism continues at no further cost, as that of `image_moments` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dpsynth_platform.contracts.image_generation import ImageEmbedding as Declared
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import PICTURES
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.images import embedding_plan, embedding_sums
from dpsynth_platform.synth.images.embedding_plan import EmbeddingPlan
from dpsynth_platform.synth.images.exact_sums import CHUNK, Batch, Batches
from dpsynth_platform.synth.images.generator import Draw, ImageGenerator, ImageParameters, columns_plan
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.images.measured_sums import MeasuredSums
from dpsynth_platform.synth.images.moments_plan import event_of
from dpsynth_platform.synth.images.noisy_results import check_plan, complete_results, measure_all
from dpsynth_platform.synth.interface import DrawRequest, MechanismRun, PlanInputs, SealedPlan
from dpsynth_platform.synth.sealed_parameters import Readers

MODEL = "network.npz"
"""Within the directory of the pictures."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingParameters(ImageParameters):
    """The parameters of a noisy mean embedding."""

    KIND = "a mean embedding of pictures"
    READERS: ClassVar[Readers] = {"embedding": EmbeddingPlan.from_json}

    embedding: EmbeddingPlan

    @classmethod
    def calibrated(cls, inputs: PlanInputs) -> EmbeddingParameters:
        columns, layout, image = columns_plan(inputs), ImageLayout.of(inputs.contract), inputs.contract.generate.image
        declared = (image and image.embedding) or Declared()
        plan = embedding_plan.planned(
            layout.form, layout.number, declared.frequencies, declared.steps, inputs.guarantee, columns
        )
        numbers = 3 * layout.form.values * plan.frequencies + 2 * plan.frequencies * (5 * CHUNK + 3 * layout.number)
        return cls(columns=columns, layout=layout, memory_bytes=8 * numbers + 2**28, embedding=plan)

    def own_event(self, guarantee: Guarantee) -> DpEvent:
        return event_of(self.embedding.noise, guarantee)


class ImageEmbedding(ImageGenerator[EmbeddingParameters]):
    """The generator `image_embedding`."""

    method = "image_embedding"
    kind = EmbeddingParameters

    def description(self, plan: SealedPlan, parameters: EmbeddingParameters) -> tuple[str, dict[str, Any]]:
        own = parameters.embedding
        mechanism = (
            f"class counts and sums of {2 * own.frequencies} random Fourier features of each picture by class, with "
            f"rounded Gaussian noise; a network then learns from the noisy means in {own.steps} steps"
        )
        return mechanism, {"noise_multipliers": dict(own.noise)}

    def learn(self, run: MechanismRun, parameters: EmbeddingParameters, directory: Path) -> None:
        def batches() -> Iterator[Batch]:
            for pictures in parameters.layout.read(run.bounded):
                yield Batch(pictures.pixels, pictures.classes)

        measure(parameters.embedding, batches, directory, run.progress)

    def can_continue(self, directory: Path) -> bool:
        return True

    def fitted(self, plan: SealedPlan, parameters: EmbeddingParameters, directory: Path, progress: Progress) -> None:
        fit(parameters.embedding, directory, progress)

    def measured_sums(self, directory: Path, pictures: Pixels) -> MeasuredSums:
        plan = self.complete(directory)[1].embedding
        return embedding_sums.sums_with(complete_results(plan, directory / PICTURES), pictures)

    def opened(self, plan: SealedPlan, parameters: EmbeddingParameters, directory: Path, request: DrawRequest) -> Draw:
        return drawing(parameters.embedding, directory)


def measure(plan: EmbeddingPlan, batches: Batches, directory: Path, progress: Progress = silent) -> None:
    """Measures a plan's embedding, or what an interrupted run has not measured; raises as `measure_all`."""
    measure_all(plan, batches, directory, progress, embedding_sums.measured)


def fit(plan: EmbeddingPlan, directory: Path, progress: Progress = silent) -> None:
    """Trains the network on complete measurements, at no cost; raises as `complete_results`."""
    from dpsynth_platform.synth.images import embedding_network

    found = embedding_sums.measured(complete_results(plan, directory))
    embedding_network.save(embedding_network.matched(found, plan.form, plan.steps, progress), directory / MODEL)


def drawing(plan: EmbeddingPlan, directory: Path) -> Draw:
    """Draws from the trained network in a directory."""
    from dpsynth_platform.synth.images import embedding_network

    check_plan(plan, directory)
    network = embedding_network.load(directory / MODEL, plan.form, plan.classes)

    def draw(number: int, pictures: int, generator: np.random.Generator) -> Pixels:
        return embedding_network.drawn(network, number, pictures, generator)

    return draw
