"""The page of a candidate: its evidence, and the decision on it.

What belongs here: reading it for an actor, and passing a decision to the library. What does not: what makes a decision
valid (`ledger`, `release.evidence`), and publishing (`operations.operating`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import dossiers
from dpsynth_platform.console.views.base import part, require
from dpsynth_platform.console.views.checklist import Check, checklist
from dpsynth_platform.console.views.comparison import ComparisonView, Facts, compare, release_before
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError, NotFound, ReleaseRefused
from dpsynth_platform.foundation.figures import moment, number_of
from dpsynth_platform.foundation.people import recorded, recorded_name
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger.records import Decision
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.release.dossier import clearance_summary
from dpsynth_platform.release.evidence import REFUSE, WITHDRAW, standing_approvals
from dpsynth_platform.reviewing import accounts, catalogue, decisions, discussion
from dpsynth_platform.reviewing.chronicle import Chronicle, cached_ledger, chronicle
from dpsynth_platform.reviewing.discussion import Remark, assigned, remarks
from dpsynth_platform.synth.planning import load_dataset

_PUBLISHING = threading.Lock()
"""A run of the release job captures the process's output, so only one runs at a time."""

CandidateState = Literal["waiting", "approved", "refused", "published", "withdrawn", "not-releasable", "none"]


CANDIDATE_WORDS: dict[CandidateState, str] = {
    "waiting": "waits for a decision",
    "approved": "approved, and not published yet",
    "refused": "refused",
    "published": "published",
    "withdrawn": "withdrawn",
    "not-releasable": "cannot be released as it is",
    "none": "there is no candidate",
}


@dataclass(frozen=True)
class BudgetView:
    """What the family may cost for life, how that is charged, and what is left now (for `READ_SPEND`) in words."""

    cap_epsilon: float
    cap_delta: float
    per_owner: bool
    left_words: str | None


@dataclass(frozen=True)
class CandidateView:
    """The present candidate of a dataset (and period), or why there is none.

    Attributes:
        candidate: the digest that an approval names.
        seen: what a decision rests on: content, promise, quality report and earlier decisions. A decision sends it
            back, so that nobody decides on something else than they saw.
        state: see `CANDIDATE_WORDS`; `standing` gives the details.
        runners: who ran any step; none of them may approve it.
        after_withdrawal: a release of this content was withdrawn, so an approval needs an explicit confirmation.
        release: id of the release that it was published as; `comparison` is with the last release of the dataset.
        mostly_missing: columns with hardly any usable value by the noisy counts, in words.
        paid: bought measures of quality, in the sentences of the public dossier.
        rows: declared number of rows; None if as many as the noisy counts say.
        units: about how many people (or other units) there are, by public knowledge.
        checks: what to go through before a decision.
        assigned: who looks at it; `remarks` are the comments and assignments, the newest last, never published.
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
    guarantee: dossiers.GuaranteeView | None
    plain_words: tuple[str, ...]
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    against: dossiers.Against
    audit: dossiers.AuditView | None
    clearance: dossiers.ClearanceView | None
    counts: tuple[dossiers.CountView, ...] | None
    quality: dossiers.QualityView | None
    runners: tuple[str, ...]
    approvals: int
    approvals_needed: int
    after_withdrawal: bool
    decisions: tuple[dossiers.DecisionView, ...]
    release: str | None
    comparison: ComparisonView | None
    mostly_missing: tuple[str, ...] = ()
    paid: tuple[str, ...] = ()
    purpose: str | None = None
    recipients: tuple[str, ...] = ()
    rows: int | None = None
    units: int = 0
    budget: BudgetView | None = None
    checks: tuple[Check, ...] = ()
    assigned: str | None = None
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class Decided:
    """A recorded decision (`approved` or `refused`), the release that it published, and the next steps.

    `failures` are steps of the publication that failed, each with its safe message.
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
    """The present candidate of a dataset and period. Raises `NotFound` if there is no such dataset."""
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
    """Records an approval (`DECIDE`) of exactly what was `seen`; if it was the last one needed, publishes.

    Publication runs the release job and takes as long as that does; `say` receives one public sentence at a time. The
    ledger keeps `by` and `reason` for ever.

    Raises:
        ReleaseRefused: the candidate is not what was seen, is public already, cannot be released at all, or may not be
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
    decision = decisions.DECIDED[made.decision]
    return Decided(made.candidate, decision, made.by, made.at, release_id, outcome.next_steps, outcome.failures)


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
    """Records a refusal (`DECIDE`) of exactly the candidate that was seen, with a reason. Raises like `approve`."""
    require(allowed, Action.DECIDE)
    place, who = Place(dataset, period), recorded_name(by, "who refuses")
    words = recorded(reason, "the reason")
    load_dataset(settings, dataset)
    made = decisions.refuse(settings, place, who, words, seen=decisions.Seen.of(seen))
    steps = decisions.next_steps(settings, made)
    return Decided(made.candidate, decisions.DECIDED[made.decision], made.by, made.at, None, steps, ())


def comment(
    settings: Settings, allowed: Collection[Action], by: str, dataset: str, period: str | None = None, *, text: str
) -> Remark:
    """Adds a comment (`COMMENT`) on the present candidate. Raises `NotFound` without one, else as `discussion`."""
    require(allowed, Action.COMMENT)
    return discussion.comment(settings, _present(settings, dataset, period), by, text)


def assign(
    settings: Settings, allowed: Collection[Action], by: str, dataset: str, period: str | None = None, *, to: str
) -> Remark:
    """Says who looks at the present candidate (`DECIDE`). Raises `NotFound` without one, else as `discussion`."""
    require(allowed, Action.DECIDE)
    return discussion.assign(settings, _present(settings, dataset, period), by, to)


def _present(settings: Settings, dataset: str, period: str | None) -> str:
    """The digest of the present candidate."""
    load_dataset(settings, dataset)
    try:
        return decisions.gather(settings, Place(dataset, period)).candidate.digest
    except ReleaseRefused as refusal:
        raise NotFound(str(refusal)) from None


def reviewers_dossier(
    settings: Settings, allowed: Collection[Action], dataset: str, period: str | None = None
) -> dict[str, Any]:
    """The reviewers' dossier of the present candidate (`READ_QUALITY`). Restricted. Raises `NotFound` without one."""
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
        against=(),
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
        purpose=contract.purpose,
        recipients=tuple(contract.recipients),
        rows=None if contract.generate.rows == "auto" else contract.generate.rows,
        units=contract.privacy.expected_units,
    )


