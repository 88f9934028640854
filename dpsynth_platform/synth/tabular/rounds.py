"""The shared parts of mechanisms that choose measurements by earlier ones (AIM, MWEM, RAP, GEM).

What belongs here: the parameters of a budget of measurements and choices, which cliques keep the model within its size,
expected counts, scores, and rounds that share the budget evenly. What does not: another spread of the budget and the
weights (the mechanisms), the draws (`drawing`) and their cost (`privacy.selection`).
"""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import (
    PrecisionBudget,
    SelectionBudget,
    calibrate_selection,
    selection_event,
)
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.compression import as_measurement
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.drawing import Draws
from dpsynth_platform.synth.tabular.estimation import Array, Measurement
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import (
    MAX_CELLS,
    PUBLIC,
    SCORE_SCALE,
    MarginalGenerator,
    described_counts,
    expected_error,
    score_sensitivity,
)
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.tabular.paid import of_mechanism, partitions_of
from dpsynth_platform.synth.tabular.public_prior import PublicPrior
from dpsynth_platform.synth.tabular.resolution import Groups, View
from dpsynth_platform.synth.tabular.workload import WEIGHT_SCALE, workload_of

ROUND_ITERATIONS = 6
"""Steps of the fit in each round: enough to choose by; the last fit takes more."""
MODEL_CELLS = 2**19
"""Approximate limit of the junction tree's cells: 4 MiB of numbers."""
EVEN_SELECTION_SHARE = 0.1
EVEN_ONE_WAY_SHARE = 1 / 3
"""Of `EvenRounds`: the choices' share of the budget, and single columns' of the measurements' precision."""


@dataclass(frozen=True)
class SelectionParameters(SelectionBudget):
    """The parameters of a mechanism of measurements and choices, sealed in the plan."""

    def noise(self, share: float) -> float:
        """Sigma of a measurement that uses such a share of all precision; raises as `noise_of`."""
        return noise_of(self.precision, share)

    def described(
        self, domain: Domain, event: str, *, one: float, two: float | None, cells: int, memory: int, rounds: bool = True
    ) -> dict[str, Any]:
        """A plan's description, by the noise of single columns (`one`) and of up to `cells` of joint counts (`two`)."""
        return {
            "event": event,
            "sigma_total": self.sigma_total,
            "sigma_one": one,
            "epsilon_select": self.epsilon_select,
            **({} if two is None else {"sigma_two": two}),
            **({"rounds": self.rounds} if rounds else {}),
            "rho": self.rho,
            **described_counts(domain, sigma_one=one, sigma_two=two, joint=cells, memory=memory),
        }

    def draws(self, log: MeasurementLog, sensitivity: int, parts: int) -> Draws:
        """The draws of a run over counts in units of 1/`parts` record: exactly those that the budget pays for."""
        return Draws(log, self.precision, self.rounds, self.epsilon_select, sensitivity, parts)


@dataclass(frozen=True)
class WorkloadParameters(SelectionParameters):
    """The parameters of a mechanism that measures all columns, and then chooses from a workload in rounds.

    Single columns get `one_way_share` of the measurements' precision; `model_cells` limits the junction tree's cells.
    """

    one_way_share: float
    model_cells: int
    workload: list[list[int]]
    workload_weights: list[int]

    def __post_init__(self) -> None:
        """Raises `GrantRefused` for weights above those that the scores' sensitivity is for."""
        if not all(0 < weight <= WEIGHT_SCALE for weight in self.workload_weights):
            raise GrantRefused(f"the plan has weights outside of 1 to {WEIGHT_SCALE}; materialize the line from raw")

    @property
    def weights(self) -> dict[Clique, int]:
        return {tuple(clique): weight for clique, weight in zip(self.workload, self.workload_weights, strict=True)}


