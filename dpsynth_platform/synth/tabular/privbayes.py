"""PrivBayes: a network of columns, each with the few others that predict it best (Zhang et al. 2014, 2017).

What belongs here: candidates of a column with its parents, their scores, and which are useful under noise. What does
not: the draws (`drawing`), their cost (`privacy.selection`), and all that follows from the noisy counts (`marginals`).

All columns are measured alone. Then the exponential mechanism chooses one column after the other, together with its
parents among the columns chosen before. Finally the joint counts of each column with its parents are measured.

**The score** of a column X with parents P is its distance from independence,

    sum over x and p of |W n(x, p) - w(x) n(p)|,

with n the exact counts over states, and w(x) whole numbers with the sum W = `SHARES`: X's shares by its noisy counts,
fixed beforehand. The score is a whole number. One more record, at (x', p'), moves the term of (x', p') by at most
W - w(x'), and those of the other (x, p') by w(x) each, which sum to W - w(x'); no other term moves. So a record moves
the score by at most 2 (W - w(x')) <= 2 W, and a unit by at most 2 W times the L1 distance that it moves counts by.
(The score is 2 W n R, with R that of Zhang et al. 2017, section 4.3, except for noisy in place of exact shares.) The
joint counts' expected noise, which depends on no exact count, is subtracted.

What differs from the papers, and why:

- Parents are one column, or two that an earlier chosen joint marginal contains. So the joint marginals are the cliques
  of a junction tree, and the model is never larger than what is measured; free parents can need a far larger model.
- Parents are useful (2017, section 4.5) if a cell of the joint counts holds on average `USEFULNESS` times the noise.
- The distribution is fitted to all noisy counts (`estimation`), not multiplied from conditional ones with noise each.
- Columns without useful parents or children are measured once more alone.
- Noise is rounded Gaussian, and the cost is that of `privacy.selection`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import calibrate_selection
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.compression import compress, one_way_measurements
from dpsynth_platform.synth.tabular.cost import memory_bytes
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.estimation import Array, Measurement, estimate_total, project
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import SCORE_SCALE, expected_error, score_sensitivity
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.tabular.paid import partitions_of
from dpsynth_platform.synth.tabular.resolution import View
from dpsynth_platform.synth.tabular.rounds import (
    MODEL_CELLS,
    SelectionGenerator,
    SelectionParameters,
    in_units,
    noise_of,
)

SHARES = 2**14
SELECTION_SHARE = 0.1
ONE_WAY_SHARE = 1 / 3
MOST_PARENTS = 2
MOST_FAMILIES = 5_000
"""All sets of a column and its parents are counted beforehand; with more sets than this, a column has one parent."""
USEFULNESS = 4.0


@dataclass(frozen=True)
class PrivBayesParameters(SelectionParameters):
    """The parameters of PrivBayes, sealed in the plan.

    Attributes:
        one_way_share: part of the measurements' precision for single columns; the joint counts share the rest evenly.
        parents: the most parents of a column.
        usefulness: least mean count of a joint marginal's cells, in multiples of the mean absolute noise.
        model_cells: limit of all joint marginals' cells together.
    """

    one_way_share: float
    parents: int
    usefulness: float
    model_cells: int

    def sigma_joint(self, columns: int) -> float:
        """Noise of each joint marginal, for as many marginals as columns."""
        return self.noise((1 - self.one_way_share) / columns)


class PrivBayes(SelectionGenerator[PrivBayesParameters]):
    """The generator `privbayes`."""

    method = "privbayes"
    counts_pairs = False
    parameters_type = PrivBayesParameters

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        rounds = len(domain) - 1
        beside = partitions_of(contract, domain)
        budget = calibrate_selection(guarantee, rounds, SELECTION_SHARE if rounds else 0.0, beside)
        few = math.comb(len(domain), MOST_PARENTS + 1) <= MOST_FAMILIES
        parameters = PrivBayesParameters(
            **asdict(budget),
            one_way_share=ONE_WAY_SHARE if rounds else 1.0,
            parents=min(MOST_PARENTS if few else 1, rounds),
            usefulness=USEFULNESS,
            model_cells=MODEL_CELLS,
        )
        return asdict(parameters)

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        domain, sealed = Domain.from_json(plan.columns), self.sealed(plan.parameters)
        one = sealed.noise(sealed.one_way_share / len(domain))
        joint = sealed.sigma_joint(len(domain)) if sealed.rounds else None
        cells = [
            min(math.prod(family), sealed.model_cells // len(domain))
            for ways in range(2, sealed.parents + 2)
            for family in itertools.combinations(domain.most_states, ways)
        ]
        most = sum(heapq.nlargest(len(domain), cells))
        event = (
            f"{len(domain)} one-way marginals with rounded Gaussian noise, up to {sealed.rounds} choices of a "
            f"column and up to {sealed.parents} others that tell most of it by the exponential mechanism, and "
            "their joint marginals with rounded Gaussian noise"
        )
        memory = memory_bytes(counted=sum(cells), views=len(cells), measured=most, model_cells=most)
        return sealed.described(domain, event, one=one, two=joint, cells=most, memory=memory, rounds=False)

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        sealed, domain = self.sealed(plan.parameters), records.domain
        columns = len(domain)
        draws = sealed.draws(log, 2 * SHARES * score_sensitivity(plan), records.parts)
        one_way = draws.columns(records, sealed.noise(sealed.one_way_share / columns), progress)
        if sealed.rounds:
            states = compress(domain, one_way)
            measured = one_way_measurements(one_way, states)
            error = expected_error(sealed.sigma_joint(columns))
            useful = estimate_total(measured) / (sealed.usefulness * error)
            families = useful_families(states, sealed.parents, min(useful, sealed.model_cells / columns))
            exact = records.cliques(states, [*families, *((index,) for index in range(columns))], progress)
            shares = [whole_shares(item) for item in measured]
            network: list[Clique] = []
            while scored := dict(_candidates(families, network)):
                view = draws.choice(
                    {
                        View.finest(clique): score(
                            exact[clique], clique.index(column), shares[column], error, records.parts
                        )
                        for clique, column in scored.items()
                    }
                )
                network.append(view.clique)
                progress("choosing combinations", sealed.rounds - draws.choices, sealed.rounds)
            placed = set(itertools.chain(*network))
            wanted = [*network, *((index,) for index in range(columns) if index not in placed)]
            for number, clique in enumerate(wanted):
                sigma = noise_of(draws.left, 1 / (len(wanted) - number))
                draws.joint(View.finest(clique), exact[clique], sigma)
                progress("measuring combinations", number + 1, len(wanted))


def useful_families(states: Sequence[ColumnStates], parents: int, most_cells: float) -> list[Clique]:
    """All sets of a column with 1 to `parents` parents whose joint counts have at most so many cells."""
    return [
        family
        for ways in range(2, parents + 2)
        for family in itertools.combinations(range(len(states)), ways)
        if math.prod(states[index].size for index in family) <= most_cells
    ]


def whole_shares(measured: Measurement) -> Counts:
    """A column's fitted shares as whole numbers with the sum SHARES, rounded by the largest remainders."""
    total = estimate_total([measured])
    shares: Array = project(measured.counts, measured.variance, total) / total * SHARES
    whole = np.floor(shares).astype(np.int64)
    left = SHARES - int(whole.sum())
    whole[np.argsort(whole - shares, kind="stable")[:left]] += 1
    return whole


