"""The generator `image_mixed`: pictures by noisy moments and by private evolution, in one plan and one ledger entry.

What belongs here: how the precision is divided, and drawing from both. What does not: the two methods (`image_moments`,
`image_pe`). The directory of the pictures holds one directory for each.

Both parts are Gaussian mechanisms on the same records, so that the variances of their noise decide what each costs of
the whole: `VOTES_SHARE` of the precision is for the votes, and the moments have the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.storage import PICTURES
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.endpoint_access import Access, Transport
from dpsynth_platform.synth.evolution.journal import has_begun
from dpsynth_platform.synth.images import evolution, image_moments, image_pe, moments_plan
from dpsynth_platform.synth.images.declared_foundations import DeclaredFoundation
from dpsynth_platform.synth.images.evolution import EvolutionPlan
from dpsynth_platform.synth.images.generator import Draw, ImageGenerator, ImageParameters, columns_plan
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.images.measured_sums import MeasuredSums
from dpsynth_platform.synth.images.moments_plan import MomentsPlan
from dpsynth_platform.synth.interface import DrawRequest, MechanismRun, PlanInputs, SealedPlan
from dpsynth_platform.synth.sealed_parameters import Readers

VOTES_SHARE = 0.3
"""Of the precision."""
EVOLVED = 0.5
"""Of the pictures of each class."""
MOMENTS, EVOLUTION = "moments", "evolution"
"""Directories within that of the pictures."""


@dataclass(frozen=True, kw_only=True)
class MixedParameters(ImageParameters):
    """The parameters of both parts."""

    KIND = "moments and evolution of pictures"
    READERS: ClassVar[Readers] = {
        "moments": MomentsPlan.from_json,
        "evolution": EvolutionPlan.from_json,
        "foundation": DeclaredFoundation.from_json,
    }

    moments: MomentsPlan
    evolution: EvolutionPlan
    foundation: DeclaredFoundation

    @classmethod
    def calibrated(cls, inputs: PlanInputs) -> MixedParameters:
        columns, layout = columns_plan(inputs), ImageLayout.of(inputs.contract)
        foundation = DeclaredFoundation.of(inputs.contract, layout)
        voted = image_pe.evolution_plan(inputs, layout, foundation, counted.event_of(columns), VOTES_SHARE)
        expected = inputs.contract.privacy.expected_units
        already = counted.together(columns, evolution.event(voted, inputs.guarantee))
        summed = moments_plan.planned(layout.form, layout.number, expected, inputs.guarantee, already)
        return cls(
            columns=columns,
            layout=layout,
            memory_bytes=int(moments_plan.describe(summed)["predicted_memory_bytes"])
            + image_pe.BYTES_PER_RECORD * expected,
            moments=summed,
            evolution=voted,
            foundation=foundation,
        )

    def own_event(self, guarantee: Guarantee) -> DpEvent:
        return counted.composed(evolution.event(self.evolution, guarantee), moments_plan.event(self.moments, guarantee))


class ImageMixed(ImageGenerator[MixedParameters]):
    """The generator `image_mixed`."""

    method = "image_mixed"
    kind = MixedParameters

    def description(self, plan: SealedPlan, parameters: MixedParameters) -> tuple[str, dict[str, Any]]:
        votes, figures = image_pe.described(plan, parameters.evolution)
        described = moments_plan.describe(parameters.moments)
        return f"{votes}; then {described['event']}", figures | {"noise_multipliers": described["noise_multipliers"]}

    def learn(self, run: MechanismRun, parameters: MixedParameters, directory: Path) -> None:
        place = private_directory(directory / EVOLUTION)
        image_pe.evolve(run, parameters.layout, parameters.evolution, parameters.foundation, place)
        image_moments.measure(run, parameters.layout, parameters.moments, private_directory(directory / MOMENTS))

    def can_continue(self, directory: Path) -> bool:
        return has_begun(directory / EVOLUTION)

    def fitted(self, plan: SealedPlan, parameters: MixedParameters, directory: Path, progress: Progress) -> None:
        image_moments.fit(parameters.moments, directory / MOMENTS)

    def measured_sums(self, directory: Path, pictures: Pixels) -> MeasuredSums:
        parameters = self.complete(directory)[1]
        return image_moments.sums_of(parameters.moments, directory / PICTURES / MOMENTS, pictures)

    def opened(self, plan: SealedPlan, parameters: MixedParameters, directory: Path, request: DrawRequest) -> Draw:
        summed = image_moments.drawing(directory / MOMENTS)
        voted = image_pe.drawing(
            parameters.layout, parameters.evolution, parameters.foundation, directory / EVOLUTION, request
        )
        return both(voted, summed)

    def check_public(self, plan: SealedPlan) -> tuple[Path, ...]:
        parameters = self.kind.of(plan)
        image_pe.opened(parameters.layout, parameters.evolution, parameters.foundation)
        return parameters.foundation.paths

    def tried_endpoint(self, plan: SealedPlan, transport: Transport) -> Access | None:
        parameters = self.kind.of(plan)
        return parameters.foundation.tried(parameters.layout.form, transport)


def both(voted: Draw, summed: Draw) -> Draw:
    """Draws some pictures from one part and some from the other, in random order."""

    def draw(number: int, pictures: int, generator: np.random.Generator) -> Pixels:
        evolved = int(generator.binomial(pictures, EVOLVED))
        parts = [voted(number, evolved, generator), summed(number, pictures - evolved, generator)]
        return generator.permutation(np.concatenate(parts))

    return draw
