"""What the audits of a family prove together.

What belongs here: combining the p-values of a family's audits into one statement that holds at any time. What does not:
a single audit (`verdict`), and composing guarantees (`privacy`, `ledger`).

The hypothesis: all mechanisms of the family kept their plans' claims, where known the whole curve that the ledger
charged (`fdp.renyi_profile`). Each audit tests its own mechanism with its own coins, so given all earlier ones its
p-value is super-uniform under the claim. The calibrator e(p) = (1 - p + p·ln p) / (p·ln² p), of mean at most 1, turns a
p-value into a bet against the claim (Vovk & Wang, "E-values: calibration, combination and applications", Annals of
Statistics 2021, eq. 1). The product of bets from audit s on is the capital of a bettor who started there. The mean over
s with weights 1/(s·(s+1)) is the capital of a bettor who started everywhere, so that years of good audits do not hide a
recent mistake. Under the claim, this capital ever reaches 1/level with probability at most the level (Ville's
inequality). So neither repeated looks nor the number of releases need a correction.

A mistake that all releases share and each audit alone is too weak to detect (a tenth of the noise missing, say)
accumulates. A correct platform fails by it at most once in twenty lifetimes at 95%, in addition to failures of single
audits.

This proves nothing about the loss of one person in several releases: fresh canaries join one release each. For that,
the account's cap is the claim, which follows from the single claims by composition. Lower bounds do not add up, so the
largest one is also the bound of all together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpsynth_platform.ledger.records import ChainEvent, Entry

_SMALLEST_P = 1e-9
"""Smaller p-values win no more: rounding would decide the outcome."""
_NEARLY_ONE = 1e-4
MOST = 1e12

Earlier = Literal["none", "told", "decides"]
"""Whether the attacks failed an earlier audit of the mechanism: no, reported only, or decisive."""


@dataclass(frozen=True)
class PastAudit:
    """One recorded audit.

    Attributes:
        key: the run's key. Attempts at one run share their canaries, so only the first audit of a key counts.
        failed: whether the attacks alone failed it.
        bound: lower bound on epsilon by the deciding attacks.
        p_value: largest probability with which the claim allows the result of the deciding attacks.
    """

    key: str
    entry: str
    failed: bool
    bound: float
    p_value: float
    terms: Mapping[str, Any]


@dataclass(frozen=True)
class FamilyStanding:
    """The combined result of a family's audits.

    Attributes:
        audits: number of audits, this one included.
        evidence: capital of a bettor against the claims who started with 1.
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
        """The result as a sentence."""
        one = self.audits == 1
        audits = "The only audit" if one else f"Taken together, all {self.audits} audits"
        audits += f" of the family {self.family}"
        limit = f"evidence {self.evidence:.3g}; {1 / (1 - self.confidence):.3g} refutes"
        if self.refuted:
            return (
                f"{audits} {'refutes' if one else 'refute'} with {self.confidence:g} confidence that each of its "
                f"mechanisms kept its claim ({limit})."
            )
        return f"{audits} {'does' if one else 'do'} not contradict its claims ({limit})."


def past_audits(events: Iterable[ChainEvent], entries: Iterable[Entry]) -> list[PastAudit]:
    """The audits of a family's entries that a ledger's chain records in events `audited`, in its order."""
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

    `past` are all its audits, in order; if one of them has this audit's `key`, its result counts instead.
    """
    first: dict[str, float] = {}
    for audit in past:
        first.setdefault(audit.key, audit.p_value)
    first.setdefault(key, p_value)
    return FamilyStanding(family, len(first), evidence_of(list(first.values())), confidence)


def failure_before(past: Iterable[PastAudit], entry: str, claimed: float, terms: Mapping[str, Any]) -> Earlier:
    """How an earlier failure of a mechanism's audit counts in a later audit.

    A contract may loosen limits below its claim, but the failure stays visible. A refuted claim stays refuted: a
    higher confidence or other gates, chosen after the result, do not restore it. `claimed` is the epsilon that is
    claimed now, and `terms` are those of the later audit.
    """
    failures = [audit for audit in past if audit.failed and audit.entry == entry]
    if any(audit.terms == terms or audit.bound > claimed for audit in failures):
        return "decides"
    return "told" if failures else "none"


def evidence_of(p_values: Sequence[float]) -> float:
    """Capital of the bettor who started everywhere after these audits, in order; at most `MOST`."""
    capital = 0.0
    for number, p_value in enumerate(p_values, start=1):
        capital = (capital + 1 / (number * (number + 1))) * bet(p_value)
    not_yet_started = 1 / (len(p_values) + 1)
    return min(MOST, capital + not_yet_started)


def bet(p_value: float) -> float:
    """Payoff of one p-value for a stake of 1: 0.5 at p = 1, large at small p."""
    p = max(p_value, _SMALLEST_P)
    if p > 1 - _NEARLY_ONE:
        return 0.5
    log = math.log(p)
    return (1 - p + p * log) / (p * log * log)
