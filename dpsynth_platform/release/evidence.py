"""The evidence check: what a release rests on, re-read and hashed again just before publication.

What belongs here: what an approval names (the candidate), refusing a release whose evidence is missing, stale, of other
content, or not approved, and the privacy statement as the ledger bears it out. What does not: writing any of the
evidence. Nothing here reads a row.

A model may expire before its candidate is decided. Its digest, which the ledger keeps, stands for it then, where the
chain says two things: that the sweep deleted the model because its time was up, and that this very candidate was
complete before, which was recorded after all of it had been read, the model included. So whoever deletes a model stops
its release, and nothing can be made anew, or exchanged, in the absence of a model that would contradict it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import LedgerError, ReleaseRefused, StaleInput
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.people import same_person
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.storage import AUDITED, MODELS, STEPS, Place, StepRecord, Storage, digest_directory
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import ChainEvent
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle.retention import EXPIRED
from dpsynth_platform.lineage.clearance import CLEARANCE, Clearance
from dpsynth_platform.synth.planning import audited_key, mechanism_keys
from dpsynth_platform.synth.tabular.missing import check_missing, read_missing
from dpsynth_platform.worker.inputs import NO_CANARIES, claimed_canaries

if TYPE_CHECKING:
    from dpsynth_platform.privacy.statement import Elsewhere, PrivacyStatement

SPENT = "spent"
APPROVE = "approve"
REFUSE = "refuse"
WITHDRAW = "withdraw"
AUDIT_REPORT = "report.json"
_UNDECLARED: dict[str, Any] = {"gates": None, "rate_limits": [], "cumulative": "gate"}
"""Terms of an audit where the contract declares no others; a report from before there was a choice does not name them.
"""
_NEW_RUN = "a new version of the source, or a changed contract, is a new run with a cost of its own"
_CLEAR_AGAIN = "clear it again, which spends nothing, and have it approved anew: dpsynth run {}"
EVIDENCE_STEPS = ("raw", "clearance", "model", "synthetic", "audit")
"""Steps whose records every candidate rests on; with a model that was trained apart for the audit, that one's, too."""


class Request(Protocol):
    """What the check reads of an entry's request."""

    @property
    def runner(self) -> str:
        """Who asked for it."""


class LedgerEntry(Protocol):
    """What the check reads of a ledger entry."""

    @property
    def state(self) -> str:
        """Where it stands; only `spent` will do."""

    @property
    def key(self) -> str:
        """Names the run, and in it the mechanism."""

    @property
    def plan_digest(self) -> str:
        """Digest of the plan that it pays for."""

    @property
    def request(self) -> Request:
        """What was asked for, by whom."""

    @property
    def model_digest(self) -> str | None:
        """Content hash of the model that it paid for."""


class Decision(Protocol):
    """A recorded word on one candidate, or on a release of it."""

    @property
    def decision(self) -> str:
        """`approve`, `refuse` or `withdraw`."""

    @property
    def release(self) -> str | None:
        """Id of the release that is withdrawn."""

    @property
    def by(self) -> str:
        """Who decided."""

    @property
    def at(self) -> str:
        """When, ISO 8601."""


class LedgerReads(Protocol):
    """The part of the ledger that the check needs."""

    def entry(self, entry_id: str) -> LedgerEntry:
        """One entry; raises `LedgerError` if there is none."""

    def approvals(self, candidate: str, entry_id: str) -> Sequence[Decision]:
        """Approvals of a candidate, and refusals and withdrawals of what its entry paid for, in the order of record."""

    def history(self, *, kinds: Iterable[str] | None = None, subject: str | None = None) -> Sequence[ChainEvent]:
        """Events of the chain, in order."""


_Decision = TypeVar("_Decision", bound=Decision)


