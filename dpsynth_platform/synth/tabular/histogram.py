"""The noisy histogram: all columns' cells at once, for a small table (Dwork, McSherry, Nissim & Smith 2006).

What belongs here: the mechanism and its limit of cells. What does not: the draws (`drawing`), and all that follows from
the noisy counts (`marginals`).

All columns are measured alone with a small part of the precision, so that cells are merged by their noisy counts
(`compression`). The rest is for one table of counts of all columns' states together, which keeps every relation.
Nothing is chosen by the data, and all of it is one Gaussian event.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import calibrate_selection
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.compression import compress
from dpsynth_platform.synth.tabular.cost import memory_bytes
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.marginals import score_sensitivity
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.paid import partitions_of
from dpsynth_platform.synth.tabular.resolution import View
from dpsynth_platform.synth.tabular.rounds import SelectionGenerator, SelectionParameters, noise_of

ONE_WAY_SHARE = 0.2
HISTOGRAM_CELLS = 2**18
"""The most cells of all columns together."""
_NAMED = 3
"""Of the columns with most cells, in an error."""


@dataclass(frozen=True)
class HistogramParameters(SelectionParameters):
    """The parameters of the mechanism, sealed in the plan: single columns get `one_way_share` of the precision."""

    one_way_share: float


class Histogram(SelectionGenerator[HistogramParameters]):
    """The generator `histogram`."""

    method = "histogram"
    counts_pairs = False
    parameters_type = HistogramParameters

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        if (cells := math.prod(domain.most_states)) > HISTOGRAM_CELLS:
            largest = sorted(domain, key=lambda column: -column.most_states)[:_NAMED]
            named = ", ".join(f"{column.name} ({column.most_states})" for column in largest)
            raise ContractError(
                f"{contract.dataset}: generate.method: 'histogram' counts all columns together, which have {cells:,} "
                f"cells, most of them by {named}; accepted: up to {HISTOGRAM_CELLS:,}; keep fewer columns, declare "
                "fewer bins or shorter lists of values, learn fewer of them (most), or take aim"
            )
        budget = calibrate_selection(guarantee, 0, 0.0, partitions_of(contract, domain))
        return asdict(HistogramParameters(**asdict(budget), one_way_share=ONE_WAY_SHARE if len(domain) > 1 else 1.0))

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        domain, sealed = Domain.from_json(plan.columns), self.sealed(plan.parameters)
        one, joint, cells = sealed.noise(sealed.one_way_share / len(domain)), None, 0
        event = f"{len(domain)} one-way marginals with rounded Gaussian noise"
        if len(domain) > 1:
            joint, cells = sealed.noise(1 - sealed.one_way_share), math.prod(domain.most_states)
            event += f", and the counts of all columns together, in up to {cells} cells, with rounded Gaussian noise"
        memory = memory_bytes(counted=cells, measured=cells, model_cells=cells)
        return sealed.described(domain, event, one=one, two=joint, cells=cells, memory=memory, rounds=False)

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        sealed, columns = self.sealed(plan.parameters), len(records.domain)
        draws = sealed.draws(log, score_sensitivity(plan), records.parts)
        one_way = draws.columns(records, sealed.noise(sealed.one_way_share / columns), progress)
        if columns > 1:
            every = tuple(range(columns))
            counts = records.cliques(compress(records.domain, one_way), [every], progress)[every]
            progress("measuring combinations", 0, 1)
            draws.joint(View.finest(every), counts, noise_of(draws.left, 1.0))
            progress("measuring combinations", 1, 1)
