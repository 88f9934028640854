"""A release candidate as a reviewer needs it, and the reviewer's word on it.

What belongs here: putting a candidate's evidence together for reading, and recording approvals and refusals. What does
not: publishing, and finding all that is published (`releases`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.people import same_person
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import Decision
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle.purging import kept_until
from dpsynth_platform.lineage.clearance import Clearance
from dpsynth_platform.release import evidence
from dpsynth_platform.release.evidence import Candidate
from dpsynth_platform.release.register import Register
from dpsynth_platform.release.reviewers import (
    plots_of_audit,
    quality_hash,
    reviewers_document,
    write_reviewers_dossier,
)
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.synth.planning import load_dataset
from dpsynth_platform.synth.tabular.missing import missing_in_words, read_missing

if TYPE_CHECKING:
    from dpsynth_platform.privacy.statement import PrivacyStatement

AUDIT_HEADER = (
    "attack",
    "on",
    "epsilon at least",
    "TPR at 0.1% FPR",
    "TPR at 1% FPR (95% interval; the claim allows)",
    "TPR at 10% FPR",
    "AUC (95% interval)",
)
_DECIDED = {evidence.APPROVE: "approved", evidence.REFUSE: "refused", evidence.WITHDRAW: "withdrawn"}
QUALITY_HEADER = ("measure", "synthetic", "real or best possible", "without any model")


@dataclass(frozen=True)
class Review:
    """One candidate as a reviewer needs it. Restricted: the quality rows compare with real data.

    Attributes:
        release: id of the release that it was published as, if it was.
        standing: whether it can be released, or why not; of a release whether what it rests on still holds.
        dossier: the page of the reviewers' dossier; `reviewers.json` beside it says the same.
    """

    place: str
    candidate: str
    guarantee: tuple[str, ...]
    verdict: str
    audit_summary: str
    audit_rows: Sequence[Sequence[str]]
    quality_rows: Sequence[Sequence[str]]
    runners: tuple[str, ...]
    approvals: tuple[str, ...]
    release: str | None
    standing: str
    dossier: str
    audit: dict[str, Any] = field(default_factory=dict)
    mostly_missing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Seen:
    """What somebody looked at, to be held against what is there when they decide.

    Attributes:
        candidate: digest of exactly what would be published.
        rest: digest of what else a decision rests on: what a release would promise, the quality report, and how many
            approvals are asked for.
        decided: number of the last decision's event in the ledger's chain; 0 where nobody has decided yet.
    """

    candidate: str
    rest: str
    decided: int

    def __str__(self) -> str:
        return f"{self.candidate}.{self.rest}.{self.decided}"

    @classmethod
    def of(cls, text: str) -> Seen:
        """Reads it back. Raises `ReleaseRefused` where it is none."""
        found = re.fullmatch(r"([0-9a-f]{64})\.([0-9a-f]{64})\.([0-9]{1,18})", text, re.ASCII)
        if found is None:
            raise ReleaseRefused("what was looked at: accepted: `seen`, as the candidate's page or the API tells it")
        return cls(found[1], found[2], int(found[3]))


@dataclass(frozen=True)
class Gathered:
    """The evidence of one candidate, read from its files.

    Attributes:
        contract: the snapshot that `raw` sealed.
        family: the budget of its family, as its file declares it now.
        report: the audit's report, on fictional canaries.
        statement: what a release of it would promise.
        decided: all decisions on it, in order.
        standing: as of `Review`.
        until: until when it can be approved, as words to follow others; empty where that is no question.
        releasable: whether it only lacks approvals, if anything.
        approved: whether it lacks nothing.
        seen: all of this that a decision rests on.
        mostly_missing: columns with hardly any usable value, by the noisy counts, in words.
    """

    place: Place
    contract: DataContract
    family: FamilyBudget
    candidate: Candidate
    report: dict[str, Any]
    cleared: Clearance
    statement: PrivacyStatement
    runners: tuple[str, ...]
    decided: tuple[Decision, ...]
    standing: str
    until: str
    releasable: bool
    approved: bool
    seen: Seen
    mostly_missing: tuple[str, ...] = ()


def gather(settings: Settings, place: Place) -> Gathered:
    """The present candidate of a dataset. Every file of its evidence is read; nothing is written.

    Raises:
        ReleaseRefused: there is no candidate.
    """
    storage, store = Storage(settings.restricted), accounts.ledger(settings)
    contract = sealed_contract(storage, place)
    declared, family = load_dataset(settings, place.dataset)
    candidate = evidence.candidate_of(storage, place, contract, store)
    report = evidence.audit_report(place, storage.require(place, "audit"))
    cleared = evidence.clearance_of(place, storage.require(place, "clearance"))
    statement = evidence.statement_of(contract, family, store, candidate.entry_id, candidate.method, cleared)
    runners = evidence.candidate_runners(storage, place)
    decided = store.approvals(candidate.digest, candidate.entry_id)
    refusal, releasable = _refusal(storage, place, contract, store, runners)
    try:
        quality = quality_hash(storage, candidate)
    except ReleaseRefused as changed:
        refusal, releasable, quality = str(changed), False, None
    until = until_words(settings, place, declared) if refusal and releasable else ""
    rest = [statement.to_json(), quality, contract.release.approvals]
    return Gathered(
        place=place,
        contract=contract,
        family=family,
        candidate=candidate,
        report=report,
        cleared=cleared,
        statement=statement,
        runners=runners,
        decided=tuple(decided),
        standing=f"not releasable now: {refusal}{until}" if refusal else "all evidence holds and it is approved",
        until=until,
        releasable=releasable,
        approved=refusal is None,
        seen=Seen(candidate.digest, canonical_digest(rest), decided[-1].sequence if decided else 0),
        mostly_missing=tuple(missing_in_words(read_missing(storage.require(place, "synthetic").directory) or ())),
    )


def until_words(settings: Settings, place: Place, declared: DataContract | None) -> str:
    """Until when a candidate can be approved, to follow what is said of it; empty where it is kept for good.

    Args:
        declared: the dataset's contract as it is now, if it has one.
    """
    until = kept_until(settings, place, "synthetic", declared)
    return "" if until is None else f"; it can be approved until {moment(until.isoformat())}, when its rows expire"


def audit_plots(settings: Settings, place: Place) -> dict[str, str]:
    """The drawings of the present audit, SVG by title."""
    return plots_of_audit(Storage(settings.restricted).require(place, "audit"))


def reviewers_document_of(settings: Settings, gathered: Gathered) -> dict[str, Any]:
    """The reviewers' dossier of a candidate as JSON, written nowhere. Restricted. Raises `ReleaseRefused`."""
    return reviewers_document(
        Storage(settings.restricted),
        accounts.ledger(settings),
        gathered.contract,
        gathered.candidate,
        gathered.statement,
        standing=gathered.standing,
    )


