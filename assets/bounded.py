"""bounded: at most b records of each owner, chosen by keyed hash.

What belongs here: handing the cleared participants, the scrubbed rows and the canaries to `bounding`. What does not:
choosing records.
"""

from assets.step import Outcome, Step, StepContext
from dpsynth_platform.storage import table_schema


def body(step: StepContext) -> Outcome:
    """Lets the canaries in, leaves excluded and held-out owners out, and bounds everybody else."""
    from dpsynth_platform.audit.canaries import read_canaries
    from dpsynth_platform.bounding.single_owner import write_bounded

    contract, raw = step.sealed()
    scrubbed, canaries, clearance = step.same_run(raw, "scrubbed", "canaries", "clearance")
    earlier = step.reusable(raw, "bounded", scrubbed, canaries, clearance)
    if earlier is not None:
        return Outcome(earlier, table_schema(earlier.directory / "table"), earlier.facts["rows"], reused=True)
    with step.storage.new_output(step.place, "bounded") as directory:
        report = write_bounded(
            scrubbed.directory / "table",
            directory / "table",
            columns=contract.modelled,
            participants=step.ledger.participants(clearance.facts["entry_id"]),
            max_contributions=contract.privacy.max_contributions,
            key=step.ordering_key(contract),
            spill=directory,
            canaries=read_canaries(canaries.directory / "table").table,
            memory_limit=step.sql.memory_limit,
            threads=step.sql.threads,
        )
        record = step.record(
            "bounded",
            run_key=clearance.run_key,
            directory=directory,
            inputs=[scrubbed, canaries, clearance],
            facts={"rows": report.rows},
        )
    metadata = {
        "max_contributions": report.max_contributions,
        "rows_before": report.rows_before,
        "owners": report.owners,
        "canary_rows": report.canary_rows,
    }
    return Outcome(record, table_schema(directory / "table"), report.rows, metadata=metadata)


STEP = Step(
    name="bounded",
    description="What the mechanism reads: at most b records of each cleared owner, canaries included. Restricted.",
    upstream=("scrubbed", "canaries", "clearance"),
    kinds=frozenset({"deltalake", "duckdb"}),
    zone="restricted",
    code_version="1",
    body=body,
)
