"""PrivBayes: a network of columns, each with the few others that tell most of it (Zhang et al. 2014, 2017).

What belongs here: which column is drawn next with which parents, what such a choice is worth, and which are useful
under noise. What does not: the draws (`drawing`), their cost (`privacy.selection`), and all that follows from the noisy
counts (`marginals`).

All columns are measured alone. Then columns are placed one after the other: the exponential mechanism chooses the next
one together with its parents, among those that were placed before. At last the joint counts of each with its parents
are measured.

**The score** of a column X with parents P is how far X is from independent of them,

    sum over x and p of |W n(x, p) - w(x) n(p)|,

with n the exact counts over states, and w(x) whole numbers with the sum W = `SHARES` that are fixed beforehand: X's
shares by its noisy counts. It is a whole number. One more record, at (x', p'), moves the term of (x', p') by W - w(x')
at most, and those of the other (x, p') by w(x) each, which sum to W - w(x'); all others stay. So a record moves the
score by at most 2 (W - w(x')) <= 2 W, and a unit by at most 2 W times the L1 distance that it moves counts by. (It is
2 W n R, with R the score of Zhang et al. 2017, section 4.3, but for shares in place of exact ones.) From it goes what
noise would hide of the joint counts, which depends on no exact count.

What differs from the papers, and why:

- Parents are one column, or two that stand together in a joint marginal that was chosen before. So the joint marginals
  are the cliques of a junction tree as they are, and the model is never larger than what is measured. Parents chosen
  freely can need a far larger one.
- Parents are useful (2017, section 4.5) while the joint counts have as many cells at most that a cell holds, on
  average, `USEFULNESS` times the noise.
- The distribution is fitted to all noisy counts (`estimation`) and not multiplied from conditional ones, of which each
  would have its own noise.
- Columns with nothing useful to them are not placed, and measured once more alone.
- Noise is rounded Gaussian, and the cost is that of `privacy.selection`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
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
from dpsynth_platform.synth.tabular.marginals import (
    SCORE_SCALE,
    described_counts,
    expected_error,
    score_sensitivity,
)
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.noise import Counts
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
"""All sets of a column and its parents are counted beforehand; with more columns, there is one parent."""
USEFULNESS = 4.0


@dataclass(frozen=True)
class PrivBayesParameters(SelectionParameters):
    """What fixes PrivBayes, sealed in the plan.

    Attributes:
        one_way_share: part of the measurements' precision for single columns; the joint counts share the rest evenly.
        parents: the most parents of a column.
        usefulness: records in a cell of a joint marginal for each that noise is off, on average.
        model_cells: cells that all joint marginals together may have.
    """

    one_way_share: float
    parents: int
    usefulness: float
    model_cells: int

    def sigma_joint(self, columns: int) -> float:
        """Noise of each joint marginal, if there are as many as columns."""
        return self.noise((1 - self.one_way_share) / columns)


class PrivBayes(SelectionGenerator):
    """The generator `privbayes`."""

    method = "privbayes"
    counts_pairs = False

    def chosen(self, plan_parameters: Mapping[str, Any]) -> PrivBayesParameters:
        """The plan's parameters."""
        return PrivBayesParameters(**plan_parameters)

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        """The fields of `PrivBayesParameters`."""
        rounds = len(domain) - 1
        budget = calibrate_selection(guarantee, rounds, SELECTION_SHARE if rounds else 0.0, domain.partitions)
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
        """Event, noise, expected error, cells, memory and sampling time of a plan; see `Generator.describe`."""
        domain, chosen = Domain.from_json(plan.columns), self.chosen(plan.parameters)
        one = chosen.noise(chosen.one_way_share / len(domain))
        joint = chosen.sigma_joint(len(domain)) if chosen.rounds else None
        cells = [
            min(math.prod(family), chosen.model_cells // len(domain))
            for ways in range(2, chosen.parents + 2)
            for family in itertools.combinations(domain.most_states, ways)
        ]
        most = sum(heapq.nlargest(len(domain), cells))
        return {
            "event": (
                f"{len(domain)} one-way marginals with rounded Gaussian noise, up to {chosen.rounds} choices of a "
                f"column and up to {chosen.parents} others that tell most of it by the exponential mechanism, and "
                f"their joint marginals with rounded Gaussian noise"
            ),
            "sigma_total": chosen.sigma_total,
            "sigma_one": one,
            "epsilon_select": chosen.epsilon_select,
            **({} if joint is None else {"sigma_two": joint}),
            "rho": chosen.rho,
            **described_counts(
                domain,
                sigma_one=one,
                sigma_two=joint,
                joint=most,
                memory=memory_bytes(counted=sum(cells), views=len(cells), measured=most, model_cells=most),
            ),
        }

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        """One-way marginals, a network, its joint marginals; see `MarginalGenerator.mechanism`."""
        chosen, domain = self.chosen(plan.parameters), records.domain
        columns = len(domain)
        draws = chosen.draws(log, 2 * SHARES * score_sensitivity(plan), records.parts)
        one_way = draws.columns(records, chosen.noise(chosen.one_way_share / columns), progress)
        if chosen.rounds:
            states = compress(domain, one_way)
            measured = one_way_measurements(one_way, states)
            error = expected_error(chosen.sigma_joint(columns))
            useful = estimate_total(measured) / (chosen.usefulness * error)
            families = useful_families(states, chosen.parents, min(useful, chosen.model_cells / columns))
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
                progress("choosing combinations", chosen.rounds - draws.choices, chosen.rounds)
            placed = set(itertools.chain(*network))
            wanted = [*network, *((index,) for index in range(columns) if index not in placed)]
            for number, clique in enumerate(wanted):
                sigma = noise_of(draws.left, 1 / (len(wanted) - number))
                draws.joint(View.finest(clique), exact[clique], sigma)
                progress("measuring combinations", number + 1, len(wanted))


def useful_families(states: Sequence[ColumnStates], parents: int, most_cells: float) -> list[Clique]:
    """All sets of a column with one parent or more whose joint counts have no more cells."""
    return [
        family
        for ways in range(2, parents + 2)
        for family in itertools.combinations(range(len(states)), ways)
        if math.prod(states[index].size for index in family) <= most_cells
    ]


def whole_shares(measured: Measurement) -> Counts:
    """A column's fitted shares in whole numbers whose sum is SHARES, those left over to the largest remainders."""
    total = estimate_total([measured])
    shares: Array = project(measured.counts, measured.variance, total) / total * SHARES
    whole = np.floor(shares).astype(np.int64)
    left = SHARES - int(whole.sum())
    whole[np.argsort(whole - shares, kind="stable")[:left]] += 1
    return whole


def score(counts: Counts, axis: int, shares: Counts, error: float, parts: int) -> int:
    """How far a column is from independent of its parents, less what noise would hide; see the module. Sensitive.

    In units of 1/(SHARES SCORE_SCALE) record, of which one record moves it by at most 2 SHARES SCORE_SCALE.

    Args:
        counts: exact, over the column and its parents, in parts of a record.
        axis: the column's.
        shares: its `whole_shares`.
        error: expected error of a cell of the joint counts, in records.
        parts: how many parts of a record the counts are in.
    """
    shape = [1] * counts.ndim
    shape[axis] = shares.size
    independent = shares.reshape(shape) * counts.sum(axis=axis, keepdims=True)
    distance = int(np.abs(counts * SHARES - independent).sum())
    return distance * (SCORE_SCALE // parts) - SHARES * int(in_units(error * counts.size))


def _candidates(families: Sequence[Clique], network: Sequence[Clique]) -> Iterator[tuple[Clique, int]]:
    """The families that may come next, each with the column that it would place.

    Its other columns are together in a family of the network. Where there is no such family any more, and at first,
    those of two columns begin anew.
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