def _candidate_view(
    settings: Settings, allowed: Collection[Action], known: Chronicle, gathered: decisions.CandidateEvidence
) -> CandidateView:
    place, contract, statement = gathered.place, gathered.contract, gathered.statement
    state = _state(known, gathered)
    published = decisions.published_as(Storage(settings.restricted), place, gathered.candidate.digest)
    previous = release_before(settings, known, place.dataset, known.publications.get(published or ""))
    counts, quality = dossiers.restricted_parts(settings, allowed, gathered, previous.publication if previous else None)
    counted = standing_approvals(gathered.decided, gathered.runners)
    standing = gathered.standing
    if state == "withdrawn":
        standing = missing_approvals(contract, gathered.decided, gathered.runners)
    if state == "waiting":
        missing = missing_approvals(contract, gathered.decided, gathered.runners)
        standing = f"the evidence holds; {missing}{gathered.until}"
    audit = dossiers.audit_view(gathered.report, decisions.audit_plots(settings, place))
    clearance = dossiers.clearance_view(clearance_summary(gathered.cleared))
    comparison = compare(settings, known, previous, Facts.of_candidate(gathered)) if previous else None
    declared = catalogue.catalogue(settings).datasets.get(place.dataset)
    said = remarks(settings, gathered.candidate.digest)
    return replace(
        _no_candidate(place, contract, standing),
        state=state,
        state_words=CANDIDATE_WORDS[state],
        candidate=gathered.candidate.digest,
        seen=str(gathered.seen),
        entry=gathered.candidate.entry_id,
        method=gathered.candidate.method,
        guarantee=dossiers.guarantee_view(statement.guarantee),
        plain_words=statement.plain_words(),
        covered=statement.covered,
        not_covered=statement.not_covered,
        against=dossiers.against_of(statement.against),
        audit=audit,
        clearance=clearance,
        counts=counts,
        quality=quality,
        runners=gathered.runners,
        approvals=len(counted),
        after_withdrawal=any(item.decision == WITHDRAW for item in gathered.decided),
        decisions=tuple(map(dossiers.decision_view, gathered.decided)),
        release=published,
        comparison=comparison,
        mostly_missing=gathered.mostly_missing,
        paid=gathered.paid,
        budget=_budget(allowed, gathered, cached_ledger(settings)),
        assigned=assigned(said),
        remarks=said,
        checks=checklist(
            gathered,
            declared[0] if declared else None,
            audit,
            clearance,
            quality,
            comparison,
            sees_quality=Action.READ_QUALITY in allowed,
        ),
    )


def _budget(allowed: Collection[Action], gathered: decisions.CandidateEvidence, ledger: Ledger) -> BudgetView:
    account, entry = ledger.account(gathered.contract.family), ledger.entry(gathered.candidate.entry_id)
    left = part(
        allowed,
        Action.READ_SPEND,
        lambda: accounts.left_words(
            ledger.left_for(account.family, entry.request, gathered.contract.mechanisms),
            entry.request.guarantee.delta,
            account.mode,
            "this one",
        ),
    )
    return BudgetView(account.epsilon, account.delta, account.mode == "per-owner", left)


def missing_approvals(contract: DataContract, decided: Sequence[Decision], runners: Collection[str]) -> str:
    """What a candidate with complete evidence and no refusal waits for."""
    counted = len(standing_approvals(decided, runners))
    withdrawn = [item for item in decided if item.decision == WITHDRAW]
    if withdrawn and not counted:
        last = withdrawn[-1]
        return f"release {last.release} of this content was withdrawn by {last.by} at {moment(last.at)}"
    needed = max(contract.release.approvals, 1)
    return f"{counted} of {number_of(needed, 'approval')} by people who did not run it"


def _state(known: Chronicle, gathered: decisions.CandidateEvidence) -> CandidateState:
    decided = gathered.decided
    if known.is_published(gathered.candidate.digest):
        return "published"
    if decided and decided[-1].decision == REFUSE:
        return "refused"
    if decided and decided[-1].decision == WITHDRAW:
        return "withdrawn"
    if not gathered.releasable:
        return "not-releasable"
    return "approved" if gathered.approved else "waiting"
