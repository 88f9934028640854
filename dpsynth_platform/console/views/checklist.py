"""The points that a person goes through before a decision, each with its present state.

What belongs here: which points there are, and when each is fine. What does not: their sentences (the page's template),
and gates: nothing here decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpsynth_platform.reviewing import decisions

if TYPE_CHECKING:
    from dpsynth_platform.console.views.comparison import ComparisonView
    from dpsynth_platform.console.views.dossiers import AuditView, ClearanceView, QualityView
    from dpsynth_platform.contracts.contract import DataContract

Point = Literal[
    "purpose",
    "contract",
    "evidence",
    "guarantee",
    "earlier",
    "columns",
    "audit",
    "power",
    "quality",
    "copies",
    "changes",
]


@dataclass(frozen=True)
class Check:
    """One point: `good`, to be looked at with `care`, or `bad`."""

    point: Point
    state: Literal["good", "care", "bad"]


def checklist(
    gathered: decisions.CandidateEvidence,
    declared: DataContract | None,
    audit: AuditView,
    clearance: ClearanceView,
    quality: QualityView | None,
    comparison: ComparisonView | None,
    *,
    sees_quality: bool,
) -> tuple[Check, ...]:
    """The points of a candidate, in the order of its page; those on quality for people who may see it.

    `declared` is the contract's present file, if it is valid.
    """

    def points() -> Iterator[Check]:
        contract, tier = gathered.contract, gathered.statement.tier
        yield Check("purpose", _good(bool(contract.purpose and contract.recipients)))
        yield Check("contract", _good(declared == contract))
        yield Check("evidence", "good" if gathered.releasable else "bad")
        yield Check("guarantee", "good" if tier == "strong" else "care" if tier == "reasonable" else "bad")
        yield Check("earlier", _good(not clearance.findings))
        yield Check("columns", _good(not gathered.mostly_missing))
        yield Check("audit", "good" if audit.verdict == "pass" else "bad" if audit.verdict == "fail" else "care")
        yield Check("power", _good(audit.highest_bound >= audit.claimed_epsilon))
        if sees_quality and contract.source.federation is None:
            yield Check("quality", _good(quality is not None))
        if quality is not None and quality.copies is not None:
            yield Check("copies", "bad" if quality.copies.more else "good")
        if comparison is not None:
            yield Check("changes", _good(not comparison.problem and all(item.same for item in comparison.differences)))

    return tuple(points())


def _good(holds: bool) -> Literal["good", "care"]:
    return "good" if holds else "care"
