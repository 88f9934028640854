"""Federated training of the network `arn`: the sealed plan, what a unit adds to a round, and the model's steps.

What belongs here: DP-FTRL with secure sums in place of a trusted server. What does not: the network (`synth.neural`),
the columns' counts, which come first (`marginals`), and the cost of a matrix mechanism's sums (`privacy.matrix_noise`).

First, each column is counted alone; noisy counts decide which states the network tells apart. Then come rounds of
training (Ponomareva et al. 2026, algorithm 7; Kairouz et al. 2021). In each, units of one slot add the gradient of
their records' mean loss, clipped to the norm 1 and rounded to whole units of 1/scale. A unit's slot follows from its
fingerprint and the plan. Round t is of slot t modulo `separation`, so that a unit is in every `separation`-th round.
The coordinator could choose among plans by where their digests put a unit: the guarantee is the same for any slot.

**Correlated noise without a server that knows sums.** Let S_t be the vectors of round t, of all participants together,
and C lower triangular with the entries c_0, c_1, ... from the diagonal down (`privacy.matrix_noise`). Round t opens R_t
= (C S)_t + Z_t: each participant keeps its own vectors of the last rounds in memory, adds them up by whole
coefficients, and adds its share of Skellam noise. The coordinator computes C^-1 R: the sums with noise that is
correlated over rounds, as the literature has it. So no noise is ever needed twice, it has no seed to keep, and the
guarantee rests on what all other federated sums rest on.

**Sensitivity.** Let u_t be what one unit adds in round t in one participant's rows: whole, |u_t|_2 <= scale, checked in
whole numbers; 0 outside of its slot's rounds. It is a function of that unit's records and of public numbers alone: each
unit is a pass of its own through the network, and what is drawn for it follows from the round and its fingerprint. So
the unit moves the participant's vectors of all rounds by C U, |C U|_2 <= D scale, where D is the exact sensitivity of C
for these participations (`matrix_noise.matrix_sensitivity`), and |C U|_1 <= sqrt(length rounds) D scale. Entries that
are clipped to the bound move no further. In k participants a unit has a slot and a U in each, and moves the sum of all
by k D scale at most. Where records are replaced, by twice that.

**Rounds that depend on earlier ones.** u_t may depend on what was opened before, through the weights. Given that, round
t is a Skellam mechanism moved by d_t, whose Renyi bounds (`privacy.skellam`) are sums over entries, linear in |d_t|_2^2
and in |d_t|_1. Whatever was opened, the sums of these over all rounds are at most those of C U above. Mechanisms that
are chosen one after the other, with Renyi divergences whose sum never exceeds a bound, have that bound together
(Feldman & Zrnic 2021, theorem 3.1). So the event is that of one sum of vectors of all rounds.

**Who is missing.** A participant that drops out of a round shows less. What it had for that round comes with later
ones, by their coefficients: the estimates are then of rounds that include late vectors, which is post-processing.
"""

from __future__ import annotations

import base64
import hashlib
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.network_training import TableNetwork
from dpsynth_platform.federation.columns_first import ColumnsFirst
from dpsynth_platform.federation.marginals import MarginalsPlan, MeasuringCounts
from dpsynth_platform.federation.plans import Measuring, Memory, Round, Terms
from dpsynth_platform.federation.sums import SumPlan, Whole, fixed_point
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError, MechanismFailed, StaleInput
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import table_schema, write_durably
from dpsynth_platform.privacy.calibration import noise_for
from dpsynth_platform.privacy.events import DpEvent, SkellamSumsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.matrix_noise import matrix_sensitivity, optimized_coefficients, prefix_sums
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.interface import PlanInputs, PlanParts, SealedPlan, generator
from dpsynth_platform.synth.neural.network_generator import NETWORK, LearnedColumns, NetworkGenerator
from dpsynth_platform.synth.neural.network_plan import check_columns
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.restore import release_schema

if TYPE_CHECKING:
    from dpsynth_platform.synth.neural.arn_network import ArnNetwork, Rows