@dataclass(frozen=True)
class Candidate:
    """What could be released: exact content with all that it rests on. An approval names its digest.

    Attributes:
        clearance_hash: content hash of what was known of earlier mechanisms: who approves it, approves it with that.
        model_hash, synthetic_hash, audit_hash: content hashes of the three outputs. Restricted: the public dossier
            carries commitments to them.
        audited_entry_id, audited_hash: the same of the model that was trained apart for the audit, where one was.
    """

    dataset: str
    period: str | None
    run_key: str
    contract_digest: str
    plan_digest: str
    entry_id: str
    method: str
    clearance_hash: str
    model_hash: str
    synthetic_hash: str
    audit_hash: str
    audited_entry_id: str | None = None
    audited_hash: str | None = None

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over all of it."""
        named = asdict(self)
        for name in ("audited_entry_id", "audited_hash"):
            if named[name] is None:  # as it was before there was a choice, so that approvals stay good
                del named[name]
        return canonical_digest(named)


@dataclass(frozen=True)
class CheckedEvidence:
    """Evidence that held when it was checked.

    Attributes:
        records: the steps' records as they were checked. Publish from these: what is current may have changed since.
        audit_report: the audit's own report (canaries only).
        clearance: what the clearance found.
        runners: everybody who ran a step of it or asked for its entry.
        approvals: those that count, in order; none where only the content was checked.
        edition: which publication of this content it would be; every earlier one was withdrawn.
    """

    candidate: Candidate
    records: Mapping[str, StepRecord]
    entry: LedgerEntry
    audit_report: dict[str, Any]
    clearance: Clearance
    runners: tuple[str, ...] = ()
    approvals: tuple[Decision, ...] = ()
    edition: int = 1


def candidate_of(
    storage: Storage, place: Place, contract: DataContract, ledger: LedgerReads, *, read: bool = True
) -> Candidate:
    """The candidate as it lies in storage now, with content hashes computed from the files.

    Args:
        contract: the snapshot that `raw` sealed.
        ledger: is asked about a model that is gone.
        read: False: the hashes are those of the records, and files are only looked for. For lists; whoever decides or
            publishes reads them.

    Raises:
        ReleaseRefused: a record or an output is missing, changed after it was recorded, or made from other inputs.
    """
    return _gathered(storage, place, contract, ledger, read=read)[1]


def evidence_steps(contract: DataContract) -> tuple[str, ...]:
    """The steps whose records a candidate of this contract rests on."""
    return (*EVIDENCE_STEPS, *([AUDITED] if contract.separate_audit_model else []))


def _gathered(
    storage: Storage, place: Place, contract: DataContract, ledger: LedgerReads, *, read: bool = True
) -> tuple[dict[str, StepRecord], Candidate]:
    """The evidence's records, each with its content as it was recorded, and the candidate that they make."""
    expired: dict[str, ChainEvent] = {}
    records = {}
    for step in evidence_steps(contract):
        record = _required(storage, place, step)
        ended = _expiry(storage, place, record, ledger) if step in MODELS else None
        if ended is None:
            _check_output(storage, place, record, read=read)
        else:
            expired[step] = ended
        records[step] = record
    for record in records.values():
        _check_links(place, record, records)
    if expired:
        candidate = _candidate(place, contract, records)
        _check_recorded(place, candidate, expired, ledger)
        return records, candidate
    _check_training(place, contract, records)
    return records, _candidate(place, contract, records)


def _expiry(storage: Storage, place: Place, record: StepRecord, ledger: LedgerReads) -> ChainEvent | None:
    """The sweep's word that a model's time was up; None where the model is there, or nobody knows where it is."""
    if record.path is None or storage.exists(record):
        return None
    said = {"step": record.step, "output": Path(record.path).name, "reason": EXPIRED}
    events = ledger.history(kinds=[chain.PURGED], subject=place.label)
    return next((event for event in events if event.payload == said), None)


def _check_recorded(place: Place, candidate: Candidate, expired: Mapping[str, ChainEvent], ledger: LedgerReads) -> None:
    """In the absence of a model only what was complete in its presence is a candidate."""
    recorded = [
        event.sequence
        for event in ledger.history(kinds=[chain.CANDIDATE], subject=candidate.digest)
        if event.payload.get("entry") == candidate.entry_id
    ]
    for step, ended in expired.items():
        if not any(sequence < ended.sequence for sequence in recorded):
            raise ReleaseRefused(
                f"{place.label}/{step} has expired, and what is there now was no complete candidate before, so that it "
                f"can be held against nothing; {_NEW_RUN}"
            )


