"""The evidence check: what a release rests on, re-read and hashed again just before publication.

What belongs here: the candidate that an approval names, refusing a release whose evidence is missing, stale, changed or
not approved, and the privacy statement from the ledger. What does not: writing evidence. Nothing here reads a row.

A model may expire before its candidate is decided. The ledger's digest then replaces it if the chain records two facts:
the sweep deleted the model because it had expired, and this candidate was complete before. Completeness was recorded
after every output, including the model, had been read. So deleting a model stops its release, and no other step can be
replaced while the model that would contradict it is missing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import LedgerError, ReleaseRefused, StaleInput
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.people import same_person
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.storage import (
    AUDITED,
    MODELS,
    STEPS,
    Place,
    StepRecord,
    Storage,
    digest_directory,
    steps_of,
)
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import ChainEvent, Decision, Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle.retention import EXPIRED
from dpsynth_platform.lineage.clearance import CLEARANCE, Clearance
from dpsynth_platform.synth.planning import audited_key, mechanism_keys
from dpsynth_platform.synth.tabular.missing import check_missing, read_missing
from dpsynth_platform.worker.inputs import NO_CANARIES, claimed_canaries

if TYPE_CHECKING:
    from dpsynth_platform.privacy.statement import PrivacyStatement, RelatedMechanisms

SPENT = "spent"
APPROVE = "approve"
REFUSE = "refuse"
WITHDRAW = "withdraw"
AUDIT_REPORT = "report.json"
_UNDECLARED: dict[str, Any] = {"gates": None, "rate_limits": [], "cumulative": "gate"}
"""Defaults of audit terms. Reports of earlier versions do not name them."""
_NEW_RUN = "a new version of the source, or a changed contract, is a new run with a cost of its own"
_CLEAR_AGAIN = "clear it again, which spends nothing, and have it approved again: dpsynth run {}"
EVIDENCE_STEPS = ("raw", "clearance", "model", "synthetic", "audit")
"""Steps that every candidate rests on. A contract with a separate audit model adds that model (`evidence_steps`)."""


@dataclass(frozen=True)
class Candidate:
    """What could be released: exact content with all that it rests on. An approval names its digest.

    The clearance's hash is included, so that an approval covers what was known of earlier mechanisms. All hashes are
    restricted; the public dossier has commitments to them. `audited_*` belong to a separate audit model.
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
        """SHA-256 (hex) over all fields."""
        named = asdict(self)
        for name in ("audited_entry_id", "audited_hash"):
            if named[name] is None:  # absent from digests that were approved before the fields existed
                del named[name]
        return canonical_digest(named)


@dataclass(frozen=True)
class CheckedEvidence:
    """Evidence that passed the check.

    Attributes:
        records: the steps' records as they were checked. Publish from these: the current ones may have changed.
        runners: everybody who ran a step or asked for the entry.
        approvals: those that count, in order; empty if only the content was checked.
        edition: number of this publication of the content; every earlier one was withdrawn.
    """

    candidate: Candidate
    records: Mapping[str, StepRecord]
    entry: Entry
    audit_report: dict[str, Any]
    clearance: Clearance
    runners: tuple[str, ...] = ()
    approvals: tuple[Decision, ...] = ()
    edition: int = 1


def candidate_of(
    storage: Storage, place: Place, contract: DataContract, ledger: Ledger, *, read: bool = True
) -> Candidate:
    """The current candidate in storage, with content hashes computed from the files.

    If not `read`, hashes are taken from the records: enough for lists, not for decisions. `contract` is the snapshot
    that `raw` sealed. Raises `ReleaseRefused` if a record or an output is missing, changed, or made from other inputs.
    """
    return _gathered(storage, place, contract, ledger, read=read)[1]


def evidence_steps(contract: DataContract) -> tuple[str, ...]:
    """The steps whose records a candidate of this contract rests on."""
    return (*EVIDENCE_STEPS, *([AUDITED] if contract.separate_audit_model else []))


def line_steps(contract: DataContract) -> tuple[str, ...]:
    """The steps of this contract's line, in order."""
    federated = contract.source.federation is not None
    return steps_of(separate_audit_model=contract.separate_audit_model, federated=federated)


def _gathered(
    storage: Storage, place: Place, contract: DataContract, ledger: Ledger, *, read: bool = True
) -> tuple[dict[str, StepRecord], Candidate]:
    expired: dict[str, ChainEvent] = {}
    records = {}
    for step in evidence_steps(contract):
        record = _required(storage, place, step)
        expiry = _expiry(storage, place, record, ledger) if step in MODELS else None
        if expiry is None:
            _check_output(storage, place, record, read=read)
        else:
            expired[step] = expiry
        records[step] = record
    for record in records.values():
        _check_links(place, record, records)
    if not expired:
        _check_training(place, contract, records)
    candidate = _candidate(place, contract, records)
    if expired:
        _check_complete_before(place, candidate, expired, ledger)
    return records, candidate


def _expiry(storage: Storage, place: Place, record: StepRecord, ledger: Ledger) -> ChainEvent | None:
    """The event of the sweep that deleted a model because it had expired; None if there is none or the model exists."""
    if record.path is None or storage.exists(record):
        return None
    payload = {"step": record.step, "output": Path(record.path).name, "reason": EXPIRED}
    events = ledger.history(kinds=[chain.PURGED], subject=place.label)
    return next((event for event in events if event.payload == payload), None)


def _check_complete_before(
    place: Place, candidate: Candidate, expired: Mapping[str, ChainEvent], ledger: Ledger
) -> None:
    """Refuses a candidate that was not recorded as complete before its model expired."""
    recorded = [
        event.sequence
        for event in ledger.history(kinds=[chain.CANDIDATE], subject=candidate.digest)
        if event.payload.get("entry") == candidate.entry_id
    ]
    for step, expiry in expired.items():
        if not any(sequence < expiry.sequence for sequence in recorded):
            raise ReleaseRefused(
                f"{place.label}/{step} has expired, and the present candidate was not complete before, so that it "
                f"cannot be checked; {_NEW_RUN}"
            )


def _check_training(place: Place, contract: DataContract, records: Mapping[str, StepRecord]) -> None:
    """The audit was made with the canaries that its model claims to be trained with."""
    attacked = "audited model" if contract.separate_audit_model else "model"
    planted = _trained_with(place, records[AUDITED if contract.separate_audit_model else "model"])
    if records["audit"].inputs.get("canaries") != planted:
        raise ReleaseRefused(f"{place.label}/audit was made with other canaries than the {attacked} was trained with")
    if contract.separate_audit_model and _trained_with(place, records["model"]) != NO_CANARIES:
        raise ReleaseRefused(
            f"{place.label}/model was trained with canaries; accepted: canaries in {AUDITED} alone "
            "(audit.model: separate)"
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
            f"{place.label}: {AUDITED} names another entry than clearance, or another plan than model; run the line "
            "again"
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


def check_evidence(
    storage: Storage, place: Place, contract: DataContract, ledger: Ledger, *, runners: Collection[str]
) -> CheckedEvidence:
    """Re-reads all evidence of the present candidate and checks the conditions of its contract, the snapshot of `raw`.

    `runners` are all who ran a step; none of them can approve it. Raises `ReleaseRefused` for evidence that is missing,
    stale, of other content, failed or not approved.
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
    """Raises `ReleaseRefused` if the present decisions no longer include the approvals that the dossier names."""
    counted = check_approvals(place, contract, decisions, checked.runners)
    if _edition(decisions) != checked.edition or not all(item in counted for item in checked.approvals):
        raise ReleaseRefused(
            f"{place.label}: its approvals changed during publication; materialize {place.label}/released again"
        )


def check_approvals(
    place: Place, contract: DataContract, decisions: Sequence[Decision], runners: Collection[str]
) -> tuple[Decision, ...]:
    """The approvals of a candidate that count, if they are as many as its contract (the snapshot of `raw`) asks for.

    `decisions` are all on the candidate, in order (`Ledger.approvals`); `runners` all who ran a step or asked for the
    entry. Raises `ReleaseRefused` for too few approvals, or a later refusal or withdrawal.
    """
    last = _last_objection(decisions)
    counted = standing_approvals(decisions, runners)
    withdrawn = _withdrawals(decisions)
    # Publishing withdrawn content again needs an approval even if the contract asks for none.
    needed = max(contract.release.approvals, 1 if withdrawn else 0)
    if last >= 0 and not counted:
        objection = decisions[last]
        if objection.decision == WITHDRAW:
            raise ReleaseRefused(
                f"{place.label}: this content was withdrawn as release {objection.release} at {objection.at}, and not "
                f"approved since; to publish it again: dpsynth release approve {place.arguments} --after-withdrawal"
            )
        raise ReleaseRefused(
            f"{place.label}: refused by {objection.by} at {moment(objection.at)}, and not approved since"
        )
    if len(counted) < needed:
        raise ReleaseRefused(
            f"{place.label}: {len(counted)} of {needed} approvals are recorded for this content by people who did not "
            f"run it; approve with: dpsynth release approve {place.arguments} --as NAME"
            + (" --after-withdrawal" if withdrawn else "")
        )
    return counted


def check_content(storage: Storage, place: Place, contract: DataContract, ledger: Ledger) -> CheckedEvidence:
    """What `check_evidence` checks, except the approvals. Raises like it."""
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
            f"{place.label}/audit attacked another model than the contract's audit.model asks for; materialize "
            f"{place.label}/audit again"
        )
    _check_missing(place, contract, records["synthetic"])
    return CheckedEvidence(candidate, records, entry, report, clearance_of(place, records["clearance"]))


def clearance_of(place: Place, record: StepRecord) -> Clearance:
    """The clearance in a step's record. Raises `ReleaseRefused` if an earlier version made a record without it."""
    try:
        return Clearance.from_json(record.facts[CLEARANCE])
    except (KeyError, TypeError):
        raise ReleaseRefused(
            f"{place.label}/clearance: its record does not contain its findings; {_CLEAR_AGAIN.format(place.arguments)}"
        ) from None


def check_new_findings(place: Place, before: Clearance, now: Clearance) -> None:
    """Refuses a release if a new clearance (`now`) refuses it, or finds more than the approved one (`before`).

    Also if it is of other public bases, as where another model draws the pictures.
    """
    if now.decision == "refuse":
        raise ReleaseRefused(f"{place.label}: it would not be cleared any more: {now.reason}")
    new = now.new_findings(before)
    if new:
        more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
        raise ReleaseRefused(
            f"{place.label}: found since its clearance: {new[0].words}{more}; {_CLEAR_AGAIN.format(place.arguments)}"
        )
    if not now.is_of_bases_of(before):
        raise ReleaseRefused(
            f"{place.label}: it starts from other public bases than its clearance names; "
            f"{_CLEAR_AGAIN.format(place.arguments)}"
        )


def standing_approvals(decisions: Sequence[Decision], runners: Collection[str] = ()) -> tuple[Decision, ...]:
    """The approvals of one candidate that count.

    Those after the last refusal or withdrawal, one per person, none by a runner or by a person who withdrew it.
    """
    excluded = [*runners, *(item.by for item in _withdrawals(decisions))]
    counted: list[Decision] = []
    for item in decisions[_last_objection(decisions) + 1 :]:
        known = (*excluded, *(earlier.by for earlier in counted))
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
    """The privacy statement of a release that an entry pays for, with every other mechanism started on the dataset.

    The mechanism that trains the run's separate audit model belongs to the statement and is not one of the others. All
    others count, in any period and order: each may have influenced the parameters, or which result is released.
    """
    from dpsynth_platform.privacy.statement import NO_RELATED_MECHANISMS, Tuning, privacy_statement, words_of

    entry = ledger.entry(entry_id)
    started = [
        item.key
        for item in ledger.entries(entry.family)
        if item.request.dataset == entry.request.dataset and item.started_at is not None
    ]
    own_keys = mechanism_keys(contract, entry.key)
    own_starts = sum(started.count(key) for key in own_keys)
    return privacy_statement(
        contract,
        family,
        entry.request.event,
        words_of(method, entry.request.event),
        tuning=Tuning(len(started) - own_starts),
        attempts=own_starts - (len(own_keys) - 1),
        related=_related_mechanisms(cleared) if cleared else NO_RELATED_MECHANISMS,
    )


def _related_mechanisms(cleared: Clearance) -> RelatedMechanisms:
    from dpsynth_platform.privacy.statement import RelatedMechanisms

    upstream = {item.entry for item in cleared.findings if item.kind == "base-model"}
    return RelatedMechanisms(
        families=cleared.families,
        base_model=bool(cleared.base_model),
        other_bases=any(base.kind not in ("checkpoint", "package") for base in cleared.bases),
        declared=cleared.declared,
        upstream=len(upstream),
        claims=cleared.unproven,
        unverified_models=cleared.unverified_models,
        promises=cleared.promises,
    )


def candidate_runners(storage: Storage, place: Place) -> tuple[str, ...]:
    """Everybody who ran a step of the present candidate's run: none of them can approve it.

    Includes earlier runners of a step, so that a second person's run does not make the first eligible.
    """
    records = (storage.read(place, step) for step in STEPS if step != "released")
    return tuple(sorted({name for record in records if record is not None for name in record.runners}))


def audit_report(place: Place, record: StepRecord) -> dict[str, Any]:
    """The audit's `report.json`. Raises `ReleaseRefused` if it cannot be read."""
    try:
        report = json.loads((record.directory / AUDIT_REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError, StaleInput) as error:
        raise ReleaseRefused(f"{place.label}/audit: its report cannot be read ({reason_of(error)})") from None
    if not isinstance(report, dict):
        raise ReleaseRefused(f"{place.label}/audit: its report is not a JSON object")
    return report


def _required(storage: Storage, place: Place, step: str) -> StepRecord:
    try:
        raw = storage.require(place, "raw")
        return storage.require(place, step, run_key=raw.run_key)
    except StaleInput as error:
        raise ReleaseRefused(f"evidence is missing or stale: {error}") from None


def _check_output(storage: Storage, place: Place, record: StepRecord, *, read: bool) -> None:
    if record.step == "raw":
        return  # its rows may have expired; the evidence is the sealed contract and the run key
    if not storage.exists(record):
        raise ReleaseRefused(f"evidence is missing or stale: {_gone(storage, place, record)}")
    if not read:
        return
    content = canonical_digest(record.facts) if record.path is None else digest_directory(record.directory)
    if content != record.content_hash:
        raise ReleaseRefused(f"{place.label}/{record.step}: its content is not what was recorded; materialize it again")


def _gone(storage: Storage, place: Place, record: StepRecord) -> str:
    """The message for a missing output. A completed model, and what depends on it, cannot be made again."""
    where = f"{place.label}/{record.step}"
    if record.step in MODELS:
        return (
            f"{where}: its output is gone, and the ledger does not record that it expired (dpsynth ledger history); "
            "find out who deleted it, and restore it from a copy of the restricted zone; otherwise, "
            f"{_NEW_RUN}"
        )
    model = storage.read(place, "model")
    if model is None or storage.exists(model):
        return f"{where}: its output is gone (expired, or deleted); materialize {where} again"
    return f"{where}: its output is gone (expired, or deleted), and so is the model that it was made of; {_NEW_RUN}"


def _check_links(place: Place, record: StepRecord, records: dict[str, StepRecord]) -> None:
    """Checks that a step was made from the present records."""
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


def _check_entry(place: Place, entry_id: str, plan_digest: str, model_hash: str, ledger: Ledger) -> Entry:
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
            "state in audit.accept_inconclusive why that is acceptable, which spends nothing, or change what the "
            f"reasons name; more canaries (dpsynth plan {place.arguments} may estimate how many) need a new run with "
            "a cost of its own"
        ),
    }.get(str(verdict), "materialize the audit again")
    raise ReleaseRefused(
        f"{place.label}/audit: the verdict is {verdict!r}, not 'pass'; {way_out}; the reasons: dpsynth audit show "
        f"{place.arguments}"
    )


def _check_missing(place: Place, contract: DataContract, synthetic: StepRecord) -> None:
    """Checks the contract's limit of missing values again, on the file that the rows' content hash covers."""
    limit = contract.release.max_missing
    if limit is None:
        return
    shares = read_missing(synthetic.directory)
    if shares is None:
        raise ReleaseRefused(
            f"{place.label}/synthetic does not record how many values were missing, which release.max_missing limits; "
            f"materialize {place.label}/synthetic again, which spends nothing"
        )
    check_missing(place.label, shares, limit)


def _edition(decisions: Sequence[Decision]) -> int:
    return 1 + len(_withdrawals(decisions))


def _withdrawals(decisions: Sequence[Decision]) -> list[Decision]:
    return [item for item in decisions if item.decision == WITHDRAW]


def _last_objection(decisions: Sequence[Decision]) -> int:
    """Index of the last refusal or withdrawal, or -1."""
    return max((index for index, item in enumerate(decisions) if item.decision != APPROVE), default=-1)
