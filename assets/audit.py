"""audit: attacks on the model and on the data, and what they prove.

What belongs here: handing canaries, model and synthetic rows to `audit`, keeping its report and (restricted, with a
time-to-live) the raw scores, and recording the audit and the candidate that is complete with it. What does not: the
attacks. Only canaries are compared, so the report may be published.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from assets.shown import picture, table
from assets.synthetic import drawn_as_asked
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import AccountingError, ReleaseRefused, StaleInput
from dpsynth_platform.foundation.storage import SCORES, StepRecord, read_table
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.operations.roles import attacked_role
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.release.evidence import AUDIT_REPORT, check_content
from dpsynth_platform.reviewing.decisions import AUDIT_HEADER, attack_row

if TYPE_CHECKING:
    from dpsynth_platform.audit.texts.reconstruction import Reconstructed
    from dpsynth_platform.audit.verdict import Apart, AuditReport


def body(step: StepContext) -> Outcome:
    """Attacks, judges, draws."""
    from dpsynth_platform.audit.canaries import read_canaries
    from dpsynth_platform.audit.canary_cost import canary_cost
    from dpsynth_platform.audit.fdp import renyi_profile
    from dpsynth_platform.audit.plots import roc_plot, score_plot
    from dpsynth_platform.audit.scores import scores_table
    from dpsynth_platform.audit.scoring import score_canaries
    from dpsynth_platform.audit.text_scoring import as_the_model_saw, reconstructed_texts, score_texts
    from dpsynth_platform.audit.verdict import judge
    from dpsynth_platform.lineage import facets
    from dpsynth_platform.synth.tabular.model import load_model
    from dpsynth_platform.synth.text.counted import counts_columns
    from dpsynth_platform.synth.text.dp_finetune import columns_model

    contract, raw = step.sealed()
    role = attacked_role(contract)
    canaries, model, synthetic = step.same_run(raw, "canaries", "model", "synthetic")
    (attacked,) = step.same_run(raw, role.step)
    if attacked.facts["canaries"] != canaries.content_hash:
        raise StaleInput(f"{step.place.label}/canaries are not those that {role.step} was trained with")
    inputs = list({item.step: item for item in (canaries, model, synthetic, attacked)}.values())
    record = step.reusable(raw, "audit", *inputs)
    report = None if record is None or record.facts["terms"] != contract.audit_terms else _kept_report(record)
    reused = report is not None
    if record is None or report is None:
        bait = read_canaries(canaries.directory / "table")
        rows = _rows(step, contract, raw.facts["method"], attacked, synthetic)
        back: tuple[Reconstructed, ...] = ()
        if contract.text_column is None:
            columns = attacked.directory
            scored = score_canaries(bait, columns, rows)
        else:
            step.progress("asking the language model about the canaries' texts")
            columns, plan = columns_model(attacked.directory), step.plan(raw)
            bait, rows = as_the_model_saw(plan, bait, rows)
            scored = score_texts(contract, plan, bait, attacked.directory, rows)
            back = reconstructed_texts(plan, bait, attacked.directory)
        entry = step.ledger.entry(step.storage.require(step.place, "clearance", run_key=raw.run_key).facts[role.entry])
        cost, claim = entry.request, entry.request.guarantee
        curve = renyi_profile(cost.curve, cost.delta_slack, epsilon=claim.epsilon, delta=claim.delta)
        # What is released has no canary in it, where another model was attacked: they cost budget, and no quality.
        counts = load_model(columns) if counts_columns(contract) and not contract.separate_audit_model else None
        lost = None if contract.separate_audit_model else canary_cost(contract, bait, counts, rows)
        alone = judge(
            contract,
            step.place.period,
            bait.included,
            scored,
            curve=curve,
            cost=lost,
            reconstructed=back,
            kinds=bait.kinds,
            apart=_apart(entry) if contract.separate_audit_model else None,
        )
        report = _beside_the_family(step, contract, entry, alone)
        with step.storage.new_output(step.place, SCORES) as directory:
            pq.write_table(scores_table(scored, bait.included), directory / "scores.parquet")
            step.record(SCORES, run_key=model.run_key, directory=directory, inputs=inputs)
        with step.storage.new_output(step.place, "audit") as directory:
            roc = roc_plot(scored, bait.included, epsilon=report.claimed_epsilon, delta=report.delta)
            (directory / AUDIT_REPORT).write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
            (directory / "roc.svg").write_text(roc, encoding="utf-8")
            (directory / "scores.svg").write_text(score_plot(scored[0], bait.included), encoding="utf-8")
            record = step.record(
                "audit",
                run_key=model.run_key,
                directory=directory,
                inputs=inputs,
                facts={"verdict": report.verdict, "terms": contract.audit_terms},
            )
    _record_candidate(step, contract)
    step.progress(report.summary)
    metadata = {
        "verdict": report.verdict,
        "epsilon_lower_bound": report.epsilon_lower_bound,
        "highest_bound": report.highest_bound,
        "summary": report.summary,
        "attacks": table(AUDIT_HEADER, [attack_row(attack) for attack in report.to_json()["attacks"]]),
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


def _rows(
    step: StepContext, contract: DataContract, method: str, attacked: StepRecord, synthetic: StepRecord
) -> pa.Table:
    """The rows that are attacked: those to be released or, where another model is attacked, as many drawn from that."""
    if not contract.separate_audit_model:
        return pa.Table.from_batches(read_table(synthetic.directory / "table"))
    step.progress("drawing rows from the model that is attacked; none of them is released")
    drawing = drawn_as_asked(step, contract, method, attacked.directory)
    return pa.Table.from_batches(drawing.batches, drawing.schema)


def _apart(entry: Entry) -> Apart:
    """The attacked model's entry, and what it costs together with the released model, which runs by the same plan."""
    from dpsynth_platform.audit.verdict import Apart
    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.events import event_from_json, twice

    cost = entry.request
    both = epsilon(twice(event_from_json(cost.event)), cost.guarantee.delta)
    return Apart(entry.entry_id, entry.plan_digest, both.epsilon)


