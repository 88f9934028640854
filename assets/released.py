"""released: re-reads the evidence and publishes the candidate.

What belongs here: collecting evidence, having it checked, publishing, copying to targets. What does not: the rules of
evidence and the form of a release (`release`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.release_layout import DATA, DOSSIER
from dpsynth_platform.foundation.storage import StepRecord
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.operations.releasing import announce, copy_to_targets, evidence_of, tables_of
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.release.dossier import CANDIDATE
from dpsynth_platform.release.evidence import (
    CheckedEvidence,
    candidate_runners,
    check_evidence,
    check_new_findings,
    statement_of,
)
from dpsynth_platform.release.publish import Published, publish
from dpsynth_platform.release.reviewers import write_reviewers_dossier

if TYPE_CHECKING:
    from openlineage.client.facet_v2 import DatasetFacet

    from dpsynth_platform.privacy.statement import PrivacyStatement


def body(step: StepContext) -> Outcome:
    """Refuses unless all evidence is present, current, of this content and approved."""
    contract, raw = step.sealed()
    step.ledger.check_declared(step.family)  # the dossier tells the family's terms, by the file
    runners = candidate_runners(step.storage, step.place)
    checked = check_evidence(step.storage, step.place, contract, step.ledger, runners=runners)
    now = step.cleared(contract, entry_id=checked.candidate.entry_id)
    check_new_findings(step.place, checked.clearance, now)
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
    evidence, target = evidence_of(step, STEP.upstream, contract, checked, statement), Path(contract.release.uri)
    made = publish(
        evidence,
        tables_of(contract, checked.records["synthetic"].directory / "table"),
        target,
        step.vault.signing_key(),
        announce=lambda: announce(step, contract, checked, target / evidence.release_id),
    )
    step.progress(f"release {made.release_id} is at {made.path}")
    facts = {"release_id": made.release_id, "path": str(made.path), "candidate": checked.candidate.digest}
    record = step.record("released", run_key=raw.run_key, facts=facts)
    copy_to_targets(step, contract, made)
    return _outcome(contract, checked, statement, record, made)


def _outcome(
    contract: DataContract,
    checked: CheckedEvidence,
    statement: PrivacyStatement,
    record: StepRecord,
    made: Published,
) -> Outcome:
    from dpsynth_platform.lineage import facets
    from dpsynth_platform.linked_rows.line import rows_schema

    declared = contract.generate.rows
    assertions = {}
    if declared != "auto":
        counted = made.tables[contract.linked.root] if contract.tables else made.rows
        assertions = {"synthetic": facets.rows_assertion(declared=declared, published=counted)}
    return Outcome(
        record,
        rows_schema(contract, made.path, DATA),
        made.rows,
        reused=made.reused,
        metadata={
            "release": made.release_id,
            "path": str(made.path),
            "guarantee in plain words": "\n\n".join(statement.plain_words()),
            "approved_by": ", ".join(item.by for item in checked.approvals) or "no approval is required",
            "signed_by_key": made.key_fingerprint,
        },
        facets=facets.merge(
            facets.privacy_unit(contract),
            facets.guarantee(
                statement.guarantee,
                method=checked.candidate.method,
                accounting=statement.accounting["type"],
                ledger_entry=checked.candidate.entry_id,
            ),
            _release_facet(made),
        ),
        input_facets=assertions,
        published=made,
        targets=tuple(contract.release.publish),
    )


def _release_facet(made: Published) -> dict[str, DatasetFacet]:
    """By the published dossier, which an earlier run may have published under an earlier ledger head."""
    from dpsynth_platform.lineage import facets

    dossier = json.loads((made.path / DOSSIER).read_text(encoding="utf-8"))
    return facets.release(
        release_id=made.release_id,
        candidate_commitment=dossier["commitments"][CANDIDATE],
        head=Head(**dossier["ledger"]["head"]),
    )


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
