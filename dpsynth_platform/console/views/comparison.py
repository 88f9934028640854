"""A release or candidate compared with the release before it.

What belongs here: which facts of two dossiers are compared, in words. What does not: finding and verifying them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpsynth_platform.console.views.listing import Listed, find, place_of, signed_dossier
from dpsynth_platform.foundation.figures import upper_bound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.release.dossier import contract_summary
from dpsynth_platform.reviewing import decisions
from dpsynth_platform.reviewing.chronicle import Chronicle, Publication
from dpsynth_platform.synth.planning import differences


@dataclass(frozen=True)
class Difference:
    """One compared fact, in words."""

    what: str
    before: str
    now: str
    same: bool


@dataclass(frozen=True)
class ComparisonView:
    """A release or candidate compared with the previous release of the dataset, or the problem that prevents it."""

    previous: str
    previous_place: str
    differences: tuple[Difference, ...]
    problem: str | None


@dataclass(frozen=True)
class Facts:
    """The compared facts of a release or candidate; what a candidate does not have yet is None, and not compared."""

    guarantee: Mapping[str, Any]
    method: str
    rows: int | None
    audit: Mapping[str, Any]
    contract: Mapping[str, Any]
    approvals: int | None

    @classmethod
    def of_dossier(cls, dossier: Mapping[str, Any]) -> Facts:
        return cls(
            guarantee=dossier["guarantee"],
            method=dossier["mechanism"]["method"],
            rows=dossier["synthetic"]["rows"],
            audit=dossier["audit"]["report"],
            contract=dossier["contract"],
            approvals=len(dossier["approvals"]),
        )

    @classmethod
    def of_candidate(cls, gathered: decisions.CandidateEvidence) -> Facts:
        statement = gathered.statement
        return cls(
            guarantee=statement.guarantee.to_json() | {"tier": statement.tier},
            method=gathered.candidate.method,
            rows=None if gathered.contract.generate.rows == "auto" else gathered.contract.generate.rows,
            audit=gathered.report,
            contract=contract_summary(gathered.contract),
            approvals=None,
        )

    def words(self) -> Iterator[tuple[str, str | None]]:
        """Each fact's name with its value in words."""
        yield "epsilon", f"{upper_bound(self.guarantee['epsilon'], 4)} ({self.guarantee['tier']})"
        yield "delta", upper_bound(self.guarantee["delta"])
        yield "who is protected", f"one {self.guarantee['unit']} ({self.guarantee['adjacency']})"
        yield "most records of one unit", str(self.guarantee["max_contributions"])
        yield "method", self.method
        yield "rows", None if self.rows is None else f"{self.rows:,}"
        bound = self.audit["epsilon_lower_bound"]
        found = f"attacks prove epsilon at least {bound:.2f}" if bound >= 0.005 else "attacks found nothing"
        yield "audit", f"{self.audit['verdict']}; {found}"
        yield "columns", ", ".join(self.contract["columns"])
        yield "approvals", None if self.approvals is None else str(self.approvals)


def release_before(
    settings: Settings, known: Chronicle, dataset: str, publication: Publication | None
) -> Listed | None:
    """The release of the same dataset before another one, or before now; withdrawn ones are skipped."""
    earlier = [
        item
        for item in known.published_of(dataset)
        if item.withdrawn is None and (publication is None or item.sequence < publication.sequence)
    ]
    return find(settings, known, earlier[-1].release) if earlier else None


def compare(settings: Settings, known: Chronicle, previous: Listed, now: Facts) -> ComparisonView:
    """The comparison, or why it is not possible."""
    dossier, place = signed_dossier(settings, known, previous), place_of(previous).label
    if dossier is None:
        return ComparisonView(previous.id, place, (), "the previous release is missing, or is not what was signed")
    before = Facts.of_dossier(dossier)
    compared = [
        Difference(what, was, words, was == words)
        for (what, was), (_, words) in zip(before.words(), now.words(), strict=True)
        if was is not None and words is not None
    ]
    changed = ", ".join(differences(before.contract, now.contract))
    compared.append(Difference("contract", "", f"changed: {changed}" if changed else "the same", not changed))
    return ComparisonView(previous.id, place, tuple(compared), None)
