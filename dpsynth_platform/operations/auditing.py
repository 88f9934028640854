"""Auditing a run: the attacked model and rows, the report together with the family's other audits, and its records.

What belongs here: passing canaries, model and synthetic rows to `audit`, storing its report and (restricted) raw
scores, recording audit and candidate. What does not: the attacks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import AccountingError, ReleaseRefused
from dpsynth_platform.foundation.storage import SCORES, StepRecord, read_table, table_schema
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.operations.drawing import drawn_as_asked
from dpsynth_platform.operations.roles import attacked_role
from dpsynth_platform.operations.step import StepContext
from dpsynth_platform.release.evidence import AUDIT_REPORT, check_content

if TYPE_CHECKING:
    from dpsynth_platform.audit.attacks import Scored
    from dpsynth_platform.audit.canaries import CanarySet
    from dpsynth_platform.audit.canary_cost import CanaryCost
    from dpsynth_platform.audit.linked_canaries import FamilySet
    from dpsynth_platform.audit.risk import Reconstructed, SharedFound
    from dpsynth_platform.audit.verdict import AuditReport, SeparateModel


def audited(
    step: StepContext, contract: DataContract, raw: StepRecord, attacked: StepRecord, inputs: Sequence[StepRecord]
) -> tuple[StepRecord, AuditReport]:
    """Attacks the model and the synthetic rows by the canaries, judges, and stores report, plots and raw scores.

    Args:
        inputs: the records of canaries, model, synthetic rows and the attacked model.
    """
    from dpsynth_platform.audit.fdp import renyi_profile
    from dpsynth_platform.audit.verdict import judge

    records = {item.step: item for item in inputs}
    found: _Attacked | _AttackedFamilies
    if contract.tables:
        found = _attacked_families(step, contract, raw, attacked, records)
    else:
        found = _attacked(step, contract, raw, attacked, records)
    clearance = step.storage.require(step.place, "clearance", run_key=raw.run_key)
    entry = step.ledger.entry(clearance.facts[attacked_role(contract).entry])
    cost, claim = entry.request, entry.request.guarantee
    separate = contract.separate_audit_model
    alone = judge(
        contract,
        step.place.period,
        found.canaries.included,
        found.scored,
        curve=renyi_profile(cost.curve, cost.delta_slack, epsilon=claim.epsilon, delta=claim.delta),
        # A separate released model contains no canary: canaries cost budget there, and no quality.
        cost=None if separate else found.cost(contract),
        reconstructed=found.reconstructed,
        shared=found.shared,
        kinds=found.kinds,
        apart=_separate_model(entry) if separate else None,
        most_records=found.most_records,
    )
    report = _with_family(step, contract, entry, alone)
    return _store(step, contract, raw.run_key, found, report, inputs), report


@dataclass(frozen=True)
class _Attacked:
    """The inputs of the attacks, and their scores.

    Attributes:
        columns: directory of the model of the columns.
    """

    canaries: CanarySet
    rows: pa.Table
    columns: Path
    scored: Sequence[Scored]
    reconstructed: tuple[Reconstructed, ...] = ()
    shared: tuple[SharedFound, ...] = ()
    most_records: int | None = None

    @property
    def kinds(self) -> Sequence[str]:
        return self.canaries.kinds

    def cost(self, contract: DataContract) -> CanaryCost:
        from dpsynth_platform.audit.canary_cost import canary_cost
        from dpsynth_platform.synth.counted import counts_columns
        from dpsynth_platform.synth.tabular.model import load_model

        counts = load_model(self.columns) if counts_columns(contract) else None
        return canary_cost(contract, self.canaries, counts, self.rows)


@dataclass(frozen=True)
class _AttackedFamilies:
    """The same of linked tables; the directory is that of the models of all views."""

    canaries: FamilySet
    directory: Path
    scored: Sequence[Scored]
    reconstructed: tuple[Reconstructed, ...] = ()
    shared: tuple[SharedFound, ...] = ()
    kinds: Sequence[str] = ()

    @property
    def most_records(self) -> int:
        return self.canaries.most_rows

    def cost(self, contract: DataContract) -> CanaryCost:
        from dpsynth_platform.audit.linked_scoring import families_cost

        return families_cost(contract, self.canaries, self.directory)


def _attacked_families(
    step: StepContext,
    contract: DataContract,
    raw: StepRecord,
    attacked: StepRecord,
    records: Mapping[str, StepRecord],
) -> _AttackedFamilies:
    from dpsynth_platform.audit.linked_canaries import read_families
    from dpsynth_platform.audit.linked_scoring import score_families
    from dpsynth_platform.synth.relational.sealing import SealedTables

    tables = SealedTables.of(step.plan(raw)).tables
    families = read_families(records["canaries"].directory, tables)
    released = _released_tables(step, contract, attacked, records["synthetic"])
    work = step.storage.named_output(step.place, SCORES, "views")
    try:
        shutil.rmtree(work / "views", ignore_errors=True)  # of an interrupted run
        with step.sql.open(work) as engine:
            views = families.views(engine, step.vault.create(f"ordering-{contract.family}"), work / "views")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    scored = score_families(families, views, attacked.directory, released)
    return _AttackedFamilies(families, attacked.directory, scored)


def _released_tables(
    step: StepContext, contract: DataContract, attacked: StepRecord, synthetic: StepRecord
) -> dict[str, pa.Table]:
    """The attacked rows of all private tables (see `_rows`), by plain names of columns."""
    from dpsynth_platform.synth.relational.drawing import LinkedDrawing
    from dpsynth_platform.synth.relational.generator import planned

    drawing = LinkedDrawing.of(planned(attacked.directory), attacked.directory)
    names = drawing.tables.private
    if contract.separate_audit_model:
        step.progress("drawing rows from the attacked model; none of them is released")
        roots = drawing.roots if contract.generate.rows == "auto" else contract.generate.rows
        batches = list(drawing.batches(roots))
        return {name: pa.Table.from_batches([found[name] for found in batches]) for name in names}
    stored = {name: synthetic.directory / "table" / name for name in names}
    found = {name: pa.Table.from_batches(read_table(path), table_schema(path)) for name, path in stored.items()}
    # Released under the source's names, in the order of the plan.
    return {name: table.rename_columns(drawing.released[name].schema.names) for name, table in found.items()}


def _attacked(
    step: StepContext,
    contract: DataContract,
    raw: StepRecord,
    attacked: StepRecord,
    records: Mapping[str, StepRecord],
) -> _Attacked:
    from dpsynth_platform.audit.canaries import read_canaries
    from dpsynth_platform.audit.scoring import score_canaries

    canaries = read_canaries(records["canaries"].directory / "table")
    rows = _rows(step, contract, raw.facts["method"], attacked, records["synthetic"])
    model = attacked.directory
    if contract.generate.image is not None:
        from dpsynth_platform.audit.picture_scoring import score_pictures
        from dpsynth_platform.synth.images.generator import COLUMNS

        step.progress("attacking pictures")
        return _Attacked(
            canaries, rows, model / COLUMNS, score_pictures(contract, step.plan(raw), canaries, model, rows)
        )
    if contract.generate.answers:
        from dpsynth_platform.audit.answer_scoring import score_answers

        return _Attacked(canaries, rows, model, [score_answers(canaries, step.plan(raw), model)])
    if contract.text_column is None:
        return _Attacked(canaries, rows, model, score_canaries(canaries, model, rows))
    # Late: these load a library of language models.
    from dpsynth_platform.audit.attacks import PICTURE_DISTANCE
    from dpsynth_platform.audit.picture_scoring import score_distances
    from dpsynth_platform.audit.policy import attacks_on
    from dpsynth_platform.audit.text_scoring import as_the_model_saw, reconstructed_texts, score_texts, shared_secrets
    from dpsynth_platform.synth.images.layout import ImageLayout
    from dpsynth_platform.synth.text.dp_finetune import columns_model

    step.progress("asking the language model about the canaries' texts")
    plan = step.plan(raw)
    pictured = PICTURE_DISTANCE in attacks_on(contract)
    released = rows
    canaries, rows = as_the_model_saw(plan, canaries, rows)
    return _Attacked(
        canaries,
        rows,
        columns_model(model),
        [
            *score_texts(contract, plan, canaries, model, rows),
            *([score_distances(ImageLayout.of(contract), canaries, released)] if pictured else []),
        ],
        reconstructed_texts(plan, canaries, model),
        shared_secrets(contract, plan, canaries, model, rows),
    )


def _store(
    step: StepContext,
    contract: DataContract,
    run_key: str,
    found: _Attacked | _AttackedFamilies,
    report: AuditReport,
    inputs: Sequence[StepRecord],
) -> StepRecord:
    """Records the raw scores, and the report with its plots."""
    from dpsynth_platform.audit.plots import roc_plot, score_plot
    from dpsynth_platform.audit.scores import scores_table

    scored, included = found.scored, found.canaries.included
    with step.storage.new_output(step.place, SCORES) as directory:
        pq.write_table(scores_table(scored, included), directory / "scores.parquet")
        step.record(SCORES, run_key=run_key, directory=directory, inputs=inputs)
    with step.storage.new_output(step.place, "audit") as directory:
        roc = roc_plot(scored, included, epsilon=report.claimed_epsilon, delta=report.delta)
        (directory / AUDIT_REPORT).write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
        (directory / "roc.svg").write_text(roc, encoding="utf-8")
        (directory / "scores.svg").write_text(score_plot(scored[0], included), encoding="utf-8")
        facts = {"verdict": report.verdict, "terms": contract.audit_terms}
        return step.record("audit", run_key=run_key, directory=directory, inputs=inputs, facts=facts)


def _rows(
    step: StepContext, contract: DataContract, method: str, attacked: StepRecord, synthetic: StepRecord
) -> pa.Table:
    """The attacked rows: those for the release or, with a separate attacked model, as many drawn from that."""
    if not contract.separate_audit_model:
        return pa.Table.from_batches(read_table(synthetic.directory / "table"))
    step.progress("drawing rows from the attacked model; none of them is released")
    drawing = drawn_as_asked(step, contract, method, attacked.directory)
    return pa.Table.from_batches(drawing.batches, drawing.schema)


def _separate_model(entry: Entry) -> SeparateModel:
    """The attacked model's ledger entry, and its cost together with the released model of the same plan."""
    from dpsynth_platform.audit.verdict import SeparateModel
    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.events import event_from_json, twice

    cost = entry.request
    both = epsilon(twice(event_from_json(cost.event)), cost.guarantee.delta)
    return SeparateModel(entry.entry_id, entry.plan_digest, both.epsilon)


