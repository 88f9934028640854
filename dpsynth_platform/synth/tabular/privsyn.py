"""PrivSyn: pairs of columns chosen all at once, by what noise and what independence would cost (Zhang et al. 2021).

What belongs here: the noisy distances of pairs from independence, and which pairs are measured with which noise. What
does not: the draws (`drawing`), their cost (`privacy.selection`), and the table that has the noisy counts (`gum`).

All columns are measured alone. Then the distances of all pairs' counts from independence are shown with noise, all at
once (InDif). Pairs are chosen for the least error in all, and measured.

What differs from the paper, and why:

- A distance is from the product of the *noisy* single columns, which are fixed by then. So one record moves it by 1
  instead of 4 (the paper's lemma 1). No exact number of records is divided by.
- Sensitivity is that of a user with b records and of the adjacency (`selection.scale_of_distances`).
- Columns of no chosen pair are measured once more alone, and pairs are of merged cells (`compression`).
- Pairs are not merged into larger sets of columns.
- The table is fitted by moves that serve all marginals of a column, instead of the gradual update method (`gum`).
- Noise is rounded Gaussian, and the cost is that of `privacy.selection`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import calibrate_selection, scale_of_distances
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.compression import compress
from dpsynth_platform.synth.tabular.cost import memory_bytes
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.gum import ROWS, TABLE_CELLS, model_of_table
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import expected_error, largest_pairs, pair_cells, score_sensitivity
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, read_measurements
from dpsynth_platform.synth.tabular.model import save_model
from dpsynth_platform.synth.tabular.mst import pair_scores
from dpsynth_platform.synth.tabular.paid import partitions_of
from dpsynth_platform.synth.tabular.resolution import View
from dpsynth_platform.synth.tabular.rounds import SelectionGenerator, SelectionParameters, noise_of

ONE_WAY_SHARE = 0.2
DISTANCE_SHARE = 0.1
PAIRS_PER_COLUMN = 12
"""The most pairs that are measured."""


@dataclass(frozen=True)
class PrivSynParameters(SelectionParameters):
    """The parameters of PrivSyn, sealed in the plan.

    Attributes:
        one_way_share: part of the measurements' precision for single columns; `distance_share` for the distances.
        pairs: the most pairs that are measured.
        table_rows: of the table that has the noisy counts.
    """

    one_way_share: float
    distance_share: float
    pairs: int
    table_rows: int


class PrivSyn(SelectionGenerator[PrivSynParameters]):
    """The generator `privsyn`."""

    method = "privsyn"
    parameters_type = PrivSynParameters

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        pairs = math.comb(len(domain), 2)
        parameters = PrivSynParameters(
            **asdict(calibrate_selection(guarantee, 0, 0.0, partitions_of(contract, domain))),
            one_way_share=ONE_WAY_SHARE if pairs else 1.0,
            distance_share=DISTANCE_SHARE if pairs else 0.0,
            pairs=min(pairs, PAIRS_PER_COLUMN * len(domain)),
            table_rows=max(1, min(ROWS, TABLE_CELLS // sum(domain.most_states))),
        )
        if pairs:  # refused here, before anything is spent
            scale_of_distances(pairs, parameters.noise(DISTANCE_SHARE), guarantee.sensitivity)
        return asdict(parameters)

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        domain, sealed = Domain.from_json(plan.columns), self.sealed(plan.parameters)
        one = sealed.noise(sealed.one_way_share / len(domain))
        left = 1 - sealed.one_way_share - sealed.distance_share
        joint = sealed.noise(left / sealed.pairs) if sealed.pairs else None  # if all pairs had the same cells
        cells, table = largest_pairs(domain, sealed.pairs), sealed.table_rows * sum(domain.most_states)
        event = (
            f"{len(domain)} one-way marginals with rounded Gaussian noise, the distances of all "
            f"{math.comb(len(domain), 2)} pairs of columns from independence with rounded Gaussian noise, and up to "
            f"{sealed.pairs} two-way marginals with rounded Gaussian noise"
        )
        memory = memory_bytes(counted=pair_cells(domain.most_states), measured=cells, model_cells=table)
        return sealed.described(domain, event, one=one, two=joint, cells=cells, memory=memory, rounds=False)

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        sealed, columns = self.sealed(plan.parameters), len(records.domain)
        draws = sealed.draws(log, score_sensitivity(plan), records.parts)
        one_way = draws.columns(records, sealed.noise(sealed.one_way_share / columns), progress)
        if not sealed.pairs:
            return
        states = compress(records.domain, one_way)
        alone: list[Clique] = [(index,) for index in range(columns)]
        exact = records.cliques(states, [*alone, *itertools.combinations(range(columns), 2)], progress)
        scores = pair_scores(
            {clique: counts for clique, counts in exact.items() if len(clique) == 2}, one_way, states, records.parts
        )
        sensitivity = Guarantee.from_json(plan.guarantee).sensitivity
        shown = draws.distances(scores, sealed.noise(sealed.distance_share), sensitivity)
        distances = dict(zip(shown.cliques, shown.records.tolist(), strict=True))
        cells = {clique: counts.size for clique, counts in exact.items()}
        left = draws.left.sigma()
        chosen = chosen_pairs(distances, cells, math.inf if left is None else left, sealed.pairs)
        covered = set(itertools.chain(*chosen))
        wanted = [*chosen, *(clique for clique in alone if clique[0] not in covered)]
        shares = shares_of([cells[clique] for clique in wanted])
        for number, (clique, share) in enumerate(zip(wanted, shares, strict=True)):
            draws.joint(View.finest(clique), exact[clique], noise_of(draws.left, share))
            progress("measuring combinations", number + 1, len(wanted))

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        stored = read_measurements(directory, plan.digest)
        save_model(directory, model_of_table(plan, stored, self.sealed(plan.parameters).table_rows, progress))


def chosen_pairs(
    distances: Mapping[Clique, float], cells: Mapping[Clique, int], sigma: float, most: int
) -> list[Clique]:
    """The pairs for the least sum of errors, chosen one by one (the paper's algorithm 1); all of it is post-processing.

    A pair that is not measured has its distance from independence as error. Those that are have noise, whose mean
    absolute values sum up to sqrt(2 / pi) sigma (sum of cells^(2/3))^(3/2) at the best spread of precision.

    Args:
        distances: from independence, noisy, in records.
        cells: of each pair.
        sigma: noise of one measurement that uses all the precision that is left.
        most: number of chosen pairs.
    """
    left = {pair: cells[pair] ** (2 / 3) for pair in distances}
    chosen: list[Clique] = []
    held = 0.0

    def noise(sum_of_cells: float) -> float:
        return expected_error(sigma) * sum_of_cells * math.sqrt(sum_of_cells)

    while left and len(chosen) < most:
        pair = min(left, key=lambda pair: noise(held + left[pair]) - distances[pair])
        if noise(held + left[pair]) - noise(held) >= distances[pair]:
            break
        chosen.append(pair)
        held += left.pop(pair)
    return chosen


def shares_of(cells: Sequence[int]) -> list[float]:
    """For each measurement in turn, the part of the precision that is left then, for the least mean absolute noise.

    Precisions are as cells^(2/3) (the paper, section 4.3): their noises sum up to the sum of cells / sqrt(precision).
    """
    weights = [number ** (2 / 3) for number in cells]
    after = list(itertools.accumulate(reversed(weights)))[::-1]
    return [weight / rest for weight, rest in zip(weights, after, strict=True)]
