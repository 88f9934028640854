"""The common part of all mechanisms that measure marginals and fit a graphical model to them.

What belongs here: a plan's parts and their check against its event, and everything after the measurements. What does
not: which marginals are measured with which noise (`aim`, `mst` and the others).

A mechanism reads the data only in `measure`, and writes every result to disk before it uses it, so that estimation
can always be repeated without the data.
"""

from __future__ import annotations

import heapq
import itertools
import math
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from dp_accounting import dp_event

from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.contracts.constraints import Constraint
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import PUBLIC_METHODS
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.events import event_to_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.partitions import composed_beside
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.interface import (
    Drawing,
    DrawRequest,
    Generator,
    MechanismRun,
    PlanInputs,
    PlanParts,
    SealedPlan,
)
from dpsynth_platform.synth.tabular.attributes import modelled_conditions, planned_domain, possible_combinations
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.compression import as_measurement, compress, one_way_measurements
from dpsynth_platform.synth.tabular.conditioning import check_possible, conditioned, with_learned
from dpsynth_platform.synth.tabular.constraints import Conditions
from dpsynth_platform.synth.tabular.cost import ESTIMATE_SHARE
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain, domain_of
from dpsynth_platform.synth.tabular.estimation import Estimator, Measurement, estimate_total
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.learning import learned_domain
from dpsynth_platform.synth.tabular.measurements import (
    MeasurementLog,
    Measurements,
    NoisyCounts,
    is_complete,
    read_measurements,
)
from dpsynth_platform.synth.tabular.model import Model, load_model, save_model
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.tabular.paid import PAID, SealedMeasures, measure, partitions_of, read_drawn
from dpsynth_platform.synth.tabular.propagation import pair_marginals
from dpsynth_platform.synth.tabular.public_prior import PublicPrior, combined_columns
from dpsynth_platform.synth.tabular.public_rows import SealedRows
from dpsynth_platform.synth.tabular.resolution import Groups, resolutions
from dpsynth_platform.synth.tabular.restore import release_schema
from dpsynth_platform.synth.tabular.sampling import counts_by_network, drawing
from dpsynth_platform.synth.tabular.workload import check_names

SCORE_SCALE = RECORD_PARTS
"""Scores are whole multiples of 1/65536 record, so that the exponential mechanism works on integers."""
MAX_CELLS = 2**28
"""Exact counts of all candidates are in memory during the choice: at most 2 GiB of them."""
NOISE_PER_SECOND = 5_000_000
"""Draws of the sampler on one core; for predictions only."""
PUBLIC = "public"
"""The public table's key in a plan's parameters; plans without one have no such key, and keep their digests."""
ITERATIONS = 100
"""The most steps of the last fit; it ends earlier when it has converged."""


@dataclass(frozen=True)
class MeasuredTable:
    """A table that a mechanism reads, all of whose values are known, with the log that receives its results."""

    plan: SealedPlan
    records: Records
    log: MeasurementLog


