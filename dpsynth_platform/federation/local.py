"""Federated single columns by private reports: each unit's record is private before anything is summed.

What belongs here: the sealed plan of `independent` with local differential privacy, the sums of reports, and estimates.
What does not: the reports of one column (`local_reports`), and plans whose noise is on sums (`marginals`, `central`).

A unit has one record with the values x_1, ..., x_d of d columns. It draws a column j, each with chance 1 / d, and
reports (j, y), where y is its report on x_j of the kind that has the least variance for the column's number of cells.
Its participant adds up, over its units, the reports that support each cell, and how many report on each column. Of
these vectors the sum over participants is opened.

**The guarantee.** Let x and x' be two records. P[(j, y) | x] = P[y | x_j] / d, as j does not depend on the record, and
P[y | x_j] <= e^epsilon P[y | x'_j]. So a unit's report is epsilon-DP by itself, with delta 0, and all that is computed
from reports is post-processing: sums, also those of one participant, the numbers of reports on columns, the model. That
holds against everybody but who holds the record: against a coordinator that colludes with all other participants, and
that breaks the masks. No noise is added to sums. Reports are not taken as shuffled, and no amplification is claimed.

**Neighbours.** The numbers of reports add up to the number of units, exactly. So it is public, and a unit's report says
that there is one: two data sets are neighbours if one unit has another record, and not if it is not there. That is
`replace-one` with one record before and after. Other adjacencies are refused; so are several records of a unit and
several silos, in which one person would report more than once.

**One column or all.** With reports on all d columns, each would have epsilon / d, and variances of order
(d / epsilon)^2 at small epsilon: with one column of d they are of order d / epsilon^2.

**Estimates.** Of N units n_j report on column j. Given n_j they are a random subset, as columns are drawn alike for all
units. So c reports that support a cell with a share f of all units have the mean n_j (q + (p - q) f), and
N (c / n_j - q) / (p - q) is an unbiased estimate of the units in it, for n_j above 0. Its variance is
N^2 / n_j (w + f (1 - f) (N - n_j) / (N - 1)), with w = (f p (1 - p) + (1 - f) q (1 - q)) / (p - q)^2: the reports'
own noise, and that of drawing n_j of N without replacement. The mean of w over the V cells of a column follows from V
alone (`LocalReports.variance`), and that of f (1 - f) is at most (V - 1) / V^2 (shares add up to 1). So `sigma` is the
root of a bound on the mean variance, for any data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.federation.local_reports import (
    EPSILON_RANGE,
    MOST_VALUES,
    LocalReports,
    UnaryEncoding,
    choose_reports,
    draw_below,
)
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.plans import Terms
from dpsynth_platform.federation.sums import ExactSumPlan, Whole
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError, ContractError, MechanismFailed
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.events import DpEvent, LocalReportsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import PlanInputs, PlanParts, SealedPlan
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.marginals import expected_error
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, NoisyCounts
from dpsynth_platform.synth.tabular.restore import release_schema

LOCAL, ADJACENCY = "local", "replace-one"
NAMES_OF_KINDS = {
    "RandomizedResponse": "randomized response",
    "UnaryEncoding": "unary encoding",
    "HadamardResponse": "Hadamard response",
}
_LARGEST = 2.0**53
"""Of an estimate: participants can claim any sums."""
MOST_BITS_AT_ONCE = 2**22
"""Bits of reports that are drawn at once, each from a word of 8 bytes."""


@dataclass(frozen=True)
class LocalTerms(Terms):
    """The parameters of a plan of private reports; shares of noise are 0.

    Attributes:
        trust: `local`.
        epsilon: of each unit's report.
        kinds: of each column's reports, by the names of their classes.
        expected_units: of all participants together, a public estimate: for what errors are expected.
    """

    trust: str
    epsilon: float
    kinds: list[str]
    expected_units: int
    _kind_of_sum = ExactSumPlan


@dataclass(frozen=True)
class ReportsRound:
    """The one round: for each cell of each column the reports that support it, then of each column those on it. Public.

    Attributes:
        reports: of each column.
    """

    index: int
    sum: ExactSumPlan
    digest: str
    domain: Domain = field(compare=False, repr=False)
    reports: tuple[LocalReports, ...] = field(compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index}

    def units(self, bounded: Path | pa.Table) -> Whole:
        """Sums of reports, shape (sum.length,). They are drawn in this call: a second one would add reports."""
        supports = [np.zeros(size, dtype=np.int64) for size in self.domain.sizes]
        number = np.zeros(len(supports), dtype=np.int64)
        for codes, _ in Records(bounded, self.domain).batches():
            columns = draw_below(len(supports), len(codes))
            for index, kind in enumerate(self.reports):
                held = codes[columns == index, index].astype(np.int64)
                number[index] += len(held)
                wide = isinstance(kind, UnaryEncoding)
                step = max(1, MOST_BITS_AT_ONCE // kind.values) if wide else MOST_BITS_AT_ONCE
                for start in range(0, len(held), step):
                    supports[index] += kind.support(kind.report(held[start : start + step]))
        return np.concatenate([*supports, number])

    def estimates(self, opened: Whole) -> tuple[NoisyCounts, ...]:
        """Of each column, from an opened sum: rounded estimates of how many units are in each cell."""
        sizes, most = self.domain.sizes, self.sum.participants * self.sum.bound
        *supports, numbers = np.split(np.clip(opened, 0, most), np.cumsum(sizes))
        units = max(int(numbers.sum()), 1)
        found = []
        for index, (kind, support, number) in enumerate(zip(self.reports, supports, numbers.tolist(), strict=True)):
            p, q = float(kind.p), float(kind.q)
            if number < 1:  # nothing is known
                counts, sigma = np.full(kind.values, units / kind.values), float(units)
            else:
                counts, sigma = units * (support / number - q) / (p - q), deviation(kind, units, number)
            whole = np.rint(np.clip(counts, -_LARGEST, _LARGEST)).astype(np.int64)
            found.append(NoisyCounts((index,), whole, sigma))
        return tuple(found)


def deviation(kind: LocalReports, units: int, number: int) -> float:
    """The root of a bound on the mean variance of a column's estimates, where so many of the units report on it."""
    most_spread = (kind.values - 1) / kind.values**2
    left = (units - number) / (units - 1) if units > 1 else 0.0
    return units * math.sqrt((kind.variance(1) + most_spread * max(left, 0.0)) / number)


