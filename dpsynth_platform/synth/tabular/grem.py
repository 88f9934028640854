"""Residuals of all pairs of columns at once, without a choice, and a mixture that has them (after Mullins et al. 2024).

What belongs here: the mechanism, and the fit of the mixture. What does not: residuals (`residuals`), what is common to
all pairs and what is noise (`reconstruction`), the draws (`drawing`) and mixtures (`mixtures`).

All columns are measured alone; what their states share is measured as the residuals of all pairs, each of which costs
less than the pair's counts, since it says nothing about single columns. Nothing is chosen by the data.

What differs from the paper (GReM), and why:

- Residuals of pairs have more noise than signal, where there are thousands of them: it is reduced by what pairs have
  in common. Without that, marginals are farther from the truth than independent columns are.
- No marginal is negative in a mixture, and all of them are those of one distribution; marginals that are only
  consistent among themselves (GReM-LNN) need not be. Rows are drawn from it.
- Single columns are measured over all cells first, since cells are merged by their noisy counts (`compression`).
- Noise is rounded Gaussian on whole contrasts, and the cost is that of `privacy.selection`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import calibrate_selection
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.compression import compress
from dpsynth_platform.synth.tabular.cost import ESTIMATE_SHARE, memory_bytes
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.estimation import Array, Measurement, estimate_total, project
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import pair_cells, prepared, score_sensitivity
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, Measurements
from dpsynth_platform.synth.tabular.mixtures import (
    COMPONENTS,
    LEAST_COMPONENTS,
    MIXTURE_CELLS,
    RULED_OUT,
    Logits,
    MeasuredView,
    MixtureEstimator,
    ruled_out,
)
from dpsynth_platform.synth.tabular.model import Model
from dpsynth_platform.synth.tabular.paid import partitions_of
from dpsynth_platform.synth.tabular.reconstruction import pair_shares, widths
from dpsynth_platform.synth.tabular.residuals import stretch_squared
from dpsynth_platform.synth.tabular.rounds import SelectionGenerator, SelectionParameters, noise_of

if TYPE_CHECKING:
    import torch

ONE_WAY_SHARE = 0.15
STEPS, RATE, RAKES = 100, 0.15, 20
FLOOR = 0.02
"""The least share of a state in a component at the start, of its share in the column."""
MOST_STATES = 4096
"""Of all columns in pairs together: a matrix of them is decomposed, which takes time with the third power."""


@dataclass(frozen=True)
class GremParameters(SelectionParameters):
    """The parameters of the mechanism, sealed in the plan.

    Attributes:
        one_way_share: part of the precision for single columns; the rest is for pairs.
        components: of the mixture.
    """

    one_way_share: float
    components: int


class Grem(SelectionGenerator[GremParameters]):
    """The generator `grem`."""

    method = "grem"
    parameters_type = GremParameters

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        return asdict(
            GremParameters(
                **asdict(calibrate_selection(guarantee, 0, 0.0, partitions_of(contract, domain))),
                one_way_share=ONE_WAY_SHARE if len(domain) > 1 else 1.0,
                components=max(LEAST_COMPONENTS, min(COMPONENTS, MIXTURE_CELLS // sum(domain.most_states))),
            )
        )

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        domain, sealed = Domain.from_json(plan.columns), self.sealed(plan.parameters)
        pairs, cells = math.comb(len(domain), 2), pair_cells(domain.most_states)
        states = sum(domain.most_states)
        which = "all" if states <= MOST_STATES else "up to"
        one = sealed.noise(sealed.one_way_share / len(domain))
        joint = sealed.noise((1 - sealed.one_way_share) / pairs) if pairs else None  # if all had as many cells
        event = (
            f"{len(domain)} one-way marginals with rounded Gaussian noise, and the residuals of {which} {pairs} "
            "two-way marginals with rounded Gaussian noise"
        )
        memory = memory_bytes(counted=cells, model_cells=min(states, MOST_STATES) ** 2)
        return sealed.described(domain, event, one=one, two=joint, cells=cells, memory=memory, rounds=False)

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        sealed, columns = self.sealed(plan.parameters), len(records.domain)
        draws = sealed.draws(log, score_sensitivity(plan), records.parts)
        one_way = draws.columns(records, sealed.noise(sealed.one_way_share / columns), progress)
        states = compress(records.domain, one_way)
        pairs = list(itertools.combinations(paired([column.size for column in states]), 2))
        if pairs:
            adjacency = Guarantee.from_json(plan.guarantee).adjacency
            exact = records.cliques(states, pairs, progress)
            shares = shares_of(pairs, [column.size for column in states], adjacency)
            progress("measuring combinations", 0, 1)
            draws.residuals(exact, shares, noise_of(draws.left, 1.0), adjacency)
            progress("measuring combinations", 1, 1)

    def model(self, plan: SealedPlan, stored: Measurements, device: str, progress: Progress) -> Model:
        sealed, domain = self.sealed(plan.parameters), Domain.from_json(plan.columns).with_values(stored.learned)
        states, groups, one_way = prepared(domain, stored.one_way)
        estimator = PairsEstimator(one_way, stored, components=sealed.components, device=device)
        estimator.add(ruled_out(domain, states, groups, RULED_OUT * min(item.variance.min() for item in one_way)))
        limit = None if plan.time_limit is None else ESTIMATE_SHARE * plan.time_limit
        estimator.fit(STEPS, progress, seconds=limit)
        potentials, total = estimator.potentials, estimator.total
        return Model(plan, states, groups, potentials, total, stored, components=sealed.components)


def paired(sizes: Sequence[int]) -> list[int]:
    """The columns whose pairs are measured: those of several states, the smallest ones up to `MOST_STATES` together."""
    found, states = [], 0
    for index in sorted(range(len(sizes)), key=lambda index: (sizes[index], index)):
        states += sizes[index]
        if sizes[index] > 1 and states <= MOST_STATES:
            found.append(index)
    return sorted(found)


def shares_of(pairs: Sequence[Clique], sizes: Sequence[int], adjacency: str) -> dict[Clique, float]:
    """Each pair's share of the precision: coordinates have deviations in proportion to `reconstruction.widths`."""
    width = widths(sizes)
    weights = {
        (a, b): float(stretch_squared((sizes[a], sizes[b]), adjacency)) / (width[a] * width[b]) ** 2 for a, b in pairs
    }
    whole = math.fsum(weights.values())
    return {pair: weight / whole for pair, weight in weights.items()}