class MarginalGenerator(Generator):
    """A generator by noisy marginals.

    Attributes:
        counts_pairs: whether it counts all pairs of columns before it chooses.
    """

    counts_pairs: bool = True

    @abstractmethod
    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        """Noise scales and all other parameters of the mechanism, from public inputs; JSON values.

        They include `rho`, the zCDP cost. The calibration includes `paid.partitions_of`: learning values and bought
        measures take a part of the guarantee.

        Raises:
            ContractError: the method cannot do what the contract asks for.
            AccountingError: no noise scale meets the guarantee.
        """

    @abstractmethod
    def event(self, plan_parameters: dict[str, Any], columns: int, guarantee: Guarantee) -> dp_event.DpEvent:
        """What a mechanism with these parameters costs."""

    @abstractmethod
    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        """The method's measurements, through `drawing` only: each result is on disk before it is used.

        Args:
            records: all values of their columns are known.
            log: receives the results.
        """

    def measure(
        self,
        plan: SealedPlan,
        bounded: Path | pa.Table,
        directory: Path,
        progress: Progress = silent,
        engine: Engine | None = None,
    ) -> None:
        """Everything that reads the data: learning undeclared values, then the mechanism.

        Args:
            engine: an open engine that counts; None: this process counts. The counts are the same.

        Raises:
            GrantRefused: the plan's event is not that of its noise scales.
            MechanismFailed: the directory already holds measurements.
        """
        self.check(plan)
        with self.opened(plan, bounded, directory, progress, engine) as table:
            self.mechanism(plan, table.records, table.log, progress)
            table.log.complete()

    @contextmanager
    def opened(
        self,
        plan: SealedPlan,
        bounded: Path | pa.Table,
        directory: Path,
        progress: Progress = silent,
        engine: Engine | None = None,
    ) -> Iterator[MeasuredTable]:
        """The table with a new log, after undeclared values were learned; arguments and errors as of `measure`."""
        planned, weighting = Domain.from_json(plan.columns), Guarantee.from_json(plan.guarantee).weighting
        with MeasurementLog.create(directory, plan.digest) as log:
            domain = learned_domain(Records(bounded, planned, weighting), log, progress)
            yield MeasuredTable(plan, Records(bounded, domain, weighting, engine), log)

    @abstractmethod
    def description(self, plan: SealedPlan) -> dict[str, Any]:
        """Event, noise, expected error, cells, memory and sampling time of the method's own part of a plan."""

    def prepared_with_public(
        self,
        plan: SealedPlan,
        domain: Domain,
        noisy: Sequence[NoisyCounts],
        cliques: Collection[Clique],
        log: MeasurementLog,
    ) -> tuple[tuple[ColumnStates, ...], Groups, list[Measurement], PublicPrior | None]:
        """What `prepared` returns, and the prior of the plan's public table, if it has one.

        From here on its counts are in the log, free of charge.
        """
        sealed = sealed_rows(plan)
        if sealed is None:
            return *prepared(domain, noisy), None
        rows = sealed.opened(domain)
        public = rows.one_way()
        states, groups, measured = prepared(domain, noisy, public)
        public |= rows.cliques(states, cliques)
        for clique, counts in public.items():
            log.public(clique, counts)
        return states, groups, measured, prior_of(public, groups, measured)

    def check_public(self, plan: SealedPlan) -> tuple[Path, ...]:
        public = sealed_rows(plan)
        if public is None:
            return ()
        public.read()
        return public.paths

    def describe(self, plan: SealedPlan) -> dict[str, Any]:
        described, domain = self.description(plan), Domain.from_json(plan.columns)
        if (public := sealed_rows(plan)) is not None:
            described |= {"public": public.to_json(), "public_in_words": str(public)}
        if words := domain.derived_in_words:
            described = described | {"event": f"{described['event']}; of these, {', '.join(words)}"}
        if (measures := SealedMeasures.in_plan(plan)) is not None:
            memory = max(described["predicted_memory_bytes"], measures.memory(domain))
            event = f"{described['event']}; then measures of quality ({measures})"
            described = described | {"event": event, "predicted_memory_bytes": memory, "paid": measures.to_json()}
        learned = [
            {"column": column.name, "most": column.most, **asdict(column.learning)}
            for column in domain
            if column.learning is not None
        ]
        if not learned:
            return described
        names = ", ".join(str(rule["column"]) for rule in learned)
        values = f"the values of {names}, each shown if its count with rounded Gaussian noise reaches a threshold"
        return described | {"event": f"{values}; then {described['event']}", "learned": learned}

    def parts(self, inputs: PlanInputs) -> PlanParts:
        """Calibrates the noise to the guarantee.

        Raises:
            ContractError: a type that cannot be restored, pairs with too many cells, or constraints that no row keeps.
            AccountingError: no noise scale meets the guarantee.
        """
        contract, period, guarantee = inputs.contract, inputs.period, inputs.guarantee
        domain = planned_domain(contract, period)
        check_names(contract, domain.names)
        cells = pair_cells(domain.most_states)
        if self.counts_pairs and cells > MAX_CELLS:
            raise ContractError(
                f"{contract.dataset}: columns: all pairs together have {cells} cells; accepted: up to {MAX_CELLS}; "
                "declare fewer bins or shorter lists of values, or learn fewer of them (most)"
            )
        plain = domain_of(contract, period)
        check_possible(plain, Conditions.of(plain, contract.generate.constraints))
        parameters = self.parameters(contract, domain, guarantee)
        if (public := contract.generate.public) is not None and self.method in PUBLIC_METHODS:
            parameters[PUBLIC] = asdict(SealedRows.of(public, contract, domain))
        if (measures := SealedMeasures.of(contract, domain, guarantee, parameters["rho"])) is not None:
            parameters[PAID] = measures
        if domain.unknown:
            learning = partitions_of(contract, domain).learning(guarantee, parameters["rho"])
            domain = domain.to_be_learned(learning)
        return PlanParts(
            columns=domain.to_json(),
            release=release_schema(contract, inputs.schema).to_json(),
            parameters=parameters,
            event=self.whole_event(domain, parameters, guarantee),
            time_limit=contract.generate.seconds,
        )

    def check(self, plan: SealedPlan) -> None:
        domain, guarantee = Domain.from_json(plan.columns), Guarantee.from_json(plan.guarantee)
        if event_to_json(self.whole_event(domain, plan.parameters, guarantee)) != plan.event:
            raise GrantRefused(
                "the plan's privacy event is not that of its noise scales; materialize the line from raw"
            )

    def whole_event(self, domain: Domain, parameters: dict[str, Any], guarantee: Guarantee) -> dp_event.DpEvent:
        """What a plan with these columns and parameters costs."""
        return self._whole(domain, parameters, self.event(parameters, len(domain), guarantee), guarantee)

    def _whole(
        self, domain: Domain, parameters: dict[str, Any], own: dp_event.DpEvent, guarantee: Guarantee
    ) -> dp_event.DpEvent:
        """The method's own event with what the plan pays for beside it."""
        learned = [column.learning for column in domain if column.learning is not None]
        sigma = parameters[PAID]["sigma"] if PAID in parameters else None
        return composed_beside(learned, own, guarantee, sigma)

    def run(self, run: MechanismRun) -> None:
        self.measure(run.plan, run.bounded, run.directory, run.progress, run.engine)
        self.estimate(run.plan, run.directory, device=run.device, progress=run.progress)
        self.measure_quality(run)

    def measure_quality(self, run: MechanismRun) -> None:
        """The bought measures of a complete model, if its plan has any."""
        measures = SealedMeasures.in_plan(run.plan)
        if measures is not None and measures.held_out is not None:
            from dpsynth_platform.synth.tabular.held_out import score  # late: it reads this method's models

            score(run, measures)
        elif measures is not None:
            sample = self.draw(run.directory, measures.rows, constraints=measures.kept, device=run.device).table()
            measure(run, measures, sample)

    def is_complete(self, directory: Path) -> bool:
        return is_complete(directory)

    def can_resume(self, directory: Path) -> bool:
        """Never: interrupted measurements are not drawn a second time."""
        return False

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        save_model(directory, self.model(plan, read_measurements(directory, plan.digest), device, progress))

    def model(self, plan: SealedPlan, stored: Measurements, device: str, progress: Progress) -> Model:
        """The model that fits stored measurements: post-processing."""
        return fitted(plan, stored, device=device, progress=progress)

    def drawn(self, request: DrawRequest) -> Drawing:
        model = model_under(request.directory, request.constraints, device=request.device, progress=request.progress)
        found = drawing(model, request.rows, request.given, progress=request.progress)
        return replace(found, paid=read_drawn(request.directory, SealedMeasures.in_plan(model.plan)))


