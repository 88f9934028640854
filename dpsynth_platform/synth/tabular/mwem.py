"""MWEM: rounds that measure where the model is worst (Hardt, Ligett & McSherry 2012), with a graphical model.

What belongs here: the candidates of a round, and the even spread of the budget. What does not: the shared parts of
rounds (`rounds`), the draws (`drawing`), and all that follows from the noisy counts (`marginals`).

All columns are measured alone. A fixed number of rounds follows, all with the same budget: the exponential mechanism
chooses the workload's marginal that is farthest from the model, it is measured, and the model is fitted again.

What differs from the paper, and why:

- A graphical model is fitted to all noisy counts (MWEM+PGM, McKenna, Sheldon & Miklau 2019), instead of weights on
  every possible record, of which ten columns have too many. Rounds choose only what keeps the model within its size.
- A round measures a whole marginal and not one linear query: disjoint cells cost no more than one of them.
- The mean absolute noise of a marginal's cells is subtracted from its distance (McKenna et al. 2021, section 4), since
  marginals with many cells are far from any model.
- Single columns come first, since cells are merged by their noisy counts (`compression`); the paper starts uniformly.
- Noise is rounded Gaussian, and the cost is that of `privacy.selection`.
"""

from __future__ import annotations

import heapq
import math
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
from dpsynth_platform.synth.tabular.marginals import expected_error, score_sensitivity, started
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
    """The parameters of MWEM, sealed in the plan; rounds share evenly the precision that single columns leave."""

    @property
    def sigma_joint(self) -> float | None:
        """Noise of each round's measurement; None without rounds."""
        return self.noise((1 - self.one_way_share) / self.rounds) if self.rounds else None


class Mwem(SelectionGenerator[MwemParameters]):
    """The generator `mwem`."""

    method = "mwem"
    parameters_type = MwemParameters

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
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
        domain, sealed = Domain.from_json(plan.columns), self.sealed(plan.parameters)
        one, joint = sealed.noise(sealed.one_way_share / len(domain)), sealed.sigma_joint
        cells = [math.prod(domain.most_states[index] for index in clique) for clique in sealed.weights]
        model = min(sealed.model_cells, math.prod(domain.most_states))
        most = sum(heapq.nlargest(sealed.rounds, cells))
        event = (
            f"{len(domain)} one-way marginals with rounded Gaussian noise, then {sealed.rounds} rounds, each with "
            "a choice of columns by the exponential mechanism and their joint marginal with rounded Gaussian noise"
        )
        memory = memory_bytes(counted=sum(cells), views=len(cells), measured=min(most, model), model_cells=model)
        return sealed.described(domain, event, one=one, two=joint, cells=most, memory=memory)

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        sealed, domain = self.sealed(plan.parameters), records.domain
        weights, sigma = sealed.weights, sealed.sigma_joint
        draws = sealed.draws(log, WEIGHT_SCALE * score_sensitivity(plan), records.parts)
        one_way = draws.columns(records, sealed.noise(sealed.one_way_share / len(domain)), progress)
        states, _, estimator = started(domain, one_way)
        exact = records.cliques(states, weights, progress)
        hidden = {clique: expected_error(sigma or 0.0) * counts.size for clique, counts in exact.items()}
        while sigma is not None and draws.choices:
            views = admissible(estimator, [View.finest(clique) for clique in weights], sealed.model_cells)
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
            progress("measuring combinations", sealed.rounds - draws.choices, sealed.rounds)
