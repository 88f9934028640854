"""MST: noisy marginals on a privately chosen spanning tree (McKenna, Miklau & Sheldon 2021), for user-level DP.

What belongs here: the plan, the order of the mechanism's steps, and the scores of its choices. What does not: the two
draws (`noise`), their cost (`privacy`), and all that follows from the noisy counts (`compression`, `inference`,
`sampling`).

The mechanism touches the data three times: it counts every column's cells and adds rounded Gaussian noise; it chooses a
spanning tree's edges one after the other by the exponential mechanism; and it counts the chosen pairs and adds noise.
Each result is on disk before it is used, so that estimation can always be repeated without the data.

One unit has at most b records. A vector of counts then moves by the distances of `privacy.units.count_sensitivity`,
which the noise scales in the plan already contain. A pair's score is an L1 distance between its counts and a fixed
estimate, so that it moves by at most the L1 distance of the counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts import DataContract, canonical_digest
from dpsynth_platform.errors import ContractError, GrantRefused
from dpsynth_platform.privacy.accounting import MstBudget, calibrate_mst
from dpsynth_platform.privacy.events import event_to_json, mst_event
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import count_sensitivity
from dpsynth_platform.storage import read_table
from dpsynth_platform.synth.interface import Progress, SealedPlan, silent
from dpsynth_platform.synth.tabular.compression import ColumnStates, compress, one_way_measurements
from dpsynth_platform.synth.tabular.domain import Domain, domain_of
from dpsynth_platform.synth.tabular.inference import Components, Forest, Measurement, estimate_total, fit, project
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, NoisyCounts, read_measurements
from dpsynth_platform.synth.tabular.model import Model, load_model, save_model
from dpsynth_platform.synth.tabular.noise import Counts, sample_rounded_gaussian, select_by_exponential_mechanism
from dpsynth_platform.synth.tabular.restore import release_schema
from dpsynth_platform.synth.tabular.sampling import sample

if TYPE_CHECKING:
    from dpsynth_platform.ledger.grants import Grant

Edge = tuple[int, int]

SCORE_SCALE = 2**16
"""Scores are whole multiples of 1/65536 record, so that the exponential mechanism works on integers."""
MAX_PAIR_CELLS = 2**28
"""All pairs' exact counts are in memory while the tree is chosen: at most 2 GiB of them."""
NOISE_PER_SECOND = 5_000_000
"""Draws of the sampler on one core; for predictions only."""


