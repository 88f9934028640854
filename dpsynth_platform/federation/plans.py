"""What a federated run needs of a mechanism: a sealed plan, rounds that each open one sum, and what the sums become.

What belongs here: what all mechanisms share: terms, checks of a plan against its event and guarantee, the search for
noise. What does not: any one mechanism (`marginals`, `moments`), and which one a plan's text names (`mechanisms`).

A mechanism is a `FederatedPlan` with its `Round` and its `Measuring`:

    plan.check()                        # by each participant, before it reserves
    asked = plan.read_round(document)   # by each participant, from the coordinator's document
    asked.units(bounded)                # by each participant: its vector, to which noise is added
    with plan.measuring(directory) as measuring:      # by the coordinator, of opened sums alone
        asked = measuring.next_round()
        measuring.add(opened, finished)

A round's document comes from a server that nobody has to trust. So whatever it says, a unit moves `Round.units` by what
`Round.sum` says at most, and `Round.sum` costs at most what the plan's event has for the round.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import pyarrow as pa

from dpsynth_platform.contracts.federation import AUDITOR
from dpsynth_platform.federation.rounds import longest_messages
from dpsynth_platform.federation.sums import SCALE, VARIANCE_STEP, SumPlan, Whole
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.figures import number_of
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import DpEvent, event_to_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.endpoint_access import Transport
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.marginals import expected_error
from dpsynth_platform.synth.tabular.measurements import FILE_NAME

MOST_MESSAGE_BYTES = 2**26
"""Of a message to a participant: a plan, or a round's document."""
MOST_REPLY_BYTES = 2**30
"""Of a participant's reply: a vector, or shares of secrets. The relay's own messages end at 2 GiB."""
SIGNATURE_BYTES = 64
ENVELOPE_BYTES = 2**11
"""Of a message at most, without what is counted below: its kind, the run's name of 100 letters, the signature."""
MOST_STEPS = 700
"""Of the search for noise, each by a thousandth: twice the start, where only Renyi bounds are known."""
T = TypeVar("T")
Memory = dict[str, Any]
"""What a participant keeps from one round of a run to the next. Sensitive."""


@dataclass(frozen=True)
class Terms:
    """The parameters that all federated plans have.

    Attributes:
        participants: names, ascending; at most these take part.
        minimum: the fewest of them that finish a round.
        colluders: the most of them whose shares of noise an adversary knows.
        most_records: the largest count of a participant's cell, public; larger ones are clipped.
        max_contributions: b, the most records of one unit in each participant's rows.
        silos: k, the most participants that one person is in.
        share_variances: of each participant's noise in each round, in squared units of the round.
    """

    participants: list[str]
    minimum: int
    colluders: int
    most_records: int
    max_contributions: int
    silos: int
    share_variances: list[float]
    _kind_of_sum: ClassVar[type[SumPlan]] = SumPlan

    @property
    def noisy(self) -> int:
        """How many of the participants add noise: all but the auditor, whose share counts as known."""
        return len(set(self.participants) - {AUDITOR})

    def share_of(self, variance: float) -> float:
        """The least share of noise, of which the honest participants' together have this variance at least."""
        if self.minimum <= self.colluders:
            raise AccountingError(
                f"{self.colluders} colluders of {self.minimum} that finish; accepted: fewer colluders"
            )
        return math.ceil(variance / (self.minimum - self.colluders) / VARIANCE_STEP) * VARIANCE_STEP

    def sum_of(self, index: int, tables: int, length: int, adjacency: str) -> SumPlan:
        """The sum of a round of tables of counts."""
        return self._sum(index, length, adjacency, SCALE, tables=tables)

    def _sum(self, index: int, length: int, adjacency: str, scale: int, **more: int) -> SumPlan:
        return self._kind_of_sum(
            participants=len(self.participants),
            minimum=self.minimum,
            colluders=self.colluders,
            length=length,
            scale=scale,
            bound=self.most_records * scale,
            share_variance=self.share_variances[index],
            adjacency=adjacency,
            max_contributions=self.max_contributions,
            silos=self.silos,
            **more,
        )


class Round(Protocol):
    """What is summed in one round. Public.

    Attributes:
        index: from 0, in the plan's order.
        sum: what is known of the sum before it is computed.
        digest: of plan, index and all that decides what is summed; names the round for all who take part.
    """

    @property
    def index(self) -> int: ...

    @property
    def sum(self) -> SumPlan: ...

    @property
    def digest(self) -> str: ...

    def to_json(self) -> dict[str, Any]:
        """What `FederatedPlan.read_round` reads."""
        ...

    def units(self, bounded: Path | pa.Table) -> Whole:
        """A participant's vector in whole units, not yet clipped to `sum.bound`; shape (sum.length,). Sensitive.

        Args:
            bounded: a Delta table's path, or a table in memory; at most b records of each unit.
        """
        ...


