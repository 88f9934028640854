"""The generator `image_diffusion`: a small diffusion model, trained by DP-SGD, draws a picture for each row.

What belongs here: the order of its parts. What does not: the parts: the plan (`diffusion_plan`), the network (`unet`),
training (`diffusion_training`), drawing (`diffusion_sampling`), the sketch (`moments_measuring`), public pictures
(`public_warm_up`), and the other columns (`synth.counted`).

The method is that of Dockhorn et al., "Differentially Private Diffusion Models", 2023. The directory of the pictures
holds the sketch's measurements in `sketch/` and the counts of `public_warm_up`, beside what `diffusion_training` has
there.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.storage import PICTURES
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.images import moments_measuring, moments_plan
from dpsynth_platform.synth.images.diffusion_numbers import Solver
from dpsynth_platform.synth.images.diffusion_plan import DiffusionParameters
from dpsynth_platform.synth.images.exact_sums import Batch
from dpsynth_platform.synth.images.generator import Draw, ImageGenerator
from dpsynth_platform.synth.images.layout import NO_CLASS, Classes
from dpsynth_platform.synth.images.measured_sums import Floats, MeasuredSums
from dpsynth_platform.synth.images.public_warm_up import chosen_pictures, opened
from dpsynth_platform.synth.interface import DrawRequest, MechanismRun, PlanInputs, PlanParts, SealedPlan
from dpsynth_platform.training.plan import TrainingPlan

if TYPE_CHECKING:
    from dpsynth_platform.synth.images.diffusion_training import Trained, WarmUp

SKETCH = "sketch"
"""Within the directory of the pictures."""


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
        mechanism, figures = described(plan, parameters.training)
        if (table := parameters.table) is not None:
            figures["public_pictures"] = table.pictures
            if table.nearest:
                figures["noise_of_nearest_classes"] = table.noise
                counts = "counts of the pictures of each class by the public label that they look like, with noise of"
                mechanism = f"{counts} {table.noise:.3g} records; then {mechanism}"
        if parameters.sketch is not None:
            mechanism = f"{moments_plan.describe(parameters.sketch)['event']}; then {mechanism}"
        return mechanism, figures | {
            "trained": f"a {parameters.size} network, the mean of {parameters.loss.draws} draws of noise a picture"
        }

    def check_public(self, plan: SealedPlan) -> tuple[Path, ...]:
        parameters = self.kind.of(plan)
        if parameters.table is None:
            return ()
        opened(parameters.table, parameters.layout)
        return parameters.table.table.paths

    def warm_up(self, run: MechanismRun, parameters: DiffusionParameters, directory: Path) -> WarmUp | None:
        """Public pictures, then draws of the sketch's model; measures first what is not yet measured."""
        from dpsynth_platform.synth.images.diffusion_training import WarmUp

        layout, sketch, table, numbers = parameters.layout, parameters.sketch, parameters.table, parameters.warm_up
        found: WarmUp | None = None
        if numbers is None:
            return found

        def batches() -> Iterator[Batch]:
            for pictures in layout.read(run.bounded):
                yield Batch(pictures.pixels, pictures.classes)

        if sketch is not None:
            moments_measuring.measure(sketch, batches, directory / SKETCH, run.progress)
            model = moments_measuring.fit(directory / SKETCH, sketch)
            generator = np.random.default_rng(secrets.randbits(256))
            weights = np.maximum(model.class_counts, 0) + 1e-9
            counts = generator.multinomial(numbers.pictures, weights / weights.sum())
            drawn = [model.draw(number, int(count), generator) for number, count in enumerate(counts)]
            found = WarmUp(np.concatenate(drawn), np.repeat(np.arange(len(counts)), counts), numbers)
        if table is not None:
            most = numbers.steps * numbers.batch
            public = chosen_pictures(table, layout, batches, directory, run.plan.digest, most, run.progress)
            found = WarmUp(*public, numbers, then=found)
        return found

    def measured_sums(self, directory: Path, pictures: Pixels) -> MeasuredSums | None:
        """Those of the sketch, if there is one."""
        sketch = self.complete(directory)[1].sketch
        if sketch is None:
            return None
        return moments_measuring.class_sums_of(directory / PICTURES / SKETCH, sketch, pictures)

    def picture_losses(self, directory: Path, pictures: Pixels, classes: Classes) -> Floats:
        return losses_of(self.complete(directory)[1], directory / PICTURES, pictures, classes)

    def learn(self, run: MechanismRun, parameters: DiffusionParameters, directory: Path) -> None:
        from dpsynth_platform.synth.images.diffusion_training import train_pictures

        train_pictures(run, parameters, directory, warm_up=lambda: self.warm_up(run, parameters, directory))

    def can_continue(self, directory: Path) -> bool:
        """Whether the training is complete, or enough steps are paid for."""
        from dpsynth_platform.synth.network_training import can_continue

        return can_continue(directory)

    def opened(self, plan: SealedPlan, parameters: DiffusionParameters, directory: Path, request: DrawRequest) -> Draw:
        return drawing(parameters, parameters.solver, directory, request.device)


def described(plan: SealedPlan, training: TrainingPlan) -> tuple[str, dict[str, Any]]:
    """A training in words, and figures about it; see `ImageGenerator.description`."""
    unit = "records" if training.sampled == "record" else "owners"
    mechanism = (
        f"{training.paid_steps} steps of DP-SGD over {unit} (sampled with probability "
        f"{training.sampling_probability:.3g}, noise {training.noise_multiplier:.3g} times the clipping norm), of "
        f"which {training.replay_allowance} are for what an interruption repeats"
    )
    return mechanism, {
        "noise_multiplier": training.noise_multiplier,
        "expected_batch": training.batch_size,
        "epsilon_of_training_alone": epsilon(training.event, Guarantee.from_json(plan.guarantee).delta).epsilon,
    }


def losses_of(parameters: Trained, directory: Path, pictures: Pixels, classes: Classes) -> Floats:
    """Mean losses of the trained network in a directory on pictures: post-processing; see `ImageGenerator`."""
    from dpsynth_platform.synth.images.diffusion_loss import mean_losses
    from dpsynth_platform.synth.images.diffusion_training import load_network

    network = load_network(parameters, directory, "cpu")
    known = np.where(classes == NO_CLASS, network.no_class, classes)
    return mean_losses(network, parameters.loss, network.codec.encoded(pictures, "cpu"), known)


def drawing(parameters: Trained, solver: Solver, directory: Path, device: str) -> Draw:
    """Draws pictures from the trained network in a directory; raises as `diffusion_training.load_network`."""
    import torch

    from dpsynth_platform.synth.images.diffusion_sampling import sample
    from dpsynth_platform.synth.images.diffusion_training import load_network

    network = load_network(parameters, directory, device)

    def draw(number: int, pictures: int, generator: np.random.Generator) -> Pixels:
        classes = torch.full((pictures,), number, device=device)
        return sample(network, network.codec, classes, generator, solver, network.no_class)

    return draw
