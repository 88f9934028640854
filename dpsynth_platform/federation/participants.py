"""One participant in federated runs: its policy, its own ledger, and the only way from its rows to a vector.

What belongs here: what a participant approves, pays and computes. What does not: what a plan is (`plans`), and the
messages and masks under which vectors travel.

    participant = Participant(load_policy(path), Ledger(url), bounded)
    participant.reserve(run_id, plan)          # the plan's text; reserves the cost of all rounds
    run = participant.start(run_id, reserved)  # durably spent
    asked = run.open(document)                 # each round once
    run.counts(asked)                          # for a member of its secure sum, which adds noise if the plan says so

A participant trusts no server, unless its policy says so (`trust`). It recomputes the plan's event and cost, compares
them with its policy, and its ledger has the last word on the total. What was started is spent, whatever becomes of the
run. Only the process that started it has its `Run`, which counts rounds: after it is killed, this participant has
dropped out, and no noise is drawn again.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import Field, model_validator

from dpsynth_platform.contracts.base import ColumnName, FamilyName, Name, Part, shown_value
from dpsynth_platform.contracts.family import Cap, FamilyBudget
from dpsynth_platform.contracts.federation import AUDITOR, TrustName
from dpsynth_platform.contracts.privacy import MOST_CONTRIBUTIONS
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.federation.mechanisms import plan_of
from dpsynth_platform.federation.noise import MOST_OF_A_DRAW
from dpsynth_platform.federation.plans import FederatedPlan, Memory, Round
from dpsynth_platform.federation.rounds import Roster, public_key
from dpsynth_platform.federation.sums import MOST_PARTICIPANTS, Whole, clip
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import (
    BudgetExceeded,
    ConfigurationError,
    ContractError,
    LedgerError,
    SpendRepeated,
)
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.ledger.store import Ledger, Opening
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.tabular.domain import Domain

Count = Annotated[int, Field(ge=1, le=MOST_PARTICIPANTS)]

MOST_DRAWN = 2**28
"""Draws of noise in a round: of the slowest kind about two minutes of a core."""
_DIGEST = re.compile("[0-9a-f]{64}")


class Policy(Part):
    """What a participant takes part in, as its reviewers declare it in a file.

    `family` is its account: the cap is for all runs together, `run_cap` for each. In a federated run everybody in the
    rows is charged.
    """

    name: FamilyName
    dataset: Name
    family: FamilyBudget
    run_cap: Cap
    trust: list[TrustName] = Field(
        ["distributed"],
        min_length=1,
        description="Who adds the noise: each participant a share (distributed); the coordinator, which sees exact "
        "sums (central: no guarantee against it); or each unit's own report (local).",
    )
    methods: list[Literal["independent", "mst", "aim", "arn", "image_moments", "image_pe", "aug_pe"]] = Field(
        min_length=1
    )
    columns: list[ColumnName] = Field(min_length=1, description="All that a run may read.")
    participants: dict[FamilyName, str] = Field(
        min_length=2, description="The public keys of all who may take part, itself among them; 64 hexadecimal digits."
    )
    coordinator: str = Field(description="The public key of the coordinator.")
    approval: Literal["person", "policy"] = Field(
        "person", description="Whether a person approves each run, or all that this policy allows are approved."
    )
    minimum: int = Field(ge=2, le=MOST_PARTICIPANTS, description="The fewest finishing participants of a round.")
    colluders: int = Field(
        1,
        ge=0,
        description="So many shares of noise must be counted as known, at least; each participant knows its own.",
    )
    max_contributions: int = Field(ge=1, le=MOST_CONTRIBUTIONS, description="By which its own rows are bounded.")
    silos: Count = Field(1, description="In so many participants' rows one person may be.")
    most_cells: int = Field(2**24, ge=1, description="Of all tables of a round.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.family.mode != "family":
            raise ValueError("family.mode: 'per-owner'; accepted: family")
        if self.family.owner_normalization:
            raise ValueError("family.owner_normalization: not applied to a node's rows; accepted: none, and equal ids")
        if self.name not in self.participants:
            raise ValueError(f"participants: without {self.name}; accepted: all names, the own one among them")
        try:
            _ = self.roster, self.coordinator_key
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def roster(self) -> Roster:
        return Roster.from_texts(self.participants)

    @property
    def coordinator_key(self) -> Ed25519PublicKey:
        return public_key(self.coordinator, "the coordinator's key")

    def faults(self, plan: FederatedPlan) -> Iterator[str]:
        """Why a plan is not what the policy allows, one line each; caps are not among them."""
        terms, sealed, guarantee = plan.terms, plan.sealed, plan.guarantee
        for key, mine, theirs in (
            ("dataset", self.dataset, sealed.dataset),
            ("family.unit", self.family.unit, guarantee.unit),
            ("family.adjacency", self.family.adjacency, guarantee.adjacency),
        ):
            if mine != theirs:
                yield f"{key}: {shown_value(theirs)}; accepted: {mine}"
        for key, mine_all, all_theirs in (
            ("trust", self.trust, [plan.trust]),
            ("methods", self.methods, [sealed.method]),
            ("columns", self.columns, plan.reads),
            ("participants", list(self.participants), terms.participants),
        ):
            if more := sorted(set(all_theirs) - set(mine_all)):
                yield f"{key}: {visible(', '.join(more))}; accepted: {', '.join(mine_all)}"
        if self.name not in terms.participants:
            yield f"participants: without {self.name}; accepted: plans that name it"
        # The auditor is the coordinator's own: it finishes besides, and its share of the noise is known besides.
        audited = AUDITOR in terms.participants and self.name != AUDITOR
        for key, least, besides in (
            ("minimum", self.minimum, audited),
            ("colluders", self.colluders, audited),
            ("silos", self.silos, False),
            ("max_contributions", self.max_contributions, False),
        ):
            if (found := getattr(terms, key)) < least + besides:
                yield f"{key}: {found}; accepted: from {least + besides}{f', with the {AUDITOR}' if besides else ''}"


def load_policy(path: Path) -> Policy:
    """Reads a policy's YAML file. Raises `ContractError` with one line for each fault."""
    return validated(Policy, read_yaml(path), str(path))


