"""A release candidate as a reviewer needs it, and the reviewer's decision on it.

What belongs here: collecting a candidate's evidence for reading, and recording approvals and refusals. What does not:
publishing, and finding everything that is published (`releases`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from dpsynth_platform.release import evidence, reviewers
from dpsynth_platform.release.evidence import Candidate
from dpsynth_platform.release.paid import has_canaries, in_words, published, read_paid
from dpsynth_platform.release.register import Register
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
AUDIT_LEGEND = (
    "An attack guesses which fictional owners (canaries) joined. TPR: the share of those who joined that it names; "
    "FPR: the share of the others that it names by mistake; AUC: the area under the curve of both (guessing: 0.5)."
)
"""Explains the attacks' measures below their table."""
DECIDED = {evidence.APPROVE: "approved", evidence.REFUSE: "refused", evidence.WITHDRAW: "withdrawn"}
QUALITY_HEADER = ("measure", "synthetic", "real or best possible", "without any model")


@dataclass(frozen=True)
class Review:
    """One candidate as a reviewer needs it. Restricted: the quality rows compare with real data.

    Attributes:
        standing: whether it can be released, or why not; of a release, whether its evidence still holds.
        dossier: the page of the reviewers' dossier; `reviewers.json` beside it has the same content.
        pictures: of a dataset with pictures, what is to be known of the real ones.
        against: of a federated run (party, epsilon, delta, what the guarantee rests on); empty of another.
    """

    place: str
    candidate: str
    guarantee: tuple[str, ...]
    verdict: str
    audit_summary: str
    audit_rows: Sequence[Sequence[str]]
    quality_rows: Sequence[Sequence[str]]
    quality_legend: str
    runners: tuple[str, ...]
    approvals: tuple[str, ...]
    release: str | None
    standing: str
    dossier: str
    audit: dict[str, Any] = field(default_factory=dict)
    mostly_missing: tuple[str, ...] = ()
    paid: tuple[str, ...] = ()
    purpose: str | None = None
    recipients: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    against: tuple[tuple[str, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Seen:
    """What a person saw, for comparison with the state at their decision.

    Attributes:
        candidate: digest of what would be published.
        rest: digest of the promise, the quality report, and the number of required approvals.
        decided: number of the last decision's event in the ledger's chain, or 0.
    """

    candidate: str
    rest: str
    decided: int

    def __str__(self) -> str:
        return f"{self.candidate}.{self.rest}.{self.decided}"

    @classmethod
    def of(cls, text: str) -> Seen:
        """Parses its text form. Raises `ReleaseRefused`."""
        found = re.fullmatch(r"([0-9a-f]{64})\.([0-9a-f]{64})\.([0-9]{1,18})", text, re.ASCII)
        if found is None:
            raise ReleaseRefused("seen: not of a candidate; accepted: `seen` from the candidate's page or the API")
        return cls(found[1], found[2], int(found[3]))


@dataclass(frozen=True)
class CandidateEvidence:
    """The evidence of one candidate, read from its files.

    Attributes:
        contract: the snapshot that `raw` sealed; `family` is the budget in its present file.
        report: the audit's report, on fictional canaries.
        statement: what a release would promise.
        until: the end of the time for approval, as words that follow others, or empty.
        releasable: it lacks at most approvals; `approved`: it lacks nothing.
        mostly_missing: columns with hardly any usable value by the noisy counts, in words.
        paid: bought measures of quality, in the sentences of the public dossier.
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
    paid: tuple[str, ...] = ()


def gather(settings: Settings, place: Place) -> CandidateEvidence:
    """The present candidate with all its evidence, read from its files. Raises `ReleaseRefused` if there is none."""
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
        quality = reviewers.quality_hash(storage, candidate)
    except ReleaseRefused as changed:
        refusal, releasable, quality = str(changed), False, None
    until = until_words(settings, place, declared) if refusal and releasable else ""
    rest = [statement.to_json(), quality, contract.release.approvals]
    rows = storage.require(place, "synthetic").directory
    return CandidateEvidence(
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
        mostly_missing=tuple(missing_in_words(read_missing(rows) or ())),
        paid=() if (drawn := read_paid(rows)) is None else in_words(published(drawn, canaries=has_canaries(contract))),
    )


def until_words(settings: Settings, place: Place, declared: DataContract | None) -> str:
    """The end of a candidate's time for approval, as words that follow others; empty if it is kept for good."""
    until = kept_until(settings, place, "synthetic", declared)
    return "" if until is None else f"; it can be approved until {moment(until.isoformat())}, when its rows expire"


def audit_plots(settings: Settings, place: Place) -> dict[str, str]:
    """The plots of the present audit, SVG by title."""
    return reviewers.plots_of_audit(Storage(settings.restricted).require(place, "audit"))


def reviewers_document_of(settings: Settings, gathered: CandidateEvidence) -> dict[str, Any]:
    """The reviewers' dossier of a candidate as JSON; not written. Restricted. Raises `ReleaseRefused`."""
    return reviewers.reviewers_document(*_dossier_inputs(settings, gathered), standing=gathered.standing)


def _dossier_inputs(
    settings: Settings, gathered: CandidateEvidence
) -> tuple[Storage, Ledger, DataContract, Candidate, PrivacyStatement]:
    storage, ledger = Storage(settings.restricted), accounts.ledger(settings)
    return storage, ledger, gathered.contract, gathered.candidate, gathered.statement


def review(settings: Settings, place: Place) -> Review:
    """The present candidate; writes its reviewers' dossier anew. Raises `ReleaseRefused` if there is no candidate."""
    from dpsynth_platform.quality.report_rows import legend_of

    found = gather(settings, place)
    dossier = reviewers.write_reviewers_dossier(*_dossier_inputs(settings, found), standing=found.standing)
    quality = dossier.document["quality"]
    return Review(
        place=place.label,
        candidate=found.candidate.digest,
        guarantee=found.statement.plain_words(),
        verdict=found.report["verdict"],
        audit_summary=found.report["summary"],
        audit_rows=attack_rows(found.report),
        quality_rows=[] if quality is None else quality["rows"],
        quality_legend="" if quality is None else legend_of(quality["report"]),
        runners=found.runners,
        approvals=tuple(_in_words(item) for item in found.decided),
        release=published_as(Storage(settings.restricted), place, found.candidate.digest),
        standing=found.standing,
        dossier=str(dossier.page_file),
        audit=found.report,
        mostly_missing=found.mostly_missing,
        paid=found.paid,
        purpose=found.contract.purpose,
        recipients=tuple(found.contract.recipients),
        pictures=tuple(_pictures(Storage(settings.restricted), found.contract, dossier.document)),
        against=tuple((item.party, *item.numbers, item.rests_on) for item in found.statement.against),
    )


def _pictures(storage: Storage, contract: DataContract, document: Mapping[str, Any]) -> Iterator[str]:
    """What a reviewer should know of the real pictures. Restricted."""
    if contract.image_column is None:
        return
    yield f"what they show was not scrubbed; it was accepted because: {contract.image.accept_unscrubbed}"
    left_out = document["scrubbing"].get("pictures_left_out") or {}
    kinds = ", ".join(f"{kind} {number}" for kind, number in left_out.items())
    yield f"rows left out, since their picture cannot be used: {kinds or 'none'}"
    if (sheet := reviewers.nearest_sheet(storage, document)) is not None:
        yield f"synthetic ones beside the nearest real ones, not to be passed on: {sheet}"


def approve(
    settings: Settings,
    place: Place,
    by: str,
    reason: str,
    *,
    after_withdrawal: bool = False,
    seen: Seen | None = None,
) -> Decision:
    """Records an approval of the present candidate, or returns this person's earlier valid one if it suffices.

    `after_withdrawal` confirms content of which a release was withdrawn; `seen` is what the reviewer saw, if that was
    earlier.

    Raises:
        ReleaseRefused: it is public already; this person has approved it and others must; it cannot be released at all;
            it differs from what was seen; the approver ran it or withdrew a release of it; or the confirmation is
            missing or unneeded.
    """
    storage, store = Storage(settings.restricted), accounts.ledger(settings)
    candidate = evidence.check_content(storage, place, sealed_contract(storage, place), store).candidate
    reviewers.quality_hash(storage, candidate)
    if seen is not None:
        _check_candidate(place, candidate, seen)
        if gather(settings, place).seen.rest != seen.rest:
            raise ReleaseRefused(
                f"{place.label}: the promise or the quality report of this candidate is not what you looked at. Look "
                "at its present state, then decide"
            )
    release = public_as(storage, store, candidate.digest)
    if release is not None:
        raise ReleaseRefused(
            f"{place.label}: this content is public already, as release {release}. Nothing was changed"
        )
    runners = evidence.candidate_runners(storage, place)
    approvals = evidence.standing_approvals(store.approvals(candidate.digest, candidate.entry_id), runners)
    given = next((item for item in approvals if same_person(item.by, by)), None)
    if given is not None:
        if gather(settings, place).approved:
            return given
        raise ReleaseRefused(
            f"{place.label}: {given.by!r} has approved this content already, at {moment(given.at)}. Nothing was "
            "changed; another person must approve it, too"
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
    """Records a refusal of the present candidate, with a reason that is kept for ever.

    A refusal counts even if promise, quality report or decisions differ from what was seen: it does no harm.

    Raises:
        ReleaseRefused: there is no candidate, it is not the one that was seen, it is public, or this person's refusal
            is the last decision on it.
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
            f"{place.label}: {before[-1].by!r} has refused this content already, at {moment(before[-1].at)}. Nothing "
            "was changed"
        )
    return store.refuse(candidate.digest, by=by, entry_id=candidate.entry_id, reason=reason)


def next_steps(settings: Settings, refusal: Decision) -> tuple[str, ...]:
    """What to do, in sentences, about content whose publication was under way at its refusal."""
    return tuple(
        f"its publication as {release} had begun; if it was not stopped, withdraw it: "
        f'dpsynth release withdraw {release} --reason "..."'
        for release in _recorded(accounts.ledger(settings), refusal.candidate)
    )


def public_as(storage: Storage, store: Ledger, candidate: str) -> str | None:
    """Id of the release as which a candidate is public and not withdrawn, or None.

    A release that is recorded but not shown, since its publication was killed, is not public: a refusal stops it.
    """
    register = Register(storage.root)
    for release in _recorded(store, candidate):
        if any(place.is_dir() for place in register.find(release).directories):
            return release
    return None


def _recorded(store: Ledger, candidate: str) -> list[str]:
    """Ids of a candidate's releases that the ledger records and nobody has withdrawn."""
    ended = {item.release for item in store.withdrawals()}
    published = store.history(kinds=[chain.RELEASED])
    return [item.subject for item in published if item.payload["candidate"] == candidate and item.subject not in ended]


def _check_candidate(place: Place, candidate: Candidate, seen: Seen) -> None:
    if seen.candidate != candidate.digest:
        raise ReleaseRefused(
            f"{place.label}: the candidate is not the one that you looked at: it was made anew since. Look at its "
            "present state, then decide"
        )


def _in_words(decision: Decision) -> str:
    about = f" as release {decision.release}" if decision.release else ""
    return f"{DECIDED[decision.decision]}{about} by {decision.by} at {moment(decision.at)}"


def published_as(storage: Storage, place: Place, candidate: str) -> str | None:
    """Id of the release that a candidate was published as, or None."""
    released = storage.read(place, "released")
    return released.facts["release_id"] if released and released.facts["candidate"] == candidate else None


def sealed_contract(storage: Storage, place: Place) -> DataContract:
    """The contract of the last run. Raises `ReleaseRefused` before the first run."""
    raw = storage.read(place, "raw")
    if raw is None:
        raise ReleaseRefused(f"{place.label}: nothing was run yet; start with: dpsynth run {place.arguments}")
    return DataContract.model_validate(raw.facts["contract"])


def _refusal(
    storage: Storage, place: Place, contract: DataContract, store: Ledger, runners: Sequence[str]
) -> tuple[str | None, bool]:
    """Why it cannot be released now, or None; and whether everything but its approvals is valid."""
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


def attack_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The attacks of an audit's report, in the columns of `AUDIT_HEADER`; a dash for what an older report lacks.

    What the claim allows is the limit at exactly that rate of false alarms, as in the report's summary.
    """
    from dpsynth_platform.audit.risk import frontier  # it imports numerical libraries

    def allowed(rate: float) -> float:
        return frontier(rate, report["claimed_epsilon"], report["delta"])

    return [_attack_row(attack, allowed) for attack in report["attacks"]]


def _attack_row(attack: Mapping[str, Any], allowed: Callable[[float], float]) -> tuple[str, ...]:
    rate, risk = attack["true_positive_rate"], attack.get("risk")
    bound = f"{attack['epsilon_lower_bound']:.2f} (most possible {attack['highest_bound']:.2f})"
    if risk is None:
        rates, area = ("-", _interval(rate), "-"), f"{attack['area_under_curve']:.3f}"
    else:
        few, one, ten = risk["rates"]
        rates = (
            f"{few['found']['value']:.3f}" if few["resolved"] else "too few canaries",
            f"{_interval(one['found'])}; {allowed(one['false_positive_rate']):.3f}",
            f"{ten['found']['value']:.3f}",
        )
        area = _interval(risk["area_under_curve"])
    name = attack["name"] if attack.get("decides", True) else f"{attack['name']} (does not decide)"
    return (name, attack["target"], attack.get("fault") or bound, *rates, area)


def _interval(rate: dict[str, float]) -> str:
    return f"{rate['value']:.3f} ({rate['low']:.3f} to {rate['high']:.3f})"
