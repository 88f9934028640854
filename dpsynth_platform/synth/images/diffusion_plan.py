"""The plan of a diffusion model's training, from public inputs only.

What belongs here: its options, its parameters in the sealed plan, and its event. What does not: running any of it
(`diffusion_training`).

A part of the budget may go to a sketch: noisy moments of each class (`moments_plan`), whose draws the network learns
from before its training (warm-up; Gong et al., "From Easy to Hard", 2025). Another one may choose among public pictures
that it learns from (`public_warm_up`). Training costs what these leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.image_generation import DiffusionTraining
from dpsynth_platform.foundation.errors import AccountingError, ContractError
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.images import moments_plan, public_warm_up
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss, Solver, WarmUpNumbers
from dpsynth_platform.synth.images.generator import ImageParameters, columns_plan
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.images.moments_plan import MomentsPlan
from dpsynth_platform.synth.images.public_warm_up import PublicWarmUp
from dpsynth_platform.synth.interface import PlanInputs
from dpsynth_platform.synth.sealed_parameters import Readers
from dpsynth_platform.synth.training_options import TrainingOptions, units_of
from dpsynth_platform.training.plan import TrainingPlan

if TYPE_CHECKING:
    from dpsynth_platform.synth.images.unet import UNet

Size = Literal["small", "medium", "large"]
WEIGHTS = {"small": 0.13e6, "medium": 0.52e6, "large": 1.65e6}
"""Weights of each size, about."""
COPIES_IN_FULL = 16
"""Weights, gradients, averages, sums in double precision, and the gradients of some units, in numbers."""
ACTIVATION_BYTES = 2**30
"""The rows that training processes together, about."""


@dataclass(frozen=True)
class DiffusionOptions(TrainingOptions):
    """What a contract may choose of a diffusion model. Public.

    Attributes:
        size: of the network.
        sketch_share: the part of the pictures' epsilon for the sketch; None: there is none.
        by_table: whether the network first learns from the contract's public table.
    """

    size: Size = "small"
    sketch_share: float | None = 0.3
    by_table: bool = False
    warm_up: WarmUpNumbers = field(default_factory=WarmUpNumbers)
    loss: DiffusionLoss = field(default_factory=DiffusionLoss)
    solver: Solver = field(default_factory=Solver)

    @classmethod
    def of(cls, contract: DataContract) -> DiffusionOptions:
        """Those that a contract declares."""
        image = contract.generate.image
        declared = None if image is None else image.diffusion
        if declared is None:
            return cls()
        return cls.trained_by(
            declared,
            size=declared.size,
            sketch_share=declared.warm_up_share if declared.by_moments else None,
            by_table=declared.by_table,
            warm_up=WarmUpNumbers(steps=declared.warm_up_steps),
        )

    @classmethod
    def trained_by(cls, declared: DiffusionTraining, **others: Any) -> DiffusionOptions:
        """The options of a diffusion model's declared training, with `others`."""
        return cls.declared(declared, loss=DiffusionLoss(draws=declared.draws), **others)


