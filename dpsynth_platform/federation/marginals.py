"""Federated marginals: the sealed plan of `independent`, `mst` and `aim` over rows of several participants.

What belongs here: what is counted in each round and at which cost, and the choices between rounds. What does not: a
participant's part (`participants`), opening sums (`coordinator`), the encoding of rows and the fit (`synth.tabular`).

Each round opens one sum of tables of counts (`sums.SumPlan`), with Skellam noise of a sealed variance:

1. all columns alone;
2. but of `independent`, all pairs of columns by their states, as noisy as so many tables must be. Scores of the
   exponential mechanism are distances and no sums, so that pairs are chosen by these tables, which is post-processing;
3. the chosen pairs again. The model is fitted to these and to the tables of the same pairs in round 2.

`mst` chooses a spanning tree: the pairs that are farthest from independence. `aim` chooses one pair after the other,
each time the one that is farthest from the model fitted so far, among those with which the model stays within its size.

**Adaptive rounds.** Which columns a table has, and how their cells are grouped, follows from earlier sums. A record is
in one cell of every table, however cells are grouped, so that one unit moves a table by the same distance whatever is
counted. Number of tables and noise are sealed, and a composition of mechanisms with fixed noise costs the same if each
is chosen in the light of earlier results. So a participant checks a round's form, and trusts nobody for its choice.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.federation.plans import FederatedPlan, Terms, least_noise
from dpsynth_platform.federation.sums import SCALE, SumPlan, Whole
from dpsynth_platform.foundation.digests import canonical_digest, canonical_json
from dpsynth_platform.foundation.errors import AccountingError, ContractError, MechanismFailed
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.calibration import noise_for
from dpsynth_platform.privacy.events import DpEvent, GaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.interface import PlanInputs, PlanParts, SealedPlan
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.compression import as_measurement
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.estimation import Array, Estimator, Measurement, estimate_total, project
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import expected_error, prepared
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, NoisyCounts
from dpsynth_platform.synth.tabular.mst import joined
from dpsynth_platform.synth.tabular.resolution import Groups, View
from dpsynth_platform.synth.tabular.restore import release_schema
from dpsynth_platform.synth.tabular.rounds import MODEL_CELLS, ROUND_ITERATIONS, admissible

SHARES = {"independent": (1.0,), "mst": (1 / 3, 1 / 3, 1 / 3), "aim": (1 / 5, 2 / 5, 2 / 5)}
"""Of the precision, of each round.

