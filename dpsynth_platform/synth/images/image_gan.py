"""The generator `image_gan`: a network learns to make pictures that a discriminator, trained by DP-SGD, cannot tell.

What belongs here: the order of its parts. What does not: the parts: the plan (`gan_plan`), the networks
(`gan_network`), training (`picture_training`), drawing (`embedding_network`), and the other columns (`synth.counted`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from dpsynth_platform.synth.images import diffusion
from dpsynth_platform.synth.images.gan_plan import GanParameters
from dpsynth_platform.synth.images.generator import Draw, ImageGenerator
from dpsynth_platform.synth.interface import DrawRequest, MechanismRun, PlanInputs, PlanParts, SealedPlan


class ImageGan(ImageGenerator[GanParameters]):
    """The generator `image_gan`."""

    method = "image_gan"
    kind = GanParameters

    def parts(self, inputs: PlanInputs) -> PlanParts:
        """Calibrates counts and training together, and tries the networks on random pictures.

        Raises:
            TrainingRefused: training them would not be differentially private.
        """
        from dpsynth_platform.synth.images.gan_network import prepared

        parameters = GanParameters.calibrated(inputs)
        prepared(parameters)
        return parameters.parts(inputs)

    def description(self, plan: SealedPlan, parameters: GanParameters) -> tuple[str, dict[str, Any]]:
        mechanism, figures = diffusion.described(plan, parameters.training)
        return mechanism, figures | {
            "trained": "a network that tells private pictures from generated ones; the generator takes "
            f"{parameters.generator_steps} steps by that network alone"
        }

    def learn(self, run: MechanismRun, parameters: GanParameters, directory: Path) -> None:
        from dpsynth_platform.synth.images.gan_network import prepared
        from dpsynth_platform.synth.images.picture_training import train_prepared

        train_prepared(run, parameters, directory, partial(prepared, parameters, run.device))

    def can_continue(self, directory: Path) -> bool:
        """Whether the training is complete, or enough steps are paid for."""
        from dpsynth_platform.synth.network_training import can_continue

        return can_continue(directory)

    def opened(self, plan: SealedPlan, parameters: GanParameters, directory: Path, request: DrawRequest) -> Draw:
        from dpsynth_platform.synth.images.embedding_network import drawn
        from dpsynth_platform.synth.images.gan_network import load_generator

        return partial(drawn, load_generator(parameters, directory))