def review(settings: Settings, place: Place) -> Review:
    """The present candidate of a dataset, with its reviewers' dossier, which is written anew.

    Raises:
        ReleaseRefused: there is no candidate.
    """
    storage, found = Storage(settings.restricted), gather(settings, place)
    dossier = write_reviewers_dossier(
        storage,
        accounts.ledger(settings),
        found.contract,
        found.candidate,
        found.statement,
        standing=found.standing,
    )
    return Review(
        place=place.label,
        candidate=found.candidate.digest,
        guarantee=found.statement.plain_words(),
        verdict=found.report["verdict"],
        audit_summary=found.report["summary"],
        audit_rows=[attack_row(attack) for attack in found.report["attacks"]],
        quality_rows=(dossier.document["quality"] or {"rows": []})["rows"],
        runners=found.runners,
        approvals=tuple(_in_words(item) for item in found.decided),
        release=published_as(storage, place, found.candidate.digest),
        standing=found.standing,
        dossier=str(dossier.page_file),
        audit=found.report,
        mostly_missing=found.mostly_missing,
    )


def approve(
    settings: Settings,
    place: Place,
    by: str,
    reason: str,
    *,
    after_withdrawal: bool = False,
    seen: Seen | None = None,
) -> Decision:
    """Records an approval of the present candidate.

    Args:
        settings: the deployment.
        place: whose candidate.
        by: the reviewer.
        reason: free words, kept for ever.
        after_withdrawal: the explicit word for content of which a release was withdrawn.
        seen: what the reviewer looked at, where that was a while ago.

    Returns:
        The approval; an earlier one of the same person, if that stands and suffices: then only publishing is left.

    Raises:
        ReleaseRefused: it is public already, or this person's approval stands and others are lacking: nothing would
            change; or the candidate could not be released whoever approves; or it, what it promises, its quality
            report or the decisions on it are not what was seen; or the approver ran it or withdrew a release of it; or
            the word is missing, or out of place.
    """
    storage, store = Storage(settings.restricted), accounts.ledger(settings)
    candidate = evidence.check_content(storage, place, sealed_contract(storage, place), store).candidate
    quality_hash(storage, candidate)
    if seen is not None:
        _check_candidate(place, candidate, seen)
        if gather(settings, place).seen.rest != seen.rest:
            raise ReleaseRefused(
                f"{place.label}: what a release of this candidate promises, or what is known of its quality, is not "
                "what you looked at. Look at it as it is now, and decide then"
            )
    release = public_as(storage, store, candidate.digest)
    if release is not None:
        raise ReleaseRefused(
            f"{place.label}: this content is public already, as release {release}. Nothing was changed"
        )
    runners = evidence.candidate_runners(storage, place)
    given = _given(store.approvals(candidate.digest, candidate.entry_id), runners, by)
    if given is not None:
        if gather(settings, place).approved:
            return given
        raise ReleaseRefused(
            f"{place.label}: {given.by!r} has approved this content already, at {moment(given.at)}, and that stands. "
            "Nothing was changed; somebody else must approve it, too"
        )
    return store.approve(
        candidate.digest,
        by=by,
        entry_id=candidate.entry_id,
        reason=reason,
        runners=runners,
        after_withdrawal=after_withdrawal,
        decided=None if seen is None else seen.decided,
    )


