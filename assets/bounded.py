"""bounded: at most b records of each owner.

What belongs here: passing cleared participants, scrubbed rows and canaries to `bounding`. What does not: choosing
records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.bounding.output import BoundingReport
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import leaves_out_in_silence
from dpsynth_platform.foundation.storage import StepRecord
from dpsynth_platform.operations.roles import roles_of
from dpsynth_platform.operations.step import Outcome, Step, StepContext

if TYPE_CHECKING:
    from dpsynth_platform.bounding.linked import LinkedReport
    from dpsynth_platform.ledger.owners import Participants


def body(step: StepContext) -> Outcome:
    """Adds the canaries, leaves excluded and held-out owners out, and bounds all others; a table for each model."""
    contract, raw = step.sealed()
    scrubbed, canaries, clearance = step.same_run(raw, "scrubbed", "canaries", "clearance")
    participants = {role: step.ledger.participants(clearance.facts[role.entry]) for role in roles_of(contract)}
    step.check_owners(scrubbed)
    cleared = len(step.ledger.participants(clearance.facts["entry_id"]))
    held_out = {"owners_held_out": scrubbed.facts["owners"] - cleared} if "owners" in scrubbed.facts else {}
    earlier = step.reusable(raw, "bounded", scrubbed, canaries, clearance)
    if earlier is not None:
        return _outcome(step, earlier, contract, held_out, reused=True)
    with step.storage.new_output(step.place, "bounded") as directory:
        step.progress(f"bounding with {step.sql.label}")
        for role, owners in participants.items():
            planted = canaries.directory if role.canaries else None
            report = _bound(step, contract, raw, scrubbed.directory, planted, owners, directory / role.table)
        record = step.record(
            "bounded",
            run_key=clearance.run_key,
            directory=directory,
            inputs=[scrubbed, canaries, clearance],
            facts=_facts(contract, report),
        )
    return _outcome(step, record, contract, held_out)


def _bound(
    step: StepContext,
    contract: DataContract,
    raw: StepRecord,
    scrubbed: Path,
    canaries: Path | None,
    participants: Participants,
    target: Path,
) -> BoundingReport | LinkedReport:
    """Bounds the records of one table, or linked ones and writes the view of each; with the canaries of a directory."""
    from dpsynth_platform.audit.canaries import read_canaries
    from dpsynth_platform.audit.linked_canaries import read_families
    from dpsynth_platform.bounding import multi_owner, single_owner
    from dpsynth_platform.bounding.order import Order
    from dpsynth_platform.linked_rows.line import bound_tables
    from dpsynth_platform.synth.relational.sealing import SealedTables

    key = step.vault.create(f"ordering-{contract.family}")
    with step.sql.open(target.parent) as engine:
        if contract.tables:
            tables = SealedTables.of(step.plan(raw)).tables
            joining = None if canaries is None else read_families(canaries, tables).joining
            return bound_tables(
                tables, scrubbed, target, engine=engine, participants=participants, key=key, joining=joining
            )
        report: BoundingReport = (multi_owner if contract.privacy.multi_owner else single_owner).write_bounded(
            scrubbed / "table",
            target,
            engine=engine,
            columns=contract.read_by_mechanism,
            participants=participants,
            max_contributions=contract.privacy.max_contributions,
            key=key,
            canaries=None if canaries is None else read_canaries(canaries / "table").table,
            order=Order.parse(contract.privacy.record_order),
        )
        return report


def _facts(contract: DataContract, report: BoundingReport | LinkedReport) -> dict[str, Any]:
    """The report; of linked tables with all kept rows together."""
    if isinstance(report, BoundingReport):
        return asdict(report)
    kept = sum(table.kept for table in report.tables.values())
    return asdict(report) | {"rows": kept, "max_contributions": contract.privacy.max_contributions}


def _outcome(
    step: StepContext,
    record: StepRecord,
    contract: DataContract,
    held_out: Mapping[str, int],
    *,
    reused: bool = False,
) -> Outcome:
    """With exact counts, except where they would disclose even to the operator how many owners were left out."""
    from dpsynth_platform.linked_rows.line import rows_schema

    schema = rows_schema(contract, record.directory)
    if leaves_out_in_silence(contract, step.family):
        # Keys are counted before owners are left out.
        open_facts = {"max_contributions", "repeated_keys"}
        shown = {name: value for name, value in record.facts.items() if name in open_facts}
        return Outcome(record, schema, None, reused=reused, metadata=shown)
    return Outcome(record, schema, record.facts["rows"], reused=reused, metadata={**record.facts, **held_out})


STEP = Step(
    name="bounded",
    description="What the mechanism reads: at most b records of each cleared owner, canaries included. Restricted.",
    upstream=("scrubbed", "canaries", "clearance"),
    kinds=frozenset({"deltalake", "sql"}),
    zone="restricted",
    code_version="2",
    body=body,
)
