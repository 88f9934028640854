"""audit: attacks on the model and on the data, and what they prove. Compares canaries only, so it may be published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assets.shown import picture, table
from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import StepRecord
from dpsynth_platform.operations.auditing import audited, kept_report, record_candidate
from dpsynth_platform.operations.roles import attacked_role
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.reviewing.decisions import AUDIT_HEADER, attack_rows

if TYPE_CHECKING:
    from dpsynth_platform.audit.verdict import AuditReport


def body(step: StepContext) -> Outcome:
    """Attacks and judges, or reuses the report of the same model, canaries and terms."""
    contract, raw = step.sealed()
    role = attacked_role(contract)
    canaries, model, synthetic = step.same_run(raw, "canaries", "model", "synthetic")
    (attacked,) = step.same_run(raw, role.step)
    if attacked.facts["canaries"] != canaries.content_hash:
        raise StaleInput(f"{step.place.label}/canaries are not the canaries of the training of {role.step}")
    inputs = list({item.step: item for item in (canaries, model, synthetic, attacked)}.values())
    record = step.reusable(raw, "audit", *inputs)
    report = None if record is None or record.facts["terms"] != contract.audit_terms else kept_report(record)
    reused = report is not None
    if record is None or report is None:
        record, report = audited(step, contract, raw, attacked, inputs)
    record_candidate(step, contract)
    step.progress(report.summary)
    return _outcome(record, report, reused)


def _outcome(record: StepRecord, report: AuditReport, reused: bool) -> Outcome:
    from dpsynth_platform.lineage import facets

    metadata = {
        "verdict": report.verdict,
        "epsilon_lower_bound": report.epsilon_lower_bound,
        "highest_bound": report.highest_bound,
        "epsilon claimed": report.claimed_epsilon,
        "bound accepted": report.threshold,
        "canaries": report.canaries,
        **{f"ROC AUC of {attack.name}": float(attack.area_under_curve) for attack in report.attacks},
        "summary": report.summary,
        "attacks": table(AUDIT_HEADER, attack_rows(report.to_json())),
        "plot": picture((record.directory / "roc.svg").read_text(encoding="utf-8")),
    }
    run_facets = facets.audit_verdict(
        verdict=report.verdict,
        lower_bound=report.epsilon_lower_bound,
        highest_reachable=report.highest_bound,
        threshold=report.threshold,
        confidence=report.confidence,
    )
    assertion = facets.audit_assertion(
        verdict=report.verdict, threshold=report.threshold, lower_bound=report.epsilon_lower_bound
    )
    return Outcome(
        record, reused=reused, metadata=metadata, run_facets=run_facets, input_facets={"synthetic": assertion}
    )


STEP = Step(
    name="audit",
    description=(
        "Membership attacks on the canaries, by the model and by the synthetic rows: true positive rates at few false "
        "alarms beside what the claim allows, and a lower bound on epsilon, with pass, fail or inconclusive. Reports "
        "on canaries only."
    ),
    upstream=("canaries", "model", "synthetic"),
    kinds=frozenset({"python"}),
    zone="operator",
    code_version="3",
    body=body,
    fields=(
        ("verdict", "string", "pass, fail or inconclusive; the release is refused unless it passes"),
        ("epsilon_lower_bound", "float", "what the attacks prove, at the stated confidence"),
        ("highest_bound", "float", "the most that this audit could have proved"),
        ("cost", "json", "the canaries' share of the counts, and their effect on each column"),
        ("attacks", "json", "guesses, bound, TPR at 1% FPR with interval and AUC of each attack"),
    ),
)