def model_under(
    directory: Path, constraints: Sequence[Constraint] = (), *, device: str = "cpu", progress: Progress = silent
) -> Model:
    """The model in a directory, fitted again under constraints if there are any; raises as `Generator.draw`.

    A mixture or a network is not fitted again: its rows keep constraints as they keep given values.
    """
    model = load_model(directory)
    learned = Domain.from_json(model.plan.columns).unknown
    conditions = Conditions.of(model.domain.released, constraints, learned=learned)
    if model.components or model.joint is not None:
        return replace(model, conditions=_without_fit(conditions, model))
    if modelled_conditions(model.domain, conditions) == possible_combinations(model.domain):
        return replace(model, conditions=conditions)  # the fit is already under them: gaps keep every constraint
    return fitted(model.plan, model.measurements, constraints, device=device, progress=progress)


def _without_fit(conditions: Conditions, model: Model) -> Conditions:
    """The conditions with all dependencies learned from a mixture or a network, which keep them when rows are drawn."""
    if not conditions.unlearned:
        return conditions
    cliques = (*model.potentials, *model.cover)
    under = conditioned(model.domain, model.states, conditions.known, cliques, model.groups, model.components)
    if model.joint is not None:
        return with_learned(conditions, under, counts_by_network(model, model.joint, under))
    beliefs = under.beliefs(model.potentials)
    return with_learned(conditions, under, lambda clique: pair_marginals(beliefs, [clique])[clique])


