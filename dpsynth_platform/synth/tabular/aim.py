"""AIM: noisy marginals chosen in rounds where the model is worst (McKenna, Mullins, Sheldon & Miklau 2022).

What belongs here: candidate pairs, their scores, and how the budget is spread over the rounds. What does not: the draws
(`drawing`), their cost (`privacy.selection`), and all that follows from the noisy counts (`marginals`).

All columns are measured alone. Then each round chooses, by the exponential mechanism, the pair whose counts are
farthest from what the model expects, less a penalty for noise; measures it; and fits the model again. After a round
that changed the model by no more than noise would, later rounds measure with twice the precision.

What differs from the paper, and why:

- The penalty for noise is sum min(sqrt(2/pi) sigma, expected count) instead of sqrt(2/pi) sigma for every cell: where
  nothing is expected, the estimate does not follow the noise (`estimation`). The penalty depends on the model only, so
  that a score's sensitivity is unchanged.
- All choices have the same fixed epsilon; only the precision of measurements adapts. This permits accounting by privacy
  loss distributions: 10 to 17% more budget than zCDP at epsilon 1 and delta from 1e-9 to 1e-5 (`privacy.selection`).
- A pair may be measured with each column coarse or fine (`resolution`), whichever scores higher.
- A declared target's links to all other columns are measured before the rounds, whatever their L1 distances. Its
  combinations with two columns are candidates, too (`workload`): without them, more budget bought little.
- The model may have up to four times the cells where noise is small beside what the model leaves out (`LARGE`).
- On tables of 40 columns and more, and under a time limit, several pairs without a common column are chosen before the
  model is fitted again: a fit takes longer than a choice, and each choice is paid for.
- Single columns get a third of the measurements' precision, since every pair uses them. With a target, its links also
  measure single columns, which then need less. On adult at epsilon 1, a classifier's area under the curve rises from
  90.0 to 90.2%, its accuracy from 82.6 to 82.8% (standard errors below 0.1). The similarity of columns and pairs falls
  by 0.2 points. Shares of 10 to 15% for columns and 25 to 40% for links have the same effect.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import PrecisionBudget, calibrate_selection
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.compression import as_measurement
from dpsynth_platform.synth.tabular.cost import Work, memory_bytes
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.drawing import Draws
from dpsynth_platform.synth.tabular.estimation import Array, Estimator, Measurement
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.local_consistency import LocalEstimator
from dpsynth_platform.synth.tabular.marginals import (
    ITERATIONS,
    MeasuredTable,
    expected_error,
    score_sensitivity,
)
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.tabular.paid import partitions_of
from dpsynth_platform.synth.tabular.public_prior import PublicPrior, PublicView
from dpsynth_platform.synth.tabular.resolution import COARSE_GROUPS, Groups, Sums, View
from dpsynth_platform.synth.tabular.rounds import (
    MODEL_CELLS,
    ROUND_ITERATIONS,
    Limited,
    SelectionGenerator,
    WorkloadParameters,
    admissible,
    check_workload_cells,
    distances,
    hidden_by_noise,
    in_units,
)
from dpsynth_platform.synth.tabular.workload import WEIGHT_SCALE, workload_of

ROUNDS_PER_COLUMN = 4
SELECTION_SHARE = 0.05
ONE_WAY_SHARE = 1 / 3
SHARES_WITH_TARGET = (0.15, 0.25)
"""Of single columns and of the links, if there is a target."""
COLUMNS_PER_CHOICE = 20
"""Every so many columns allow one more choice between two fits."""
LINK_ITERATIONS = 20
MOST_TURNS = 4
LARGE, MOST_LARGER, LEAST_FOR_TARGET = 100_000, 4, 0.5
"""In units times epsilon: twice this doubles the model, up to `MOST_LARGER` times; half of it allows triples of a
target. On adult at 30,000 (epsilon 1), they only took budget from pairs: CorAcc fell from 90.6 to 86.9.
"""


@dataclass(frozen=True)
class AimParameters(WorkloadParameters):
    """The parameters of AIM, sealed in the plan.

    The links to the target column (an index) get `target_share` of the measurements' precision. In early rounds the
    model may have fewer cells than `model_cells`, in proportion to the budget used.
    """

    target_share: float
    target: int | None
    choices_per_fit: int
    others_share: float = 0.0
    """Of single columns of other tables, where several share the budget (`relational.one_selection`)."""

    def to_json(self) -> dict[str, Any]:
        """Without the share of other tables where there are none, so that plans of one table keep their digests."""
        return {key: value for key, value in asdict(self).items() if key != "others_share" or value}

    @property
    def rounds_share(self) -> float:
        return 1 - self.one_way_share - self.target_share - self.others_share


class Aim(SelectionGenerator[AimParameters]):
    """The generator `aim`."""

    method = "aim"
    parameters_type = AimParameters
    selection_share = SELECTION_SHARE
    score_factor = 1
    """How often a score moves by the sensitivity of a distance, at most."""
    instead = ""
    """What a choice may do instead, for plans."""

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        columns, limit = len(domain), contract.generate.seconds
        asked = workload_of(contract, domain.names, domain.parts)
        check_workload_cells(contract, asked.weights, domain.most_states)
        work = work_of(contract, columns, len(asked.weights)).within(limit)
        if _scale(contract) >= LEAST_FOR_TARGET:
            more = workload_of(contract, domain.names, domain.parts, domain.most_states)
            full = work_of(contract, columns, len(more.weights))
            if full == full.within(limit):  # the target's combinations with two columns are what to do without first
                asked, work = more, full
        rounds = work.rounds
        aimed = rounds > 0 and asked.target is not None
        one_way, links = SHARES_WITH_TARGET if aimed else (ONE_WAY_SHARE if rounds else 1.0, 0.0)
        beside = partitions_of(contract, domain)
        budget = calibrate_selection(guarantee, rounds, self.selection_share if rounds else 0.0, beside)
        return AimParameters(
            **asdict(budget),
            one_way_share=one_way,
            target_share=links,
            model_cells=work.model_cells,
            target=asked.target,
            choices_per_fit=work.choices_per_fit,
            workload=[list(clique) for clique in asked.weights],
            workload_weights=list(asked.weights.values()),
        ).to_json()

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        """Expected errors are of the noise alone, if every round is used; memory is of counts and the largest model."""
        domain, sealed = Domain.from_json(plan.columns), self.sealed(plan.parameters)
        one, joint = _noise_of_one_way(sealed, len(domain)), _noise_of_round(sealed)
        states = domain.most_states
        cells = {clique: math.prod(states[index] for index in clique) for clique in sealed.weights}
        links = sum(math.prod(states[index] for index in link) for link in _links(sealed, len(domain)))
        most = links + sum(heapq.nlargest(sealed.rounds, cells.values()))
        model = min(sealed.model_cells, math.prod(states))
        # A column of more states has two resolutions.
        views = sum(2 ** sum(states[index] > COARSE_GROUPS for index in clique) for clique in cells)
        target = ", one of each other column with the target" if sealed.target_share else ""
        event = self.in_words(len(domain), sealed.rounds, target)
        memory = memory_bytes(counted=sum(cells.values()), views=views, measured=min(most, model), model_cells=model)
        return sealed.described(domain, event, one=one, two=joint, cells=most, memory=memory)

    def in_words(self, columns: int, rounds: int, links: str = "", of: str = "columns") -> str:
        """The event, whose rounds choose `of` so many columns of a table, or of several."""
        return (
            f"{columns} one-way marginals with rounded Gaussian noise{links}, then up to {rounds} rounds, each with a "
            f"choice of {of} by the exponential mechanism and their joint marginal with rounded Gaussian noise, whose "
            f"precision adapts within a total fixed beforehand{self.instead}"
        )

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        self.choose_and_measure([MeasuredTable(plan, records, log)], progress)

    def choose_and_measure(self, tables: Sequence[MeasuredTable], progress: Progress) -> None:
        """The mechanism of one table, or of several whose plans share a budget (`relational.one_selection`)."""
        sealed = self.sealed(tables[0].plan.parameters)
        sensitivity = max(self.score_factor * WEIGHT_SCALE * score_sensitivity(table.plan) for table in tables)
        draws = sealed.draws(tables[0].log, sensitivity, tables[0].records.parts)
        modelled = [_Modelled.of(self, table, draws, progress) for table in tables]
        rounds = _Rounds(sealed, draws.left)
        while any(scored := [table.scored(self, rounds) for table in modelled]):
            measured = 0
            while any(scored) and measured < sealed.choices_per_fit:
                logs = [table.log for table in modelled]
                place, view = draws.choice_of(list(zip(logs, scored, strict=True)))
                table = modelled[place]
                sigma = rounds.sigma(table)
                assert sigma is not None  # noqa: S101  (else nothing is scored)
                if isinstance(view, PublicView):
                    table.take(view.clique, sigma)
                    rounds = rounds.after(draws.left, table)
                    break
                table.measure(view, sigma, draws)
                measured, rounds = measured + 1, rounds.after(draws.left, table)
                if measured < sealed.choices_per_fit:
                    scored[place] = _disjoint(scored[place], view.clique, table.estimator, rounds.most_cells(table))
                    scored = [rounds.left_over(each, views) for each, views in zip(modelled, scored, strict=True)]
                progress("measuring combinations", rounds.done, sealed.rounds)
            for table in modelled:
                table.refit()

    def started(
        self, groups: Groups, one_way: Sequence[Measurement], prior: PublicPrior | None
    ) -> Estimator | LocalEstimator:
        """The model of single columns, and of a prior's pairs."""
        return Estimator(groups, one_way, prior=prior)

    def public_scores(
        self,
        public: Mapping[Clique, Array],
        weights: Mapping[Clique, int],
        exact: Mapping[Clique, Counts],
        expected: Mapping[Clique, Array],
        parts: int,
    ) -> dict[View, int]:
        """Scores of public marginals, in records, that may be taken in place of a measurement (`jam`). Sensitive."""
        return {}