@dataclass(frozen=True)
class Participant:
    """A participant with its rows.

    Attributes:
        ledger: its own.
        bounded: its rows, a Delta table or one in memory, bounded to the policy's `max_contributions`. Sensitive.
        domain: the columns as this participant declares them. A plan that counts them otherwise is refused before it
            costs anything: for cells that a server makes up, a row might not be encoded, and the failure would show
            that there is one.
        pictures: the column of pictures as this participant declares it, to which its own bounded pictures conform, and
            their classes; None where it has none.
        texts: the columns of texts as this participant declares them.
    """

    policy: Policy
    ledger: Ledger
    bounded: Path | pa.Table = field(repr=False)
    domain: Domain
    pictures: ImageLayout | None = None
    texts: Collection[str] = ()
    _reserved: dict[str, tuple[FederatedPlan, Entry]] = field(default_factory=dict, repr=False)

    def allowed(self, text: str) -> FederatedPlan:
        """The plan of a text, if the policy allows it. Reserves nothing.

        Raises:
            ContractError: the policy does not allow the plan.
            BudgetExceeded: it exceeds the cap of a run.
            AccountingError, GrantRefused: as `plan_of`.
        """
        plan, policy = plan_of(text), self.policy
        faults = list(policy.faults(plan))
        if (cells := max(each.length for each in plan.sums)) > policy.most_cells:
            faults.append(f"most_cells: up to {cells} in a round; accepted: up to {policy.most_cells}")
        drawn = max(each.length * math.ceil(each.share_variance / MOST_OF_A_DRAW) for each in plan.sums)
        if drawn > MOST_DRAWN:
            faults.append(f"share_variances: {drawn} draws of noise in a round; accepted: up to {MOST_DRAWN}")
        # Texts that the policy does not give are not read here, whatever is declared of them.
        unreadable = () if faults else plan.unreadable(self.texts)
        faults += [*plan.undeclared(self.domain, self.pictures), *unreadable]
        if faults:
            raise ContractError("\n".join(f"the policy of {policy.name} refuses the plan: {each}" for each in faults))
        asked, cap = plan.guarantee, policy.run_cap
        if asked.epsilon > cap.epsilon or asked.delta > cap.delta:
            raise BudgetExceeded(
                f"a run with epsilon {asked.epsilon:g}, delta {asked.delta:g}; accepted by {policy.name}: up to "
                f"epsilon {cap.epsilon:g}, delta {cap.delta:g}"
            )
        return plan

    def reserve(self, run_id: str, text: str) -> str:
        """Reserves the cost of all rounds in the own ledger, durably; again for the same plan changes nothing.

        Args:
            run_id: the run's name for all who take part; one plan, once.
            text: of the plan, from whomever.

        Returns:
            The plan's digest, for the others.

        Raises:
            ContractError, BudgetExceeded, AccountingError, GrantRefused: as `allowed`.
            BudgetExceeded: it exceeds the cap of the account.
            SpendRepeated: the run was started or withdrawn before. A relay that repeats its messages starts nothing.
            LedgerError: the run's name is another plan's, or the account has other terms.
        """
        plan, policy = self.allowed(text), self.policy
        request = CostRequest.of(
            plan.event,
            dataset=policy.dataset,
            period=None,
            guarantee=plan.guarantee,
            plan_digest=plan.digest,
            runner=policy.name,
        )
        opening = Opening(policy.family, (), f"federated {policy.dataset}", ())
        family, key = policy.family.family, canonical_digest({"federated-run": run_id, "dataset": policy.dataset})
        if any(attempt.state == "void" for attempt in self.ledger.attempts(key)):
            raise SpendRepeated("the run was withdrawn, or its reservation has expired; accepted: another name")
        entry = self.ledger.reserve(family, key, request, None, "compose", opening=opening)
        if entry.state != "reserved":
            raise SpendRepeated(f"the run of ledger entry {entry.entry_id} is complete; accepted: another name")
        self._reserved[run_id] = plan, entry
        return plan.digest

    def start(self, run_id: str, reserved: Mapping[str, str]) -> Run:
        """Marks the cost as spent, durably, and returns the only access to vectors.

        Args:
            reserved: the digest of the plan that each of those who take part has reserved, by name. They are taken at
                their word: a wrong one costs what is spent here and shows no more.

        Raises:
            LedgerError: nothing is reserved here under this name, its deadline has passed, or others have not reserved
                the same plan.
            SpendRepeated: the run was started before.
        """
        plan, entry = self._reservation(run_id)
        expected = dict.fromkeys(plan.terms.participants, plan.digest)
        if (
            self.policy.name not in reserved
            or len(reserved) < plan.terms.minimum
            or reserved.items() - expected.items()
        ):
            raise LedgerError(
                f"not all who take part have reserved this plan; accepted: {self.policy.name} and others, at least "
                f"{plan.terms.minimum} in all, of the plan's participants and with its digest"
            )
        started = self.ledger.start(entry.entry_id)
        del self._reserved[run_id]
        return Run(plan, self.policy, self.ledger, self.bounded, started.entry_id)

    def withdraw(self, run_id: str) -> None:
        """Releases a reservation that was not started; raises `LedgerError` otherwise."""
        _, entry = self._reservation(run_id)
        self.ledger.void(entry.entry_id, "withdrawn", by=self.policy.name)
        del self._reserved[run_id]

    def reserved_plan(self, run_id: str) -> FederatedPlan:
        """The plan of a reservation that was not started; raises `LedgerError` otherwise."""
        return self._reservation(run_id)[0]

    def _reservation(self, run_id: str) -> tuple[FederatedPlan, Entry]:
        if run_id not in self._reserved:
            raise LedgerError("a run that is not reserved here; accepted: reserve it first")
        return self._reserved[run_id]


