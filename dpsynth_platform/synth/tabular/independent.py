"""Independent columns: each is measured alone, with all of the budget, and drawn alone.

What belongs here: that there is nothing but noisy one-way marginals. What does not: the draws (`drawing`) and all that
follows from the noisy counts (`marginals`).

For a table whose budget is too small for counts of more than one column, or whose columns have too many values for
them: every column is as good as the budget allows, and no relation between two of them is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from dpsynth_platform.synth.tabular.rounds import SelectionGenerator, SelectionParameters


class Independent(SelectionGenerator):
    """The generator `independent`."""

    method = "independent"
    counts_pairs = False

    def chosen(self, plan_parameters: Mapping[str, Any]) -> SelectionParameters:
        """The plan's parameters."""
        return SelectionParameters(**plan_parameters)

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        """The fields of `SelectionParameters`; there is nothing to choose."""
        return asdict(SelectionParameters(**asdict(calibrate_selection(guarantee, 0, 0.0, domain.partitions))))

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        """Event, noise, expected error, cells, memory and sampling time of a plan; see `Generator.describe`."""
        domain, chosen = Domain.from_json(plan.columns), self.chosen(plan.parameters)
        one = chosen.noise(1 / len(domain))
        return {
            "event": f"{len(domain)} one-way marginals with rounded Gaussian noise",
            "sigma_one": one,
            "rho": chosen.rho,
            **described_counts(domain, sigma_one=one, memory=memory_bytes(measured=sum(domain.sizes))),
        }

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        """Every column's counts; see `MarginalGenerator.mechanism`."""
        chosen = self.chosen(plan.parameters)
        draws = chosen.draws(log, score_sensitivity(plan), records.parts)
        draws.columns(records, chosen.noise(1 / len(records.domain)), progress)
