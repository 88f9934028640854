"""released: the evidence is read once more, and the candidate becomes a release.

What belongs here: collecting evidence, having it checked, publishing. What does not: what holds as evidence or how a
release looks (`release`).
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.release_layout import DOSSIER
from dpsynth_platform.foundation.storage import AUDITED, TEXTS_DRAWN, read_table, table_schema
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.lineage import naming
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.release.commitments import NonceBook
from dpsynth_platform.release.dossier import (
    CANDIDATE,
    Approval,
    Evidence,
    LineageStep,
    clearance_summary,
    software_versions,
)
from dpsynth_platform.release.evidence import (
    CheckedEvidence,
    candidate_runners,
    check_evidence,
    check_news,
    check_unchanged,
    statement_of,
)
from dpsynth_platform.release.publish import Published, publish
from dpsynth_platform.release.register import Register
from dpsynth_platform.release.reviewers import write_reviewers_dossier
from dpsynth_platform.synth.tabular.missing import read_missing

if TYPE_CHECKING:
    from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet

    from dpsynth_platform.privacy.statement import PrivacyStatement


def body(step: StepContext) -> Outcome:
    """Refuses unless everything that the release rests on is there, current, of this content and approved."""
    from dpsynth_platform.lineage import facets

    contract, raw = step.sealed()
    runners = candidate_runners(step.storage, step.place)
    checked = check_evidence(step.storage, step.place, contract, step.ledger, runners=runners)
    now = step.cleared(contract, entry_id=checked.candidate.entry_id)
    check_news(step.place, checked.clearance, now)
    statement = statement_of(
        contract,
        step.family,
        step.ledger,
        checked.candidate.entry_id,
        checked.candidate.method,
        checked.clearance,
    )
    write_reviewers_dossier(
        step.storage, step.ledger, contract, checked.candidate, statement, standing="all evidence holds; it is approved"
    )
    table = checked.records["synthetic"].directory / "table"
    evidence, target = _evidence(step, contract, checked, statement), Path(contract.release.uri)
    made = publish(
        evidence,
        read_table(table),
        table_schema(table),
        target,
        step.vault.signing_key(),
        announce=lambda: _announce(step, contract, checked, target / evidence.release_id),
    )
    step.progress(f"release {made.release_id} is at {made.path}")
    facts = {"release_id": made.release_id, "path": str(made.path), "candidate": checked.candidate.digest}
    record = step.record("released", run_key=raw.run_key, facts=facts)
    guarantee = statement.guarantee
    return Outcome(
        record,
        table_schema(made.path / "data"),
        made.rows,
        reused=made.reused,
        metadata={
            "release": made.release_id,
            "path": str(made.path),
            "guarantee in plain words": "\n\n".join(statement.plain_words()),
            "approved_by": ", ".join(item.by for item in checked.approvals) or "nobody (no approval is required)",
            "signed_by_key": made.key_fingerprint,
        },
        facets=facets.merge(
            facets.privacy_unit(contract),
            facets.guarantee(
                contract,
                epsilon=guarantee.epsilon,
                delta=guarantee.delta,
                tier=guarantee.tier,
                method=checked.candidate.method,
                accounting=statement.accounting["type"],
                ledger_entry=checked.candidate.entry_id,
            ),
            _release_facet(made),
        ),
        input_facets=_declared_rows(contract, made),
        published=made,
    )


def _announce(step: StepContext, contract: DataContract, checked: CheckedEvidence, directory: Path) -> None:
    """Records the publication, or refuses it, when all is ready; whatever is public can be found and withdrawn."""
    Register(step.storage.root).note(directory.name, directory, contract.owners)
    step.ledger.release(
        directory.name,
        candidate=checked.candidate.digest,
        entry_id=checked.candidate.entry_id,
        check=lambda decisions: check_unchanged(step.place, contract, checked, decisions),
    )


def _release_facet(made: Published) -> dict[str, DatasetFacet]:
    """What the published dossier says, also where it was published by an earlier run under an earlier ledger head."""
    from dpsynth_platform.lineage import facets

    dossier = json.loads((made.path / DOSSIER).read_text(encoding="utf-8"))
    return facets.release(
        release_id=made.release_id,
        candidate_commitment=dossier["commitments"][CANDIDATE],
        head=Head(**dossier["ledger"]["head"]),
    )


def _declared_rows(contract: DataContract, made: Published) -> dict[str, dict[str, InputDatasetFacet]]:
    """The declared figure of quality, where there is one, as a check on the synthetic dataset."""
    from dpsynth_platform.lineage import facets

    declared = contract.generate.rows
    if declared == "auto":
        return {}
    return {"synthetic": facets.rows_assertion(declared=declared, published=made.rows)}


def _evidence(
    step: StepContext, contract: DataContract, checked: CheckedEvidence, statement: PrivacyStatement
) -> Evidence:
    """All that the dossier says; restricted content by commitment only."""
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
        lineage=_lineage(step),
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
    )


def _texts_drawn(synthetic: Path) -> dict[str, Any] | None:
    """What became of the synthetic texts: a file that the candidate's content hash covers. None: no model wrote any."""
    try:
        found: dict[str, Any] = json.loads((synthetic / TEXTS_DRAWN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def _lineage(step: StepContext) -> tuple[LineageStep, ...]:
    """The steps that led here, by their lineage runs, and this one. The quality report stands in no dossier."""
    steps = []
    for name, upstream in step.line.items():
        record = step.storage.read(step.place, name)
        if record is not None and name not in ("quality", "released"):
            job = naming.job_name(step.place.dataset, name)
            steps.append(LineageStep(name, job, record.lineage_run, upstream))
    inputs = tuple(name for name in STEP.upstream if name != "quality")
    return (*steps, LineageStep("released", step.run.job_name, step.run.run_id, inputs))


STEP = Step(
    name="released",
    description=(
        "The published table with its signed dossier: guarantee in plain words, audit, lineage, approvals, ledger "
        "head. Public."
    ),
    upstream=("clearance", "synthetic", "audit", "quality"),
    kinds=frozenset({"deltalake"}),
    zone="public",
    code_version="3",
    body=body,
)