def _kept_report(record: StepRecord) -> AuditReport | None:
    """The report of an earlier run; None where it cannot be read, so that the audit is made anew."""
    from dpsynth_platform.audit.verdict import AuditReport

    try:
        return AuditReport.from_json(json.loads((record.directory / AUDIT_REPORT).read_text(encoding="utf-8")))
    except (AccountingError, OSError, ValueError):
        return None


def _beside_the_family(step: StepContext, contract: DataContract, entry: Entry, alone: AuditReport) -> AuditReport:
    """The report with what all audits of the family say, and this one recorded in the ledger's chain for those to come.

    Recorded first: whoever ends the run when the verdict shows has had it all the same.
    """
    from dpsynth_platform.audit.cumulative import failure_before, past_audits, standing_of
    from dpsynth_platform.audit.verdict import claim_p_value, with_family

    ledger, terms = step.ledger, contract.audit_terms
    past = past_audits(ledger.history(kinds=[chain.AUDITED]), ledger.entries(contract.family))
    p_value = claim_p_value(alone)
    standing = standing_of(contract.family, past, entry.key, p_value, contract.audit.confidence)
    earlier = failure_before(past, entry.entry_id, alone.claimed_epsilon, terms)
    report = with_family(alone, standing, earlier=earlier)
    payload = {
        "verdict": report.verdict,
        "failed": alone.verdict == "fail",
        "epsilon_lower_bound": alone.epsilon_lower_bound,
        "p_value": p_value,
        "terms": terms,
    }
    ledger.record(chain.AUDITED, entry.entry_id, payload)
    return report


def _record_candidate(step: StepContext, contract: DataContract) -> None:
    """A candidate that waits for nothing but a decision is recorded once, so that reviewers can be told of it."""
    try:
        candidate = check_content(step.storage, step.place, contract, step.ledger).candidate
    except ReleaseRefused:
        return  # the verdict, which is shown, says why
    if not step.ledger.history(kinds=[chain.CANDIDATE], subject=candidate.digest):
        step.ledger.record(chain.CANDIDATE, candidate.digest, {"entry": candidate.entry_id})


STEP = Step(
    name="audit",
    description=(
        "Membership attacks on the canaries, by the model and by the synthetic rows: true positive rates at few false "
        "alarms beside what the claim allows, and a lower bound on epsilon, with pass, fail or inconclusive. A report "
        "on canaries alone."
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
        ("cost", "json", "the canaries' share of what was counted, and how far they moved each column"),
        ("attacks", "json", "guesses, bound, TPR at 1% FPR with interval and AUC of each attack"),
    ),
)