def score(counts: Counts, axis: int, shares: Counts, error: float, parts: int) -> int:
    """A column's distance from independence of its parents, less expected noise; see the module. Sensitive.

    In units of 1/(SHARES SCORE_SCALE) record, of which one record moves it by at most 2 SHARES SCORE_SCALE.
    `counts` are exact, over the column (with its `axis` and `whole_shares`) and its parents, in units of 1/`parts`
    record; `error` is the expected error of a cell of them, in records.
    """
    shape = [1] * counts.ndim
    shape[axis] = shares.size
    independent = shares.reshape(shape) * counts.sum(axis=axis, keepdims=True)
    distance = int(np.abs(counts * SHARES - independent).sum())
    return distance * (SCORE_SCALE // parts) - SHARES * int(in_units(error * counts.size))


def _candidates(families: Sequence[Clique], network: Sequence[Clique]) -> Iterator[tuple[Clique, int]]:
    """The families that may come next, each with the column that it adds to the network.

    A family of the network contains all its other columns. If no such family is left, and at first, pairs of new
    columns are the candidates.
    """
    placed = set(itertools.chain(*network))
    together = {parents for chosen in network for ways in (1, 2) for parents in itertools.combinations(chosen, ways)}
    found = False
    for family in families:
        fresh = [index for index in family if index not in placed]
        if len(fresh) == 1 and tuple(index for index in family if index != fresh[0]) in together:
            found = True
            yield family, fresh[0]
    if not found:
        yield from ((pair, pair[1]) for pair in families if len(pair) == 2 and placed.isdisjoint(pair))
