"""MST: noisy marginals on a privately chosen spanning tree (McKenna, Miklau & Sheldon 2021), for user-level DP.

What belongs here: the order of the mechanism's steps, and the scores of its choices. What does not: the draws
(`drawing`), their cost (`privacy`), and all that follows from the noisy counts (`marginals`).

The mechanism measures all columns alone, chooses the edges of a spanning tree by the exponential mechanism, and
measures the chosen pairs. One unit has at most b records and moves a vector of counts by the distances of
`privacy.units.count_sensitivity`, which the plan's noise scales contain. A pair's score is the L1 distance of its
counts from a fixed estimate, so that it moves by at most the counts' L1 distance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np
from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.mst import MstBudget, calibrate_mst, mst_event
from dpsynth_platform.privacy.selection import PrecisionBudget
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.compression import compress, one_way_measurements
from dpsynth_platform.synth.tabular.cost import Work, memory_bytes
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.drawing import Draws
from dpsynth_platform.synth.tabular.estimation import estimate_total, project
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import (
    ITERATIONS,
    SCORE_SCALE,
    MarginalGenerator,
    described_counts,
    largest_pairs,
    pair_cells,
    score_sensitivity,
)
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, NoisyCounts
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.tabular.paid import of_mechanism, partitions_of
from dpsynth_platform.synth.tabular.resolution import View


class Mst(MarginalGenerator):
    """The generator `mst`."""

    method = "mst"

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        return asdict(calibrate_mst(len(domain), guarantee, partitions_of(contract, domain)))

    def event(self, plan_parameters: dict[str, Any], columns: int, guarantee: Guarantee) -> dp_event.DpEvent:
        budget = MstBudget(**of_mechanism(plan_parameters))
        return mst_event(columns, budget, guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        domain, budget = Domain.from_json(plan.columns), MstBudget(**of_mechanism(plan.parameters))
        edges = len(domain) - 1
        joint = largest_pairs(domain, edges)
        return {
            "event": (
                f"{len(domain)} one-way marginals with rounded Gaussian noise, {edges} choices of a pair of columns "
                f"by the exponential mechanism, {edges} two-way marginals with rounded Gaussian noise"
            ),
            "sigma_one": budget.sigma_one,
            "epsilon_select": budget.epsilon_select,
            "sigma_two": budget.sigma_two,
            "rho": budget.rho,
            **described_counts(
                domain,
                sigma_one=budget.sigma_one,
                sigma_two=budget.sigma_two,
                joint=joint,
                memory=memory_bytes(counted=pair_cells(domain.most_states), measured=joint, model_cells=joint),
            ),
        }

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        budget, domain = MstBudget(**of_mechanism(plan.parameters)), records.domain
        columns, sensitivity = len(domain), score_sensitivity(plan)
        one, two = (1 / Fraction(sigma) ** 2 for sigma in (budget.sigma_one, budget.sigma_two))
        precision = PrecisionBudget(columns * one + (columns - 1) * two)
        draws = Draws(log, precision, columns - 1, budget.epsilon_select, sensitivity, records.parts)
        one_way = draws.columns(records, budget.sigma_one, progress)
        states = compress(domain, one_way)
        pairs = records.cliques(states, itertools.combinations(range(columns), 2), progress, "counting pairs")
        scores = pair_scores(pairs, one_way, states, records.parts)
        candidates = {View.finest(pair): score for pair, score in scores.items()}
        components = list(range(columns))
        edges: list[View] = []
        while candidates:
            edges.append(draws.choice(candidates))
            components = joined(components, edges[-1].clique)
            candidates = {
                view: score
                for view, score in candidates.items()
                if components[view.clique[0]] != components[view.clique[1]]
            }
            progress("choosing pairs", len(edges), columns - 1)
        for index, edge in enumerate(edges):
            draws.joint(edge, pairs[edge.clique], budget.sigma_two)
            progress("measuring pairs", index + 1, columns - 1)


def work_of(contract: DataContract, domain: Domain) -> Work:
    """The work of `mst`, of which a time limit shortens the last fit only."""
    columns = len(domain)
    return Work(
        records=contract.privacy.expected_units * contract.privacy.max_contributions,
        columns=columns,
        cliques=math.comb(columns, 2),
        rounds=columns - 1,
        choices_per_fit=columns,
        model_cells=largest_pairs(domain, columns - 1),
        steps=0,
        last_steps=ITERATIONS,
    )


def pair_scores(
    pairs: Mapping[Clique, Counts], one_way: Sequence[NoisyCounts], states: Sequence[ColumnStates], parts: int
) -> dict[Clique, int]:
    """The L1 distance of each pair's counts from independence, in units of 1/SCORE_SCALE record. Sensitive.

    The estimate under independence follows from the noisy one-way counts only, and is rounded to the score's unit
    before the difference is taken: the scores are exact integers.
    """
    measured = one_way_measurements(one_way, states)
    total = estimate_total(measured)
    fitted = [project(item.counts, item.variance, total) for item in measured]
    scores: dict[Clique, int] = {}
    for (a, b), counts in pairs.items():
        independent = np.rint(np.outer(fitted[a], fitted[b]) / total * SCORE_SCALE).astype(np.int64)
        scores[(a, b)] = int(np.abs(counts * (SCORE_SCALE // parts) - independent).sum())
    return scores


def joined(components: Sequence[int], edge: Clique) -> list[int]:
    """The component of each column once an edge has joined two of them."""
    kept, gone = (components[column] for column in edge)
    return [kept if component == gone else component for component in components]
