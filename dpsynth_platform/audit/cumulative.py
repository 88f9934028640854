"""What the audits of a family say together.

What belongs here: combining the p-values of a family's audits into one statement that holds at any time. What does not:
a single audit (`verdict`), and composing guarantees (`privacy`, `ledger`).

The question is whether all mechanisms of the family kept what their plans claim: the whole curve that the ledger
charged (`fdp.renyi_profile`), where it is known. Each audit tests its own mechanism with coins of its own, so given all
earlier ones its p-value is at most uniformly distributed if the claim holds. A p-value becomes a bet against the claim
by the calibrator e(p) = (1 - p + p·ln p) / (p·ln² p), whose mean is at most 1 (Vovk & Wang, "E-values: calibration,
combination and applications", Annals of Statistics 2021, eq. 1). The product of bets from audit s on is what a bettor
owns who began there; the mean over s with weights 1/(s·(s+1)) is a bettor who began everywhere, so that years of good
audits do not hide a mistake that was made last month. Nobody gets rich by betting against what holds: the chance ever
to own 1/level is at most the level (Ville's inequality). So nothing need be corrected for how often one looks or how
many releases there will be, as is right for releases every month without end.

One mistake of all releases that each audit alone is too weak for (a tenth of the noise too little, say) adds up this
way; a correct platform fails by it at most once in twenty lives at 95%, beside what each audit fails by itself.

It says nothing of how much is lost by somebody who is in several releases: fresh canaries join one release each. Of
that, the account's cap is what is claimed, which follows from the single claims by composition; their lower bounds do
not add up, so that the largest is also the bound of all together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpsynth_platform.ledger.records import ChainEvent, Entry

_SMALLEST_P = 1e-9
"""A bet on less wins no more: rounding would decide about it."""
_NEARLY_ONE = 1e-4
MOST = 1e12

Earlier = Literal["none", "told", "decides"]
"""Whether the attacks failed an earlier audit of the mechanism, and what follows."""


@dataclass(frozen=True)
class PastAudit:
    """One audit as it was recorded: of which run, with which result.

    Attributes:
        key: the run's key. Attempts at one run share their canaries, so only the first audit of a key counts.
        entry: the ledger entry whose mechanism was audited.
        failed: whether the attacks by themselves failed it.
        bound: the lower bound on epsilon that the deciding attacks proved.
        p_value: the largest probability with which the claim allows what the deciding attacks found.
        terms: what it was held against.
    """

    key: str
    entry: str
    failed: bool
    bound: float
    p_value: float
    terms: Mapping[str, Any]


@dataclass(frozen=True)
class FamilyStanding:
    """What a family's audits say together.

    Attributes:
        family: its name.
        audits: how many there were, this one included.
        evidence: what a bettor against the claims owns who began with 1.
        confidence: at which the family fails.
    """

    family: str
    audits: int
    evidence: float
    confidence: float

    @property
    def refuted(self) -> bool:
        """Whether the audits together refute that every mechanism kept its claim."""
        return self.evidence >= 1 / (1 - self.confidence)

    @property
    def words(self) -> str:
        """The same as a sentence."""
        number = "the only audit" if self.audits == 1 else f"all {self.audits} audits"
        limit = f"evidence {self.evidence:.3g}; {1 / (1 - self.confidence):.3g} refutes"
        if self.refuted:
            return (
                f"Taken together, {number} of the family {self.family} refute with {self.confidence:g} confidence that "
                f"each of its mechanisms kept its claim ({limit})."
            )
        return f"Taken together, {number} of the family {self.family} do not contradict its claims ({limit})."


def past_audits(events: Iterable[ChainEvent], entries: Iterable[Entry]) -> list[PastAudit]:
    """The audits that a ledger's chain tells of, in its order.

    Args:
        events: of the kind `audited`.
        entries: of one family; audits of other entries are left out.
    """
    keys = {entry.entry_id: entry.key for entry in entries}
    return [
        PastAudit(
            key=keys[event.subject],
            entry=event.subject,
            failed=bool(event.payload["failed"]),
            bound=float(event.payload["epsilon_lower_bound"]),
            p_value=float(event.payload["p_value"]),
            terms=event.payload["terms"],
        )
        for event in events
        if event.subject in keys
    ]


def standing_of(family: str, past: Iterable[PastAudit], key: str, p_value: float, confidence: float) -> FamilyStanding:
    """The family's standing after one more audit.

    Args:
        family: its name.
        past: all audits of the family, in order.
        key: of this audit's run; where it is among the past, its first result counts and not this one.
        p_value: this audit's.
        confidence: of the statement.
    """
    first: dict[str, float] = {}
    for audit in past:
        first.setdefault(audit.key, audit.p_value)
    first.setdefault(key, p_value)
    return FamilyStanding(family, len(first), evidence_of(list(first.values())), confidence)


def failure_before(past: Iterable[PastAudit], entry: str, claimed: float, terms: Mapping[str, Any]) -> Earlier:
    """How an earlier audit of a mechanism counts in another one.

    Limits that a contract sets below its claim are its own to loosen, though not unseen. That the claim itself was
    refuted stays so: neither a higher confidence nor other gates, chosen in the light of it, make it hold again.

    Args:
        past: all audits of the family.
        entry: of the mechanism.
        claimed: the epsilon that is claimed now.
        terms: of the audit at hand.
    """
    failures = [audit for audit in past if audit.failed and audit.entry == entry]
    if any(audit.terms == terms or audit.bound > claimed for audit in failures):
        return "decides"
    return "told" if failures else "none"


def evidence_of(p_values: Sequence[float]) -> float:
    """What the bettor who began everywhere owns after these audits, in order; at most `MOST`."""
    owned = 0.0
    for number, p_value in enumerate(p_values, start=1):
        owned = (owned + 1 / (number * (number + 1))) * bet(p_value)
    not_yet_begun = 1 / (len(p_values) + 1)
    return min(MOST, owned + not_yet_begun)


def bet(p_value: float) -> float:
    """What one p-value makes of a stake of 1: from 0.5 at p = 1 to riches at small p."""
    p = max(p_value, _SMALLEST_P)
    if p > 1 - _NEARLY_ONE:
        return 0.5
    log = math.log(p)
    return (1 - p + p * log) / (p * log * log)
