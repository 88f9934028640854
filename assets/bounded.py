"""bounded: at most b records of each owner.

What belongs here: passing cleared participants, scrubbed rows and canaries to `bounding`. What does not: choosing
records.
"""

from collections.abc import Mapping
from dataclasses import asdict

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import leaves_out_in_silence
from dpsynth_platform.foundation.storage import StepRecord, table_schema
from dpsynth_platform.operations.roles import roles_of
from dpsynth_platform.operations.step import Outcome, Step, StepContext


def body(step: StepContext) -> Outcome:
    """Adds the canaries, leaves excluded and held-out owners out, and bounds all others; a table for each model."""
    from dpsynth_platform.audit.canaries import read_canaries
    from dpsynth_platform.bounding import multi_owner, single_owner
    from dpsynth_platform.bounding.order import Order

    contract, raw = step.sealed()
    bounding = multi_owner if contract.privacy.multi_owner else single_owner
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
        planted = read_canaries(canaries.directory / "table").table
        for role, owners in participants.items():
            with step.sql.open(directory) as engine:
                report = bounding.write_bounded(
                    scrubbed.directory / "table",
                    directory / role.table,
                    engine=engine,
                    columns=contract.read_by_mechanism,
                    participants=owners,
                    max_contributions=contract.privacy.max_contributions,
                    key=step.vault.create(f"ordering-{contract.family}"),
                    canaries=planted if role.canaries else None,
                    order=Order.parse(contract.privacy.record_order),
                )
        record = step.record(
            "bounded",
            run_key=clearance.run_key,
            directory=directory,
            inputs=[scrubbed, canaries, clearance],
            facts=asdict(report),
        )
    return _outcome(step, record, contract, held_out)


def _outcome(
    step: StepContext,
    record: StepRecord,
    contract: DataContract,
    held_out: Mapping[str, int],
    *,
    reused: bool = False,
) -> Outcome:
    """With exact counts, except where they would disclose even to the operator how many owners were left out."""
    schema = table_schema(record.directory / "table")
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