@dataclass(frozen=True)
class EvenParameters(WorkloadParameters):
    """Those of rounds that share evenly the precision that single columns leave."""

    @property
    def sigma_joint(self) -> float | None:
        """Noise of each round's measurement; None without rounds."""
        return self.noise((1 - self.one_way_share) / self.rounds) if self.rounds else None


class Fitted(Protocol):
    """A model that is fitted to measurements between rounds (`estimation`, `mixtures`)."""

    def add(self, measurements: Sequence[Measurement]) -> None: ...

    def expected_counts(self, cliques: Sequence[Clique]) -> dict[Clique, Array]: ...


class Limited(Fitted, Protocol):
    """A model that can be fitted to some views only."""

    groups: Groups

    def within(self, views: Iterable[View], most_cells: float) -> list[View]: ...


Parameters = TypeVar("Parameters", bound=SelectionParameters)
Even = TypeVar("Even", bound=EvenParameters)
Model = TypeVar("Model", bound=Fitted)


class SelectionGenerator(MarginalGenerator, Generic[Parameters]):
    """A generator whose cost is that of a `SelectionBudget`; `parameters_type` is that of its sealed parameters."""

    parameters_type: type[Parameters]

    def sealed(self, plan_parameters: Mapping[str, Any]) -> Parameters:
        own = {key: value for key, value in of_mechanism(plan_parameters).items() if key != PUBLIC}
        return self.parameters_type(**own)

    def event(self, plan_parameters: dict[str, Any], columns: int, guarantee: Guarantee) -> dp_event.DpEvent:
        budget = self.sealed(plan_parameters)
        return selection_event(budget, guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)


class EvenRounds(SelectionGenerator[Even], Generic[Even, Model]):
    """All columns, then in every round the workload's marginal that is farthest from the model, all with equal budget.

    The mean absolute noise of a marginal's cells is subtracted from its distance (McKenna et al. 2021, section 4),
    since marginals with many cells are far from any model.
    """

    def even(
        self, contract: DataContract, domain: Domain, guarantee: Guarantee, most_rounds: int, model_cells: int
    ) -> dict[str, Any]:
        """The common parameters; raises as `parameters`."""
        named = workload_of(contract, domain.names, domain.parts).named
        check_workload_cells(contract, named, domain.most_states)
        rounds = min(most_rounds, len(named))
        beside = partitions_of(contract, domain)
        budget = calibrate_selection(guarantee, rounds, EVEN_SELECTION_SHARE if rounds else 0.0, beside)
        return asdict(
            EvenParameters(
                **asdict(budget),
                one_way_share=EVEN_ONE_WAY_SHARE if rounds else 1.0,
                model_cells=model_cells,
                workload=[list(clique) for clique in named],
                workload_weights=list(named.values()),
            )
        )

    @abstractmethod
    def started(
        self, sealed: Even, groups: Groups, one_way: Sequence[Measurement], prior: PublicPrior | None = None
    ) -> Model:
        """The model of single columns, and of a prior's pairs."""

    @abstractmethod
    def refit(self, model: Model, sealed: Even) -> None:
        """Fits the model to what a round has added."""

    def candidates(self, model: Model, sealed: Even) -> list[Clique]:
        """The marginals of the workload that may be measured next, by noisy counts and public facts."""
        return list(sealed.weights)

    def choices_per_fit(self, sealed: Even) -> int:
        return 1

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        sealed, domain = self.sealed(plan.parameters), records.domain
        weights, sigma = sealed.weights, sealed.sigma_joint
        draws = sealed.draws(log, WEIGHT_SCALE * score_sensitivity(plan), records.parts)
        one_way = draws.columns(records, sealed.noise(sealed.one_way_share / len(domain)), progress)
        states, groups, measured, prior = self.prepared_with_public(plan, domain, one_way, weights, log)
        model = self.started(sealed, groups, measured, prior)
        if prior:
            self.refit(model, sealed)
        exact = records.cliques(states, weights, progress)
        hidden = {clique: expected_error(sigma or 0.0) * counts.size for clique, counts in exact.items()}
        while sigma is not None and draws.choices:
            scored = {
                View.finest(clique): weights[clique] * misfit(exact[clique], expected, hidden[clique], records.parts)
                for clique, expected in model.expected_counts(self.candidates(model, sealed)).items()
            }
            for _ in range(min(self.choices_per_fit(sealed), draws.choices, len(scored))):
                view = draws.choice(scored)
                del scored[view]
                model.add([as_measurement(draws.joint(view, exact[view.clique], sigma))])
                progress("measuring combinations", sealed.rounds - draws.choices, sealed.rounds)
            self.refit(model, sealed)

    def even_described(
        self, sealed: Even, domain: Domain, event: str, memory: Callable[[Sequence[int]], int]
    ) -> dict[str, Any]:
        """A plan's description; `memory` follows from the most cells of each marginal of the workload."""
        cells = [math.prod(domain.most_states[index] for index in clique) for clique in sealed.weights]
        most = sum(heapq.nlargest(sealed.rounds, cells))
        event = f"{len(domain)} one-way marginals with rounded Gaussian noise, then {event}"
        one, joint = sealed.noise(sealed.one_way_share / len(domain)), sealed.sigma_joint
        return sealed.described(domain, event, one=one, two=joint, cells=most, memory=memory(cells))


