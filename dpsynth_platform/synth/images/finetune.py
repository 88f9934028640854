"""The generator `image_finetune`: a part of a public diffusion model, trained by DP-SGD, draws a picture for each row.

What belongs here: the order of its parts. What does not: the parts: the plan (`finetune_plan`), the checkpoint
(`finetune_checkpoint`) and its network (`finetune_network`), training (`diffusion_training`), drawing
(`diffusion_sampling`), and the other columns (`synth.counted`).
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.storage import PICTURES
from dpsynth_platform.synth.images import diffusion
from dpsynth_platform.synth.images.finetune_plan import FinetuneParameters
from dpsynth_platform.synth.images.generator import Draw, ImageGenerator
from dpsynth_platform.synth.images.layout import Classes
from dpsynth_platform.synth.images.measured_sums import Floats
from dpsynth_platform.synth.interface import DrawRequest, MechanismRun, PlanInputs, PlanParts, SealedPlan


class ImageFinetune(ImageGenerator[FinetuneParameters]):
    """The generator `image_finetune`."""

    method = "image_finetune"
    kind = FinetuneParameters

    def parts(self, inputs: PlanInputs) -> PlanParts:
        """Calibrates counts and training together, and tries the network on random pictures.

        Raises:
            ConfigurationError: the checkpoint cannot be trained.
            TrainingRefused: training it would not be differentially private.
        """
        from dpsynth_platform.synth.images.diffusion_training import prepared

        parameters = FinetuneParameters.calibrated(inputs)
        prepared(parameters)
        return parameters.parts(inputs)

    def description(self, plan: SealedPlan, parameters: FinetuneParameters) -> tuple[str, dict[str, Any]]:
        mechanism, figures = diffusion.described(plan, parameters.training)
        adapter = parameters.training.adapter
        part = "attention" if adapter is None else f"matrices of rank {adapter.rank}"
        checkpoint, draws = PurePath(parameters.checkpoint).name, parameters.loss.draws
        return mechanism, figures | {
            "trained": f"{part} and classes of {checkpoint}, the mean of {draws} draws of noise a picture"
        }

    def picture_losses(self, directory: Path, pictures: Pixels, classes: Classes) -> Floats:
        return diffusion.losses_of(self.complete(directory)[1], directory / PICTURES, pictures, classes)

    def learn(self, run: MechanismRun, parameters: FinetuneParameters, directory: Path) -> None:
        from dpsynth_platform.synth.images.diffusion_training import train_pictures

        train_pictures(run, parameters, directory)

    def can_continue(self, directory: Path) -> bool:
        """Whether the training is complete, or enough steps are paid for."""
        from dpsynth_platform.synth.network_training import can_continue

        return can_continue(directory)

    def opened(self, plan: SealedPlan, parameters: FinetuneParameters, directory: Path, request: DrawRequest) -> Draw:
        return diffusion.drawing(parameters, parameters.solver, directory, request.device)
