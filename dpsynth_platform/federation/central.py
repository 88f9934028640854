"""Federated marginals with a trusted coordinator: the central mechanism, over counts that secure sums open to it.

What belongs here: the sealed plan of `independent`, `mst` and `aim` with the noise of the coordinator, and its rounds.
What does not: the mechanisms (`synth.tabular`), whose events, noise and choices these are, and plans in which each
participant adds a share of noise (`marginals`).

Participants add no noise. Their counts travel under masks, so that the network and other participants see nothing; the
coordinator opens exact sums. There is no guarantee against it, nor against who breaks the masks' cryptography. Against
all others the guarantee is that of the central mechanism on the rows of all participants together, of which one unit
has at most b k (`SumPlan`): a mechanism that reads exact counts of a table can as well read sums of counts.

Two rounds: all columns alone; then all pairs of columns, by states that follow from the noisy counts of the first
(post-processing). Of these sums the mechanism chooses and measures as it does of a table of its own.

**Noise is drawn once.** Two draws for one sum would average out. Each draw is in the log of measurements on disk
before anything depends on it: the next round's document, a choice, the model. After each opened sum the mechanism is
made again from its beginning, and takes what is in the log in place of drawing; so it does in a run that continues
after its coordinator was killed (`MeasurementLog.continued`). Sums themselves are in memory alone. Until the run is
complete, the kept replies (`exchanges`) open them again; so these are as restricted as rows. A log that is taken back
to an earlier state, from a backup, would have its noise drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.federation.marginals import MarginalsPlan, Round
from dpsynth_platform.federation.plans import Terms
from dpsynth_platform.federation.sums import ExactSumPlan, SumPlan, Whole
from dpsynth_platform.foundation.errors import AccountingError, ContractError, MechanismFailed
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import PlanInputs, SealedPlan, generator
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import SCORE_SCALE, MarginalGenerator
from dpsynth_platform.synth.tabular.measurements import FILE_NAME, MeasurementLog
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.tabular.workload import WEIGHT_SCALE

CENTRAL = "central"
MOST_COUNTED = 2**61 // (SCORE_SCALE * WEIGHT_SCALE)
"""Records of all participants' bounds in all cells of a table: scores, which add up their distances, have 64 bits.

What participants claim beyond their bounds is clipped, so that none can make the scores of others' records overflow.
"""


@dataclass(frozen=True)
class CentralTerms(Terms):
    """The parameters of a plan with the coordinator's noise; shares of noise are 0.

    Attributes:
        trust: `central`.
        mechanism: the parameters of the central mechanism.
    """

    trust: str
    mechanism: dict[str, Any]
    _kind_of_sum = ExactSumPlan

    def sum_of(self, index: int, tables: int, length: int, adjacency: str) -> SumPlan:
        return self._sum(index, length, adjacency, 1, tables=tables)


@dataclass(frozen=True)
class CentralMarginalsPlan(MarginalsPlan):
    """A sealed plan whose parameters are `CentralTerms`."""

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
    ) -> CentralMarginalsPlan:
        """Calibrates and seals a plan: with the event and noise of a central run for b k records.

        Raises:
            ContractError, AccountingError: as `MarginalsPlan.of`, and as the method's own plan.
        """
        _, guarantee = cls.counted(contract, method, silos, guarantee)
        inputs = PlanInputs(contract, schema, guarantee)
        parts = _method(method).parts(inputs)
        if any(len(clique) != 2 for clique in parts.parameters.get("workload", ())):
            raise ContractError(
                f"{contract.dataset}: generate.workload: more than two columns together; accepted in a federated run: "
                "pairs"
            )
        terms = CentralTerms(
            participants=sorted(participants),
            minimum=minimum,
            colluders=colluders,
            most_records=most_records,
            max_contributions=contract.privacy.max_contributions,
            silos=silos,
            share_variances=[0.0] * len(_rounds(method, len(parts.columns))),
            trust=CENTRAL,
            mechanism=parts.parameters,
        )
        made = cls(SealedPlan.of(method, inputs, replace(parts, parameters=asdict(terms), time_limit=None)))
        if made._most_counted > MOST_COUNTED:
            raise AccountingError(
                f"most_records {most_records} of {len(participants)} participants in the cells of a table; accepted "
                "with the coordinator's noise: fewer records, or fewer declared values"
            )
        made.check()
        return made

    @cached_property
    def terms(self) -> CentralTerms:
        return CentralTerms(**self.sealed.parameters)

    @property
    def trust(self) -> str:
        return CENTRAL

    @property
    def rounds(self) -> tuple[tuple[str, int], ...]:
        return _rounds(self.sealed.method, len(self.domain))

    @cached_property
    def as_central(self) -> SealedPlan:
        """The plan as the central mechanism reads it."""
        return replace(self.sealed, parameters=self.terms.mechanism)

    @property
    def event(self) -> DpEvent:
        return _method(self.sealed.method).whole_event(self.domain, self.terms.mechanism, self.guarantee)

    def noise_of(self, index: int) -> tuple[float, float]:
        """The coordinator's: the same whether some drop out or not. Of `aim` that of its measurements on average."""
        name = ("sigma_one", "sigma_two")[index]
        sigma = float(self.as_central.describe()[name])
        return sigma, sigma

    def described(self) -> dict[str, Any]:
        found = self.as_central.describe()
        event = f"{found['event']}, all drawn by the coordinator, of sums that participants add without noise"
        return found | {"event": event}

    def _fits(self) -> bool:
        terms = self.terms
        return (
            super()._fits()
            and terms.trust == CENTRAL
            and terms.share_variances == [0.0] * len(self.rounds)
            and all(len(clique) == 2 for clique in terms.mechanism.get("workload", ()))
            and self._most_counted <= MOST_COUNTED
        )

    @property
    def _most_counted(self) -> int:
        states = sorted(self.domain.most_states)[-2:] if len(self.rounds) > 1 else [max(self.domain.sizes)]
        return len(self.terms.participants) * self.terms.most_records * math.prod(states)

    def clear(self, directory: Path, *, continues: bool) -> None:
        """Keeps the log of draws, without which a run that has begun cannot continue: it would draw noise again."""
        log = directory / FILE_NAME
        if continues and not log.exists():
            raise MechanismFailed(
                f"{log}: missing, so that the sums of the interrupted run would get noise a second time; accepted: a "
                "new run elsewhere, which costs again"
            )
        if not continues and log.exists() and log.read_bytes().count(b"\n") <= 1:
            log.unlink()  # begun, and no participant was asked to start

    def begin(self, directory: Path) -> None:
        with MeasurementLog.continued(directory, self.digest):
            pass

    @contextmanager
    def measuring(self, directory: Path, progress: Progress = silent) -> Iterator[MeasuringCentrally]:  # type: ignore[override]
        yield MeasuringCentrally(self, directory, progress)