class Mst:
    """The generator `mst`; see `interface.Generator`."""

    method = "mst"

    def plan(
        self, contract: DataContract, schema: pa.Schema, guarantee: Guarantee, *, period: str | None = None
    ) -> SealedPlan:
        """Calibrates the noise to the guarantee and seals it with domain and schema.

        Raises:
            ContractError: a type that cannot be restored, or pairs with too many cells.
            AccountingError: no noise scale meets the guarantee.
        """
        domain = domain_of(contract, period)
        if pair_cells(domain.sizes) > MAX_PAIR_CELLS:
            raise ContractError(
                f"{contract.dataset}: columns: all pairs together have {pair_cells(domain.sizes)} cells; accepted: up "
                f"to {MAX_PAIR_CELLS}; declare fewer bins or shorter lists of values"
            )
        budget = calibrate_mst(len(domain), guarantee)
        event = mst_event(len(domain), budget, guarantee.adjacency, guarantee.max_contributions)
        return SealedPlan(
            method=self.method,
            dataset=contract.dataset,
            period=period,
            mechanism_digest=canonical_digest(contract.mechanism_snapshot()),
            columns=domain.to_json(),
            release=release_schema(contract, schema).to_json(),
            parameters=asdict(budget),
            event=event_to_json(event),
            guarantee=guarantee.to_json(),
        )

    def describe(self, plan: SealedPlan) -> dict[str, Any]:
        """Event, noise, expected error, cells, memory and sampling time of a plan.

        Expected errors are those of the noise alone: sqrt(2/pi) * sigma a cell, in records. Memory is that of counts
        and potentials, beside what the program itself takes.
        """
        domain, budget = Domain.from_json(plan.columns), _budget(plan)
        per_one, per_two = (math.sqrt(2 / math.pi) * sigma for sigma in (budget.sigma_one, budget.sigma_two))
        edges = len(domain) - 1
        pairs = sorted((a * b for a, b in itertools.combinations(domain.sizes, 2)), reverse=True)
        drawn = sum(domain.sizes) + sum(pairs[:edges])
        return {
            "event": (
                f"{len(domain)} one-way marginals with rounded Gaussian noise, {edges} choices of a pair of columns "
                f"by the exponential mechanism, {edges} two-way marginals with rounded Gaussian noise"
            ),
            "sigma_one": budget.sigma_one,
            "epsilon_select": budget.epsilon_select,
            "sigma_two": budget.sigma_two,
            "rho": budget.rho,
            "columns": [
                {"column": column.name, "cells": column.size, "expected_l1_error": per_one * column.size}
                for column in domain
            ],
            "expected_error_per_one_way_cell": per_one,
            "expected_error_per_two_way_cell": per_two,
            "one_way_cells": sum(domain.sizes),
            "pair_cells": sum(pairs),
            "most_cells_measured": drawn,
            "predicted_memory_bytes": 8 * (2 * sum(pairs) + 12 * sum(pairs[:edges])),
            "predicted_noise_seconds": drawn / NOISE_PER_SECOND,
        }

    def fit(
        self,
        plan: SealedPlan,
        bounded: Path,
        grant: Grant,
        directory: Path,
        *,
        device: str = "cpu",
        progress: Progress = silent,
    ) -> None:
        """Measures, then estimates; see `Generator.fit`."""
        if grant.plan_digest != plan.digest:
            raise GrantRefused("the grant is for another plan than the one to run")
        measure(plan, bounded, directory, progress)
        self.estimate(plan, directory, device=device, progress=progress)

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        """Fits the tree's potentials to the stored measurements; see `Generator.estimate`."""
        domain = Domain.from_json(plan.columns)
        stored = read_measurements(directory, plan.digest)
        states = compress(domain, stored.one_way)
        forest = Forest(tuple(column.size for column in states), tuple(sorted(stored.edges)))
        measured = one_way_measurements(stored.one_way, states) + [_as_measurement(noisy) for noisy in stored.two_way]
        total = estimate_total(measured)
        potentials = fit(forest, measured, total, device=device, progress=progress)
        arrays = {clique: values.cpu().numpy() for clique, values in potentials.items()}
        save_model(directory, Model(plan, states, forest, arrays, total, stored))

    def sample(self, directory: Path, rows: int) -> pa.Table:
        """Draws rows from the model; see `Generator.sample`."""
        return sample(load_model(directory), rows)


def measure(plan: SealedPlan, bounded: Path, directory: Path, progress: Progress = silent) -> None:
    """The mechanism: everything that looks at the data, each result appended durably before it is used.

    Raises:
        GrantRefused: the plan's event is not that of its noise scales.
        MechanismFailed: the directory already holds measurements.
    """
    budget, sensitivity = _budget(plan), _score_sensitivity(plan)
    _check_event(plan, budget)
    domain = Domain.from_json(plan.columns)
    columns = len(domain)
    with MeasurementLog.create(directory, plan.digest) as log:
        progress("counting columns", 0, 1)
        exact = count_one_way(bounded, domain)
        progress("counting columns", 1, 1)
        one_way = []
        for index, counts in enumerate(exact):
            noisy = NoisyCounts((index,), sample_rounded_gaussian(counts, budget.sigma_one), budget.sigma_one)
            log.counts("one-way", noisy)
            one_way.append(noisy)
            progress("measuring columns", index + 1, columns)
        states = compress(domain, one_way)
        progress("counting pairs", 0, 1)
        pairs = count_pairs(bounded, domain, states)
        progress("counting pairs", 1, 1)
        scores = pair_scores(pairs, one_way, states)
        edges: list[Edge] = []
        for step in range(columns - 1):
            candidates = _candidates(columns, edges)
            chosen = select_by_exponential_mechanism(
                [scores[edge] for edge in candidates], budget.epsilon_select, sensitivity
            )
            log.edge(candidates[chosen])
            edges.append(candidates[chosen])
            progress("choosing pairs", step + 1, columns - 1)
        for index, edge in enumerate(edges):
            noisy = NoisyCounts(edge, sample_rounded_gaussian(pairs[edge], budget.sigma_two), budget.sigma_two)
            log.counts("two-way", noisy)
            progress("measuring pairs", index + 1, columns - 1)
        log.complete()