def _check_training(place: Place, contract: DataContract, records: Mapping[str, StepRecord]) -> None:
    """The audit was made with the canaries that its model was trained with, by that model's own claim."""
    attacked = "audited model" if contract.separate_audit_model else "model"
    bait = _trained_with(place, records[AUDITED if contract.separate_audit_model else "model"])
    if records["audit"].inputs.get("canaries") != bait:
        raise ReleaseRefused(f"{place.label}/audit was made with other canaries than the {attacked} was trained with")
    if contract.separate_audit_model and _trained_with(place, records["model"]) != NO_CANARIES:
        raise ReleaseRefused(
            f"{place.label}/model was trained with canaries, which belong into {AUDITED} alone (audit.model: separate)"
        )


def _trained_with(place: Place, record: StepRecord) -> str:
    try:
        return claimed_canaries(record.directory)
    except StaleInput as error:
        raise ReleaseRefused(f"{place.label}/{record.step}: {error}") from None


def _candidate(place: Place, contract: DataContract, records: Mapping[str, StepRecord]) -> Candidate:
    clearance, model, audited = records["clearance"], records["model"], records.get(AUDITED)
    for fact in ("entry_id", "plan_digest"):
        if _fact(place, clearance, fact) != _fact(place, model, fact):
            raise ReleaseRefused(f"{place.label}: model and clearance do not name the same {fact}; run the line again")
    if audited is not None and (
        _fact(place, clearance, "audited_entry_id") != _fact(place, audited, "entry_id")
        or _fact(place, model, "plan_digest") != _fact(place, audited, "plan_digest")
    ):
        raise ReleaseRefused(
            f"{place.label}: {AUDITED} is not of the entry that clearance names, or of another plan than model; run "
            "the line again"
        )
    return Candidate(
        dataset=place.dataset,
        period=place.period,
        run_key=records["raw"].run_key,
        contract_digest=contract.digest(),
        plan_digest=_fact(place, model, "plan_digest"),
        entry_id=_fact(place, model, "entry_id"),
        method=_fact(place, records["raw"], "method"),
        clearance_hash=clearance.content_hash,
        model_hash=model.content_hash,
        synthetic_hash=records["synthetic"].content_hash,
        audit_hash=records["audit"].content_hash,
        audited_entry_id=None if audited is None else _fact(place, audited, "entry_id"),
        audited_hash=None if audited is None else audited.content_hash,
    )


def candidate_digest(storage: Storage, place: Place, contract: DataContract, ledger: LedgerReads) -> str:
    """What an approval of the present candidate names. Raises like `candidate_of`."""
    return candidate_of(storage, place, contract, ledger).digest


def check_evidence(
    storage: Storage, place: Place, contract: DataContract, ledger: LedgerReads, *, runners: Collection[str]
) -> CheckedEvidence:
    """Re-reads all evidence of the present candidate and holds it against the contract's conditions.

    Args:
        contract: the snapshot that `raw` sealed.
        runners: everybody who ran a step of this candidate; none of them can approve it.

    Raises:
        ReleaseRefused: names what is missing, stale, of other content, failed or not approved.
    """
    checked = check_content(storage, place, contract, ledger)
    decisions = ledger.approvals(checked.candidate.digest, checked.candidate.entry_id)
    everybody = (*runners, checked.entry.request.runner)
    return replace(
        checked,
        runners=everybody,
        approvals=check_approvals(place, contract, decisions, everybody),
        edition=_edition(decisions),
    )


def check_unchanged(
    place: Place, contract: DataContract, checked: CheckedEvidence, decisions: Sequence[Decision]
) -> None:
    """Refuses what was decided otherwise since it was checked: the dossier names approvals that count.

    Args:
        checked: the evidence as it was when the dossier was made.
        decisions: those on its candidate now.

    Raises:
        ReleaseRefused: it is not approved any more, or not by the same people.
    """
    counted = check_approvals(place, contract, decisions, checked.runners)
    if _edition(decisions) != checked.edition or not all(item in counted for item in checked.approvals):
        raise ReleaseRefused(
            f"{place.label}: its approvals have changed while it was made ready; materialize {place.label}/released "
            "again"
        )