def noise_of(precision: PrecisionBudget, share: float) -> float:
    """Sigma of a measurement that uses such a share. Raises `AccountingError` if it exceeds what can be drawn."""
    sigma = precision.sigma(share)
    if sigma is None:
        raise AccountingError(
            f"a measurement with the share {share:.3g} of the precision needs more noise than can be drawn; accepted: "
            "a larger epsilon, or fewer columns"
        )
    return sigma


def check_workload_cells(contract: DataContract, cliques: Iterable[Clique], sizes: Sequence[int]) -> None:
    """Raises `ContractError` if the workload's exact counts would not fit into memory."""
    cells = sum(math.prod(sizes[index] for index in clique) for clique in cliques)
    if cells > MAX_CELLS:
        raise ContractError(
            f"{contract.dataset}: generate.workload: all that may be measured has {cells} cells together; accepted: up "
            f"to {MAX_CELLS}; ask for fewer ways or smaller queries, or declare fewer bins or shorter lists of values, "
            "or learn fewer of them (most)"
        )


def misfit(counts: Counts, expected: Array, hidden: float, parts: int) -> int:
    """The L1 distance of counts from the model, less `hidden` records; in units of 1/SCORE_SCALE record. Sensitive.

    The model's part is rounded to these units first, so that the result is an exact integer and moves by no more than
    the counts do. `counts` are exact, in a view's cells and units of 1/`parts` record; nothing else depends on them.
    """
    return int(distances(counts, expected, parts).sum()) - int(in_units(hidden))


def distances(counts: Counts, expected: Array, parts: int) -> Counts:
    """Distance of each count (in 1/`parts` record) from the expected, in units of 1/SCORE_SCALE record. Sensitive."""
    found: Counts = np.abs(counts * (SCORE_SCALE // parts) - in_units(expected))
    return found


def in_units(records: Array | float) -> Counts:
    """Numbers of records in whole units of 1/SCORE_SCALE record."""
    return np.asarray(np.rint(records * SCORE_SCALE), dtype=np.int64)


def hidden_by_noise(expected: Array, sigma: float) -> float:
    """Records that noise hides in a view: in each cell its mean absolute value, at most the expected count."""
    return float(np.minimum(expected, expected_error(sigma)).sum())


def admissible(estimator: Limited, views: Collection[View], most_cells: float) -> list[View]:
    """The views `within` the model's size; if there are none, the smallest view."""
    return estimator.within(views, most_cells) or [min(views, key=lambda view: math.prod(view.shape(estimator.groups)))]