class Measuring(Protocol):
    """A run's opened sums as they become durable measurements: post-processing."""

    def next_round(self) -> Round | None:
        """The round after those that are added; None after the last, when all measurements are complete."""
        ...

    def add(self, opened: Whole, finished: int) -> None:
        """Keeps the opened sum of the round that was given last, with the noise of so many participants.

        Args:
            finished: of those who add noise (`Terms.noisy`).
        """
        ...


@dataclass(frozen=True)
class FederatedPlan(ABC):
    """A sealed plan whose parameters have `Terms`; the fit and the release read it like a central one.

    Its guarantee is for b k records of a unit over all participants (`SumPlan`).
    """

    METHODS: ClassVar[tuple[str, ...]]

    sealed: SealedPlan

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads a plan and checks it.

        Raises:
            GrantRefused: the text is no sealed plan, or does not match its digest.
            AccountingError: the plan is impossible, costs another event or more than it says, or has messages that are
                too long.
        """
        plan = cls(SealedPlan.from_json(text))
        plan.check()
        return plan

    def to_json(self) -> str:
        return self.sealed.to_json()

    @cached_property
    def digest(self) -> str:
        return self.sealed.digest

    @cached_property
    def guarantee(self) -> Guarantee:
        return Guarantee.from_json(self.sealed.guarantee)

    @property
    @abstractmethod
    def terms(self) -> Terms: ...

    @property
    @abstractmethod
    def reads(self) -> Sequence[str]:
        """The columns that a run reads."""

    @property
    def trust(self) -> str:
        """Who adds the noise (`trust.TRUSTS`): each participant a share, unless a plan says otherwise."""
        return "distributed"

    def noise_of(self, index: int) -> tuple[float, float]:
        """The deviation of a round's noise, with the fewest and with all participants.

        In records, and of sums of pictures in the most that one record adds.
        """
        each = self.sums[index]
        fewest, most = (math.sqrt(number * each.share_variance) for number in (each.minimum, each.participants))
        return fewest / each.scale, most / each.scale

    def described(self) -> dict[str, Any]:
        """The event in words, and expected errors of counts in a run without dropouts."""
        precision = {1: 0.0, 2: 0.0}
        for (purpose, _), each in zip(self.rounds, self.sums, strict=True):
            if each.norm is None:
                noise = math.sqrt(self.terms.noisy * each.share_variance) / each.scale
                precision[1 if purpose == "one-way" else 2] += noise**-2
        names = {1: "expected_error_per_one_way_cell", 2: "expected_error_per_two_way_cell"}
        honest = number_of(self.terms.minimum - self.terms.colluders, "honest participant")
        return {
            "event": f"{number_of(len(self.sums), 'sum')} of participants, each with the Skellam noise of at least "
            f"{honest}",
            **{names[ways]: expected_error(value**-0.5) for ways, value in precision.items() if value},
        }

    @property
    def pictures(self) -> ImageLayout | None:
        """The column of pictures and their classes; None where none are read."""
        return None

    @property
    @abstractmethod
    def rounds(self) -> tuple[tuple[str, int], ...]:
        """What each round is for, and the most tables or vectors that it sums."""

    @property
    @abstractmethod
    def sums(self) -> tuple[SumPlan, ...]:
        """The sum of each round, as long as it can be. A shorter one costs no more."""

    @property
    @abstractmethod
    def most_document_bytes(self) -> int:
        """Of any round's document as JSON (`Round.to_json`)."""

    @property
    @abstractmethod
    def event(self) -> DpEvent:
        """What a whole run costs one unit, against all whom `trust` names."""

    @abstractmethod
    def _fits(self) -> bool:
        """Whether the mechanism's own parameters are possible together; may raise as `check` expects."""

    @abstractmethod
    def undeclared(self, domain: Domain, pictures: ImageLayout | None) -> Iterator[str]:
        """Why a participant's rows cannot be summed as the plan says, by its own declarations; one line each."""

    def unreadable(self, texts: Collection[str]) -> Iterator[str]:
        """Why a participant cannot read texts as the plan says; one line each.

        Args:
            texts: the columns that it declares as texts.
        """
        yield from ()

    def prepare(self) -> None:
        """Tries what the rounds need of the coordinator's machine, before anything is spent.

        Raises:
            ConfigurationError: it is missing, or not the plan's.
        """
        method = generator(self.sealed.method)
        method.check_public(self.sealed)
        method.tried_endpoint(self.sealed, Transport())

    def clear(self, directory: Path, *, continues: bool) -> None:
        """Makes a run's directory ready for its rounds to be made again: nothing is drawn at random for its counts.

        Deletes logs of counts, which are written from their beginning: all in them follows from what was said.
        Candidates and networks stay: what was drawn at random for them is in no message.

        Args:
            continues: whether the run began before; otherwise there is nothing of it.

        Raises:
            MechanismFailed: the run cannot continue there.
        """
        for path in directory.rglob(FILE_NAME) if continues and directory.is_dir() else ():
            path.unlink()

    def begin(self, directory: Path) -> None:
        """Called before a run is noted as begun, and before anybody is asked to start."""
        del directory  # a mechanism that draws nothing here keeps nothing

    @abstractmethod
    def read_round(self, document: Mapping[str, Any]) -> Round:
        """A round of `Round.to_json`, from any sender. Raises `AccountingError` if the plan does not allow it."""

    def vector(self, asked: Round, bounded: Path | pa.Table, memory: Memory) -> Whole:
        """A participant's vector of a round in whole units, not clipped: `Round.units`, or made of several. Sensitive.

        Args:
            memory: of this participant's run, empty before its first round.
        """
        return asked.units(bounded)

    @abstractmethod
    def measuring(self, directory: Path, progress: Progress = silent) -> AbstractContextManager[Measuring]:
        """Starts a new model directory, from which `Generator.estimate` fits once all rounds are added."""

    @cached_property
    def domain(self) -> Domain:
        """The columns that are counted; empty where none is."""
        return Domain.from_json(self.sealed.columns)

    @property
    def most_message_bytes(self) -> int:
        """Of the longest message that a participant gets."""
        plan = len(self.to_json().encode())
        signatures = len(json.dumps(dict.fromkeys(self.terms.participants, "0" * 2 * SIGNATURE_BYTES)))
        requests = max(longest_messages(each)[0] for each in self.sums)
        return ENVELOPE_BYTES + max(plan, signatures, requests, self.most_document_bytes)

    @property
    def most_reply_bytes(self) -> int:
        """Of the longest reply of a participant."""
        return 2 * SIGNATURE_BYTES + max(longest_messages(each)[1] for each in self.sums)

    def check_lengths(self) -> None:
        """Refuses what would otherwise fail when participants have paid.

        Raises:
            AccountingError: a message or a vector of a run could be longer than participants or relays take.
        """
        for what, most, accepted in (
            ("a message to a participant", self.most_message_bytes, MOST_MESSAGE_BYTES),
            ("a participant's reply", self.most_reply_bytes, MOST_REPLY_BYTES),
        ):
            if most > accepted:
                raise AccountingError(
                    f"{what} could have {most} bytes in a run of this plan; accepted: up to {accepted}; declare fewer "
                    "values, smaller pictures or fewer classes of them, or fewer candidates, or take fewer participants"
                )

    def check(self) -> None:
        """Recomputes lengths, the event, and what it costs. Raises as `from_json`."""
        try:
            terms, guarantee = self.terms, self.guarantee
            fits = (
                self.sealed.method in self.METHODS
                and self.sealed.period is None
                and all(isinstance(name, str) for name in terms.participants)
                and sorted(set(terms.participants)) == terms.participants
                and len(self.sums) == len(self.rounds)
                and guarantee.weighting == "rows"
                and guarantee.max_contributions == terms.max_contributions * terms.silos
                and self._fits()
                and event_to_json(self.event) == self.sealed.event
            )
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError):
            fits = False
        if not fits:
            raise AccountingError("the federated plan is damaged, or its event is not that of its parameters")
        self.check_lengths()
        spent = epsilon(self.event, guarantee.delta).epsilon
        if spent > guarantee.epsilon:
            raise AccountingError(
                f"the federated plan costs epsilon {spent:g} at delta {guarantee.delta:g}; accepted: at most what it "
                f"says, {guarantee.epsilon:g}"
            )


