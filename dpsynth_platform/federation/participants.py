"""One participant in federated runs: its policy, its own ledger, and the only way from its rows to a vector.

What belongs here: what a participant approves, pays and computes. What does not: what a plan is (`marginals`), and the
messages and masks under which vectors travel.

    participant = Participant(load_policy(path), contract, Ledger(url), bounded)
    participant.reserve(run_id, plan)          # the plan's text; reserves the cost of all rounds
    run = participant.start(run_id, reserved)  # durably spent
    run.vector(round)                          # each round once

A participant trusts no server. It recomputes the plan's event and cost and compares them with its policy, and its
ledger has the last word on the total. Columns have the cells of its own contract: for cells that a server makes up, a
row might not be encoded, and the failure would show that there is one.

What was started is spent, whatever becomes of the run. Only the process that started it has its `Run`, which counts
rounds: after it is killed, this participant has dropped out, and no noise is drawn again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from dpsynth_platform.contracts.base import FamilyName, Part, shown_value
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import Cap, FamilyBudget
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.noise import sample_skellam
from dpsynth_platform.federation.sums import MOST_PARTICIPANTS, SCALE, Whole, clip
from dpsynth_platform.foundation.digests import canonical_digest, canonical_json
from dpsynth_platform.foundation.errors import BudgetExceeded, ContractError, LedgerError, SpendRepeated
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.ledger.store import Ledger, Opening
from dpsynth_platform.synth.tabular.attributes import planned_domain


class Policy(Part):
    """What a participant takes part in, as its reviewers declare it in a file.

    `family` is its account: the cap is for all runs together, `run_cap` for each. In a federated run everybody in the
    rows is charged.
    """

    name: FamilyName
    family: FamilyBudget
    run_cap: Cap
    methods: list[Literal["independent", "mst", "aim"]] = Field(min_length=1)
    participants: list[FamilyName] = Field(min_length=2, description="All who may take part, itself among them.")
    minimum: int = Field(ge=2, le=MOST_PARTICIPANTS, description="The fewest finishing participants of a round.")
    colluders: int = Field(0, ge=0, description="So many others' shares of noise must be counted as known, at least.")
    silos: int = Field(1, ge=1, le=MOST_PARTICIPANTS, description="In so many participants' rows one person may be.")
    most_cells: int = Field(2**24, ge=1, description="Of all tables of a round.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.family.mode != "family":
            raise ValueError("family.mode: 'per-owner'; accepted: family")
        if self.name not in self.participants:
            raise ValueError(f"participants: without {self.name}; accepted: all names, the own one among them")
        return self

    def faults(self, plan: MarginalsPlan, contract: DataContract) -> Iterator[str]:
        """Why a plan is not what policy and contract allow, one line each; caps are not among them."""
        terms, sealed, guarantee = plan.terms, plan.sealed, plan.guarantee
        for key, mine, theirs in (
            ("dataset", contract.dataset, sealed.dataset),
            ("family.unit", self.family.unit, guarantee.unit),
            ("family.adjacency", self.family.adjacency, guarantee.adjacency),
        ):
            if mine != theirs:
                yield f"{key}: {shown_value(theirs)}; accepted: {mine}"
        for key, mine_all, all_theirs in (
            ("methods", self.methods, [sealed.method]),
            ("participants", self.participants, terms.participants),
        ):
            if more := sorted(set(all_theirs) - set(mine_all)):
                yield f"{key}: {visible(', '.join(more))}; accepted: {', '.join(mine_all)}"
        declared = {canonical_json(column) for column in planned_domain(contract).to_json()}
        for place, column in enumerate(sealed.columns):
            if canonical_json(column) not in declared:
                yield f"columns: {visible(plan.domain.names[place])}; accepted: columns as the contract declares them"
        if self.name not in terms.participants:
            yield f"participants: without {self.name}; accepted: plans that name it"
        for key, least in (
            ("minimum", self.minimum),
            ("colluders", self.colluders),
            ("silos", self.silos),
            ("max_contributions", contract.privacy.max_contributions),
        ):
            if (found := getattr(terms, key)) < least:
                yield f"{key}: {found}; accepted: from {least}"


def load_policy(path: Path) -> Policy:
    """Reads a policy's YAML file. Raises `ContractError` with one line for each fault."""
    return validated(Policy, read_yaml(path), str(path))