Mean total variation of pairs beside the central method at epsilon 0.5, 1 and 4 (four participants without dropouts, two
or three runs each, but one or two of the central `aim`): `mst` on adult .054, .046, .040 beside .053, .046, .041;
`aim` on adult .047, .033, .021 beside .037, .028, .020, which can measure in coarse groups. On texas, with Gaussian
noise of the same cost, `mst` has .017, .016 beside .021, .017 at 0.5 and 1. Where the same 3 of 10 drop out of each
round, `mst` on adult has .060, .050 at 0.5 and 1: there is noise for the seven that finish, and no row of the others.
A fifth or a tenth for round 2, and pairs in eight groups there, change `mst` within noise.
"""
AIM_PAIRS = 3
"""Pairs in the last round of `aim` for each column, at most."""
_ONE_WAY, _SELECTION, _JOINT = "one-way", "selection", "joint"


@dataclass(frozen=True)
class Round:
    """What is counted in one round: tables in a row, each over groups of its columns' cells. Public.

    Attributes:
        cliques: the columns of each table, ascending.
        cell_groups: of every column, the group of each cell.
        sum: what is known of the sum before it is computed.
        digest: of plan, index, cliques and groups; names the round for all who take part.
        domain: of the plan, whose digest is that of the round, too.
    """

    index: int
    cliques: tuple[Clique, ...]
    cell_groups: tuple[tuple[int, ...], ...]
    sum: SumPlan
    digest: str
    domain: Domain = field(compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The arguments of `MarginalsPlan.round`."""
        return {"index": self.index, "cliques": self.cliques, "cell_groups": self.cell_groups}

    def units(self, bounded: Path | pa.Table) -> Whole:
        return self.counted(bounded, self.domain) * self.sum.scale

    def counted(self, bounded: Path | pa.Table, domain: Domain) -> Whole:
        """The exact counts of all tables in records, shape (sum.length,). Sensitive.

        Args:
            bounded: a Delta table's path, or a table in memory; at most b records of each unit.
        """
        states = [ColumnStates(np.array(groups, dtype=np.int32), np.ones(len(groups))) for groups in self.cell_groups]
        found = Records(bounded, domain).cliques(states, self.cliques)
        return np.concatenate([found[clique].ravel() for clique in self.cliques])

    def noisy(self, opened: Whole, finished: int) -> tuple[NoisyCounts, ...]:
        """The tables of an opened sum in records, with the noise of so many participants."""
        sigma = math.sqrt(finished * self.sum.share_variance) / SCALE
        records, found = (opened + SCALE // 2) // SCALE, []
        sizes = [max(groups) + 1 for groups in self.cell_groups]
        for clique in self.cliques:
            shape = tuple(sizes[index] for index in clique)
            mine, records = np.split(records, [math.prod(shape)])
            found.append(NoisyCounts(clique, mine.reshape(shape), sigma))
        return tuple(found)


@dataclass(frozen=True)
class MarginalsPlan(FederatedPlan):
    """A sealed plan whose parameters are `Terms`."""

    METHODS = tuple(SHARES)

    @classmethod
    def of(
        cls,
        contract: DataContract,
        schema: pa.Schema,
        *,
        method: str,
        participants: Sequence[str],
        minimum: int,
        colluders: int,
        most_records: int,
        silos: int = 1,
        guarantee: Guarantee | None = None,
    ) -> MarginalsPlan:
        """Calibrates and seals a plan for the contract's columns and guarantee, from public inputs.

        Args:
            schema: of the participants' tables.
            guarantee: what counting may cost; None: the contract's whole one.

        Raises:
            ContractError: another method, columns whose values are to be learned, or weighted rows.
            AccountingError: a value is impossible, no noise meets the guarantee, or messages would be too long.
        """
        domain, guarantee = cls.counted(contract, method, silos, guarantee)
        b = contract.privacy.max_contributions
        numbers = [number for _, number in _rounds(method, len(domain))]
        shares = SHARES[method]
        shares = (*shares[: len(numbers) - 1], sum(shares[len(numbers) - 1 :]))  # few columns need fewer rounds
        terms = Terms(sorted(participants), minimum, colluders, most_records, b, silos, [])

        def terms_with(sigma: float) -> tuple[Terms, DpEvent]:
            """Terms with which all rounds are as precise together as one table with this noise."""
            variances = [number / share * (sigma * SCALE) ** 2 for number, share in zip(numbers, shares, strict=True)]
            found = replace(terms, share_variances=[terms.share_of(variance) for variance in variances])
            return found, _event(_sums(found, numbers, numbers, guarantee.adjacency))

        neighbours = (guarantee.adjacency, guarantee.max_contributions)
        start = noise_for(lambda value: GaussianCountsEvent(value, *neighbours), guarantee.epsilon, guarantee.delta)
        found, event = least_noise(terms_with, start.value, guarantee)
        parts = PlanParts(
            columns=domain.to_json(),
            release=release_schema(contract, schema).to_json(),
            parameters=asdict(found),
            event=event,
        )
        made = cls(SealedPlan.of(method, PlanInputs(contract, schema, guarantee), parts))
        made.check_lengths()
        return made

    @classmethod
    def counted(
        cls, contract: DataContract, method: str, silos: int, guarantee: Guarantee | None = None
    ) -> tuple[Domain, Guarantee]:
        """The columns, and the guarantee for b k records of a unit. Raises `ContractError` as `of`."""
        target, domain = guarantee or Guarantee.target(contract), planned_domain(contract)
        if method not in cls.METHODS or domain.unknown or target.weighting != "rows":
            raise ContractError(
                f"{contract.dataset}: method {method!r}; accepted in a federated run: {', '.join(cls.METHODS)}, with "
                "weighting rows and all values of columns declared"
            )
        return domain, replace(target, max_contributions=contract.privacy.max_contributions * silos)

    @cached_property
    def terms(self) -> Terms:
        return Terms(**self.sealed.parameters)

    @property
    def reads(self) -> Sequence[str]:
        return self.domain.reads

    @property
    def rounds(self) -> tuple[tuple[str, int], ...]:
        """What each round is for, and the most tables that it counts."""
        return _rounds(self.sealed.method, len(self.domain))

    @cached_property
    def sums(self) -> tuple[SumPlan, ...]:
        """Of later rounds with an upper bound on cells, as noisy counts decide on states."""
        states, numbers = self.domain.most_states, [number for _, number in self.rounds]
        pairs = sorted((one * other for one, other in itertools.combinations(states, 2)), reverse=True)
        lengths = [
            sum(self.domain.sizes) if stage == _ONE_WAY else sum(pairs[:tables]) for stage, tables in self.rounds
        ]
        return _sums(self.terms, numbers, lengths, self.guarantee.adjacency)

    @property
    def most_document_bytes(self) -> int:
        sizes, digits = self.domain.sizes, len(str(len(self.domain)))
        cliques = max(tables for _, tables in self.rounds) * (2 * digits + len("[,],"))
        groups = sum(size * (len(str(size)) + 1) + len("[],") for size in sizes)
        return len(json.dumps({"index": len(self.rounds), "cliques": [], "cell_groups": []})) + cliques + groups

    @property
    def event(self) -> DpEvent:
        return _event(self.sums)

    def _fits(self) -> bool:
        domain = self.domain
        return (
            all(isinstance(name, str) for name in domain.reads)
            and 0 < len(domain) == len(set(domain.names))
            and not domain.unknown
        )

    def undeclared(self, domain: Domain, pictures: ImageLayout | None) -> Iterator[str]:
        declared = {canonical_json(column) for column in domain.to_json()}
        for column, sealed in zip(self.domain, self.sealed.columns, strict=True):
            if canonical_json(sealed) not in declared:
                yield (
                    f"columns: {visible(column.name)} is declared otherwise here, or not at all; accepted: the same "
                    "type, values and range at all participants"
                )

    def read_round(self, document: Mapping[str, Any]) -> Round:
        if not isinstance(document, dict) or document.keys() != {"index", "cliques", "cell_groups"}:
            raise AccountingError("a round that is no object of index, cliques and cell_groups")
        return self.round(**document)

    @contextmanager
    def measuring(self, directory: Path, progress: Progress = silent) -> Iterator[MeasuringCounts]:
        with MeasurementLog.create(directory, self.digest) as log:
            yield MeasuringCounts(self, log)

    def round(self, index: int, cliques: Sequence[Sequence[int]], cell_groups: Sequence[Sequence[int]]) -> Round:
        """A round of this plan, whatever chose its tables.

        Raises:
            AccountingError: more tables than are sealed, or none; no cliques of this round; a cell that is in no group.
        """
        sizes, stages = self.domain.sizes, self.rounds
        try:
            purpose, most = dict(enumerate(stages))[index]
            ways = 1 if purpose == _ONE_WAY else 2
            tables = tuple(tuple(clique) for clique in cliques)
            groups = tuple(tuple(column) for column in cell_groups)
            valid = (
                type(index) is int
                and 1 <= len(tables) == len(set(tables)) <= most
                and all(type(column) is int for table in tables for column in table)
                and all(len(table) == ways and sorted(set(table)) == list(table) for table in tables)
                and {column for table in tables for column in table} <= set(range(len(sizes)))
                and [len(column) for column in groups] == list(sizes)
                and all(type(group) is int and 0 <= group < len(column) for column in groups for group in column)
            )
        except (KeyError, TypeError):
            valid = False
        if not valid:
            raise AccountingError("a round has tables that the plan does not allow")
        counted = [max(column) + 1 for column in groups]
        length = sum(math.prod(counted[column] for column in table) for table in tables)
        plan = self.terms.sum_of(index, len(tables), length, self.guarantee.adjacency)
        digest = canonical_digest({"plan": self.digest, "index": index, "cliques": tables, "cell_groups": groups})
        return Round(index, tables, groups, plan, digest, self.domain)

    def next_round(self, measured: Sequence[Sequence[NoisyCounts]]) -> Round | None:
        """The round after those that are measured; None after the last. Post-processing.

        Args:
            measured: the tables of each round so far (`Round.noisy`).
        """
        index, columns = len(measured), range(len(self.domain))
        if index == len(self.rounds):
            return None
        stage, most = self.rounds[index]
        if stage == _ONE_WAY:
            return self.round(index, [(column,) for column in columns], [range(size) for size in self.domain.sizes])
        states, groups, one_way = prepared(self.domain, measured[0])
        chosen: Sequence[Clique] = list(itertools.combinations(columns, 2))
        chooses = stage == _JOINT and len(measured) > 1  # of two columns, there is one pair
        if chooses and self.sealed.method == "aim":
            chosen = _farthest_from_model(groups, one_way, measured[-1], self._noise(index), most)
        elif chooses:
            chosen = _spanning_tree(one_way, measured[-1])
        return self.round(index, chosen, [state.state_of.tolist() for state in states])

    def _noise(self, index: int) -> float:
        """The deviation of a round's noise without dropouts, in records."""
        return math.sqrt(self.terms.noisy * self.terms.share_variances[index]) / SCALE

    def record(self, log: MeasurementLog, measured: Sequence[Sequence[NoisyCounts]]) -> None:
        """Appends the last round's tables. Those of a selection become measurements once `record_choice` names them."""
        stage, _ = self.rounds[len(measured) - 1]
        for table in measured[-1]:
            if stage == _SELECTION:
                log.table(table.counts, table.sigma)
            else:
                log.counts(stage, table)

    def record_choice(self, log: MeasurementLog, selection: Sequence[NoisyCounts], chosen: Collection[Clique]) -> None:
        """Appends the chosen pairs with their tables of the selection."""
        for table in selection:
            if table.clique in chosen:
                log.choice(table.clique)
                log.counts(_JOINT, table)


@dataclass
class MeasuringCounts:
    """A run's opened tables as a log of measurements, complete after the last round."""

    plan: MarginalsPlan
    log: MeasurementLog
    _measured: list[tuple[NoisyCounts, ...]] = field(default_factory=list)
    _asked: Round | None = None

    def next_round(self) -> Round | None:
        self._asked = self.plan.next_round(self._measured)
        if self._asked is None:
            self.log.complete()
        elif self._asked.index > 1:
            self.plan.record_choice(self.log, self._measured[-1], self._asked.cliques)
        return self._asked

    def add(self, opened: Whole, finished: int) -> None:
        if self._asked is None:
            raise MechanismFailed("an opened sum of no round; accepted: after next_round")
        self._measured.append(self._asked.noisy(opened, finished))
        self.plan.record(self.log, self._measured)


def _spanning_tree(one_way: Sequence[Measurement], tables: Sequence[NoisyCounts]) -> list[Clique]:
    """The pairs of the tree with the largest sum of scores, ascending (Kruskal).

    A pair's score is the L1 distance of its noisy table from independence, less the mean of that of the noise.
    """
    total = estimate_total(one_way)
    fitted = [project(item.counts, item.variance, total) for item in one_way]

    def score(table: NoisyCounts) -> float:
        one, other = (fitted[column] for column in table.clique)
        return _distance(table, np.outer(one, other) / total, table.sigma)

    components, chosen = list(range(len(one_way))), []
    for table in sorted(tables, key=score, reverse=True):
        one, other = (components[column] for column in table.clique)
        if one != other:
            chosen.append(table.clique)
            components = joined(components, table.clique)
    return sorted(chosen)


def _farthest_from_model(
    groups: Groups, one_way: Sequence[Measurement], tables: Sequence[NoisyCounts], sigma: float, most: int
) -> list[Clique]:
    """At most so many pairs, ascending, each the farthest from the model of those before it.

    A pair's score is its table's L1 distance from the model, less the mean of that of the noise, and of the noise that
    measuring it adds (McKenna et al. 2021, section 4).
    """
    estimator, left = Estimator(groups, one_way), {table.clique: table for table in tables}
    chosen: list[Clique] = []
    while left and len(chosen) < most:
        views = [View.finest(clique) for clique in left]
        views = estimator.within(views, MODEL_CELLS) if chosen else admissible(estimator, views, MODEL_CELLS)
        expected = estimator.expected_counts([view.clique for view in views])
        if not expected:
            break
        scores = {pair: _distance(left[pair], counts, left[pair].sigma + sigma) for pair, counts in expected.items()}
        chosen.append(max(scores, key=lambda pair: scores[pair]))
        estimator.add([as_measurement(left.pop(chosen[-1]))])
        estimator.fit(ROUND_ITERATIONS)
    return sorted(chosen)


def _distance(table: NoisyCounts, expected: Array, sigma: float) -> float:
    return float(np.abs(table.counts - expected).sum() - expected_error(sigma) * table.counts.size)


def _rounds(method: str, columns: int) -> tuple[tuple[str, int], ...]:
    """What each round is for, and its number of tables. Of two columns there is nothing to select."""
    pairs = math.comb(columns, 2)
    rounds = [(_ONE_WAY, columns)]
    if method != "independent" and columns > 2:
        rounds.append((_SELECTION, pairs))
    if method != "independent" and columns > 1:
        rounds.append((_JOINT, min(pairs, AIM_PAIRS * columns) if method == "aim" else columns - 1))
    return tuple(rounds)


def _sums(terms: Terms, tables: Sequence[int], lengths: Sequence[int], adjacency: str) -> tuple[SumPlan, ...]:
    if len(terms.share_variances) != len(tables):
        raise ValueError(f"{len(terms.share_variances)} shares of noise in {len(tables)} rounds")
    return tuple(
        terms.sum_of(index, number, length, adjacency)
        for index, (number, length) in enumerate(zip(tables, lengths, strict=True))
    )


def _event(sums: Sequence[SumPlan]) -> DpEvent:
    return dp_event.ComposedDpEvent([plan.event for plan in sums])
