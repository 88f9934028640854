"""MWEM: rounds that measure where the model is worst (Hardt, Ligett & McSherry 2012), with a graphical model.

What belongs here: the candidates of a round, and the model. What does not: the rounds, which share the budget evenly
(`rounds`), the draws (`drawing`), and all that follows from the noisy counts (`marginals`).

All columns are measured alone. A fixed number of rounds follows, all with the same budget: the exponential mechanism
chooses the workload's marginal that is farthest from the model, it is measured, and the model is fitted again.

What differs from the paper, and why:

- A graphical model is fitted to all noisy counts (MWEM+PGM, McKenna, Sheldon & Miklau 2019), instead of weights on
  every possible record, of which ten columns have too many. Rounds choose only what keeps the model within its size.
- A round measures a whole marginal and not one linear query: disjoint cells cost no more than one of them.
- Single columns come first, since cells are merged by their noisy counts (`compression`); the paper starts uniformly.
- Noise is rounded Gaussian, and the cost is that of `privacy.selection`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.cost import memory_bytes
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.estimation import Estimator, Measurement
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.public_prior import PublicPrior
from dpsynth_platform.synth.tabular.resolution import Groups, View
from dpsynth_platform.synth.tabular.rounds import (
    MODEL_CELLS,
    ROUND_ITERATIONS,
    EvenParameters,
    EvenRounds,
    admissible,
)

ROUNDS_PER_COLUMN = 2


class Mwem(EvenRounds[EvenParameters, Estimator]):
    """The generator `mwem`."""

    method = "mwem"
    parameters_type = EvenParameters

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        return self.even(contract, domain, guarantee, ROUNDS_PER_COLUMN * len(domain), MODEL_CELLS)

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        domain, sealed = Domain.from_json(plan.columns), self.sealed(plan.parameters)
        model = min(sealed.model_cells, math.prod(domain.most_states))

        def memory(cells: Sequence[int]) -> int:
            most = min(sum(heapq.nlargest(sealed.rounds, cells)), model)
            return memory_bytes(counted=sum(cells), views=len(cells), measured=most, model_cells=model)

        event = (
            f"{sealed.rounds} rounds, each with a choice of columns by the exponential mechanism and their joint "
            "marginal with rounded Gaussian noise"
        )
        return self.even_described(sealed, domain, event, memory)

    def started(
        self, sealed: EvenParameters, groups: Groups, one_way: Sequence[Measurement], prior: PublicPrior | None = None
    ) -> Estimator:
        return Estimator(groups, one_way, prior=prior)

    def refit(self, model: Estimator, sealed: EvenParameters) -> None:
        model.fit(ROUND_ITERATIONS)

    def candidates(self, model: Estimator, sealed: EvenParameters) -> list[Clique]:
        views = admissible(model, [View.finest(clique) for clique in sealed.weights], sealed.model_cells)
        return [view.clique for view in views]