def check_approvals(
    place: Place, contract: DataContract, decisions: Sequence[Decision], runners: Collection[str]
) -> tuple[Decision, ...]:
    """The approvals of a candidate that count, if they are as many as its contract asks for.

    Args:
        contract: the snapshot that `raw` sealed.
        decisions: all on the candidate, in order (`LedgerReads.approvals`).
        runners: everybody who ran a step of it or asked for its entry.

    Raises:
        ReleaseRefused: too few have approved, or somebody refused or withdrew it since.
    """
    last = _last_objection(decisions)
    counted = standing_approvals(decisions, runners)
    withdrawn = _withdrawals(decisions)
    # Where no approval is needed, bringing back what was withdrawn needs one all the same.
    needed = max(contract.release.approvals, 1 if withdrawn else 0)
    if last >= 0 and not counted:
        said = decisions[last]
        if said.decision == WITHDRAW:
            raise ReleaseRefused(
                f"{place.label}: this content was withdrawn as release {said.release} at {said.at}, and not approved "
                f"since; if it is to be published again: dpsynth release approve {place.arguments} --after-withdrawal"
            )
        raise ReleaseRefused(f"{place.label}: refused by {said.by} at {moment(said.at)}, and not approved since")
    if len(counted) < needed:
        raise ReleaseRefused(
            f"{place.label}: {len(counted)} of {needed} approvals are recorded for this content by people who did not "
            f"run it; approve with: dpsynth release approve {place.arguments}"
            + (" --after-withdrawal" if withdrawn else "")
        )
    return counted


def check_content(storage: Storage, place: Place, contract: DataContract, ledger: LedgerReads) -> CheckedEvidence:
    """All that `check_evidence` checks but the approvals: whether a reviewer has anything to decide on.

    Raises:
        ReleaseRefused: names what is missing, stale, of other content or failed.
    """
    records, candidate = _gathered(storage, place, contract, ledger)
    entry = _check_entry(place, candidate.entry_id, candidate.plan_digest, candidate.model_hash, ledger)
    if candidate.audited_entry_id is not None and candidate.audited_hash is not None:
        audited = _check_entry(place, candidate.audited_entry_id, candidate.plan_digest, candidate.audited_hash, ledger)
        if audited.key != audited_key(candidate.run_key):
            raise ReleaseRefused(
                f"{place.label}: ledger entry {candidate.audited_entry_id} pays for another mechanism than the one "
                "that this run's audit needs"
            )
    report = audit_report(place, records["audit"])
    _check_audit(place, contract, report)
    if (report.get("apart") or {}).get("entry") != candidate.audited_entry_id:
        raise ReleaseRefused(
            f"{place.label}/audit says that it attacked another model than the one that the contract's audit.model "
            f"asks for; materialize {place.label}/audit again"
        )
    _check_missing(place, contract, records["synthetic"])
    return CheckedEvidence(candidate, records, entry, report, clearance_of(place, records["clearance"]))


def clearance_of(place: Place, record: StepRecord) -> Clearance:
    """What a clearance's record found.

    Raises:
        ReleaseRefused: it does not say; an earlier version of the platform made it.
    """
    try:
        return Clearance.from_json(record.facts[CLEARANCE])
    except (KeyError, TypeError):
        raise ReleaseRefused(
            f"{place.label}/clearance: its record does not say what it found; {_CLEAR_AGAIN.format(place.arguments)}"
        ) from None


def check_news(place: Place, before: Clearance, now: Clearance) -> None:
    """Refuses a release of which more is known by now than its clearance knew.

    Args:
        before: what the clearance found, which is what reviewers approved.
        now: the same question, asked again.

    Raises:
        ReleaseRefused: it would not be cleared any more, or something was found since.
    """
    if now.decision == "refuse":
        raise ReleaseRefused(f"{place.label}: it would not be cleared any more: {now.reason}")
    news = now.news(before)
    if news:
        more = f" (and {len(news) - 1} more)" if len(news) > 1 else ""
        raise ReleaseRefused(
            f"{place.label}: found since its clearance: {news[0].words}{more}; {_CLEAR_AGAIN.format(place.arguments)}"
        )


def standing_approvals(decisions: Sequence[_Decision], runners: Collection[str] = ()) -> tuple[_Decision, ...]:
    """The approvals of one candidate that count.

    Those after the last refusal and the last withdrawal, one a person, none by a runner or by whoever withdrew.
    """
    out = [*runners, *(item.by for item in _withdrawals(decisions))]
    counted: list[_Decision] = []
    for item in decisions[_last_objection(decisions) + 1 :]:
        known = (*out, *(earlier.by for earlier in counted))
        if item.decision == APPROVE and not any(same_person(item.by, name) for name in known):
            counted.append(item)
    return tuple(counted)