@dataclass
class Run:
    """A started run of one participant; it is paid for once, in one process."""

    plan: FederatedPlan
    policy: Policy
    ledger: Ledger
    bounded: Path | pa.Table = field(repr=False)
    entry_id: str
    _next: int = 0
    _memory: Memory = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def open(self, document: Mapping[str, Any]) -> Round:
        """A round whose counts can then be asked for.

        Args:
            document: `Round.to_json`.

        Raises:
            AccountingError: the plan does not allow the round.
            ContractError: it has more cells than the policy allows.
            SpendRepeated: it was opened before, or a later one.
        """
        asked = self.plan.read_round(document)
        if asked.sum.length > self.policy.most_cells:
            raise ContractError(f"a round of {asked.sum.length} cells; accepted: up to {self.policy.most_cells}")
        with self._lock:
            if asked.index < self._next:
                raise SpendRepeated(f"round {asked.index} was opened before; accepted: each round once")
            self._next = asked.index + 1
        return asked

    def counts(self, opened: Round) -> Whole:
        """This participant's vector of an opened round, in whole units and clipped: without noise, for `Member` alone.

        Called once: of private reports (`local`), it draws them.

        Sensitive.
        """
        units = clip(self.plan.vector(opened, self.bounded, self._memory), opened.sum.bound)
        opened.sum.check_vector(units)
        return units

    def complete(self, model_digest: str) -> Entry:
        """Notes the model that the run has paid for, and ends it. Raises `LedgerError` for what is no digest."""
        if not _DIGEST.fullmatch(model_digest):
            raise LedgerError("what is no digest of a model; accepted: 64 hexadecimal digits")
        with self._lock:
            self._next = len(self.plan.rounds)
            self._memory.clear()
        return self.ledger.complete(self.entry_id, model_digest)
