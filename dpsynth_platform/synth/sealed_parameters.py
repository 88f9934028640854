"""The parameters of sealed plans that count columns and do something else: write texts, or make pictures.

What belongs here: such a plan's parts and its whole event, and reading the parameters back, checked against that event.
What does not: any one method's parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

from dpsynth_platform.foundation.errors import GrantRefused
from dpsynth_platform.privacy.events import DpEvent, event_to_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.interface import PlanInputs, PlanParts, SealedPlan
from dpsynth_platform.synth.tabular.restore import release_schema

Readers = dict[str, Callable[[Any], Any]]
"""How the JSON values of a plan's parameters become their types."""


@dataclass(frozen=True, kw_only=True)
class SealedParameters(ABC):
    """The `parameters` of a sealed plan. Public.

    Attributes:
        KIND: what the plan is for, in words.
        SHARED: readers of the parameters that several methods have.
        READERS: readers of one method's own.
        columns: the plan of the modelled columns; None where no column is counted.
    """

    KIND: ClassVar[str]
    SHARED: ClassVar[Readers] = {}
    READERS: ClassVar[Readers]

    columns: counted.Columns

    @abstractmethod
    def own_event(self, guarantee: Guarantee) -> DpEvent:
        """The cost of the method's own mechanism, without counts of columns."""

    @property
    def neighbours(self) -> tuple[str, int] | None:
        """Adjacency and b, for parameters that hold them in addition to the guarantee."""
        return None

    def event(self, guarantee: Guarantee) -> DpEvent:
        """The cost of the whole plan."""
        return counted.together(self.columns, self.own_event(guarantee))

    def parts(self, inputs: PlanInputs, event: DpEvent | None = None) -> PlanParts:
        """The parts of a sealed plan; another event is that of another run of the mechanism (`federation`)."""
        return PlanParts(
            columns=counted.domains(self.columns),
            release=release_schema(inputs.contract, inputs.schema).to_json(),
            parameters=self.to_json(),
            event=self.event(inputs.guarantee) if event is None else event,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values. Options that are not used have no key, so that plans without them keep their digests."""
        options = {field.name for field in fields(self) if field.default is None}
        return {name: part for name, part in asdict(self).items() if part is not None or name not in options}

    @classmethod
    def of(cls, plan: SealedPlan) -> Self:
        """Reads the parameters of a sealed plan. Raises `GrantRefused` if they are of another kind."""
        readers = {"columns": counted.from_json} | cls.SHARED | cls.READERS
        try:
            return cls(
                **{name: readers[name](part) if name in readers else part for name, part in plan.parameters.items()}
            )
        except (KeyError, TypeError):
            raise GrantRefused(f"the sealed plan is not for {cls.KIND}; materialize the line from raw again") from None

    @classmethod
    def checked(cls, plan: SealedPlan) -> Self:
        """The parameters of a plan whose sealed event is what they cost (invariant: no drift).

        Raises:
            GrantRefused: it is not, or the parameters are of another guarantee.
        """
        parameters, guarantee = cls.of(plan), Guarantee.from_json(plan.guarantee)
        own = parameters.neighbours in (None, (guarantee.adjacency, guarantee.max_contributions))
        if not own or event_to_json(parameters.event(guarantee)) != plan.event:
            raise GrantRefused("the plan's privacy event is not that of its parts; materialize the line from raw")
        counted.check(parameters.columns, plan)
        return parameters
