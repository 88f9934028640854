"""The plan of a network over a table's columns, from public inputs only.

What belongs here: the parameters that all such networks share, and the event of counts and training together. What does
not: the networks, and the mechanism (`network_generator`).

A part of the guarantee buys noisy counts of single columns. They decide which values are states that the network tells
apart (`tabular.compression`), and how often each is drawn. Training costs what they leave, in one composition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.network_training import RowLanguage, TableNetwork
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import SelectionBudget, calibrate_selection, selection_event
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.paid import partitions_of
from dpsynth_platform.synth.tabular.rounds import SelectionParameters
from dpsynth_platform.synth.training_options import TrainingOptions, units_of
from dpsynth_platform.training.plan import TrainingPlan

MOST_STATES = 2000
"""Of all columns: a network may have a weight for each pair of them."""
BATCHES = 30
"""A step has a thirtieth of the expected records by default: on adult at epsilon 1, a tenth taught no more."""


@dataclass(frozen=True, kw_only=True)
class NetworkParameters(SelectionParameters):
    """The parameters of counts of single columns, and of a network's training, sealed in the plan.

    Attributes:
        width: of the network.
        fixed_order: the chance of a row to have the order in which rows are drawn, and not a random one.
        average: the part of the weights' average that remains in a step: post-processing.
        evidence: indices of columns that are known when a row is drawn (`synth.relational`). They come before all
            others in every order, and are not predicted.
    """

    training: TrainingPlan
    width: int
    fixed_order: float
    average: float
    evidence: Sequence[int] = ()

    @classmethod
    def calibrated(cls, contract: DataContract, domain: Domain, guarantee: Guarantee) -> Self:
        """The parameters with the least noise of the guarantee; raises as `trained_with`."""
        declared = contract.generate.network or TableNetwork()
        return cls.trained_with(
            contract, domain, guarantee, declared, width=declared.width, fixed_order=declared.fixed_order
        )

    @classmethod
    def trained_with(
        cls,
        contract: DataContract,
        domain: Domain,
        guarantee: Guarantee,
        declared: TableNetwork | RowLanguage,
        *,
        training: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> Self:
        """The parameters with the least noise of the guarantee.

        Args:
            training: further parameters of the training.
            others: further parameters of the class.

        Raises:
            ContractError: owners weigh equally and records are sampled, or one column is modelled.
            AccountingError: no noise meets the guarantee.
        """
        if guarantee.weighting != "rows" and declared.sampled != "owners":
            raise ContractError(
                f"{contract.dataset}: privacy.weighting: {guarantee.weighting!r} with {contract.generate.method}, "
                f"whose training takes records in full; accepted: rows, or "
                f"generate.{part_of(declared)}.sampled: owners, whose records' mean gradient is clipped as one"
            )
        check_columns(contract, domain)
        share, beside = declared.columns_share, partitions_of(contract, domain)
        part = replace(guarantee, epsilon=share * guarantee.epsilon, delta=share * guarantee.delta)
        budget = calibrate_selection(part, 0, 0.0, beside)
        counts = _counts(budget, guarantee)
        options = TrainingOptions.declared(declared)
        units = units_of(contract, options.sampled)
        options = replace(options, batch_size=options.batch_size or max(1, units // BATCHES))
        planned = TrainingPlan.calibrated(
            guarantee,
            beside=lambda trained: beside.beside(_together(counts, trained), guarantee, budget.rho),
            **(options.training(units) | dict(training or {})),
        )
        return cls(**asdict(budget), training=planned, average=options.average, **others)

    def to_json(self) -> dict[str, Any]:
        """JSON values, as `of` reads them; without evidence where there is none."""
        document = asdict(self) | {"evidence": list(self.evidence)}
        if not self.evidence:
            del document["evidence"]
        return document

    @classmethod
    def of(cls, document: dict[str, Any]) -> Self:
        """Reads them from a plan. Raises `GrantRefused` if they are of another kind."""
        try:
            return cls(**(document | {"training": TrainingPlan.from_json(document["training"])}))
        except (KeyError, TypeError):
            raise GrantRefused("the sealed plan is not for training a network; materialize raw again") from None

    def event(self, guarantee: Guarantee, steps: int | None = None) -> DpEvent:
        """The cost of the counts and of so many executed steps; None: of all paid ones.

        Raises:
            GrantRefused: the training is for another guarantee, or samples records where owners weigh equally.
        """
        if (self.training.adjacency, self.training.max_contributions) != (
            guarantee.adjacency,
            guarantee.max_contributions,
        ):
            raise GrantRefused("the plan's training is for another adjacency or b than its guarantee; materialize raw")
        if guarantee.weighting == "owners" and self.training.sampled != "user":
            raise GrantRefused("the plan's training samples records, and its guarantee weighs owners; materialize raw")
        return _together(
            _counts(self, guarantee), self.training.event if steps is None else self.training.event_of(steps)
        )


def check_columns(contract: DataContract, domain: Domain) -> None:
    """Raises `ContractError` for one column alone, of which nothing is to be learned, and for too many states."""
    if len(domain) < 2:
        raise ContractError(
            f"{contract.dataset}: columns: one is modelled, so that there is nothing to learn by method "
            f"{contract.generate.method}; accepted: two or more, or method independent"
        )
    if (states := sum(domain.most_states)) > MOST_STATES:
        largest = max(domain.columns, key=lambda column: column.most_states)
        raise ContractError(
            f"{contract.dataset}: columns: {states} values or bins in all, {largest.most_states} of them of "
            f"{largest.name}, by method {contract.generate.method}; accepted: up to {MOST_STATES}; declare "
            "fewer bins or shorter lists of values, or learn fewer of them (most)"
        )


def part_of(declared: TableNetwork | RowLanguage) -> str:
    """The key of `generate` that declares a training."""
    return "language" if isinstance(declared, RowLanguage) else "network"


def _counts(budget: SelectionBudget, guarantee: Guarantee) -> DpEvent:
    return selection_event(budget, guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)


def _together(counts: DpEvent, trained: DpEvent) -> DpEvent:
    return dp_event.ComposedDpEvent([counts, trained])