def fitted(
    plan: SealedPlan,
    stored: Measurements,
    constraints: Sequence[Constraint] = (),
    *,
    begin: Model | None = None,
    device: str = "cpu",
    progress: Progress = silent,
) -> Model:
    """The model that fits stored measurements, under constraints if there are any: post-processing, free of charge.

    A dependency without a declared mapping is learned from a first fit, and holds in a second one.

    Args:
        begin: a model of the first columns, at whose potentials the fit begins. These keep their states, over which
            joint counts are: by the number of rows that all counts show, states may be others.

    Raises:
        ContractError: a constraint is not of this table, or no row can keep them all.
    """
    planned = Domain.from_json(plan.columns)
    domain = planned.with_values(stored.learned)
    first = len(domain) if begin is None else len(begin.domain)
    states, groups, one_way = prepared(Domain(domain.columns[:first]), stored.one_way[:first], stored.public)
    if first < len(domain):
        more = prepared(Domain(domain.columns[first:]), stored.one_way[first:])
        states, groups, one_way = (*states, *more[0]), (*groups, *more[1]), [*one_way, *more[2]]
    prior = prior_of(stored.public, groups, one_way, stored.taken)
    # Groups' attributes come after all columns.
    start = {
        tuple(index if index < first else index + len(domain) - first for index in clique): values
        for clique, values in (begin.potentials if begin is not None else {}).items()
    }
    estimator = Estimator(groups, one_way, device=device, prior=prior)
    joint = [as_measurement(noisy) for noisy in stored.joint]
    estimator.add(joint)
    conditions = Conditions.of(domain.released, constraints, learned=planned.unknown)
    limit = None if plan.time_limit is None else ESTIMATE_SHARE * plan.time_limit
    if not conditions and not possible_combinations(domain):
        estimator.begin(start)
        estimator.fit(ITERATIONS, progress, seconds=limit)
        potentials, cover = estimator.potentials, estimator.tree.cliques
        return Model(plan, states, groups, potentials, estimator.total, stored, cover)
    cover = estimator.tree.cliques
    while True:
        under = conditioned(domain, states, conditions.known, cover, groups)
        under.beliefs({})  # refuses what leaves no row
        estimator = Estimator(
            under.groups(groups),
            one_way,
            device=device,
            factors=under.factors,
            cover=under.tree.cliques,
            prior=prior,
        )
        estimator.add(joint)
        estimator.begin(start)
        estimator.fit(ITERATIONS, progress, seconds=limit)
        if not conditions.unlearned:
            break
        conditions = with_learned(conditions, under, estimator.expected)
    potentials = {clique: under.whole(clique, values) for clique, values in estimator.potentials.items()}
    return Model(plan, states, groups, potentials, estimator.total, stored, cover, conditions)


