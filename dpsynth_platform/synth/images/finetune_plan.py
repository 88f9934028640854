"""The plan of training a part of a public diffusion model, from public inputs only.

What belongs here: its parameters in the sealed plan, and its event. What does not: the numbers of a training that all
diffusion models share (`diffusion_plan`), and running any of it (`finetune`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dpsynth_platform.contracts.image_generation import ImageFinetune
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.images import finetune_checkpoint
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss, Solver
from dpsynth_platform.synth.images.diffusion_plan import ACTIVATION_BYTES, DiffusionOptions
from dpsynth_platform.synth.images.generator import ImageParameters, columns_plan
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.interface import PlanInputs
from dpsynth_platform.synth.sealed_parameters import Readers
from dpsynth_platform.synth.text.trained import check_digest
from dpsynth_platform.synth.training_options import units_of
from dpsynth_platform.training.plan import Adapter, TrainingPlan

if TYPE_CHECKING:
    from dpsynth_platform.synth.images.finetune_network import Pretrained

COPIES = 4
"""Frozen weights, and what training keeps for the trained ones, in the size of the checkpoint's files, about."""
LATENT_LEVEL_MEAN = DiffusionLoss().level_mean + math.log(2)
"""Of latents, whose deviation is about 1, twice that of pixels between -1 and 1."""


@dataclass(frozen=True, kw_only=True)
class FinetuneParameters(ImageParameters):
    """The parameters of such a training.

    Attributes:
        checkpoint: the contract's directory.
        checkpoint_digest: of its files.
        training: with an adapter, low-rank matrices are trained; without one, attention.
        average: the part of the weights' average that remains in a step: post-processing.
        loss: its numbers.
        solver: how pictures are drawn: post-processing.
        known_classes: for each class the checkpoint's number of it, or None; None where the contract gives none.
    """

    KIND: ClassVar[str] = "training a part of a public diffusion model"
    READERS: ClassVar[Readers] = {
        "training": TrainingPlan.from_json,
        "loss": lambda part: DiffusionLoss(**part),
        "solver": lambda part: Solver(**part),
        "known_classes": tuple,
    }

    checkpoint: str
    checkpoint_digest: str
    training: TrainingPlan
    average: float
    loss: DiffusionLoss
    solver: Solver
    known_classes: tuple[int | None, ...] | None = None

    @classmethod
    def calibrated(cls, inputs: PlanInputs) -> FinetuneParameters:
        """See `ImageParameters.calibrated`. Raises `ConfigurationError` if the checkpoint cannot be trained."""
        declared = declared_by(inputs)
        columns, layout = columns_plan(inputs), ImageLayout.of(inputs.contract)
        base = finetune_checkpoint.checkpoint(declared.checkpoint)
        loaded = finetune_checkpoint.load(base, layout.form)
        codec, levels = loaded.codec, loaded.levels
        options = DiffusionOptions.trained_by(declared)
        training = TrainingPlan.calibrated(
            inputs.guarantee,
            beside=lambda trained: counted.together(columns, trained),
            adapter=Adapter(declared.rank, declared.rank) if declared.trained == "lora" else None,
            **options.training(units_of(inputs.contract, options.sampled)),
        )
        usual, loss, memory = options.solver, options.loss, ACTIVATION_BYTES
        memory += COPIES * finetune_checkpoint.weight_bytes(base)
        if codec.latent:
            loss = replace(loss, level_mean=LATENT_LEVEL_MEAN)
            memory += 4 * codec.form.values * units_of(inputs.contract, "record")
        return cls(
            columns=columns,
            layout=layout,
            memory_bytes=memory,
            checkpoint=declared.checkpoint,
            checkpoint_digest=base.digest,
            training=training,
            average=options.average,
            loss=loss,
            solver=Solver(lowest=max(usual.lowest, levels[0]), highest=min(usual.highest, levels[-1])),
            known_classes=_known_classes(inputs, declared, layout),
        )

    def network(self) -> Pretrained:
        """The checkpoint's network, with the part that is trained.

        Raises:
            ConfigurationError: it is not the checkpoint that the plan was sealed for, or cannot be trained.
        """
        from dpsynth_platform.synth.images.finetune_network import adapted

        base = finetune_checkpoint.checkpoint(self.checkpoint)
        check_digest(base, self.checkpoint_digest)
        loaded = finetune_checkpoint.load(base, self.layout.form)
        return adapted(loaded, self.layout.number, self.training.adapter, self.known_classes)

    @property
    def neighbours(self) -> tuple[str, int]:
        return self.training.adjacency, self.training.max_contributions

    def own_event(self, guarantee: Guarantee) -> DpEvent:
        return self.training.event

    def event_of(self, steps: int, guarantee: Guarantee) -> DpEvent:
        """The cost of the columns and of so many executed steps."""
        return counted.together(self.columns, self.training.event_of(steps))


def _known_classes(inputs: PlanInputs, declared: ImageFinetune, layout: ImageLayout) -> tuple[int | None, ...] | None:
    """The checkpoint's number of each class. Raises `ContractError` if the contract gives one to no class of it."""
    for name in declared.classes:
        if name not in layout.names:
            raise ContractError(
                f"{inputs.contract.dataset}: generate.image.finetune.classes: {name!r} is no class; accepted: "
                f"{', '.join(layout.names[:20])}{', ...' if layout.number > 20 else ''}"
            )
    return tuple(declared.classes.get(name) for name in layout.names) if declared.classes else None


def declared_by(inputs: PlanInputs) -> ImageFinetune:
    """The contract's part. Raises `ContractError` if there is none."""
    image = inputs.contract.generate.image
    if image is None or image.finetune is None:
        raise ContractError(
            f"{inputs.contract.dataset}: generate.image.finetune: missing; accepted: with the checkpoint to start from"
        )
    return image.finetune
