"""The page of a candidate: its evidence, and the decision on it.

What belongs here: reading it for somebody with certain actions, and handing a decision on to the library. What does
not: what makes a decision count (`ledger`, `release.evidence`), and publishing (`operating`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import View, require
from dpsynth_platform.console.views.comparison import ComparisonView, Side, beside, release_before
from dpsynth_platform.console.views.dossiers import (
    DECIDED,
    AuditView,
    ClearanceView,
    CountView,
    DecisionView,
    GuaranteeView,
    QualityView,
    audit_view,
    clearance_view,
    decision_view,
    guarantee_view,
    restricted_parts,
)
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError, NotFound, ReleaseRefused
from dpsynth_platform.foundation.figures import moment, number_of
from dpsynth_platform.foundation.people import recorded, recorded_name
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger.records import Decision
from dpsynth_platform.release.dossier import clearance_summary
from dpsynth_platform.release.evidence import REFUSE, WITHDRAW, standing_approvals
from dpsynth_platform.reviewing import catalogue, decisions
from dpsynth_platform.reviewing.chronicle import Chronicle, chronicle
from dpsynth_platform.synth.planning import load_dataset

_PUBLISHING = threading.Lock()
"""A run of the release job takes the process's output for itself: one at a time."""

CandidateState = Literal["waiting", "approved", "refused", "published", "not-releasable", "none"]


CANDIDATE_WORDS: dict[CandidateState, str] = {
    "waiting": "waits for a decision",
    "approved": "approved, and not published yet",
    "refused": "refused",
    "published": "published",
    "not-releasable": "cannot be released as it is",
    "none": "there is no candidate",
}


@dataclass(frozen=True)
class CandidateView(View):
    """The present candidate of a dataset (and period), or why there is none.

    Attributes:
        candidate: digest of exactly what an approval would name; None where there is none.
        seen: this page, as far as a decision rests on it: the content, what it promises, its quality report, and who
            has decided so far. Hand it back with the decision, so that nobody decides on other things than they saw.
        state: see `CANDIDATE_WORDS`; `standing` says more.
        audit, plain_words, counts, quality: as of a release.
        mostly_missing: columns with hardly any usable value, by the noisy counts, in words.
        runners: who ran any of it; none of them may approve it.
        approvals, approvals_needed: how many count, and are asked for.
        after_withdrawal: a release of this content was withdrawn, so that an approval needs the explicit word.
        release: id of the release that it was published as, or None.
        comparison: with the last release of the dataset.
    """

    dataset: str
    period: str | None
    place: str
    family: str | None
    state: CandidateState
    state_words: str
    standing: str
    candidate: str | None
    seen: str | None
    entry: str | None
    description: str
    method: str | None
    guarantee: GuaranteeView | None
    plain_words: tuple[str, ...]
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    audit: AuditView | None
    clearance: ClearanceView | None
    counts: tuple[CountView, ...] | None
    quality: QualityView | None
    runners: tuple[str, ...]
    approvals: int
    approvals_needed: int
    after_withdrawal: bool
    decisions: tuple[DecisionView, ...]
    release: str | None
    comparison: ComparisonView | None
    mostly_missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decided(View):
    """A decision that was recorded, and what came of it.

    Attributes:
        decision: `approved` or `refused`.
        release: id of the release that was published now, or None.
        next_steps: what is missing, or can be done now, in sentences.
        failures: steps of the publication that failed, each with its safe message.
    """

    candidate: str
    decision: str
    by: str
    at: str
    release: str | None
    next_steps: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]


def candidate(
    settings: Settings, allowed: Collection[Action], dataset: str, period: str | None = None
) -> CandidateView:
    """The present candidate of a dataset and period.

    Raises:
        NotAllowed: the asker may not read.
        NotFound: there is no such dataset.
    """
    require(allowed, Action.READ)
    known, place = chronicle(settings), Place(dataset, period)
    declared = catalogue.catalogue(settings).datasets.get(dataset)
    contract = catalogue.sealed_contract(settings, place) or (declared[0] if declared else None)
    if contract is None:
        raise NotFound(f"{place.label}: no contract declares it, and nothing of it was ever run")
    try:
        gathered = decisions.gather(settings, place)
    except (ReleaseRefused, ContractError) as refusal:
        return _no_candidate(place, contract, str(refusal))
    return _candidate_view(settings, allowed, known, gathered)