@dataclass
class _Modelled:
    """A table while it is measured: its exact counts (sensitive), its model and what may be chosen.

    Attributes:
        every: the views of the workload; `expected` are the model's counts of the cliques that were last scored.
        precision: of the next measurement, as a multiple of an even spread.
        known: views that were measured since the last fit, with what the model expected; `hidden` is what their noise
            hides.
        taken, changed: whether the model was given public counts since then, or anything.
    """

    sealed: AimParameters
    log: MeasurementLog
    parts: int
    exact: Mapping[Clique, Counts]
    groups: Groups
    sums: Sums
    estimator: Estimator | LocalEstimator
    prior: PublicPrior | None
    every: Sequence[View]
    expected: dict[Clique, Array] = field(default_factory=dict)
    precision: int = 1
    known: list[tuple[View, Array]] = field(default_factory=list)
    hidden: float = 0.0
    taken: bool = False
    changed: bool = False

    @classmethod
    def of(cls, method: Aim, table: MeasuredTable, draws: Draws, progress: Progress) -> _Modelled:
        """Measures all columns, and the links to a target."""
        sealed, records, log = method.sealed(table.plan.parameters), table.records, table.log
        columns = len(records.domain)
        one_way = draws.columns(records, _noise_of_one_way(sealed, columns), progress, log)
        links, weights = _links(sealed, columns), sealed.weights
        states, groups, measured, prior = method.prepared_with_public(table.plan, records.domain, one_way, weights, log)
        estimator, sums = method.started(groups, measured, prior), Sums(groups)
        exact = records.cliques(states, {*links, *weights}, progress)
        if links:
            sigma = sealed.noise(sealed.target_share / len(links))
            for link in links:
                estimator.add([as_measurement(draws.joint(View.finest(link), exact[link], sigma, log))])
        if links or prior:
            estimator.fit(LINK_ITERATIONS)
        every = [view for clique in weights for view in sums.views(clique)]
        return cls(sealed, log, records.parts, exact, groups, sums, estimator, prior, every)

    def scored(self, method: Aim, rounds: _Rounds) -> Mapping[View, int]:
        """The scores of all that a round may choose in this table. Sensitive."""
        sigma = rounds.sigma(self)
        if not self.every or sigma is None:
            return {}
        weights, parts = self.sealed.weights, self.parts
        candidates = _in_turn(self.every, len(self.groups), rounds.done)
        views = admissible(self.estimator, candidates, rounds.most_cells(self))
        cliques = list(dict.fromkeys(view.clique for view in views))
        if unknown := [clique for clique in cliques if clique not in self.expected]:
            self.expected |= self.estimator.expected_counts(unknown)
        scored = {
            view: weights[clique] * value
            for clique in cliques
            for view, value in scores(clique, self.exact[clique], self.expected[clique], self.sums, sigma, parts)
        }
        scored = {view: scored[view] for view in views}
        if (
            self.prior is not None and rounds.done < self.sealed.rounds - 1
        ):  # the last one measures with all that is left
            whole = {view.clique for view in views if not any(view.levels)}
            shares = self.prior.shares
            public = {clique: self.estimator.total * shares[clique] for clique in shares if clique in whole}
            scored |= method.public_scores(public, weights, self.exact, self.expected, parts)
        return scored

    def measure(self, view: View, sigma: float, draws: Draws) -> None:
        before = view.sums(self.expected[view.clique], self.groups)
        self.known.append((view, before))
        self.hidden += hidden_by_noise(before, sigma)
        noisy = draws.joint(view, view.counts(self.exact[view.clique], self.groups), sigma, self.log)
        self.estimator.add([as_measurement(noisy)])
        self.changed = True

    def take(self, clique: Clique, sigma: float) -> None:
        """Takes public counts in place of a measurement."""
        assert self.prior is not None  # noqa: S101  (it has scored them)
        self.log.taken(clique, sigma)
        self.prior.take(clique, sigma**2)
        self.estimator.add([])
        self.taken = self.changed = True

    def refit(self) -> None:
        """Fits the model to what a round has added; if that was no more than noise, the next ones are more precise."""
        if not self.changed:
            return
        self.estimator.fit(ROUND_ITERATIONS)
        learned = sum(
            np.abs(self.estimator.expected(view.attributes(len(self.groups))).numpy() - before).sum()
            for view, before in self.known
        )
        if learned <= self.hidden and not self.taken:
            self.precision *= 2
        self.expected, self.known, self.hidden = {}, [], 0.0
        self.taken = self.changed = False