def refuse(settings: Settings, place: Place, by: str, reason: str, *, seen: Seen | None = None) -> Decision:
    """Records a refusal of the present candidate; it needs a reason, which is kept for ever.

    Whatever changed but the candidate itself, a refusal counts: it harms nobody.

    Raises:
        ReleaseRefused: there is no candidate, or it is not the one that was seen; or it is public, or this person has
            refused it and nobody approved it since: nothing would change.
    """
    storage, store = Storage(settings.restricted), accounts.ledger(settings)
    candidate = evidence.candidate_of(storage, place, sealed_contract(storage, place), store)
    if seen is not None:
        _check_candidate(place, candidate, seen)
    release = public_as(storage, store, candidate.digest)
    if release is not None:
        raise ReleaseRefused(
            f"{place.label}: this content is public as release {release}, which no refusal takes back. Nothing was "
            f'changed. To withdraw it: dpsynth release withdraw {release} --reason "..."'
        )
    before = store.approvals(candidate.digest, candidate.entry_id)
    if before and before[-1].decision == evidence.REFUSE and same_person(before[-1].by, by):
        raise ReleaseRefused(
            f"{place.label}: {before[-1].by!r} has refused this content already, at {moment(before[-1].at)}, and that "
            "stands. Nothing was changed"
        )
    return store.refuse(candidate.digest, by=by, entry_id=candidate.entry_id, reason=reason)


def next_steps(settings: Settings, refusal: Decision) -> tuple[str, ...]:
    """What else is to be done about content whose publication was under way when somebody refused it, in sentences."""
    return tuple(
        f"its publication as {release} had begun: if that was not stopped, withdraw it: "
        f'dpsynth release withdraw {release} --reason "..."'
        for release in _recorded(accounts.ledger(settings), refusal.candidate)
    )