def kept_report(record: StepRecord) -> AuditReport | None:
    """The report of an earlier run; None where it cannot be read, so that the audit is repeated."""
    from dpsynth_platform.audit.verdict import AuditReport

    try:
        return AuditReport.from_json(json.loads((record.directory / AUDIT_REPORT).read_text(encoding="utf-8")))
    except (AccountingError, OSError, ValueError):
        return None


def _with_family(step: StepContext, contract: DataContract, entry: Entry, alone: AuditReport) -> AuditReport:
    """The report with the cumulative evidence of the family's audits; records this audit in the ledger's chain.

    It is recorded before it is shown: ending the run after the verdict does not undo the audit.
    """
    from dpsynth_platform.audit.cumulative import failure_before, past_audits, standing_of
    from dpsynth_platform.audit.verdict import claim_p_value, with_family

    ledger, terms = step.ledger, contract.audit_terms
    past = past_audits(ledger.history(kinds=[chain.AUDITED]), ledger.entries(contract.family))
    p_value = claim_p_value(alone)
    cumulative = standing_of(contract.family, past, entry.key, p_value, contract.audit.confidence)
    earlier = failure_before(past, entry.entry_id, alone.claimed_epsilon, terms)
    report = with_family(alone, cumulative, earlier=earlier)
    payload = {
        "verdict": report.verdict,
        "failed": alone.verdict == "fail",
        "epsilon_lower_bound": alone.epsilon_lower_bound,
        "p_value": p_value,
        "terms": terms,
    }
    ledger.record(chain.AUDITED, entry.entry_id, payload)
    return report


def record_candidate(step: StepContext, contract: DataContract) -> None:
    """Records a candidate that only waits for a decision, once, so that reviewers get a notice."""
    try:
        candidate = check_content(step.storage, step.place, contract, step.ledger).candidate
    except ReleaseRefused:
        return  # the shown verdict says why
    if not step.ledger.history(kinds=[chain.CANDIDATE], subject=candidate.digest):
        step.ledger.record(chain.CANDIDATE, candidate.digest, {"entry": candidate.entry_id})