def work_of(contract: DataContract, columns: int, cliques: int) -> Work:
    """The work without a time limit."""
    return Work(
        records=contract.privacy.expected_units * contract.privacy.max_contributions,
        columns=columns,
        cliques=cliques,
        rounds=min(ROUNDS_PER_COLUMN * columns, cliques),
        choices_per_fit=max(1, columns // COLUMNS_PER_CHOICE),
        model_cells=MODEL_CELLS * min(MOST_LARGER, 2 ** math.floor(math.log2(max(1.0, _scale(contract))))),
        steps=ROUND_ITERATIONS,
        last_steps=ITERATIONS,
    )


def _scale(contract: DataContract) -> float:
    """How far noise matters less than what a model of pairs leaves out, from public facts."""
    return contract.privacy.expected_units * contract.privacy.guarantee.epsilon / LARGE


def _links(sealed: AimParameters, columns: int) -> list[Clique]:
    target = sealed.target
    if target is None or not sealed.target_share:
        return []
    return [(min(index, target), max(index, target)) for index in range(columns) if index != target]


def _in_turn(views: Sequence[View], columns: int, done: int) -> list[View]:
    """The candidates of a round: all pairs, and of many larger combinations a part, each in its turn.

    The model's counts of columns that are far apart in it take most of the time. The turns are public.
    """
    larger = list(dict.fromkeys(view.clique for view in views if len(view.clique) > 2))
    turns = min(MOST_TURNS, max(1, len(larger) // (2 * columns)))
    now = set(larger[done % turns :: turns])
    return [view for view in views if len(view.clique) == 2 or view.clique in now]


def _disjoint(scored: Mapping[View, int], clique: Clique, estimator: Limited, most_cells: float) -> dict[View, int]:
    """The views that may still be chosen before the model is fitted to a clique: those without a common column.

    The score of a link that follows from the chosen one, through a common column, would not yet show that.
    """
    disjoint = [view for view in scored if not set(view.clique) & set(clique)]
    return {view: scored[view] for view in estimator.within(disjoint, most_cells)}


def scores(
    clique: Clique, counts: Counts, expected: Array, sums: Sums, sigma: float, parts: int
) -> list[tuple[View, int]]:
    """The score of each of a clique's views: its `misfit`, less what noise of `sigma` records would hide. Sensitive.

    `counts` are exact, over the clique's states, in units of 1/`parts` record; `expected` are the model's.
    """
    known, counted = sums.side_by_side(expected, clique), sums.side_by_side(counts.astype(np.float64), clique)
    misfits = sums.by_view(distances(counted.astype(np.int64), known, parts), clique)
    hidden = sums.by_view(np.minimum(known, expected_error(sigma)), clique)
    return list(zip(sums.views(clique), (misfits - in_units(hidden)).tolist(), strict=True))


@dataclass(frozen=True)
class _Rounds:
    """The spread of the budget over the rounds, which depends on released results only.

    `left` is the remaining precision, and `done` the number of finished rounds. Once a round has measured nothing
    (`saved`), what is left is spread.
    """

    sealed: AimParameters
    left: PrecisionBudget
    done: int = 0
    saved: bool = False

    def sigma(self, table: _Modelled) -> float | None:
        """Noise of a table's measurement in the next round; None if the mechanism has ended."""
        if self.done >= self.sealed.rounds:
            return None
        wanted = self._wanted(table)
        # The last round takes the rest, as does one that would leave too little for another.
        if self.done == self.sealed.rounds - 1 or self.left.left < 2 * wanted:
            return self.left.sigma()
        return self.left.sigma(float(wanted / self.left.left))

    def most_cells(self, table: _Modelled) -> float:
        """Of a table's model: in proportion to the precision used by the end of the next round."""
        total = self.sealed.precision.left
        used = 1 - (self.left.left - min(self.left.left, self._wanted(table))) / total
        return table.sealed.model_cells * float(used)

    def left_over(self, table: _Modelled, scored: Mapping[View, int]) -> Mapping[View, int]:
        """Of a table's candidates, those that a further choice before the next fit may take."""
        if self.sigma(table) is None:
            return {}
        if self.done == self.sealed.rounds - 1:  # the last one measures with all that is left
            return {view: score for view, score in scored.items() if not isinstance(view, PublicView)}
        return scored

    def after(self, left: PrecisionBudget, table: _Modelled) -> _Rounds:
        """The state after a table's round that left so much precision."""
        if left == self.left:
            return replace(self, done=self.done + 1, saved=True)
        over = self.left.left < 2 * self._wanted(table)
        return replace(self, left=left, done=self.sealed.rounds if over else self.done + 1)

    def _wanted(self, table: _Modelled) -> Fraction:
        return self._even * table.precision

    @property
    def _even(self) -> Fraction:
        even = self.sealed.precision.left * Fraction(self.sealed.rounds_share) / self.sealed.rounds
        return max(even, self.left.left / max(1, self.sealed.rounds - self.done)) if self.saved else even


def _noise_of_one_way(sealed: AimParameters, columns: int) -> float:
    return sealed.noise(sealed.one_way_share / columns)


def _noise_of_round(sealed: AimParameters) -> float:
    """Noise of each round's measurement if all rounds are used."""
    if not sealed.rounds:
        return _noise_of_one_way(sealed, 1)
    return sealed.noise(sealed.rounds_share / sealed.rounds)