@dataclass
class MeasuringCentrally:
    """A run's exact sums, in memory alone, as they become the measurements of the central mechanism.

    Attributes:
        _opened: rounds and their exact sums. Sensitive.
    """

    plan: CentralMarginalsPlan
    directory: Path
    progress: Progress
    _opened: list[tuple[Round, Whole]] = field(default_factory=list, repr=False)
    _asked: Round | None = None

    def next_round(self) -> Round | None:
        """Raises `MechanismFailed` if the mechanism measures otherwise than in an earlier attempt of the run."""
        plan = self.plan
        with MeasurementLog.continued(self.directory, plan.digest) as log:
            try:
                records = _OpenedCounts(pa.table({}), plan.domain, opened=tuple(self._opened), plan=plan)
                _method(plan.sealed.method).mechanism(plan.as_central, records, log, self.progress)
            except _NotOpened as needed:
                self._asked = needed.round
                return self._asked
            log.complete()
        self._asked = None
        self._opened.clear()
        return None

    def add(self, opened: Whole, finished: int) -> None:
        if self._asked is None:
            raise MechanismFailed("an opened sum of no round; accepted: after next_round")
        plan = self._asked.sum
        self._opened.append((self._asked, np.clip(opened, 0, plan.participants * plan.bound)))
        self._asked = None


class _NotOpened(Exception):
    """The mechanism asks for counts of a round that is not opened yet."""

    def __init__(self, asked: Round) -> None:
        super().__init__()
        self.round = asked


@dataclass(frozen=True)
class _OpenedCounts(Records):
    """Exact counts from opened sums, in place of a table. Sensitive."""

    opened: tuple[tuple[Round, Whole], ...] = field(default=(), repr=False)
    plan: CentralMarginalsPlan | None = None

    def one_way(self) -> list[Counts]:
        columns, sizes = range(len(self.domain)), self.domain.sizes
        found = self._sums(0, [(column,) for column in columns], [range(size) for size in sizes])
        return np.split(found, np.cumsum(sizes)[:-1])

    def cliques(
        self,
        states: Sequence[ColumnStates],
        cliques: Iterable[Clique],
        progress: Progress = silent,
        stage: str = "counting combinations",
    ) -> dict[Clique, Counts]:
        chosen = sorted(set(cliques))
        if not chosen:
            return {}
        left = self._sums(1, chosen, [state.state_of.tolist() for state in states])
        found = {}
        for clique in chosen:
            shape = tuple(states[column].size for column in clique)
            mine, left = np.split(left, [math.prod(shape)])
            found[clique] = mine.reshape(shape)
        return found

    def _sums(self, index: int, cliques: Sequence[Clique], groups: Sequence[Sequence[int]]) -> Whole:
        assert self.plan is not None  # noqa: S101  (a default, as a field after others' defaults)
        asked = self.plan.round(index, cliques, groups)
        if len(self.opened) == index:
            raise _NotOpened(asked)
        known, sums = self.opened[index]
        if known.digest != asked.digest:
            raise MechanismFailed("the mechanism asks for other sums than those that were opened; accepted: a new run")
        return sums


def _method(name: str) -> MarginalGenerator:
    found = generator(name)
    if not isinstance(found, MarginalGenerator):
        raise AccountingError(f"method {name!r} with the coordinator's noise; accepted: one of noisy marginals")
    return found


def _rounds(method: str, columns: int) -> tuple[tuple[str, int], ...]:
    """All columns, and for methods that choose among them all pairs."""
    pairs = math.comb(columns, 2)
    return (("one-way", columns), *([("pairs", pairs)] if method != "independent" and pairs else []))
