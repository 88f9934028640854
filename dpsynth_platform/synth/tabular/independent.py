"""Independent columns: each is measured alone, with all of the budget, and no relation between columns is kept.

What belongs here: a mechanism of one-way marginals only, for budgets too small or columns too large for joint counts.
What does not: the draws (`drawing`) and all that follows from the noisy counts (`marginals`).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import calibrate_selection
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.cost import memory_bytes
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.marginals import described_counts, score_sensitivity
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.paid import partitions_of
from dpsynth_platform.synth.tabular.rounds import SelectionGenerator, SelectionParameters


class Independent(SelectionGenerator[SelectionParameters]):
    """The generator `independent`."""

    method = "independent"
    counts_pairs = False
    parameters_type = SelectionParameters

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        return asdict(calibrate_selection(guarantee, 0, 0.0, partitions_of(contract, domain)))

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        domain, sealed = Domain.from_json(plan.columns), self.sealed(plan.parameters)
        one = sealed.noise(1 / len(domain))
        return {
            "event": f"{len(domain)} one-way marginals with rounded Gaussian noise",
            "sigma_one": one,
            "rho": sealed.rho,
            **described_counts(domain, sigma_one=one, memory=memory_bytes(measured=sum(domain.sizes))),
        }

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        sealed = self.sealed(plan.parameters)
        draws = sealed.draws(log, score_sensitivity(plan), records.parts)
        draws.columns(records, sealed.noise(1 / len(records.domain)), progress)
