"""The plan of a GAN's training, from public inputs only.

What belongs here: its parameters in the sealed plan, its event, and the sizes of its networks. What does not: the
networks (`gan_network`), and the numbers that all trainings on pictures share (`diffusion_plan`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpsynth_platform.contracts.image_generation import ImageGan
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.images.diffusion_plan import ACTIVATION_BYTES
from dpsynth_platform.synth.images.generator import ImageParameters, columns_plan
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.interface import PlanInputs
from dpsynth_platform.synth.sealed_parameters import Readers
from dpsynth_platform.synth.training_options import TrainingOptions, units_of
from dpsynth_platform.training.plan import TrainingPlan

WIDTHS = (32, 64)
"""Channels of the discriminator's first convolution, and of the others."""
COARSEST = 4
"""Pixels of the larger side, at most, where convolutions end."""
MOST_BATCH = 64
"""In trials on MNIST, many small steps taught more than few large ones of as much computation."""
ROWS = 2
"""Of a record: one private, one generated."""
_GRADIENTS = 64
"""Of the discriminator, that are in memory together."""


@dataclass(frozen=True, kw_only=True)
class GanParameters(ImageParameters):
    """The parameters of such a training.

    Attributes:
        training: of the discriminator.
        generator_steps: in the whole training: post-processing.
        average: the part of the average of the generator's weights that remains in a step: post-processing.
    """

    KIND: ClassVar[str] = "training a GAN"
    READERS: ClassVar[Readers] = {"training": TrainingPlan.from_json}

    training: TrainingPlan
    generator_steps: int
    average: float

    def __post_init__(self) -> None:
        if self.generator_steps < 1 or not 0 <= self.average < 1:
            raise AccountingError(
                f"generator_steps {self.generator_steps!r}, average {self.average!r}; accepted: a whole number from 1, "
                "and a number from 0 to below 1"
            )

    @classmethod
    def calibrated(cls, inputs: PlanInputs) -> GanParameters:
        columns, layout, image = columns_plan(inputs), ImageLayout.of(inputs.contract), inputs.contract.generate.image
        declared = (image and image.gan) or ImageGan()
        options = TrainingOptions.declared(declared, most_batch=MOST_BATCH)
        training = TrainingPlan.calibrated(
            inputs.guarantee,
            beside=lambda trained: counted.together(columns, trained),
            **options.training(units_of(inputs.contract, options.sampled)),
        )
        return cls(
            columns=columns,
            layout=layout,
            memory_bytes=4 * _GRADIENTS * _weights(layout) + ACTIVATION_BYTES,
            training=training,
            generator_steps=declared.generator_steps or declared.steps,
            average=options.average,
        )

    @property
    def neighbours(self) -> tuple[str, int]:
        return self.training.adjacency, self.training.max_contributions

    def own_event(self, guarantee: Guarantee) -> DpEvent:
        return self.training.event

    def event_of(self, steps: int, guarantee: Guarantee) -> DpEvent:
        """The cost of the columns and of so many executed steps."""
        return counted.together(self.columns, self.training.event_of(steps))


def halvings(form: ImageForm) -> int:
    """How often the discriminator halves a picture's sides."""
    return max(1, math.ceil(math.log2(max(form.height, form.width) / COARSEST)))


def features(form: ImageForm) -> int:
    """Numbers by which the discriminator scores a picture."""
    fold: int = 2 ** halvings(form)
    return WIDTHS[fold > 2] * math.ceil(form.height / fold) * math.ceil(form.width / fold)


def _weights(layout: ImageLayout) -> int:
    """Of the discriminator, about."""
    return halvings(layout.form) * 9 * WIDTHS[1] ** 2 + (layout.number + 1) * features(layout.form)