class PairsEstimator(MixtureEstimator):
    """A mixture fitted to single columns and to the shares of all pairs, which are one matrix.

    It starts from components whose deviations from independent columns are random sums of the factors of what pairs
    have in common: their mean product is that already, but where shares would be negative.
    """

    def __init__(
        self, one_way: Sequence[Measurement], stored: Measurements, *, components: int, device: str = "cpu"
    ) -> None:
        import torch

        columns = sorted({index for item in stored.residuals for index in item.clique})
        ends = np.cumsum([0, *(item.counts.size for item in one_way)])
        places = np.concatenate([np.arange(ends[index], ends[index + 1]) for index in columns] or [ends[:0]])
        total = estimate_total(one_way)
        alone = [project(one_way[index].counts, one_way[index].variance, total) / total for index in columns]
        renamed = [
            replace(item, clique=tuple(columns.index(index) for index in item.clique)) for item in stored.residuals
        ]
        pairs = pair_shares(alone, renamed, total)
        factors = np.zeros((ends[-1], pairs.factors.shape[1]))
        factors[places] = pairs.factors

        def start(logits: Array, components: int, rng: np.random.Generator) -> Logits:
            found = torch.tensor(np.log(first_shares(np.exp(logits), factors, components, rng)))
            return Logits([parameter := found.float().requires_grad_()], lambda: parameter)

        super().__init__(one_way, start, components=components, rate=RATE, device=device, pull=0.0)
        self._places = torch.as_tensor(places, device=device)
        self._shares_of_pairs, self._weights = (
            torch.as_tensor(values, dtype=torch.float32, device=device) for values in (pairs.shares, 1 / pairs.variance)
        )

    def fit(self, iterations: int, progress: Progress = silent, *, seconds: float | None = None) -> None:
        """As of `MixtureEstimator`; then every component's shares are raked to the single columns' counts."""
        super().fit(iterations, progress, seconds=seconds)
        for _ in range(RAKES):
            # Where hardly any share is left, it stays so.
            excess = self._shares().detach().mean(1, keepdim=True).log() - self._alone
            self._logits.parameters[0].data.sub_(excess.clamp(-1.0, 1.0))

    def _slope(self, shares: torch.Tensor, views: Sequence[MeasuredView]) -> torch.Tensor:
        some = shares[self._places]
        off = (some @ some.T / some.shape[1] - self._shares_of_pairs).mul_(self._weights)
        return super()._slope(shares, views).index_add_(0, self._places, off @ some)


def first_shares(alone: Array, factors: Array, components: int, rng: np.random.Generator) -> Array:
    """Shares of components whose covariance is that of the factors, unless they would be too small.

    Args:
        alone: shares of all columns' states in independent columns.
        factors: shape (states, dimensions); the last of them are the largest.

    Returns:
        Of shape (states, components); a column's do not add up to one.
    """
    factors = factors[:, -(components - 1) :] if components > 1 else factors[:, :0]
    drawn = rng.standard_normal((components, factors.shape[1]))
    mutual = np.linalg.qr(drawn - drawn.mean(axis=0))[0] * math.sqrt(components)
    return np.asarray(np.maximum(alone[:, None] + factors @ mutual.T, FLOOR * alone[:, None]))