def undeclared_pictures(sealed: ImageLayout, here: ImageLayout | None) -> Iterator[str]:
    """Why a participant's pictures cannot be summed as a plan says, by its own declarations; public."""
    alike = "accepted: the same size, channels and classes at all participants"
    if here is None or here.column != sealed.column:
        yield f"columns: {visible(sealed.column)} is not declared here as pictures; {alike}"
    elif here.form != sealed.form:
        sizes = (" x ".join(map(str, each.form.shape)) for each in (here, sealed))
        yield f"columns: {visible(sealed.column)} has {' here, and '.join(sizes)} in the plan; {alike}"
    elif here.conditions != sealed.conditions:
        yield f"columns: {visible(sealed.column)} has other classes here than in the plan; {alike}"


def least_noise(made: Callable[[float], tuple[T, DpEvent]], start: float, guarantee: Guarantee) -> tuple[T, DpEvent]:
    """What is made of the least noise that meets a guarantee, from `start` up in thousandths, with its event.

    Args:
        start: the noise of Gaussian sums that cost as much, which is found faster; Skellam noise needs little more.

    Raises:
        AccountingError: none is found, or as `made`.
    """
    noise = start
    for _ in range(MOST_STEPS):
        found, event = made(noise)
        if epsilon(event, guarantee.delta).epsilon <= guarantee.epsilon:
            return found, event
        noise *= 1.001
    raise AccountingError(f"no noise found for epsilon {guarantee.epsilon:g}; accepted: another epsilon")
