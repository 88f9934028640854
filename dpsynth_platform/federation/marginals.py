"""Federated marginals: the sealed plan of `independent` and `mst` over rows of several participants, and its rounds.

What belongs here: what is counted in each round and at which cost, and the choices between rounds. What does not: a
participant's part (`participants`), opening sums (`coordinator`), the encoding of rows and the fit (`synth.tabular`).

Each round opens one sum of tables of counts (`sums.SumPlan`), with Skellam noise of a sealed variance:

1. all columns alone;
2. of `mst`, all pairs of columns, each at its coarsest resolution. Scores of the exponential mechanism are no sums, so
   that the tree is chosen by these noisy tables, which is post-processing;
3. of `mst`, the tree's pairs by states. The model is fitted to these and to the tables of the tree's pairs in round 2.

**Adaptive rounds.** Which columns a table has, and how their cells are grouped, follows from earlier sums. A record is
in one cell of every table, however cells are grouped, so that one unit moves a table by the same distance whatever is
counted. Number of tables and noise are sealed, and a composition of mechanisms with fixed noise costs the same if each
is chosen in the light of earlier results. So a participant checks a round's form, and trusts nobody for its choice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.federation.sums import SCALE, VARIANCE_STEP, SumPlan, Whole
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError, ContractError
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.calibration import noise_for
from dpsynth_platform.privacy.events import DpEvent, event_to_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import PlanInputs, PlanParts, SealedPlan
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.estimation import estimate_total, project
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import expected_error, prepared
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, NoisyCounts
from dpsynth_platform.synth.tabular.mst import joined
from dpsynth_platform.synth.tabular.restore import release_schema

METHODS = ("independent", "mst")
SHARES = (1 / 3, 1 / 5, 7 / 15)
"""Of the precision, of each round of `mst`; see the guide to measurements."""
_ONE_WAY, _SELECTION, _JOINT = "one-way", "selection", "joint"


@dataclass(frozen=True)
class Terms:
    """The parameters of a federated plan.

    Attributes:
        participants: names, ascending; at most these take part.
        minimum: the fewest of them that finish a round.
        colluders: the most of them whose shares of noise an adversary knows.
        most_records: the largest count of a participant's cell, public; larger ones are clipped.
        max_contributions: b, the most records of one unit in each participant's rows.
        silos: k, the most participants that one person is in.
        share_variances: of each participant's noise in each round, in squared units of 1/SCALE record.
    """

    participants: list[str]
    minimum: int
    colluders: int
    most_records: int
    max_contributions: int
    silos: int
    share_variances: list[float]

    def sum_of(self, index: int, tables: int, length: int, adjacency: str) -> SumPlan:
        """The sum of a round."""
        return SumPlan(
            participants=len(self.participants),
            minimum=self.minimum,
            colluders=self.colluders,
            length=length,
            scale=SCALE,
            bound=self.most_records * SCALE,
            share_variance=self.share_variances[index],
            adjacency=adjacency,
            max_contributions=self.max_contributions,
            silos=self.silos,
            tables=tables,
        )


@dataclass(frozen=True)
class Round:
    """What is counted in one round: tables in a row, each over groups of its columns' cells. Public.

    Attributes:
        cliques: the columns of each table, ascending.
        cell_groups: of every column, the group of each cell.
        sum: what is known of the sum before it is computed.
        digest: of plan, index, cliques and groups; names the round for all who take part.
    """

    index: int
    cliques: tuple[Clique, ...]
    cell_groups: tuple[tuple[int, ...], ...]
    sum: SumPlan
    digest: str

    def to_json(self) -> dict[str, Any]:
        """The arguments of `MarginalsPlan.round`."""
        return {"index": self.index, "cliques": self.cliques, "cell_groups": self.cell_groups}

    def counted(self, bounded: pa.Table | Any, domain: Domain) -> Whole:
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
class MarginalsPlan:
    """A sealed plan whose parameters are `Terms`; the fit and the release read it like a central one.

    Its guarantee is for b k records of a unit over all participants (`SumPlan`).
    """

    sealed: SealedPlan

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
        shares: Sequence[float] = SHARES,
    ) -> MarginalsPlan:
        """Calibrates and seals a plan for the contract's columns and guarantee, from public inputs.

        Args:
            schema: of the participants' tables.
            shares: of the precision, of each round of `mst`.

        Raises:
            ContractError: another method, columns whose values are to be learned, or weighted rows.
            AccountingError: a value is impossible, or no noise meets the guarantee.
        """
        target, domain = Guarantee.target(contract), planned_domain(contract)
        if method not in METHODS or domain.unknown or target.weighting != "rows":
            raise ContractError(
                f"{contract.dataset}: method {method!r}; accepted in a federated run: {', '.join(METHODS)}, with "
                "weighting rows and all values of columns declared"
            )
        guarantee = replace(target, max_contributions=target.max_contributions * silos)
        numbers = [number for _, number in _rounds(method, len(domain))]
        shares = [1.0] if len(numbers) == 1 else [*shares[: len(numbers) - 1], sum(shares[len(numbers) - 1 :])]
        terms = Terms(sorted(participants), minimum, colluders, most_records, target.max_contributions, silos, [])

        def terms_with(sigma: float) -> Terms:
            """Terms with which all rounds are as precise together as one table with this noise."""
            variances = [number / share * (sigma * SCALE) ** 2 for number, share in zip(numbers, shares, strict=True)]
            steps = [math.ceil(variance / (minimum - colluders) / VARIANCE_STEP) for variance in variances]
            return replace(terms, share_variances=[step * VARIANCE_STEP for step in steps])

        if minimum <= colluders:
            raise AccountingError(f"{colluders} colluders of {minimum} that finish; accepted: fewer colluders")
        found = noise_for(
            lambda sigma: _event(terms_with(sigma), numbers, guarantee.adjacency), guarantee.epsilon, guarantee.delta
        )
        parts = PlanParts(
            columns=domain.to_json(),
            release=release_schema(contract, schema).to_json(),
            parameters=asdict(terms_with(found.value)),
            event=found.event,
        )
        return cls(SealedPlan.of(method, PlanInputs(contract, schema, guarantee), parts))

    @classmethod
    def from_json(cls, text: str) -> MarginalsPlan:
        """Reads a plan and checks it.

        Raises:
            GrantRefused: the text is no sealed plan, or does not match its digest.
            AccountingError: the plan is impossible, or costs another event or more than it says.
        """
        plan = cls(SealedPlan.from_json(text))
        plan.check()
        return plan

    def to_json(self) -> str:
        return self.sealed.to_json()

    @property
    def digest(self) -> str:
        return self.sealed.digest

    @cached_property
    def terms(self) -> Terms:
        return Terms(**self.sealed.parameters)

    @cached_property
    def domain(self) -> Domain:
        return Domain.from_json(self.sealed.columns)

    @cached_property
    def guarantee(self) -> Guarantee:
        return Guarantee.from_json(self.sealed.guarantee)

    @property
    def rounds(self) -> tuple[tuple[str, int], ...]:
        """What each round is for, and the most tables that it counts."""
        return _rounds(self.sealed.method, len(self.domain))

    @property
    def event(self) -> DpEvent:
        """What a whole run costs one unit, against all whom `trust` names."""
        return _event(self.terms, [number for _, number in self.rounds], self.guarantee.adjacency)

    def check(self) -> None:
        """Recomputes the event and what it costs. Raises as `from_json`."""
        try:
            names, domain, guarantee, terms = self.terms.participants, self.domain, self.guarantee, self.terms
            fits = (
                self.sealed.method in METHODS
                and self.sealed.period is None
                and all(isinstance(name, str) for name in (*names, *domain.reads))
                and sorted(set(names)) == names
                and 0 < len(domain) == len(set(domain.names))
                and not domain.unknown
                and len(terms.share_variances) == len(self.rounds)
                and guarantee.weighting == "rows"
                and guarantee.max_contributions == terms.max_contributions * terms.silos
                and event_to_json(self.event) == self.sealed.event
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            fits = False
        if not fits:
            raise AccountingError("the federated plan is damaged, or its event is not that of its parameters")
        spent = epsilon(self.event, guarantee.delta).epsilon
        if spent > guarantee.epsilon:
            raise AccountingError(
                f"the federated plan costs epsilon {spent:g} at delta {guarantee.delta:g}; accepted: at most what it "
                f"says, {guarantee.epsilon:g}"
            )

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
                1 <= len(tables) == len(set(tables)) <= most
                and all(len(table) == ways and sorted(set(table)) == list(table) for table in tables)
                and {column for table in tables for column in table} <= set(range(len(sizes)))
                and [len(column) for column in groups] == list(sizes)
                and all(type(group) is int and 0 <= group < len(column) for column in groups for group in column)
            )
        except (KeyError, TypeError):
            valid = False
        if not valid:
            raise AccountingError(f"round {index!r} has tables that the plan does not allow")
        counted = [max(column) + 1 for column in groups]
        length = sum(math.prod(counted[column] for column in table) for table in tables)
        plan = self.terms.sum_of(index, len(tables), length, self.guarantee.adjacency)
        digest = canonical_digest({"plan": self.digest, "index": index, "cliques": tables, "cell_groups": groups})
        return Round(index, tables, groups, plan, digest)

    def next_round(self, measured: Sequence[Sequence[NoisyCounts]]) -> Round | None:
        """The round after those that are measured; None after the last. Post-processing.

        Args:
            measured: the tables of each round so far (`Round.noisy`).
        """
        index, columns = len(measured), range(len(self.domain))
        if index == len(self.rounds):
            return None
        stage, _ = self.rounds[index]
        if stage == _ONE_WAY:
            return self.round(index, [(column,) for column in columns], [range(size) for size in self.domain.sizes])
        states, groups, _ = prepared(self.domain, measured[0])
        pairs = list(itertools.combinations(columns, 2))
        if stage == _SELECTION:
            levels = [options[-1][state.state_of] for options, state in zip(groups, states, strict=True)]
            return self.round(index, pairs, [level.tolist() for level in levels])
        edges = list(self.edges(measured)) if self.rounds[index - 1][0] == _SELECTION else pairs
        return self.round(index, edges, [state.state_of.tolist() for state in states])

    def record(self, log: MeasurementLog, measured: Sequence[Sequence[NoisyCounts]]) -> None:
        """Appends the last round's tables, with those of the tree's pairs as the model takes them."""
        stage = self.rounds[len(measured) - 1][0]
        for table in measured[-1]:
            if stage == _SELECTION:
                log.table(table.counts, table.sigma)
            else:
                log.counts(stage, table)
        if stage == _SELECTION:
            for clique, table in self.edges(measured).items():
                log.choice(clique, table.levels)
                log.counts(_JOINT, table)

    def edges(self, measured: Sequence[Sequence[NoisyCounts]]) -> dict[Clique, NoisyCounts]:
        """The tree's pairs with their tables of the selection, as the model takes them.

        A pair's score is the L1 distance of its noisy table from independence, less the mean of that of the noise. The
        tree with the largest sum of scores is found by taking the best edges that close no circle (Kruskal).
        """
        states, groups, one_way = prepared(self.domain, measured[0])
        total = estimate_total(one_way)
        fitted = [project(item.counts, item.variance, total) for item in one_way]
        shares = [np.bincount(options[-1], weights=values) for options, values in zip(groups, fitted, strict=True)]

        def score(table: NoisyCounts) -> float:
            one, other = (shares[column] for column in table.clique)
            distance = np.abs(table.counts - np.outer(one, other) / total).sum()
            return float(distance - expected_error(table.sigma) * table.counts.size)

        components, chosen = list(range(len(states))), {}
        for table in sorted(measured[1], key=score, reverse=True):
            one, other = (components[column] for column in table.clique)
            if one != other:
                levels = tuple(len(groups[column]) - 1 for column in table.clique)
                chosen[table.clique] = replace(table, levels=levels)
                components = joined(components, table.clique)
        return dict(sorted(chosen.items()))


def _rounds(method: str, columns: int) -> tuple[tuple[str, int], ...]:
    """What each round is for, and its number of tables. Of two columns there is nothing to select."""
    rounds = [(_ONE_WAY, columns)]
    if method == "mst" and columns > 2:
        rounds.append((_SELECTION, math.comb(columns, 2)))
    if method == "mst" and columns > 1:
        rounds.append((_JOINT, columns - 1))
    return tuple(rounds)


def _event(terms: Terms, tables: Sequence[int], adjacency: str) -> DpEvent:
    sums = (terms.sum_of(index, number, number, adjacency) for index, number in enumerate(tables))
    return dp_event.ComposedDpEvent([plan.event for plan in sums])