@dataclass(frozen=True, kw_only=True)
class DiffusionParameters(ImageParameters):
    """The parameters of a diffusion model's training.

    Attributes:
        size: of the network.
        average: the part of the weights' average that remains in a step: post-processing.
        loss: its numbers.
        solver: how pictures are drawn: post-processing.
        sketch: noisy moments for the warm-up; None without one.
        table: public pictures for the warm-up; None without any.
        warm_up: its numbers: post-processing.
    """

    KIND: ClassVar[str] = "training a diffusion model"
    READERS: ClassVar[Readers] = {
        "training": TrainingPlan.from_json,
        "sketch": MomentsPlan.from_json,
        "table": PublicWarmUp.from_json,
        "warm_up": lambda part: WarmUpNumbers(**part),
        "loss": lambda part: DiffusionLoss(**part),
        "solver": lambda part: Solver(**part),
    }

    training: TrainingPlan
    size: Size
    average: float
    loss: DiffusionLoss
    solver: Solver
    sketch: MomentsPlan | None = None
    table: PublicWarmUp | None = None
    warm_up: WarmUpNumbers | None = None

    def __post_init__(self) -> None:
        if self.size not in WEIGHTS:
            raise AccountingError(f"size {self.size!r}; accepted: {', '.join(WEIGHTS)}")
        if not 0 <= self.average < 1:
            raise AccountingError(f"average {self.average!r}; accepted: a number from 0 to below 1")

    @classmethod
    def calibrated(cls, inputs: PlanInputs) -> DiffusionParameters:
        return cls.with_options(inputs, DiffusionOptions.of(inputs.contract))

    @classmethod
    def with_options(cls, inputs: PlanInputs, options: DiffusionOptions) -> DiffusionParameters:
        """The parameters with the least noise of the guarantee; raises as `calibrated`, and as `public_warm_up`."""
        columns, layout, guarantee = columns_plan(inputs), ImageLayout.of(inputs.contract), inputs.guarantee
        sketch = None if options.sketch_share is None else _sketch(layout, inputs, options.sketch_share)
        table = _table(layout, inputs) if options.by_table else None
        before = _before(sketch, table, guarantee)
        training = TrainingPlan.calibrated(
            guarantee,
            beside=lambda trained: counted.together(columns, *before, trained),
            **options.training(units_of(inputs.contract, options.sampled)),
        )
        memory = int(4 * COPIES_IN_FULL * WEIGHTS[options.size]) + ACTIVATION_BYTES
        if sketch is not None:
            memory += int(moments_plan.describe(sketch)["predicted_memory_bytes"])
        if table is not None:
            memory += 2 * table.pictures * layout.form.values
        return cls(
            columns=columns,
            layout=layout,
            memory_bytes=memory,
            training=training,
            size=options.size,
            average=options.average,
            loss=options.loss,
            solver=options.solver,
            sketch=sketch,
            table=table,
            warm_up=None if sketch is None and table is None else options.warm_up,
        )

    def network(self) -> UNet:
        """The network with fresh weights."""
        from dpsynth_platform.synth.images.unet import UNet

        return UNet(self.layout.form, self.layout.number, self.size)

    @property
    def neighbours(self) -> tuple[str, int]:
        return self.training.adjacency, self.training.max_contributions

    def own_event(self, guarantee: Guarantee) -> DpEvent:
        return counted.together(None, *self._parts(guarantee, self.training.paid_steps))

    def event(self, guarantee: Guarantee) -> DpEvent:
        return self.event_of(self.training.paid_steps, guarantee)

    def event_of(self, steps: int, guarantee: Guarantee) -> DpEvent:
        """The cost of the columns, of what comes before training, and of so many executed steps."""
        return counted.together(self.columns, *self._parts(guarantee, steps))

    def _parts(self, guarantee: Guarantee, steps: int) -> list[DpEvent]:
        return [*_before(self.sketch, self.table, guarantee), self.training.event_of(steps)]


def _before(sketch: MomentsPlan | None, table: PublicWarmUp | None, guarantee: Guarantee) -> list[DpEvent]:
    """The costs of what the network first learns from."""
    counts = [] if table is None or not table.nearest else [public_warm_up.counts_event(table.noise, guarantee)]
    return [*counts, *([] if sketch is None else [moments_plan.event(sketch, guarantee)])]


def _part(inputs: PlanInputs, share: float) -> Guarantee:
    """A share of what the columns leave of epsilon and delta."""
    image, guarantee = inputs.contract.generate.image, inputs.guarantee
    columns = image.columns_share if image is not None and counted.counts_columns(inputs.contract) else 0.0
    part = share * (1 - columns)
    return replace(guarantee, epsilon=part * guarantee.epsilon, delta=part * guarantee.delta)


def _table(layout: ImageLayout, inputs: PlanInputs) -> PublicWarmUp:
    image = inputs.contract.generate.image
    declared = None if image is None or image.diffusion is None else image.diffusion.table
    if declared is None:
        raise ContractError(
            f"{inputs.contract.dataset}: generate.image.diffusion.table: missing; accepted: a directory of public "
            "pictures, with the reason"
        )
    return public_warm_up.planned(declared, layout, _part(inputs, declared.nearest_share))


def _sketch(layout: ImageLayout, inputs: PlanInputs, share: float) -> MomentsPlan:
    """Moments for a share of what the columns leave of epsilon and delta.

    Raises:
        AccountingError: the share is impossible, or no noise meets it.
    """
    if not 0 < share < 1:
        raise AccountingError(f"sketch_share {share!r}; accepted: a number between 0 and 1, or none")
    expected = inputs.contract.privacy.expected_units
    return moments_plan.planned(layout.form, layout.number, expected, _part(inputs, share))