def public_as(storage: Storage, store: Ledger, candidate: str) -> str | None:
    """Id of the release as which a candidate is shown to the public and was not withdrawn, or None.

    A release that is recorded and not shown, since its publication was killed, is not public: a refusal stops it.
    """
    register = Register(storage.root)
    for release in _recorded(store, candidate):
        if any(place.is_dir() for place in register.find(release).directories):
            return release
    return None


def _recorded(store: Ledger, candidate: str) -> list[str]:
    """Ids of the releases of a candidate that the ledger records and nobody has withdrawn."""
    ended = {item.release for item in store.withdrawals()}
    published = store.history(kinds=[chain.RELEASED])
    return [item.subject for item in published if item.payload["candidate"] == candidate and item.subject not in ended]


def _given(decided: Sequence[Decision], runners: Sequence[str], by: str) -> Decision | None:
    """The standing approval of a person, or None."""
    standing = evidence.standing_approvals(decided, runners)
    return next((item for item in standing if same_person(item.by, by)), None)


def _check_candidate(place: Place, candidate: Candidate, seen: Seen) -> None:
    if seen.candidate != candidate.digest:
        raise ReleaseRefused(
            f"{place.label}: the candidate is not the one that you looked at: it was made anew since. Look at it as it "
            "is now, and decide then"
        )


def _in_words(decision: Decision) -> str:
    about = f" as release {decision.release}" if decision.release else ""
    return f"{_DECIDED[decision.decision]}{about} by {decision.by} at {moment(decision.at)}"


def published_as(storage: Storage, place: Place, candidate: str) -> str | None:
    """Id of the release that a candidate was published as, or None."""
    released = storage.read(place, "released")
    return released.facts["release_id"] if released and released.facts["candidate"] == candidate else None


def sealed_contract(storage: Storage, place: Place) -> DataContract:
    """The contract of the last run. Raises `ReleaseRefused` where nothing was run yet."""
    raw = storage.read(place, "raw")
    if raw is None:
        raise ReleaseRefused(f"{place.label}: nothing was run yet; start with: dpsynth run {place.arguments}")
    return DataContract.model_validate(raw.facts["contract"])


def _refusal(
    storage: Storage, place: Place, contract: DataContract, store: Ledger, runners: Sequence[str]
) -> tuple[str | None, bool]:
    """Why it cannot be released now, if so; and whether all but its approvals holds."""
    try:
        checked = evidence.check_content(storage, place, contract, store)
    except ReleaseRefused as refusal:
        return str(refusal), False
    decided = store.approvals(checked.candidate.digest, checked.candidate.entry_id)
    try:
        evidence.check_approvals(place, contract, decided, (*runners, checked.entry.request.runner))
    except ReleaseRefused as refusal:
        return str(refusal), True
    return None, True


def attack_row(attack: dict[str, Any]) -> tuple[str, ...]:
    """One attack of an audit's report, in the columns of `AUDIT_HEADER`; a dash for what an older one lacks."""
    rate, risk = attack["true_positive_rate"], attack.get("risk")
    bound = f"{attack['epsilon_lower_bound']:.2f} (most possible {attack['highest_bound']:.2f})"
    if risk is None:
        rates, area = ("-", _interval(rate), "-"), f"{attack['area_under_curve']:.3f}"
    else:
        few, one, ten = risk["rates"]
        rates = (
            f"{few['found']['value']:.3f}" if few["resolved"] else "too few canaries",
            f"{_interval(one['found'])}; {one['allowed']:.3f}",
            f"{ten['found']['value']:.3f}",
        )
        area = _interval(risk["area_under_curve"])
    name = attack["name"] if attack.get("decides", True) else f"{attack['name']} (does not decide)"
    return (name, attack["target"], attack.get("fault") or bound, *rates, area)


def _interval(rate: dict[str, float]) -> str:
    return f"{rate['value']:.3f} ({rate['low']:.3f} to {rate['high']:.3f})"
