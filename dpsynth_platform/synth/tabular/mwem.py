"""MWEM: rounds of measuring what the model tells worst (Hardt, Ligett & McSherry 2012), with a graphical model.

What belongs here: what a round chooses from, and how the budget is spread evenly. What does not: what a round looks at
(`rounds`), the draws (`drawing`), and all that follows from the noisy counts (`marginals`).

All columns are measured alone. Then a fixed number of rounds, all with the same budget: the exponential mechanism
chooses the marginal of the workload whose counts are farthest from what the model expects, it is measured, and the
model is fitted anew.

What differs from the paper, and why:

- The model is a graphical one that is fitted to all noisy counts (MWEM+PGM, McKenna, Sheldon & Miklau 2019), instead of
  weights on every possible record, which a table of ten columns has too many of. A round may therefore only choose
  what keeps the model within its size.
- What is measured is a whole marginal and not one linear query: its cells are disjoint, so that they cost no more than
  one of them.
- From a marginal's distance the mean absolute value of its cells' noise is taken (McKenna et al. 2021, section 4): one
  with many cells is far from any model, and still nothing can be learned of it.
- Single columns come first, with a share of the precision of their own, since cells are put together by their noisy
  counts (`compression`), as by every method here. The paper starts from the uniform distribution.
- Noise is rounded Gaussian, and the cost is that of `privacy.selection`.

Against AIM, there is no annealing, no choice of how coarsely to measure, no marginal but those that the workload names,
and no regard to a target.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import calibrate_selection
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.compression import as_measurement
from dpsynth_platform.synth.tabular.cost import memory_bytes
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.marginals import (
    described_counts,
    expected_error,
    score_sensitivity,
    started,
)
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.resolution import View
from dpsynth_platform.synth.tabular.rounds import (
    MODEL_CELLS,
    ROUND_ITERATIONS,
    SelectionGenerator,
    WorkloadParameters,
    admissible,
    check_workload_cells,
    expected_counts,
    misfit,
)
from dpsynth_platform.synth.tabular.workload import WEIGHT_SCALE, workload_of

SELECTION_SHARE = 0.1
ONE_WAY_SHARE = 1 / 3
ROUNDS_PER_COLUMN = 2


@dataclass(frozen=True)
class MwemParameters(WorkloadParameters):
    """What fixes MWEM, sealed in the plan. The rounds share evenly what single columns leave of the precision."""

    @property
    def sigma_joint(self) -> float | None:
        """Noise of each round's measurement; None where there are no rounds."""
        return self.noise((1 - self.one_way_share) / self.rounds) if self.rounds else None


class Mwem(SelectionGenerator):
    """The generator `mwem`."""

    method = "mwem"

    def chosen(self, plan_parameters: Mapping[str, Any]) -> MwemParameters:
        """The plan's parameters."""
        return MwemParameters(**plan_parameters)

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        """The fields of `MwemParameters`."""
        named = workload_of(contract, domain.names, domain.parts).named
        check_workload_cells(contract, named, domain.most_states)
        rounds = min(ROUNDS_PER_COLUMN * len(domain), len(named))
        budget = calibrate_selection(guarantee, rounds, SELECTION_SHARE if rounds else 0.0, domain.partitions)
        parameters = MwemParameters(
            **asdict(budget),
            one_way_share=ONE_WAY_SHARE if rounds else 1.0,
            model_cells=MODEL_CELLS,
            workload=[list(clique) for clique in named],
            workload_weights=list(named.values()),
        )
        return asdict(parameters)

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        """Event, noise, expected error, cells, memory and sampling time of a plan; see `Generator.describe`."""
        domain, chosen = Domain.from_json(plan.columns), self.chosen(plan.parameters)
        one, joint = chosen.noise(chosen.one_way_share / len(domain)), chosen.sigma_joint
        cells = [math.prod(domain.most_states[index] for index in clique) for clique in chosen.weights]
        model = min(chosen.model_cells, math.prod(domain.most_states))
        most = sum(heapq.nlargest(chosen.rounds, cells))
        return {
            "event": (
                f"{len(domain)} one-way marginals with rounded Gaussian noise, then {chosen.rounds} rounds, each with "
                "a choice of columns by the exponential mechanism and their joint marginal with rounded Gaussian noise"
            ),
            "sigma_total": chosen.sigma_total,
            "sigma_one": one,
            "epsilon_select": chosen.epsilon_select,
            **({} if joint is None else {"sigma_two": joint}),
            "rounds": chosen.rounds,
            "rho": chosen.rho,
            **described_counts(
                domain,
                sigma_one=one,
                sigma_two=joint,
                joint=most,
                memory=memory_bytes(counted=sum(cells), views=len(cells), measured=min(most, model), model_cells=model),
            ),
        }

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        """One-way marginals, then rounds of choosing and measuring; see `MarginalGenerator.mechanism`."""
        chosen, domain = self.chosen(plan.parameters), records.domain
        weights, sigma = chosen.weights, chosen.sigma_joint
        draws = chosen.draws(log, WEIGHT_SCALE * score_sensitivity(plan), records.parts)
        one_way = draws.columns(records, chosen.noise(chosen.one_way_share / len(domain)), progress)
        states, _, estimator = started(domain, one_way)
        exact = records.cliques(states, weights, progress)
        hidden = {clique: expected_error(sigma or 0.0) * counts.size for clique, counts in exact.items()}
        while sigma is not None and draws.choices:
            views = admissible(estimator, [View.finest(clique) for clique in weights], chosen.model_cells)
            cliques = [view.clique for view in views]
            expected = expected_counts(estimator, cliques)
            view = draws.choice(
                {
                    View.finest(clique): weights[clique]
                    * misfit(exact[clique], expected[clique], hidden[clique], records.parts)
                    for clique in cliques
                }
            )
            estimator.add([as_measurement(draws.joint(view, exact[view.clique], sigma))])
            estimator.fit(ROUND_ITERATIONS)
            progress("measuring combinations", chosen.rounds - draws.choices, chosen.rounds)