def statement_of(
    contract: DataContract,
    family: FamilyBudget,
    ledger: Ledger,
    entry_id: str,
    method: str,
    cleared: Clearance | None = None,
) -> PrivacyStatement:
    """What a release that an entry pays for promises, with every other mechanism that was started on the dataset.

    A second mechanism of the same run, whose model was audited, is part of what is promised and no other one.

    Any of the others may have been why this one has the parameters that it has, or is the one that is released. So all
    count, in whatever period and order.

    Args:
        cleared: what the release's clearance found of mechanisms on the same people elsewhere.
    """
    from dpsynth_platform.privacy.statement import NOWHERE, Tuning, privacy_statement, words_of

    entry = ledger.entry(entry_id)
    started = [
        item.key
        for item in ledger.entries(entry.family)
        if item.request.dataset == entry.request.dataset and item.started_at is not None
    ]
    own = mechanism_keys(contract, entry.key)
    mine = sum(started.count(key) for key in own)
    attempts = mine - (len(own) - 1)
    tuning = Tuning(len(started) - mine)
    words = words_of(method, entry.request.event)
    return privacy_statement(
        contract,
        family,
        entry.request.event,
        words,
        tuning=tuning,
        attempts=attempts,
        elsewhere=_elsewhere(cleared) if cleared else NOWHERE,
    )


def _elsewhere(cleared: Clearance) -> Elsewhere:
    from dpsynth_platform.privacy.statement import Elsewhere

    upstream = {item.entry for item in cleared.findings if item.kind == "base-model"}
    return Elsewhere(
        families=cleared.families,
        base_model=bool(cleared.base_model),
        declared=cleared.declared,
        upstream=len(upstream),
        claims=cleared.unproven,
        hearsay=cleared.hearsay,
        promises=cleared.promises,
    )


def candidate_runners(storage: Storage, place: Place) -> tuple[str, ...]:
    """Everybody who ran a step of the present candidate's run: none of them can approve it.

    Also who ran one that somebody else has run again since: otherwise a second person's run would make it anybody's.
    """
    records = (storage.read(place, step) for step in STEPS if step != "released")
    return tuple(sorted({name for record in records if record is not None for name in record.runners}))