@dataclass(frozen=True)
class Participant:
    """A participant with its rows.

    Attributes:
        contract: its own, of the rows.
        ledger: its own.
        bounded: its rows, a Delta table or one in memory, bounded to the contract's `max_contributions`. Sensitive.
    """

    policy: Policy
    contract: DataContract = field(repr=False)
    ledger: Ledger
    bounded: Path | pa.Table = field(repr=False)
    _reserved: dict[str, tuple[MarginalsPlan, Entry]] = field(default_factory=dict, repr=False)

    def reserve(self, run_id: str, text: str) -> str:
        """Reserves the cost of all rounds in the own ledger, durably; again for the same plan changes nothing.

        Args:
            run_id: the run's name for all who take part; one plan, once.
            text: of the plan, from whomever.

        Returns:
            The plan's digest, for the others.

        Raises:
            ContractError: the policy does not allow the plan.
            BudgetExceeded: it exceeds the cap of a run, or that of the account.
            AccountingError, GrantRefused: as `MarginalsPlan.from_json`.
            SpendRepeated: the run was started before.
            LedgerError: the run's name is another plan's, or the account has other terms.
        """
        plan, policy = MarginalsPlan.from_json(text), self.policy
        if faults := list(policy.faults(plan, self.contract)):
            raise ContractError("\n".join(f"the policy of {policy.name} refuses the plan: {each}" for each in faults))
        asked, cap = plan.guarantee, policy.run_cap
        if asked.epsilon > cap.epsilon or asked.delta > cap.delta:
            raise BudgetExceeded(
                f"a run with epsilon {asked.epsilon:g}, delta {asked.delta:g}; accepted by {policy.name}: up to "
                f"epsilon {cap.epsilon:g}, delta {cap.delta:g}"
            )
        request = CostRequest.of(
            plan.event,
            dataset=self.contract.dataset,
            period=None,
            guarantee=asked,
            plan_digest=plan.digest,
            runner=policy.name,
        )
        opening = Opening(policy.family, (), f"federated {self.contract.dataset}", ())
        family, key = (
            policy.family.family,
            canonical_digest({"federated-run": run_id, "dataset": self.contract.dataset}),
        )
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
        if run_id not in self._reserved:
            raise LedgerError("a run that is not reserved here; accepted: reserve it first")
        plan, entry = self._reserved[run_id]
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
        if run_id not in self._reserved:
            raise LedgerError("a run that is not reserved here; accepted: a reserved one")
        self.ledger.void(self._reserved.pop(run_id)[1].entry_id, "withdrawn", by=self.policy.name)


@dataclass
class Run:
    """A started run of one participant; it is paid for once, in one process."""

    plan: MarginalsPlan
    policy: Policy
    ledger: Ledger
    bounded: Path | pa.Table = field(repr=False)
    entry_id: str
    _next: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def vector(self, document: Mapping[str, Any]) -> Whole:
        """This participant's counts of a round with its share of noise, in whole units: for the secure sum alone.

        Args:
            document: `Round.to_json`.

        Raises:
            AccountingError: the plan does not allow the round.
            ContractError: it has more cells than the policy allows.
            SpendRepeated: its vector was computed before, or that of a later round.
        """
        asked = self.plan.round(**document)
        if asked.sum.length > self.policy.most_cells:
            raise ContractError(f"a round of {asked.sum.length} cells; accepted: up to {self.policy.most_cells}")
        with self._lock:
            if asked.index < self._next:
                raise SpendRepeated(f"the vector of round {asked.index} was computed; accepted: each round once")
            self._next = asked.index + 1
        units = clip(asked.counted(self.bounded, self.plan.domain) * SCALE, asked.sum.bound)
        asked.sum.check_vector(units)
        noisy: Whole = units + sample_skellam(asked.sum.share_variance, asked.sum.length)
        return noisy

    def complete(self, model_digest: str) -> Entry:
        """Notes the model that the run has paid for, and ends it."""
        with self._lock:
            self._next = len(self.plan.rounds)
        return self.ledger.complete(self.entry_id, model_digest)