@dataclass(frozen=True)
class LocalReportsPlan(MarginalsPlan):
    """A sealed plan whose parameters are `LocalTerms`."""

    METHODS = ("independent",)

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
    ) -> LocalReportsPlan:
        """Seals a plan for the contract's columns and epsilon, from public inputs. Its delta is 0, whatever is asked.

        Raises:
            ContractError: as `MarginalsPlan.of`; or another adjacency than `replace-one`, or several records of a unit.
            AccountingError: a value is impossible, or messages would be too long.
        """
        domain, guarantee = cls.counted(contract, method, silos, guarantee)
        if (guarantee.adjacency, guarantee.max_contributions) != (ADJACENCY, 1):
            raise ContractError(
                f"{contract.dataset}: trust {LOCAL!r} with {guarantee.adjacency} and up to "
                f"{guarantee.max_contributions} records of a unit in all silos; accepted: {ADJACENCY}, and one record "
                "in one silo"
            )
        low, high = EPSILON_RANGE
        if not low <= guarantee.epsilon <= high:
            raise AccountingError(f"epsilon {guarantee.epsilon:g} of private reports; accepted: {low:g} to {high:g}")
        if large := [column.name for column in domain if not 2 <= column.size <= MOST_VALUES]:
            raise ContractError(
                f"{contract.dataset}: columns.{large[0]}: its number of cells; accepted in reports: 2 to {MOST_VALUES}"
            )
        terms = LocalTerms(
            participants=sorted(participants),
            minimum=minimum,
            colluders=colluders,
            most_records=most_records,
            max_contributions=1,
            silos=silos,
            share_variances=[0.0],
            trust=LOCAL,
            epsilon=guarantee.epsilon,
            kinds=[type(choose_reports(size, guarantee.epsilon)).__name__ for size in domain.sizes],
            expected_units=contract.privacy.expected_units,
        )
        parts = PlanParts(
            columns=domain.to_json(),
            release=release_schema(contract, schema).to_json(),
            parameters=asdict(terms),
            event=LocalReportsEvent(terms.epsilon, guarantee.adjacency, 1),
        )
        made = cls(SealedPlan.of(method, PlanInputs(contract, schema, guarantee), parts))
        made.check()
        return made

    @cached_property
    def terms(self) -> LocalTerms:
        return LocalTerms(**self.sealed.parameters)

    @property
    def trust(self) -> str:
        return LOCAL

    @property
    def rounds(self) -> tuple[tuple[str, int], ...]:
        return (("reports", len(self.domain)),)

    @cached_property
    def reports(self) -> tuple[LocalReports, ...]:
        """The reports on each column."""
        return tuple(choose_reports(size, self.terms.epsilon) for size in self.domain.sizes)

    @cached_property
    def sums(self) -> tuple[ExactSumPlan, ...]:
        length = sum(self.domain.sizes) + len(self.domain)
        found = self.terms._sum(0, length, self.guarantee.adjacency, 1)
        assert isinstance(found, ExactSumPlan)  # noqa: S101  (the terms' own kind)
        return (found,)

    @property
    def most_document_bytes(self) -> int:
        return len(json.dumps({"index": 0}))

    @property
    def event(self) -> DpEvent:
        return LocalReportsEvent(self.terms.epsilon, self.guarantee.adjacency, self.guarantee.max_contributions)

    def noise_of(self, index: int) -> tuple[float, float]:
        """The least and the largest of the columns' (`deviation`), for the expected number of units, evenly divided."""
        found = list(self._deviations)
        return min(found), max(found)

    @property
    def _deviations(self) -> Iterator[float]:
        units = self.terms.expected_units
        for kind in self.reports:
            yield deviation(kind, units, max(1, units // len(self.domain)))

    def described(self) -> dict[str, Any]:
        deviations = list(self._deviations)
        kinds = [
            {"column": column.name, "kind": NAMES_OF_KINDS[name], "deviation": deviation}
            for column, name, deviation in zip(self.domain, self.terms.kinds, deviations, strict=True)
        ]
        words = ", ".join(f"{item['column']} by {item['kind']}" for item in kinds)
        return {
            "event": f"one private report of each unit, on one of {len(kinds)} columns that is drawn: {words}",
            "reports": kinds,
            "expected_error_per_one_way_cell": sum(map(expected_error, deviations)) / len(deviations),
        }

    def _fits(self) -> bool:
        terms, guarantee = self.terms, self.guarantee
        return (
            super()._fits()
            and terms.trust == LOCAL
            and terms.share_variances == [0.0]
            and (guarantee.adjacency, terms.max_contributions, terms.silos) == (ADJACENCY, 1, 1)
            and EPSILON_RANGE[0] <= terms.epsilon == guarantee.epsilon <= EPSILON_RANGE[1]
            and all(2 <= size <= MOST_VALUES for size in self.domain.sizes)
            and terms.kinds == [type(kind).__name__ for kind in self.reports]
            and type(terms.expected_units) is int
            and terms.expected_units > 0
        )

    @property
    def asked(self) -> ReportsRound:
        """The round."""
        digest = canonical_digest({"plan": self.digest, "index": 0})
        return ReportsRound(0, self.sums[0], digest, self.domain, self.reports)

    def read_round(self, document: Mapping[str, Any]) -> ReportsRound:  # type: ignore[override]
        if not isinstance(document, dict) or document != {"index": 0} or type(document["index"]) is not int:
            raise AccountingError("a round that is not the one of reports")
        return self.asked

    @contextmanager
    def measuring(self, directory: Path, progress: Progress = silent) -> Iterator[MeasuringReports]:  # type: ignore[override]
        with MeasurementLog.create(directory, self.digest) as log:
            yield MeasuringReports(self, log)


@dataclass
class MeasuringReports:
    """The opened sum of reports as a log of measurements: post-processing."""

    plan: LocalReportsPlan
    log: MeasurementLog
    _asked: ReportsRound | None = None
    _is_added: bool = False

    def next_round(self) -> ReportsRound | None:
        if self._is_added:
            self.log.complete()
            return None
        self._asked = self.plan.asked
        return self._asked

    def add(self, opened: Whole, finished: int) -> None:
        if self._asked is None or self._is_added:
            raise MechanismFailed("an opened sum of no round; accepted: after next_round")
        for table in self._asked.estimates(opened):
            self.log.counts("one-way", table)
        self._is_added = True
