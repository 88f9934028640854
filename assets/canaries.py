"""canaries: records of fictional owners, made from the contract alone.

What belongs here: making them once for a run. What does not: reading data or model. A run's canaries are never replaced
after the training, since the audit's conclusions depend on their coins.
"""

from pathlib import Path

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.linked_contract import dotted
from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import StepRecord, table_schema
from dpsynth_platform.operations.roles import attacked_role
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.synth.interface import generator


def body(step: StepContext) -> Outcome:
    """Draws the canaries and their coins."""
    contract, raw = step.sealed()
    earlier = step.reusable(raw, "canaries")
    if earlier is not None:
        return Outcome(earlier, _schema(contract, earlier.directory), earlier.facts["rows"], reused=True)
    role = attacked_role(contract)
    entry = step.ledger.entry_for_key(role.key(raw.run_key))
    model = step.storage.location(step.place, role.step)
    if entry is not None and generator(raw.facts["method"]).is_complete(model / entry.entry_id):
        raise StaleInput(
            f"{step.place.label}/canaries: the canaries of the model's training are deleted, and new ones cannot audit "
            "it. Earlier audits stay valid; a new version of the source, or a changed contract, is a new run"
        )
    with step.storage.new_output(step.place, "canaries") as directory:
        rows = (
            _made_families(step, contract, raw, directory) if contract.tables else _made(step, contract, raw, directory)
        )
        facts = {"rows": rows, "canaries": contract.canary_count}
        record = step.record("canaries", run_key=raw.run_key, directory=directory, inputs=[raw], facts=facts)
    metadata = {"canary owners": contract.canary_count}
    return Outcome(record, _schema(contract, record.directory), rows, metadata=metadata)


def _made(step: StepContext, contract: DataContract, raw: StepRecord, directory: Path) -> int:
    """Draws and writes canaries of one table; returns the number of their rows."""
    from dpsynth_platform.audit.canaries import make_canaries, write_canaries
    from dpsynth_platform.scrub.scrub import scrubbed_schema

    canaries = make_canaries(
        contract,
        scrubbed_schema(contract, step.source_schema(raw)),
        contract.canary_count,
        contract.privacy.max_contributions,
        step.place.period,
    )
    return write_canaries(canaries, directory / "table")


def _made_families(step: StepContext, contract: DataContract, raw: StepRecord, directory: Path) -> int:
    """Draws and writes canaries of linked tables; returns the number of their rows in all tables."""
    from dpsynth_platform.audit.linked_canaries import make_families, planned_schemas, write_families
    from dpsynth_platform.synth.relational.sealing import SealedTables

    plan = step.plan(raw)
    sealed = SealedTables.of(plan)
    families = make_families(sealed.tables, sealed.lookups, planned_schemas(plan), contract.canary_count)
    return write_families(families, directory)


def _schema(contract: DataContract, directory: Path) -> pa.Schema:
    """The columns of the canaries; of linked tables as `table.column`."""
    if not contract.tables:
        return table_schema(directory / "table")
    schemas = {name: table_schema(directory / "table" / name) for name in contract.linked.private}
    return pa.schema([item.with_name(dotted(name, item.name)) for name, schema in schemas.items() for item in schema])


STEP = Step(
    name="canaries",
    description=(
        "Fictional owners with as many records as the bound allows; a coin decides for each whether it joins the "
        "data. The audit later tries to infer which did. Restricted."
    ),
    upstream=("raw",),
    kinds=frozenset({"deltalake"}),
    zone="restricted",
    code_version="1",
    body=body,
)