def audit_report(place: Place, record: StepRecord) -> dict[str, Any]:
    """The audit's report: `report.json` in its output directory.

    Raises:
        ReleaseRefused: there is none.
    """
    try:
        report = json.loads((record.directory / AUDIT_REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError, StaleInput) as error:
        raise ReleaseRefused(f"{place.label}/audit: its report cannot be read ({reason_of(error)})") from None
    if not isinstance(report, dict):
        raise ReleaseRefused(f"{place.label}/audit: its report is not a JSON object")
    return report


def _required(storage: Storage, place: Place, step: str) -> StepRecord:
    """One step's record, of the present run."""
    try:
        raw = storage.require(place, "raw")
        return storage.require(place, step, run_key=raw.run_key)
    except StaleInput as error:
        raise ReleaseRefused(f"evidence is missing or stale: {error}") from None


def _check_output(storage: Storage, place: Place, record: StepRecord, *, read: bool) -> None:
    """What a step left is there with the content that was recorded."""
    if record.step == "raw":
        return  # its rows may have expired; what counts of it is the sealed contract and the run key
    if not storage.exists(record):
        raise ReleaseRefused(f"evidence is missing or stale: {_gone(storage, place, record)}")
    if not read:
        return
    content = canonical_digest(record.facts) if record.path is None else digest_directory(record.directory)
    if content != record.content_hash:
        raise ReleaseRefused(f"{place.label}/{record.step}: its content is not what was recorded; materialize it again")


def _gone(storage: Storage, place: Place, record: StepRecord) -> str:
    """That an output is gone, and what can be done: a completed model cannot be made again, nor what is made of it."""
    where = f"{place.label}/{record.step}"
    if record.step in MODELS:
        return (
            f"{where}: its output is gone, and not because its time was up, which the ledger would say (dpsynth ledger "
            "history); find out who deleted it, and put it back from a copy of the restricted zone; otherwise, "
            f"{_NEW_RUN}"
        )
    model = storage.read(place, "model")
    if model is None or storage.exists(model):
        return f"{where}: its output is gone (expired, or deleted); materialize {where} again"
    return f"{where}: its output is gone (expired, or deleted), and so is the model that it was made of; {_NEW_RUN}"


def _check_links(place: Place, record: StepRecord, records: dict[str, StepRecord]) -> None:
    """What a step was made from must be what is there now."""
    for step, content in record.inputs.items():
        if step in records and step != "raw" and records[step].content_hash != content:
            raise ReleaseRefused(
                f"{place.label}/{record.step} was made from another {step} than the present one; "
                f"materialize {place.label}/{record.step} again"
            )
    needed = {"synthetic": ("model",), "audit": ("model", "synthetic", AUDITED)}.get(record.step, ())
    for step in needed:
        if step in records and step not in record.inputs:
            raise ReleaseRefused(f"{place.label}/{record.step}: its record does not name the {step} it was made from")


def _fact(place: Place, record: StepRecord, name: str) -> str:
    value = record.facts.get(name)
    if not isinstance(value, str):
        raise ReleaseRefused(f"{place.label}/{record.step}: its record does not name {name}")
    return value


def _check_entry(place: Place, entry_id: str, plan_digest: str, model_hash: str, ledger: LedgerReads) -> LedgerEntry:
    try:
        entry = ledger.entry(entry_id)
    except LedgerError as error:
        raise ReleaseRefused(f"{place.label}: ledger entry {entry_id} cannot be read: {error}") from None
    where = f"{place.label}: ledger entry {entry_id}"
    if entry.state != SPENT:
        raise ReleaseRefused(f"{where} is {entry.state}, not {SPENT}; the mechanism has not completed")
    if entry.plan_digest != plan_digest:
        raise ReleaseRefused(f"{where} pays for another plan than the model was made by")
    if entry.model_digest != model_hash:
        raise ReleaseRefused(f"{where} pays for another model than the present one")
    return entry


def _check_audit(place: Place, contract: DataContract, report: dict[str, Any]) -> None:
    terms = _UNDECLARED | contract.audit_terms
    if any(report.get(name, _UNDECLARED.get(name)) != value for name, value in terms.items()):
        raise ReleaseRefused(
            f"{place.label}/audit was made on other terms (epsilon, delta, threshold, confidence, gates, limits) than "
            f"the contract's; materialize {place.label}/audit again"
        )
    verdict = report.get("verdict")
    if verdict == "pass" or (verdict == "inconclusive" and contract.audit.accept_inconclusive):
        return
    way_out = {
        "fail": "the model leaks more than it claims or than its contract accepts; do not release it",
        "inconclusive": (
            "say in audit.accept_inconclusive why that is acceptable, which spends nothing, or change what the reasons "
            f"name: more canaries (dpsynth plan {place.arguments} may know how many) are a new run with a cost of its "
            "own"
        ),
    }.get(str(verdict), "materialize the audit again")
    way_out += f"; the reasons: dpsynth audit show {place.arguments}"
    raise ReleaseRefused(f"{place.label}/audit: the verdict is {verdict!r}, not 'pass'; {way_out}")


def _check_missing(place: Place, contract: DataContract, synthetic: StepRecord) -> None:
    """The contract's limit of missing values, once more, on what the content hash of the rows covers."""
    limit = contract.release.max_missing
    if limit is None:
        return
    shares = read_missing(synthetic.directory)
    if shares is None:
        raise ReleaseRefused(
            f"{place.label}/synthetic does not say how many values were missing, which release.max_missing limits; "
            f"materialize {place.label}/synthetic again, which spends nothing"
        )
    check_missing(place.label, shares, limit)


def _edition(decisions: Sequence[Decision]) -> int:
    return 1 + len(_withdrawals(decisions))


def _withdrawals(decisions: Sequence[Decision]) -> list[Decision]:
    return [item for item in decisions if item.decision == WITHDRAW]


def _last_objection(decisions: Sequence[Decision]) -> int:
    """Place of the last refusal or withdrawal, or -1."""
    return max((index for index, item in enumerate(decisions) if item.decision != APPROVE), default=-1)