def count_one_way(bounded: Path, domain: Domain) -> list[Counts]:
    """Exact number of records in every cell of every column. Sensitive."""
    counts = [np.zeros(size, dtype=np.int64) for size in domain.sizes]
    for batch in read_table(bounded, columns=list(domain.names)):
        codes = domain.encode(batch)
        for index, size in enumerate(domain.sizes):
            counts[index] += np.bincount(codes[:, index], minlength=size)
    return counts


def count_pairs(bounded: Path, domain: Domain, states: Sequence[ColumnStates]) -> dict[Edge, Counts]:
    """Exact number of records in every cell of every pair of columns, over states. Sensitive."""
    sizes = [column.size for column in states]
    counts = {
        (a, b): np.zeros(sizes[a] * sizes[b], dtype=np.int64) for a, b in itertools.combinations(range(len(sizes)), 2)
    }
    for batch in read_table(bounded, columns=list(domain.names)):
        codes = domain.encode(batch)
        merged = [column.state_of[codes[:, index]].astype(np.int64) for index, column in enumerate(states)]
        for (a, b), total in counts.items():
            total += np.bincount(merged[a] * sizes[b] + merged[b], minlength=total.size)
    return {(a, b): total.reshape(sizes[a], sizes[b]) for (a, b), total in counts.items()}


def pair_scores(
    pairs: dict[Edge, Counts], one_way: Sequence[NoisyCounts], states: Sequence[ColumnStates]
) -> dict[Edge, int]:
    """How far each pair's counts are from independence, in L1, in units of 1/SCORE_SCALE record. Sensitive.

    The estimate under independence follows from the noisy one-way counts only, and is rounded to the score's unit
    before the difference is taken: the scores are exact integers.
    """
    measured = one_way_measurements(one_way, states)
    total = estimate_total(measured)
    fitted = [project(item.counts, item.variance, total) for item in measured]
    scores = {}
    for (a, b), counts in pairs.items():
        independent = np.rint(np.outer(fitted[a], fitted[b]) / total * SCORE_SCALE).astype(np.int64)
        scores[(a, b)] = int(np.abs(counts * SCORE_SCALE - independent).sum())
    return scores


def pair_cells(sizes: Sequence[int]) -> int:
    """Number of cells of all pairs together."""
    return (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2


def _candidates(columns: int, edges: Sequence[Edge]) -> list[Edge]:
    """The pairs that would connect two components of what was chosen so far."""
    components = Components(columns)
    for a, b in edges:
        components.join(a, b)
    return [(a, b) for a, b in itertools.combinations(range(columns), 2) if components.root(a) != components.root(b)]


def _score_sensitivity(plan: SealedPlan) -> int:
    """Most that one unit moves a score, in the score's unit."""
    guarantee = Guarantee.from_json(plan.guarantee)
    return count_sensitivity(guarantee.adjacency, guarantee.max_contributions).l1 * SCORE_SCALE


def _check_event(plan: SealedPlan, budget: MstBudget) -> None:
    """The sealed event is what these noise scales, this adjacency and this b cost (invariant: no drift)."""
    guarantee = Guarantee.from_json(plan.guarantee)
    event = mst_event(len(plan.columns), budget, guarantee.adjacency, guarantee.max_contributions)
    if event_to_json(event) != plan.event:
        raise GrantRefused("the plan's privacy event is not that of its noise scales; materialize the line from raw")


def _budget(plan: SealedPlan) -> MstBudget:
    return MstBudget(**plan.parameters)


def _as_measurement(noisy: NoisyCounts) -> Measurement:
    counts = noisy.counts.astype(np.float64)
    return Measurement(noisy.clique, counts, np.full(counts.shape, noisy.variance))
