"""The ledger's records: its arguments and results. Frozen, public facts only.

What belongs here: requests, accounts, entries, decisions, chain events. What does not: participants (`owners`), rows
and SQL (`schema`, `store`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.renyi import RenyiCurve, stored_number

if TYPE_CHECKING:
    from dpsynth_platform.privacy.events import DpEvent

State = Literal["reserved", "started", "spent", "void"]
Mode = Literal["per-owner", "family"]
OverlapPolicy = Literal["compose", "exclude", "block"]

LIVE_STATES: tuple[State, ...] = ("reserved", "started", "spent")


@dataclass(frozen=True)
class CostRequest:
    """The cost of a mechanism. Make it with `CostRequest.of`, so that event and curve agree.

    Attributes:
        period: (`contracts.periods`) where the dataset has a cadence.
        guarantee: what the release will claim, with its unit and adjacency.
        event: the event tree's JSON form.
        curve: its Renyi curve, an upper bound (`RenyiCurve.stored`).
        plan_digest: SHA-256 (hex) of the sealed plan.
        runner: the requesting person, who cannot approve the release.
        delta_slack: delta that the curve does not cover (`ThresholdedEvent`), rounded up as the curve is. It is part of
            the guarantee's delta, and charged to the account's share for such mechanisms.
    """

    dataset: str
    period: str | None
    guarantee: Guarantee
    event: dict[str, Any]
    curve: RenyiCurve
    plan_digest: str
    runner: str
    delta_slack: float = 0.0

    @classmethod
    def of(
        cls, event: DpEvent, *, dataset: str, period: str | None, guarantee: Guarantee, plan_digest: str, runner: str
    ) -> CostRequest:
        """The request for an event, with its computed cost.

        Raises:
            AccountingError: the event is for another adjacency or contribution bound than the guarantee, or unknown; or
                its slack is not below the guarantee's delta.
        """
        from dpsynth_platform.privacy.accounting import cost
        from dpsynth_platform.privacy.events import event_to_json, matches_claim

        if not matches_claim(event, guarantee):
            raise AccountingError(
                f"{dataset}: the event and the guarantee differ in adjacency, contribution bound or weighting"
            )
        found = cost(event)
        slack = stored_number(found.delta_slack)
        if slack >= guarantee.delta:
            raise AccountingError(
                f"{dataset}: the event's thresholds take {slack:.3g} of delta, the guarantee claims "
                f"{guarantee.delta:.3g}; accepted: higher thresholds, or a larger delta"
            )
        curve = found.curve.stored()
        return cls(dataset, period, guarantee, event_to_json(event), curve, plan_digest, runner, slack)

    @property
    def place(self) -> str:
        """`census` or `visits/2026-01`, for messages."""
        return self.dataset if self.period is None else f"{self.dataset}/{self.period}"

    @property
    def purpose(self) -> Literal["release", "bound"]:
        """What it pays for: a release, or a learned contribution bound (`synth.learned_bound`).

        Such a bound is a single choice by the exponential mechanism; no generator's plan is just that.
        """
        return "bound" if self.event.get("kind") == "bounded-range-selection" else "release"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "guarantee": self.guarantee.to_json(), "curve": self.curve.to_json()}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> CostRequest:
        """Raises `AccountingError` for impossible values."""
        try:
            return cls(
                **{
                    **document,
                    "guarantee": Guarantee.from_json(document["guarantee"]),
                    "curve": RenyiCurve.from_json(document["curve"]),
                }
            )
        except (KeyError, TypeError):
            raise AccountingError("the request's document has missing or unknown keys") from None


@dataclass(frozen=True)
class Account:
    """A family's budget for life, as it was sealed when the account was opened.

    Only the cap can be raised, by two people together (`caps`), and keys added (`rekeying`).

    Attributes:
        key_ids: `vault.key_id` of the keys that owners' fingerprints are made with now, the latest last.
    """

    family: str
    unit: str
    adjacency: str
    namespace: str
    owner_normalization: tuple[str, ...]
    mode: Mode
    epsilon: float
    delta: float
    filter: RenyiFilter
    key_ids: tuple[str, ...]
    opened_at: str


@dataclass(frozen=True)
class Entry:
    """One mechanism's cost and its state.

    Attributes:
        entry_id: 32 hex digits.
        family: the account that it is charged to.
        key: the run's key; attempts at the same run share it.
        attempt: 1, 2, ... within the key.
        commitment: hiding commitment to the participants, or None where none were named.
        replaces: the failed entry after which this one was explicitly allowed.
        reserved_at: ISO 8601, UTC, like the other times.
        deadline: an unstarted reservation is void from then on.
        finished_at: when it was completed or voided.
        model_digest: content hash of the completed model.
    """

    entry_id: str
    family: str
    key: str
    attempt: int
    state: State
    request: CostRequest
    commitment: str | None
    replaces: str | None
    reserved_at: str
    deadline: str
    started_at: str | None = None
    finished_at: str | None = None
    model_digest: str | None = None
    void_reason: str | None = None

    @property
    def plan_digest(self) -> str:
        return self.request.plan_digest

    @property
    def live(self) -> bool:
        """Whether it is charged."""
        return self.state in LIVE_STATES

    def summary(self) -> dict[str, Any]:
        """The main facts as a JSON value: for what, how much, by whom, and the state with its time."""
        since = self.finished_at or self.started_at or self.reserved_at
        return {
            "entry_id": self.entry_id,
            "place": self.request.place,
            "purpose": self.request.purpose,
            "epsilon": self.request.guarantee.epsilon,
            "delta": self.request.guarantee.delta,
            "state": self.state,
            "since": since[:19],
            "runner": self.request.runner,
        }

    def to_json(self) -> dict[str, Any]:
        """All public facts as a JSON value."""
        return {**asdict(self), "request": self.request.to_json()}


@dataclass(frozen=True)
class Admission:
    """A request that fits, decided on public facts alone.

    Attributes:
        epsilon_left: what was left for such requests, before this one (`verdicts.left_for`).
        entry: the deciding entry of the run's own key (`Ledger.entry_for_key`), or None.
        due: how many more mechanisms would be charged; 0: all are paid for, or reserved within their deadlines.
    """

    family: str
    mode: Mode
    epsilon_left: float
    entry: Entry | None
    due: int


@dataclass(frozen=True)
class Decision:
    """A person's decision on a release candidate, or on a release of it.

    Attributes:
        release: id of the withdrawn release; None for the other decisions, which are about the candidate.
    """

    candidate: str
    decision: Literal["approve", "refuse", "withdraw"]
    by: str
    at: str
    entry_id: str
    reason: str
    sequence: int
    release: str | None = None


@dataclass(frozen=True)
class ChainEvent:
    """One link of the hash chain. `subject` is a family, an entry, a candidate, a dataset ..."""

    sequence: int
    at: str
    kind: str
    subject: str
    payload: dict[str, Any]
    previous: str
    hash: str


@dataclass(frozen=True)
class Head:
    """The chain's last link. Signed and published, it makes truncation and rewriting visible."""

    sequence: int
    hash: str


@dataclass(frozen=True)
class LedgerChanges:
    """The public content of the ledger in one snapshot, without what is known (`Ledger.changes_since`).

    Attributes:
        after: the events are those after this one; 0 where they are all.
        accounts: all of them, by name.
        entries: those that the events are about, in the order of their reservation.
    """

    head: Head
    after: int
    events: tuple[ChainEvent, ...]
    accounts: tuple[Account, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class VerificationReport:
    """What `Ledger.verify` found; without problems the ledger is as it was written."""

    head: Head
    events: int
    entries: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems
