"""Publishing a candidate: evidence for the dossier, announcing it in register and ledger, copies in targets.

What belongs here: what the step `released` collects. What does not: the rules of evidence and the form of a release
(`release`).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import PublicationFailed
from dpsynth_platform.foundation.release_layout import SINGLE
from dpsynth_platform.foundation.storage import (
    AUDITED,
    KEPT_SETTING,
    TEXTS_DRAWN,
    TOOK_PART,
    read_beside_rows,
    read_table,
    table_schema,
)
from dpsynth_platform.ledger.chain import STARTED
from dpsynth_platform.lineage import naming
from dpsynth_platform.operations.step import StepContext
from dpsynth_platform.release.budget import budget_shares
from dpsynth_platform.release.commitments import NonceBook
from dpsynth_platform.release.dossier import (
    CANDIDATE,
    Approval,
    Evidence,
    LineageStep,
    clearance_summary,
    software_versions,
)
from dpsynth_platform.release.evidence import CheckedEvidence, check_unchanged
from dpsynth_platform.release.paid import read_paid
from dpsynth_platform.release.publish import Published, TableRows
from dpsynth_platform.release.register import Register
from dpsynth_platform.release.target_files import SignedRelease
from dpsynth_platform.release.targets import put
from dpsynth_platform.synth.tabular.measured import read_measured
from dpsynth_platform.synth.tabular.missing import read_missing

if TYPE_CHECKING:
    from dpsynth_platform.privacy.statement import PrivacyStatement


def announce(step: StepContext, contract: DataContract, checked: CheckedEvidence, directory: Path) -> None:
    """Records the prepared publication, or refuses it: every public release can be found and withdrawn."""
    Register(step.storage.root).note(directory.name, directory, contract.owners)
    step.ledger.release(
        directory.name,
        candidate=checked.candidate.digest,
        entry_id=checked.candidate.entry_id,
        check=lambda decisions: check_unchanged(step.place, contract, checked, decisions),
    )


def tables_of(contract: DataContract, directory: Path) -> dict[str, TableRows]:
    """The tables of a candidate: one Delta table, or one of each linked table below `directory`."""
    names = [*contract.linked.private, *contract.linked.lookups] if contract.tables else [SINGLE]
    places = {name: directory / name for name in names}
    return {name: TableRows(table_schema(place), read_table(place)) for name, place in places.items()}


def copy_to_targets(step: StepContext, contract: DataContract, made: Published) -> None:
    """Copies a published release into the targets of its contract.

    Raises `PublicationFailed` after all were tried, with a line for each that does not hold it. The release stays
    published, and the next run completes the rest.
    """
    if not contract.release.publish:
        return
    release, register = SignedRelease.of(made, contract.dataset, step.place.period), Register(step.storage.root)
    failed = []
    for target in contract.release.publish:
        try:
            new = put(target, release, note=partial(register.note_target, made.release_id))
        except PublicationFailed as error:
            failed.append(str(error))
        else:
            step.progress(f"release {made.release_id} is {'now' if new else 'already'} in {target.place}")
    if failed:
        raise PublicationFailed("\n".join(failed))


def evidence_of(
    step: StepContext,
    upstream: Sequence[str],
    contract: DataContract,
    checked: CheckedEvidence,
    statement: PrivacyStatement,
) -> Evidence:
    """The content of the dossier; restricted content by commitment only."""
    candidate, raw = checked.candidate, checked.records["raw"]
    commitments = NonceBook(step.storage.root / "nonces").commit_all(
        {
            CANDIDATE: candidate.digest,
            "model": candidate.model_hash,
            "synthetic": candidate.synthetic_hash,
            "run": candidate.run_key,
            **({} if candidate.audited_hash is None else {AUDITED: candidate.audited_hash}),
        },
        edition=checked.edition,
    )
    audit = checked.records["audit"].directory
    own = {candidate.entry_id, *([] if candidate.audited_entry_id is None else [candidate.audited_entry_id])}
    return Evidence(
        contract=contract,
        family=step.family,
        period=step.place.period,
        created_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        guarantee=statement.guarantee,
        accounting=statement.accounting["type"],
        statement=statement.to_json(),
        plain_words=statement.plain_words(),
        plan_digest=candidate.plan_digest,
        method=candidate.method,
        why_method=raw.facts["why_method"],
        ledger_entry=candidate.entry_id,
        ledger_head=step.ledger.head(),
        clearance=clearance_summary(checked.clearance),
        expected_errors=raw.facts["expected_errors"],
        lineage=_lineage(step, upstream),
        upstream=checked.clearance.upstream,
        audit_report=checked.audit_report,
        audit_plots={
            "Can an attacker tell which canaries were in?": (audit / "roc.svg").read_text(encoding="utf-8"),
            "Scores of the canaries": (audit / "scores.svg").read_text(encoding="utf-8"),
        },
        approvals=tuple(Approval(item.by, item.at) for item in checked.approvals),
        commitments=commitments,
        software=software_versions(),
        texts=_texts_drawn(checked.records["synthetic"].directory),
        missing=read_missing(checked.records["synthetic"].directory) or (),
        measured=read_measured(checked.records["synthetic"].directory),
        paid=read_paid(checked.records["synthetic"].directory),
        budget=budget_shares(
            step.ledger.account(step.family.family),
            step.ledger.entries(step.family.family),
            [event.subject for event in step.ledger.history(kinds=[STARTED])],
            own,
        ),
        kept=_kept_setting(checked.records["synthetic"].directory),
        took_part=read_beside_rows(checked.records["synthetic"].directory / TOOK_PART, dict),
    )


def _kept_setting(synthetic: Path) -> int | None:
    """The setting whose model the rows are of, as the step that drew them recorded it; None where there is one only."""
    found = read_beside_rows(synthetic / KEPT_SETTING, dict)
    return None if found is None else int(found["candidate"])


def _texts_drawn(synthetic: Path) -> dict[str, Any] | None:
    """The outcome of drawing texts, which the candidate's content hash covers; None without texts."""
    try:
        found: dict[str, Any] = json.loads((synthetic / TEXTS_DRAWN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def _lineage(step: StepContext, upstream_of_release: Sequence[str]) -> tuple[LineageStep, ...]:
    """The steps of the release by their lineage runs, without the quality report, which no dossier contains."""
    steps = []
    for name, upstream in step.line.items():
        record = step.storage.read(step.place, name)
        if record is not None and name not in ("quality", "released"):
            job = naming.job_name(step.place.dataset, name)
            steps.append(LineageStep(name, job, record.lineage_run, upstream))
    inputs = tuple(name for name in upstream_of_release if name != "quality")
    return (*steps, LineageStep("released", step.run.job_name, step.run.run_id, inputs))
