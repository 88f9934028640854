"""PrivMRF: a Markov random field whose structure comes first, and marginals inside of its cliques (Cai et al. 2021).

What belongs here: the attribute graph, which marginals are useful, and the first ones. What does not: the draws
(`drawing`), their cost (`privacy.selection`), junction trees (`junction`), and the model (`estimation`).

All columns are measured alone. Then the distances of all pairs' counts from independence are shown with noise, all at
once. Pairs with large distances become edges of the attribute graph, as long as its junction tree stays within so many
cells. From then on only sets of columns inside of one clique are measured, so that the model never grows. A set is
useful if a cell of its counts holds on average `USEFULNESS` times the noise. The first sets cover the graph's edges by
their noisy distances, which is post-processing. Rounds follow: the exponential mechanism chooses the useful set that is
farthest from the model, it is measured, and the model is fitted again.

What differs from the paper, and why:

- A distance is from the product of the *noisy* single columns, which are fixed by then. So one record moves it by 1,
  and no exact number of records is used. The paper's R-score is from the product of exact shares.
- Sensitivity is that of a user with b records and of the adjacency (`selection.scale_of_distances`). All noise and all
  choices are one event (`privacy.selection`), for privacy loss distributions as well as Renyi curves.
- The next edge is the one with the largest distance for each cell that it adds to the junction tree. In the order of
  distances alone, the 2-way error of texas is .012 in place of .010 at epsilon 1, and .008 in place of .005 at 8;
  that of adult hardly changes.
- A set may be measured with each column coarse or fine (`resolution`), so that sets of three are useful sooner.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import calibrate_selection, scale_of_distances
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.aim import scores
from dpsynth_platform.synth.tabular.compression import as_measurement
from dpsynth_platform.synth.tabular.cost import memory_bytes
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.estimation import Estimator, estimate_total
from dpsynth_platform.synth.tabular.junction import Attributes, Clique, JunctionTree, covering, junction_tree
from dpsynth_platform.synth.tabular.marginals import (
    expected_error,
    pair_cells,
    prepared,
    score_sensitivity,
)
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.mst import pair_scores
from dpsynth_platform.synth.tabular.paid import partitions_of
from dpsynth_platform.synth.tabular.resolution import Groups, Sums, View, views_of
from dpsynth_platform.synth.tabular.rounds import (
    MODEL_CELLS,
    ROUND_ITERATIONS,
    SelectionGenerator,
    SelectionParameters,
    noise_of,
)

ONE_WAY_SHARE = 1 / 3
DISTANCE_SHARE = 0.1
SELECTION_SHARE = 0.1
FIRST_PER_COLUMN = 1
ROUNDS_PER_COLUMN = 1
USEFULNESS = 4.0
MOST_WAYS = 3
"""Of the sets that are measured."""


@dataclass(frozen=True)
class MrfParameters(SelectionParameters):
    """The parameters of PrivMRF, sealed in the plan.

    Attributes:
        one_way_share: part of the measurements' precision for single columns; `distance_share` for the distances. The
            first sets (at most `first`) and those of the rounds share the rest evenly.
        usefulness: least mean count of a set's cells, in multiples of the mean absolute noise.
        set_cells: limit of a set's cells: twice as many as are useful for the expected number of records.
        model_cells: limit of the junction tree's cells.
    """

    one_way_share: float
    distance_share: float
    first: int
    usefulness: float
    set_cells: int
    model_cells: int

    def useful_cells(self, records: float) -> float:
        """The most cells of a useful set of so many records; none for one column."""
        return records / (self.usefulness * expected_error(self.sigma_joint)) if self.sigma_joint else 0.0

    @property
    def sigma_joint(self) -> float | None:
        """Noise of a set, if as many are measured as can be; None for one column."""
        number = self.first + self.rounds
        return self.noise((1 - self.one_way_share - self.distance_share) / number) if number else None


class Mrf(SelectionGenerator[MrfParameters]):
    """The generator `mrf`."""

    method = "mrf"
    parameters_type = MrfParameters

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        columns, pairs = len(domain), math.comb(len(domain), 2)
        rounds = int(ROUNDS_PER_COLUMN * columns) if pairs else 0
        beside = partitions_of(contract, domain)
        parameters = MrfParameters(
            **asdict(calibrate_selection(guarantee, rounds, SELECTION_SHARE if pairs else 0.0, beside)),
            one_way_share=ONE_WAY_SHARE if pairs else 1.0,
            distance_share=DISTANCE_SHARE if pairs else 0.0,
            first=int(FIRST_PER_COLUMN * columns) if pairs else 0,
            usefulness=USEFULNESS,
            set_cells=0,
            model_cells=MODEL_CELLS,
        )
        if pairs:  # refused here, before anything is spent
            scale_of_distances(pairs, parameters.noise(DISTANCE_SHARE), guarantee.sensitivity)
        rows = 1 if guarantee.weighting == "owners" else contract.privacy.max_contributions
        useful = parameters.useful_cells(contract.privacy.expected_units * rows)
        return asdict(replace(parameters, set_cells=math.ceil(2 * useful)))

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        domain, sealed = Domain.from_json(plan.columns), self.sealed(plan.parameters)
        one = sealed.noise(sealed.one_way_share / len(domain))
        model = min(sealed.model_cells, math.prod(domain.most_states))
        largest = min(sealed.set_cells, model, math.prod(heapq.nlargest(MOST_WAYS, domain.most_states)))
        cells = (sealed.first + sealed.rounds) * largest
        event = (
            f"{len(domain)} one-way marginals with rounded Gaussian noise, the distances of all "
            f"{math.comb(len(domain), 2)} pairs of columns from independence with rounded Gaussian noise, up to "
            f"{sealed.first} joint marginals with rounded Gaussian noise, then up to {sealed.rounds} rounds, each with "
            "a choice of columns by the exponential mechanism and their joint marginal with rounded Gaussian noise"
        )
        # Sets of three columns inside of cliques have at most three times the tree's cells together.
        counted, measured = pair_cells(domain.most_states) + 3 * model, cells
        memory = memory_bytes(counted=counted, measured=measured, model_cells=model)
        return sealed.described(domain, event, one=one, two=sealed.sigma_joint, cells=cells, memory=memory)

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        sealed, columns = self.sealed(plan.parameters), len(records.domain)
        draws = sealed.draws(log, score_sensitivity(plan), records.parts)
        one_way = draws.columns(records, sealed.noise(sealed.one_way_share / columns), progress)
        if not sealed.first:
            return
        states, groups, measured = prepared(records.domain, one_way)
        pairs = records.cliques(states, itertools.combinations(range(columns), 2), progress, "counting pairs")
        exact_distances = pair_scores(pairs, one_way, states, records.parts)
        sensitivity = Guarantee.from_json(plan.guarantee).sensitivity
        shown = draws.distances(exact_distances, sealed.noise(sealed.distance_share), sensitivity)
        distances = dict(zip(shown.cliques, shown.records.tolist(), strict=True))
        tree = attribute_graph(distances, [column.size for column in states], sealed.model_cells, shown.sigma)
        most_cells = min(sealed.set_cells, sealed.useful_cells(estimate_total(measured)))
        useful = useful_views(tree.cliques, groups, most_cells)
        first = first_views(useful, distances, sealed.first)
        alone = [View.finest((index,)) for index in range(columns)]
        exact = pairs | records.cliques(states, {view.clique for view in (*useful, *alone)}, progress)
        model = Estimator(groups, measured, cover=tree.cliques)
        number = len(first) + sealed.rounds if useful else len(alone)
        for done, view in enumerate(first if useful else alone):
            noise = noise_of(draws.left, 1 / (number - done))
            model.add([as_measurement(draws.joint(view, view.counts(exact[view.clique], groups), noise))])
            progress("measuring combinations", done + 1, number)
        sums, cliques = Sums(groups), list(dict.fromkeys(view.clique for view in useful))
        while useful and draws.choices:
            model.fit(ROUND_ITERATIONS)
            expected = model.expected_counts(cliques)
            noise = noise_of(draws.left, 1 / draws.choices)
            scored = {
                view: value
                for clique in cliques
                for view, value in scores(clique, exact[clique], expected[clique], sums, noise, records.parts)
            }
            view = draws.choice({view: scored[view] for view in useful})
            model.add([as_measurement(draws.joint(view, view.counts(exact[view.clique], groups), noise))])
            progress("measuring combinations", number - draws.choices, number)


def attribute_graph(
    distances: Mapping[Clique, float], sizes: Sequence[int], most_cells: int, least: float
) -> JunctionTree:
    """The junction tree of a graph with pairs of large distances as edges; post-processing.

    The next edge has the largest distance for each cell by which the tree grows.

    Args:
        distances: of all pairs from independence, noisy, in records; at most `least` is no edge.
        sizes: states of each column.
        most_cells: of the tree.
    """
    edges: list[Clique] = []
    tree = junction_tree(Attributes.of(sizes), edges)
    left = {pair: distance for pair, distance in distances.items() if distance > least}
    while True:
        growth = {pair: tree.extended_cells(pair) - tree.cells for pair in left}
        fitting = [pair for pair in left if tree.cells + growth[pair] <= most_cells]
        if not fitting:
            return tree
        edges.append(max(fitting, key=lambda pair: left[pair] / max(1, growth[pair])))
        tree = covering(tree, edges, edges[-1])
        del left[edges[-1]]


def useful_views(cliques: Iterable[Clique], groups: Groups, most_cells: float) -> list[View]:
    """The sets of 2 to `MOST_WAYS` columns of one clique, at every resolution, with at most so many cells."""
    sets = {
        members
        for clique in cliques
        for ways in range(2, MOST_WAYS + 1)
        for members in itertools.combinations(clique, ways)
    }
    views = (view for members in sorted(sets) for view in views_of(members, groups))
    return [view for view in views if math.prod(view.shape(groups)) <= most_cells]


def first_views(useful: Sequence[View], distances: Mapping[Clique, float], most: int) -> list[View]:
    """The sets whose pairs, as far as no earlier set has them, have the largest sum of distances; post-processing.

    Of several resolutions of a set, the finest useful one.
    """
    finest = {view.clique: view for view in sorted(useful, key=lambda view: -sum(view.levels))}
    left = {pair: max(distance, 0.0) for pair, distance in distances.items()}

    def gained(clique: Clique) -> float:
        return sum(left.get(pair, 0.0) for pair in itertools.combinations(clique, 2))

    chosen: list[View] = []
    while finest and len(chosen) < most:
        best = max(finest, key=gained)
        if gained(best) <= 0:
            break
        chosen.append(finest.pop(best))
        left = {pair: distance for pair, distance in left.items() if not set(pair) <= set(best)}
    return chosen