def prior_of(
    public: Mapping[Clique, Counts],
    groups: Groups,
    one_way: Sequence[Measurement],
    taken: Sequence[tuple[Clique, float]] = (),
) -> PublicPrior | None:
    """The prior of public counts, if there are any, and what choices took of them (`Measurements.taken`)."""
    joint = {clique: counts for clique, counts in public.items() if len(clique) > 1}
    if not joint:
        return None
    prior = PublicPrior(joint, groups, one_way, estimate_total(one_way))
    for clique, sigma in taken:
        prior.take(clique, sigma**2)
    return prior


def sealed_rows(plan: SealedPlan) -> SealedRows | None:
    """The public table of a plan, if it has one."""
    found = plan.parameters.get(PUBLIC)
    return None if found is None else SealedRows(**found)


def prepared(
    domain: Domain, one_way: Sequence[NoisyCounts], public: Mapping[Clique, Counts] = MappingProxyType({})
) -> tuple[tuple[ColumnStates, ...], Groups, list[Measurement]]:
    """States and resolutions of all columns from their noisy counts, and those counts over states.

    With `public` counts over cells, the noisy ones are combined with them first (`public_prior`).
    """
    one_way = combined_columns(one_way, public)
    states = compress(domain, one_way)
    measured = one_way_measurements(one_way, states)
    return states, resolutions(domain, states, [item.counts for item in measured]), measured


def described_counts(
    domain: Domain, *, sigma_one: float, sigma_two: float | None = None, joint: int = 0, memory: int
) -> dict[str, Any]:
    """The part of a plan's description that follows from its numbers of cells.

    Expected errors are those of the noise alone, in records. Memory is in addition to the program's own.

    Args:
        sigma_one: noise of one-way marginals.
        sigma_two: noise of joint ones; None where there are none.
        joint: the most cells of joint marginals that may be measured.
        memory: bytes that may be in use at once (`cost`).
    """
    one = expected_error(sigma_one)
    two = {} if sigma_two is None else {"expected_error_per_two_way_cell": expected_error(sigma_two)}
    drawn = sum(domain.sizes) + joint
    return {
        "columns": [
            {"column": column.name, "cells": column.size, "expected_l1_error": one * column.size} for column in domain
        ],
        "expected_error_per_one_way_cell": one,
        **two,
        "one_way_cells": sum(domain.sizes),
        "pair_cells": pair_cells(domain.most_states),
        "most_cells_measured": drawn,
        "predicted_memory_bytes": memory,
        "predicted_noise_seconds": drawn / NOISE_PER_SECOND,
    }


def largest_pairs(domain: Domain, number: int) -> int:
    """The most cells that so many pairs of columns have together."""
    sizes = (a * b for a, b in itertools.combinations(domain.most_states, 2))
    return sum(heapq.nlargest(number, sizes))


def pair_cells(sizes: Sequence[int]) -> int:
    """The number of cells of all pairs together."""
    return (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2


def score_sensitivity(plan: SealedPlan) -> int:
    """The most that one unit moves an L1 distance of counts from fixed numbers, in units of 1/SCORE_SCALE record."""
    return Guarantee.from_json(plan.guarantee).sensitivity.l1 * SCORE_SCALE


def expected_error(sigma: float) -> float:
    """Mean absolute noise of a count, in records: sqrt(2 / pi) * sigma."""
    return math.sqrt(2 / math.pi) * sigma
