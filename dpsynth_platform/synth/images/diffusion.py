"""The generator `image_diffusion`: a small diffusion model, trained by DP-SGD, draws a picture for each row.

What belongs here: the order of its parts. What does not: the parts: the plan (`diffusion_plan`), the network (`unet`),
training (`diffusion_training`), drawing (`diffusion_sampling`), and the other columns (`synth.counted`).

The method is that of Dockhorn et al., "Differentially Private Diffusion Models", 2023.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.images.diffusion_plan import DiffusionParameters
from dpsynth_platform.synth.images.generator import Draw, ImageGenerator
from dpsynth_platform.synth.interface import MechanismRun, PlanInputs, PlanParts, SealedPlan

if TYPE_CHECKING:
    from dpsynth_platform.synth.images.diffusion_training import WarmUp


class ImageDiffusion(ImageGenerator[DiffusionParameters]):
    """The generator `image_diffusion`."""

    method = "image_diffusion"
    kind = DiffusionParameters

    def parts(self, inputs: PlanInputs) -> PlanParts:
        """Calibrates counts and training together, and tries the network on random pictures.

        Raises:
            TrainingRefused: training it would not be differentially private.
        """
        from dpsynth_platform.synth.images.diffusion_training import prepared

        parameters = self.parameters(inputs)
        prepared(parameters)
        return parameters.parts(inputs)

    def parameters(self, inputs: PlanInputs) -> DiffusionParameters:
        """The parameters that a contract asks for."""
        return DiffusionParameters.calibrated(inputs)

    def description(self, plan: SealedPlan, parameters: DiffusionParameters) -> tuple[str, dict[str, Any]]:
        training = parameters.training
        unit = "records" if training.sampled == "record" else "owners"
        delta = Guarantee.from_json(plan.guarantee).delta
        mechanism = (
            f"{training.paid_steps} steps of DP-SGD over {unit} (sampled with probability "
            f"{training.sampling_probability:.3g}, noise {training.noise_multiplier:.3g} times the clipping norm), of "
            f"which {training.replay_allowance} are for what an interruption repeats"
        )
        return mechanism, {
            "trained": f"a {parameters.size} network, the mean of {parameters.loss.draws} draws of noise a picture",
            "noise_multiplier": training.noise_multiplier,
            "expected_batch": training.batch_size,
            "epsilon_of_training_alone": epsilon(training.event, delta).epsilon,
        }

    def warm_up(self, run: MechanismRun, parameters: DiffusionParameters, directory: Path) -> WarmUp | None:
        """Pictures that the network learns from first, at no cost beyond the plan's. By default there are none."""
        return None

    def learn(self, run: MechanismRun, parameters: DiffusionParameters, directory: Path) -> None:
        from dpsynth_platform.synth.images.diffusion_training import train_pictures

        train_pictures(run, parameters, directory, warm_up=lambda: self.warm_up(run, parameters, directory))

    def can_continue(self, directory: Path) -> bool:
        """Whether the training is complete, or enough steps are paid for."""
        from dpsynth_platform.synth.images.diffusion_training import can_continue

        return can_continue(directory)

    def opened(self, plan: SealedPlan, parameters: DiffusionParameters, directory: Path, device: str) -> Draw:
        import torch

        from dpsynth_platform.synth.images.diffusion_sampling import sample
        from dpsynth_platform.synth.images.diffusion_training import load_network

        network = load_network(parameters, directory, device)
        form = parameters.layout.form

        def draw(number: int, pictures: int, generator: np.random.Generator) -> Pixels:
            classes = torch.full((pictures,), number, device=device)
            return sample(network, form, classes, generator, parameters.solver, network.no_class)

        return draw