ROUNDS, SEPARATION = 20, 5
"""Of training, and from one round of a unit to its next one."""
PARTS = 4
"""Coefficients are whole multiples of 1/4: finer ones need more draws of noise, which they lower by less than 1%."""
COLUMNS_SHARE = 0.7
"""Of epsilon, for counts of single columns: with 0.45, the central default, those of adult are worse, pairs as good."""
MOMENTUM, AVERAGE = 0.8, 0.7
RATE, NOISY_RATE = 20.0, 8.0
"""The learning rate, and its most times the length of the noise in a round's mean gradient. Both by runs on adult."""
LONG = 2
"""The norm of a unit's vector in units is so many times the root of its length at least: rounding adds little to it."""
_TRAINING = "training"
_FIRST = "first.npy"
_FLOAT = np.dtype("<f4")
_LARGE = 1e150  # from there on squares overflow
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GradientTerms(Terms):
    """The parameters of sums of gradients. A cell's count is here an entry's sum over units of norm 1.

    Attributes:
        scale: units of the norm 1.
        coefficients: c_0, c_1, ... in 1/`PARTS`; c_0 is 1, and no other is larger.
        rounds: of training.
        separation: from one of a unit's rounds to its next one; at least as many as there are coefficients.
    """

    scale: int
    coefficients: list[int]
    rounds: int
    separation: int

    def gradients(self, index: int, length: int, adjacency: str) -> SumPlan:
        """The sum of a round of training. Its own event is of that round alone."""
        return self._sum(index, length, adjacency, self.scale * PARTS, norm=1)

    def event(self, length: int, adjacency: str) -> SkellamSumsEvent:
        """The cost of all rounds together; see the module. Raises `AccountingError`, as for impossible numbers."""
        times = -(-self.rounds // self.separation)
        moved = matrix_sensitivity(tuple(map(float, self.coefficients)), self.rounds, times, self.separation)
        l2_squared = math.ceil(self.silos**2 * self.scale**2 * moved.l2_squared)
        l1 = math.isqrt(length * self.rounds * l2_squared)
        variance = (self.minimum - self.colluders) * self.share_variances[0]
        return SkellamSumsEvent(variance, l1, l2_squared, adjacency, self.max_contributions * self.silos)


@dataclass(frozen=True)
class Training:
    """How the coordinator and participants train, without noise. Public.

    Attributes:
        clipping_norm: of a unit's gradient, which becomes norm 1.
        cohort: the expected number of units in a round: what a sum is divided by.
    """

    cohort: float
    width: int
    fixed_order: float
    clipping_norm: float = 1.0
    learning_rate: float = RATE
    momentum: float = MOMENTUM
    average: float = AVERAGE
    evidence: Sequence[int] = ()


@dataclass(frozen=True)
class GradientRound:
    """What is summed in one round of training. Public.

    Attributes:
        groups: of every column, the state of each cell.
        shares: of every column, those of its states.
        weights: of the network, shape (sum.length,).
        digest: of plan, index and all of these.
    """

    index: int
    groups: Sequence[Sequence[int]] = field(repr=False)
    shares: Sequence[Sequence[float]] = field(repr=False)
    weights: npt.NDArray[np.float32] = field(repr=False, compare=False)
    sum: SumPlan
    digest: str
    plan: GradientsPlan = field(compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The arguments of `GradientsPlan.round`."""
        return {"index": self.index, "groups": self.groups, "shares": self.shares, "weights": _coded(self.weights)}

    @property
    def number(self) -> int:
        """Of training, from 0."""
        return self.index - self.plan.before

    def units(self, bounded: Path | pa.Table) -> Whole:
        """S of this round, before coefficients, in units of 1/scale."""
        return self.of_units(self.plan.read_units(bounded))

    def of_units(self, units: Mapping[str, Whole]) -> Whole:
        """S, from the codes of each unit's records by fingerprint. Sensitive."""
        terms, total = self.plan.terms, np.zeros(self.sum.length, dtype=np.int64)
        gradients = _Gradients(self)
        for name, codes in units.items():
            if self.plan.slot(name) == self.number % terms.separation:
                total += gradients.of_unit(name, codes)
        return total


@dataclass(frozen=True)
class GradientsPlan(ColumnsFirst):
    """A sealed plan of counts of single columns and of rounds of training."""

    METHODS = ("arn",)

    @classmethod
    def of(
        cls,
        contract: DataContract,
        schema: pa.Schema,
        *,
        participants: Sequence[str],
        minimum: int,
        colluders: int,
        most_records: int,
        silos: int = 1,
    ) -> GradientsPlan:
        """Calibrates and seals a plan for the contract's columns and guarantee, from public inputs.

        Args:
            schema: of the participants' tables.

        Raises:
            ContractError: columns whose values are to be learned, weighted rows, a single column or too many states.
            AccountingError: a value is impossible, no noise meets the guarantee, or messages would be too long.
        """
        target, domain = Guarantee.target(contract), planned_domain(contract)
        declared = contract.generate.network or TableNetwork()
        check_columns(contract, domain)
        share, b = COLUMNS_SHARE, contract.privacy.max_contributions
        columns = MarginalsPlan.of(
            contract,
            schema,
            method="independent",
            guarantee=replace(target, epsilon=share * target.epsilon, delta=share * target.delta),
            participants=participants,
            minimum=minimum,
            colluders=colluders,
            most_records=most_records,
            silos=silos,
        ).sealed
        guarantee = replace(target, max_contributions=b * silos)
        length = _weights(domain.most_states, declared.width)
        bare = GradientTerms(
            *(sorted(participants), minimum, colluders, most_records, b, silos, []),
            scale=1 << math.ceil(math.log2(LONG * math.sqrt(length))),
            coefficients=_coefficients(),
            rounds=ROUNDS,
            separation=SEPARATION,
        )

        def terms_with(noise: float) -> GradientTerms:
            variance = bare.share_of((noise * bare.scale * PARTS) ** 2)
            return replace(bare, share_variances=[variance] * bare.rounds)

        def event_of(noise: float) -> DpEvent:
            return counted.together(columns, terms_with(noise).event(length, guarantee.adjacency))

        found = noise_for(event_of, guarantee.epsilon, guarantee.delta)
        terms = terms_with(found.value)
        cohort = contract.privacy.expected_units / bare.separation
        noise = math.sqrt(length * terms.noisy * terms.share_variances[0]) / (terms.scale * PARTS * cohort)
        rate = min(RATE, NOISY_RATE / noise)
        training = Training(cohort, declared.width, declared.fixed_order, declared.clipping_norm, rate)
        parts = PlanParts(
            columns=counted.domains(columns),
            release=release_schema(contract, schema).to_json(),
            parameters={"columns": asdict(columns), "training": asdict(training), "federated": asdict(terms)},
            event=found.event,
        )
        made = cls(SealedPlan.of(cls.METHODS[0], PlanInputs(contract, schema, guarantee), parts))
        made.check_lengths()
        return made

    @cached_property
    def terms(self) -> GradientTerms:
        return GradientTerms(**self.sealed.parameters["federated"])

    @cached_property
    def training(self) -> Training:
        return Training(**self.sealed.parameters["training"])

    @cached_property
    def counted(self) -> counted.Columns:
        return counted.from_json(self.sealed.parameters["columns"])

    @property
    def own_reads(self) -> Sequence[str]:
        return self.domain.reads

    @property
    def own_rounds(self) -> tuple[tuple[str, int], ...]:
        return (("training", 1),) * self.terms.rounds

    @property
    def most_weights(self) -> int:
        """Of the network, with as many states as columns may have."""
        return _weights(self.domain.most_states, self.training.width)

    @cached_property
    def own_sums(self) -> tuple[SumPlan, ...]:
        terms, adjacency = self.terms, self.guarantee.adjacency
        if len(terms.share_variances) != terms.rounds or len(set(terms.share_variances)) != 1:
            raise ValueError("shares of noise that are not alike in all rounds")
        return tuple(terms.gradients(index, self.most_weights, adjacency) for index in range(terms.rounds))

    @property
    def event(self) -> DpEvent:
        return counted.together(self.counted, self.terms.event(self.most_weights, self.guarantee.adjacency))

    @property
    def own_document_bytes(self) -> int:
        groups = sum(size * (len(str(size)) + 2) + 4 for size in self.domain.sizes)
        shares = sum(size * 28 + 4 for size in self.domain.most_states)
        return 200 + groups + shares + _coded_length(self.most_weights)

    def _fits(self) -> bool:
        terms, training, columns = self.terms, self.training, self.columns
        return (
            columns is not None
            and columns.sealed.method == "independent"
            and all(type(each) is int and each >= 1 for each in (terms.scale, terms.rounds, terms.separation))
            and all(type(each) is int and 0 <= each <= PARTS for each in terms.coefficients)
            and terms.coefficients[:1] == [PARTS]
            and len(terms.coefficients) <= min(terms.separation, terms.rounds)
            and type(training.width) is int
            and training.width >= 1
            and 0 <= training.fixed_order <= 1
            and 0 < training.clipping_norm < math.inf
            and not training.evidence
            and all(0 < each < math.inf for each in (training.cohort, training.learning_rate))
            and all(0 <= each < 1 for each in (training.momentum, training.average))
            and super()._fits()
        )

    def slot(self, name: str) -> int:
        """The slot of a unit by its fingerprint, whichever other units there are."""
        hashed = hashlib.sha256(f"slot {self.digest} {name}".encode()).digest()
        return int.from_bytes(hashed[:8]) % self.terms.separation

    def read_units(self, bounded: Path | pa.Table) -> dict[str, Whole]:
        """The codes of each unit's records, shape (records, columns), by its fingerprint. Sensitive.

        Records are in an order of their own: that in which they are read may follow from other units. Where each row is
        a unit without an owner, it gets a random name.

        Raises `StaleInput` for rows without owners, where these are units.
        """
        schema = bounded.schema if isinstance(bounded, pa.Table) else table_schema(bounded)
        owned = [OWNER_COLUMN] if OWNER_COLUMN in schema.names else []
        if not owned and self.guarantee.unit != "example":
            raise StaleInput(f"the bounded table lacks column {OWNER_COLUMN!r}; materialize bounded again")
        found: dict[str, list[Whole]] = {}
        for batch, _ in Records(bounded, self.domain).rows([*self.domain.reads, *owned]):
            codes = self.domain.encode(batch)
            names = batch.column(OWNER_COLUMN).to_pylist() if owned else (secrets.token_hex(16) for _ in codes)
            for name, row in zip(names, codes, strict=True):
                found.setdefault(name, []).append(row)
        return {name: _sorted(np.stack(rows).astype(np.int64)) for name, rows in found.items()}

    def vector(self, asked: Round, bounded: Path | pa.Table, memory: Memory) -> Whole:
        """(C S)_t of a round of training, in units of 1/(scale `PARTS`); see the module.

        Args:
            memory: of this run, with S of earlier rounds, and the table's codes. Sensitive.
        """
        if not isinstance(asked, GradientRound):
            return super().vector(asked, bounded, memory)
        if "units" not in memory:
            memory["units"] = self.read_units(bounded)
        sums: dict[int, Whole] = memory.setdefault("sums", {})
        sums[asked.number] = asked.of_units(memory["units"])
        total = np.zeros(asked.sum.length, dtype=np.int64)
        for back, coefficient in enumerate(self.terms.coefficients):
            earlier = sums.get(asked.number - back)
            # A document with other states has another length, by a coordinator that strays from the plan.
            if earlier is not None and earlier.shape == total.shape:
                total += coefficient * earlier
        sums.pop(asked.number - len(self.terms.coefficients), None)
        return total

    def own_round(self, document: Mapping[str, Any]) -> GradientRound:
        if not isinstance(document, dict) or document.keys() != {"index", "groups", "shares", "weights"}:
            raise AccountingError("a round that is no object of index, groups, shares and weights")
        return self.round(**document)

    def round(
        self, index: int, groups: Sequence[Sequence[int]], shares: Sequence[Sequence[float]], weights: str
    ) -> GradientRound:
        """A round of training with these weights, whatever made them.

        Args:
            weights: float32 in base64.

        Raises:
            AccountingError: more states than columns may have, shares that are none, or weights of another network.
        """
        own = index
        try:
            own = index - self.before
            sizes = [len(each) for each in shares]
            valid = (
                type(index) is int
                and 0 <= own < self.terms.rounds
                and [len(each) for each in groups] == list(self.domain.sizes)
                and len(sizes) == len(self.domain)
                and all(0 < size <= most for size, most in zip(sizes, self.domain.most_states, strict=True))
                and all(
                    type(group) is int and 0 <= group < size
                    for column, size in zip(groups, sizes, strict=True)
                    for group in column
                )
                and all(type(share) is float and 0 < share <= 1 for column in shares for share in column)
            )
            length = _weights(sizes, self.training.width) if valid else 0
            valid = valid and isinstance(weights, str) and len(weights) == _coded_length(length)
            found = (
                np.frombuffer(base64.b64decode(weights, validate=True), dtype=_FLOAT) if valid else np.zeros(0, _FLOAT)
            )
            valid = valid and len(found) == length > 0 and bool(np.isfinite(found).all())
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise AccountingError("a round has a network that the plan does not allow")
        plan = self.terms.gradients(own, length, self.guarantee.adjacency)
        document = {"groups": groups, "shares": shares, "weights": weights}
        digest = canonical_digest({"plan": self.digest, "index": index, **document})
        return GradientRound(index, groups, shares, found.astype(np.float32), plan, digest, self)

    @contextmanager
    def measuring(self, directory: Path, progress: Progress = silent) -> Iterator[MeasuringGradients]:
        if self.columns is None:
            raise MechanismFailed("a training without counted columns")
        with MeasurementLog.create(directory, self.digest) as log:
            yield MeasuringGradients(self, directory, MeasuringCounts(self.columns, log))


@dataclass
class MeasuringGradients:
    """A run's opened sums as counts and weights in a model directory, as the central method leaves it.

    The first weights are drawn once for the directory; all others follow from what was opened.
    """

    plan: GradientsPlan
    directory: Path
    columns: Measuring | None
    _network: ArnNetwork | None = None
    _learned: LearnedColumns | None = None
    _steps: _Steps | None = None
    _asked: GradientRound | None = None
    _number: int = 0

    def next_round(self) -> Round | None:
        if self.columns is not None:
            if (asked := self.columns.next_round()) is not None:
                return asked
            self.columns = None
            self._begin()
        assert self._steps is not None and self._learned is not None  # noqa: S101  (begun)
        if self._number == self.plan.terms.rounds:
            self._finish()
            return None
        groups = [item.state_of.tolist() for item in self._learned.states]
        shares = [share.tolist() for share in self._learned.shares]
        index = self.plan.before + self._number
        self._asked = self.plan.round(index, groups, shares, _coded(self._steps.weights))
        return self._asked

    def add(self, opened: Whole, finished: int) -> None:
        if self.columns is not None:
            self.columns.add(opened, finished)
            return
        asked, self._asked = self._asked, None
        if asked is None or self._steps is None:
            raise MechanismFailed("an opened sum of no round; accepted: after next_round")
        self._steps.take(opened / asked.sum.scale)
        self._number += 1

    def _begin(self) -> None:
        plan, arn = self.plan, generator(self.plan.sealed.method)
        assert isinstance(arn, NetworkGenerator)  # noqa: S101  (as the method says)
        self._learned = arn.learned(plan.sealed, self.directory)
        self._network = _network([share.tolist() for share in self._learned.shares], plan.training)
        place = private_directory(self.directory / _TRAINING) / _FIRST
        if not place.exists():
            write_durably(place, _flat(self._network).astype(_FLOAT).tobytes())
        first = np.frombuffer(place.read_bytes(), dtype=_FLOAT)
        self._steps = _Steps(plan, first.astype(np.float64))

    def _finish(self) -> None:
        from dpsynth_platform.training.weights import save_weights

        assert self._steps is not None and self._network is not None  # noqa: S101  (begun)
        _load(self._network, self._steps.average.astype(np.float32))
        place = private_directory(self.directory / NETWORK)
        save_weights(dict(self._network.named_parameters()), place, self.plan.terms.rounds)


class _Steps:
    """The model's steps by opened sums: post-processing."""

    def __init__(self, plan: GradientsPlan, weights: Vector) -> None:
        self._training, self._coefficients = plan.training, [each / PARTS for each in plan.terms.coefficients]
        self.weights, self.average = weights, weights
        self._speed = np.zeros_like(weights)
        self._estimates: list[Vector] = []  # of S, the last one first
        self._number = 0

    def take(self, opened: Vector) -> None:
        training = self._training
        estimate = opened - sum(
            c * earlier for c, earlier in zip(self._coefficients[1:], self._estimates, strict=False)
        )
        self._estimates = [estimate, *self._estimates][: len(self._coefficients) - 1]
        self._speed = training.momentum * self._speed + estimate / training.cohort
        self.weights = self.weights - training.learning_rate * self._speed
        self._number += 1
        kept = min(training.average, (1 + self._number) / (10 + self._number))
        self.average = kept * self.average + (1 - kept) * self.weights


class _Gradients:
    """Gradients of single units at a round's weights. Sensitive."""

    def __init__(self, asked: GradientRound) -> None:
        import torch

        self._asked, self._training = asked, asked.plan.training
        self._network = _network(asked.shares, self._training)
        _load(self._network, asked.weights)
        self._parameters = list(self._network.parameters())
        self._states = [np.array(groups, dtype=np.int64) for groups in asked.groups]
        self._rows = _rows(self._network, self._training)
        self._source = torch.Generator()

    def of_unit(self, name: str, codes: Whole) -> Whole:
        """What one unit adds: whole, of norm `scale` at most. Zeros where anything fails, which would show the unit."""
        try:
            return self._of_unit(name, codes)
        except Exception:  # of weights that are made up
            return np.zeros(self._asked.sum.length, dtype=np.int64)

    def _of_unit(self, name: str, codes: Whole) -> Whole:
        import torch

        seed = hashlib.sha256(f"unit {self._asked.digest} {name}".encode()).digest()
        self._source.manual_seed(int.from_bytes(seed[:7]))
        self._rows.source = self._source
        states = np.stack([groups[codes[:, at]] for at, groups in enumerate(self._states)], axis=1)
        drawn = self._rows.drawn({"states": torch.from_numpy(states)}, 1)
        loss = self._rows.losses(self._network, drawn).mean()
        if not loss.requires_grad:  # of a network of columns with one state each: public
            return np.zeros(self._asked.sum.length, dtype=np.int64)
        found = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([each.reshape(-1) for each in found]).double().numpy() / self._training.clipping_norm
        dither = torch.rand(len(gradient), generator=self._source, dtype=torch.float32).double().numpy()
        return rounded(gradient, self._asked.plan.terms.scale, dither)


def rounded(vector: Vector, scale: int, dither: Vector) -> Whole:
    """A unit's vector in whole units of 1/scale, clipped to the norm 1: without bias, but for clipping.

    Entries are rounded up where their fraction exceeds `dither`. That adds at most length / 4 to the squared norm in
    expectation, for which clipping leaves room. Where it is not enough, the vector is shortened again; `fixed_point`
    checks in whole numbers.

    Args:
        vector: sensitive; entries that are not finite count as 0.
        dither: uniform on [0, 1), of this unit alone.
    """
    finite = np.where(np.isfinite(vector), vector, 0.0)
    if float(np.abs(finite).max(initial=0.0)) > _LARGE:
        return fixed_point(finite, 1, scale)
    length = float(np.linalg.norm(finite))
    room = math.sqrt(max(0.25, 1 - len(vector) / (4 * scale**2)))
    factor = min(1.0, room / length) if length else 1.0
    for _ in range(8):
        units: Whole = np.floor(finite * (factor * scale) + dither).astype(np.int64)
        if float((units.astype(np.float64) ** 2).sum()) <= scale**2:
            return fixed_point(units / scale, 1, scale)
        factor *= 0.98
    return fixed_point(finite, 1, scale)


def _sorted(codes: Whole) -> Whole:
    return codes[np.lexsort(codes.T)]


def _coefficients() -> list[int]:
    best = optimized_coefficients(SEPARATION, prefix_sums(ROUNDS, MOMENTUM))
    return [max(0, min(PARTS, round(PARTS * each))) for each in best]


def _network(shares: Sequence[Sequence[float]], training: Training) -> ArnNetwork:
    from dpsynth_platform.synth.neural.arn_network import ArnNetwork

    return ArnNetwork([np.array(each) for each in shares], training.width)


def _rows(network: ArnNetwork, training: Training) -> Rows:
    import torch

    from dpsynth_platform.synth.neural.arn_network import Rows

    return Rows(network.sizes, training, torch.device("cpu"))  # type: ignore[arg-type]  # all that rows read of it


def _flat(network: ArnNetwork) -> Vector:
    return np.concatenate([value.detach().numpy().ravel() for value in network.parameters()]).astype(np.float64)


def _load(network: ArnNetwork, weights: npt.NDArray[np.float32]) -> None:
    import torch

    values = list(network.parameters())
    parts = torch.split(torch.from_numpy(weights.copy()), [value.numel() for value in values])
    with torch.no_grad():
        for value, part in zip(values, parts, strict=True):
            value.copy_(part.view_as(value))


def _weights(sizes: Sequence[int], width: int) -> int:
    """Of `ArnNetwork` with so many states of each column: a column of one state is not predicted."""
    states = sum(sizes)
    predicted = sum(size for size in sizes if size > 1)
    return (len(sizes) + states) * width + predicted * (states + width)


def _coded(weights: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(weights, dtype=_FLOAT).tobytes()).decode("ascii")


def _coded_length(weights: int) -> int:
    return -(-weights * _FLOAT.itemsize // 3) * 4