def approve(
    settings: Settings,
    allowed: Collection[Action],
    by: str,
    dataset: str,
    period: str | None = None,
    *,
    seen: str,
    reason: str = "",
    after_withdrawal: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Decided:
    """Records an approval of exactly what was seen and, if that was the last one needed, publishes.

    Publication runs the release job and takes as long as that does.

    Args:
        settings: the deployment.
        allowed: what the asker may do; `DECIDE`.
        by: who approves, as it is recorded for ever.
        dataset: whose candidate.
        period: of a dataset with a cadence.
        seen: as `CandidateView` gave it.
        reason: free words, kept for ever.
        after_withdrawal: the explicit word for content of which a release was withdrawn.
        say: is told one public sentence at a time.

    Raises:
        NotAllowed: the asker may not decide.
        ReleaseRefused: what was seen is another by now, is public, or could not be released whoever approves, or not
            approved by this person.
        ConfigurationError: the reason cannot be recorded.
    """
    from dpsynth_platform.operations.operating import publish_if_approved

    require(allowed, Action.DECIDE)
    place, who = Place(dataset, period), recorded_name(by, "who approves")
    words = recorded(reason, "the reason", optional=True)
    load_dataset(settings, dataset)
    made = decisions.approve(
        settings, place, who, words, after_withdrawal=after_withdrawal, seen=decisions.Seen.of(seen)
    )
    with _PUBLISHING:
        outcome = publish_if_approved(settings, place, say)
    release_id = (
        decisions.published_as(Storage(settings.restricted), place, made.candidate) if outcome.release else None
    )
    return Decided(
        made.candidate, DECIDED[made.decision], made.by, made.at, release_id, outcome.next_steps, outcome.failures
    )


def refuse(
    settings: Settings,
    allowed: Collection[Action],
    by: str,
    dataset: str,
    period: str | None = None,
    *,
    seen: str,
    reason: str,
) -> Decided:
    """Records a refusal of exactly the candidate that was seen; it needs a reason. Raises like `approve`."""
    require(allowed, Action.DECIDE)
    place, who = Place(dataset, period), recorded_name(by, "who refuses")
    words = recorded(reason, "the reason")
    load_dataset(settings, dataset)
    made = decisions.refuse(settings, place, who, words, seen=decisions.Seen.of(seen))
    steps = decisions.next_steps(settings, made)
    return Decided(made.candidate, DECIDED[made.decision], made.by, made.at, None, steps, ())


def reviewers_dossier(
    settings: Settings, allowed: Collection[Action], dataset: str, period: str | None = None
) -> dict[str, Any]:
    """The reviewers' dossier of the present candidate, as JSON; for `READ_QUALITY`. Restricted.

    Raises:
        NotAllowed: the asker may not see comparisons with real data.
        NotFound: there is no candidate.
    """
    require(allowed, Action.READ_QUALITY)
    try:
        return decisions.reviewers_document_of(settings, decisions.gather(settings, Place(dataset, period)))
    except (ReleaseRefused, ContractError) as refusal:
        raise NotFound(str(refusal)) from None


def _no_candidate(place: Place, contract: DataContract, why: str) -> CandidateView:
    return CandidateView(
        dataset=place.dataset,
        period=place.period,
        place=place.label,
        family=contract.family,
        state="none",
        state_words=CANDIDATE_WORDS["none"],
        standing=why,
        candidate=None,
        seen=None,
        entry=None,
        description=contract.description,
        method=None,
        guarantee=None,
        plain_words=(),
        covered=(),
        not_covered=(),
        audit=None,
        clearance=None,
        counts=None,
        quality=None,
        runners=(),
        approvals=0,
        approvals_needed=contract.release.approvals,
        after_withdrawal=False,
        decisions=(),
        release=None,
        comparison=None,
    )


def _candidate_view(
    settings: Settings, allowed: Collection[Action], known: Chronicle, gathered: decisions.Gathered
) -> CandidateView:
    place, contract, statement = gathered.place, gathered.contract, gathered.statement
    state = candidate_state(known, gathered)
    counts, quality = restricted_parts(settings, allowed, gathered)
    published = decisions.published_as(Storage(settings.restricted), place, gathered.candidate.digest)
    previous = release_before(settings, known, place.dataset, known.publications.get(published or ""))
    counted = standing_approvals(gathered.decided, gathered.runners)
    return CandidateView(
        dataset=place.dataset,
        period=place.period,
        place=place.label,
        family=contract.family,
        state=state,
        state_words=CANDIDATE_WORDS[state],
        standing=f"the evidence holds; {lacking(contract, gathered.decided, gathered.runners)}{gathered.until}"
        if state == "waiting"
        else gathered.standing,
        candidate=gathered.candidate.digest,
        seen=str(gathered.seen),
        entry=gathered.candidate.entry_id,
        description=contract.description,
        method=gathered.candidate.method,
        guarantee=guarantee_view(statement.guarantee),
        plain_words=statement.plain_words(),
        covered=statement.covered,
        not_covered=statement.not_covered,
        audit=audit_view(gathered.report, decisions.audit_plots(settings, place)),
        clearance=clearance_view(clearance_summary(gathered.cleared)),
        counts=counts,
        quality=quality,
        runners=gathered.runners,
        approvals=len(counted),
        approvals_needed=contract.release.approvals,
        after_withdrawal=any(item.decision == WITHDRAW for item in gathered.decided),
        decisions=tuple(map(decision_view, gathered.decided)),
        release=published,
        comparison=beside(settings, known, previous, Side.of_candidate(gathered)) if previous else None,
        mostly_missing=gathered.mostly_missing,
    )


def lacking(contract: DataContract, decided: Sequence[Decision], runners: Collection[str]) -> str:
    """What a candidate waits for whose evidence holds, and that nobody has refused."""
    counted = len(standing_approvals(decided, runners))
    withdrawn = [item for item in decided if item.decision == WITHDRAW]
    if withdrawn and not counted:
        last = withdrawn[-1]
        return f"release {last.release} of this content was withdrawn by {last.by} at {moment(last.at)}"
    needed = max(contract.release.approvals, 1)
    return f"{counted} of {number_of(needed, 'approval')} by people who did not run it"


def candidate_state(known: Chronicle, gathered: decisions.Gathered) -> CandidateState:
    """Where a candidate stands."""
    decided = gathered.decided
    if known.is_published(gathered.candidate.digest):
        return "published"
    if decided and decided[-1].decision == REFUSE:
        return "refused"
    if not gathered.releasable:
        return "not-releasable"
    return "approved" if gathered.approved else "waiting"
