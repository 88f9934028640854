"""What mechanisms share that choose what to measure in the light of what they have measured (AIM, MWEM).

What belongs here: the parameters of a budget of measurements and choices, and what a round looks at: which cliques keep
the model within its size, what the model expects of them, and what measuring one is worth. What does not: how the
budget is spread, and what is weighed how (the mechanisms' own affair); the draws (`drawing`) and their cost
(`privacy.selection`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import AccountingError, ContractError
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import PrecisionBudget, SelectionBudget, selection_event
from dpsynth_platform.synth.tabular.drawing import Draws
from dpsynth_platform.synth.tabular.estimation import Array, Estimator
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import MAX_CELLS, SCORE_SCALE, MarginalGenerator, expected_error
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.tabular.propagation import marginal, pair_marginals
from dpsynth_platform.synth.tabular.resolution import View

ROUND_ITERATIONS = 6
"""Steps of the fit in each round: enough to choose by; the last fit takes more."""
MODEL_CELLS = 2**19
"""Cells that the junction tree may have, or about so: 4 MiB of numbers."""


@dataclass(frozen=True)
class SelectionParameters:
    """What fixes a mechanism of measurements and choices, sealed in the plan.

    Attributes:
        sigma_total: see `SelectionBudget`; so are `epsilon_select`, `rounds` and `rho`.
    """

    sigma_total: float
    epsilon_select: float
    rounds: int
    rho: float

    @property
    def budget(self) -> SelectionBudget:
        """What the mechanism may use."""
        return SelectionBudget(self.sigma_total, self.epsilon_select, self.rounds, self.rho)

    def noise(self, share: float) -> float:
        """Sigma of a measurement that uses so much of all precision.

        Raises:
            AccountingError: it would need more noise than can be drawn.
        """
        return noise_of(self.budget.precision, share)

    def draws(self, log: MeasurementLog, sensitivity: int, parts: int) -> Draws:
        """The draws of a run over counts in parts of a record: all that the budget pays for, and no more."""
        return Draws(log, self.budget.precision, self.rounds, self.epsilon_select, sensitivity, parts)


@dataclass(frozen=True)
class WorkloadParameters(SelectionParameters):
    """What fixes a mechanism that measures all columns, and then chooses from a workload in rounds.

    Attributes:
        one_way_share: part of the measurements' precision for single columns.
        model_cells: cells that the junction tree may have.
        workload: the cliques that may be measured (`workload`).
        workload_weights: the weight of each of them.
    """

    one_way_share: float
    model_cells: int
    workload: list[list[int]]
    workload_weights: list[int]

    @property
    def weights(self) -> dict[Clique, int]:
        """The workload as a mapping."""
        return {tuple(clique): weight for clique, weight in zip(self.workload, self.workload_weights, strict=True)}


class SelectionGenerator(MarginalGenerator):
    """A generator whose cost is that of a `SelectionBudget`."""

    @abstractmethod
    def chosen(self, plan_parameters: Mapping[str, Any]) -> SelectionParameters:
        """The plan's parameters."""

    def event(self, plan_parameters: dict[str, Any], columns: int, guarantee: Guarantee) -> dp_event.DpEvent:
        budget = self.chosen(plan_parameters).budget
        return selection_event(budget, guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)


def noise_of(precision: PrecisionBudget, share: float) -> float:
    """Sigma of a measurement that uses such a share.

    Raises:
        AccountingError: it would need more noise than can be drawn.
    """
    sigma = precision.sigma(share)
    if sigma is None:
        raise AccountingError(
            f"a measurement with the share {share:.3g} of the precision needs more noise than can be drawn; accepted: "
            "a larger epsilon, or fewer columns"
        )
    return sigma


def check_workload_cells(contract: DataContract, cliques: Iterable[Clique], sizes: Sequence[int]) -> None:
    """Refuses a workload whose exact counts would not fit into memory. Raises `ContractError`."""
    cells = sum(math.prod(sizes[index] for index in clique) for clique in cliques)
    if cells > MAX_CELLS:
        raise ContractError(
            f"{contract.dataset}: generate.workload: all that may be measured has {cells} cells together; accepted: up "
            f"to {MAX_CELLS}; ask for fewer ways or smaller queries, or declare fewer bins or shorter lists of values, "
            "or learn fewer of them (most)"
        )


def misfit(counts: Counts, expected: Array, hidden: float, parts: int) -> int:
    """The L1 distance of counts from the model, less `hidden`; in units of 1/SCORE_SCALE record. Sensitive.

    The model's part is rounded to them before the counts come in, so that the result is an exact integer and moves by
    no more than the counts do.

    Args:
        counts: exact, in a view's cells, in parts of a record.
        expected: the model's, of the same shape.
        hidden: records; a number that does not depend on the counts.
        parts: how many parts of a record the counts are in.
    """
    return int(distances(counts, expected, parts).sum()) - int(in_units(hidden))


def distances(counts: Counts, expected: Array, parts: int) -> Counts:
    """How far each count, in parts of a record, is from the expected, in units of 1/SCORE_SCALE record. Sensitive."""
    found: Counts = np.abs(counts * (SCORE_SCALE // parts) - in_units(expected))
    return found


def in_units(records: Array | float) -> Counts:
    """Numbers of records in whole units of 1/SCORE_SCALE record."""
    return np.asarray(np.rint(records * SCORE_SCALE), dtype=np.int64)


def hidden_by_noise(expected: Array, sigma: float) -> float:
    """Records that noise hides in a view: in each cell its mean absolute value, and no more than are expected."""
    return float(np.minimum(expected, expected_error(sigma)).sum())


def admissible(estimator: Estimator, views: Collection[View], most_cells: float) -> list[View]:
    """The views with which the model stays within its size; those that it covers already always do.

    What is measured extends the model's tree by no more than is asked here. There is always one: the smallest, if none
    fits.
    """
    columns, tree = len(estimator.groups), estimator.tree
    found = within(estimator, views, most_cells)
    return found or [min(views, key=lambda view: tree.shape_cells(view.attributes(columns)))]


def within(estimator: Estimator, views: Iterable[View], most_cells: float) -> list[View]:
    """The same, where there may be none."""
    columns, tree = len(estimator.groups), estimator.tree
    return [view for view in views if tree.extended_cells(view.attributes(columns)) <= max(most_cells, tree.cells)]


def expected_counts(estimator: Estimator, cliques: Sequence[Clique]) -> dict[Clique, Array]:
    """What the model expects of each clique, in records."""
    pairs = pair_marginals(estimator.beliefs, [clique for clique in cliques if len(clique) == 2])
    return {
        clique: estimator.total * (pairs[clique] if clique in pairs else marginal(estimator.beliefs, clique)).numpy()
        for clique in cliques
    }
