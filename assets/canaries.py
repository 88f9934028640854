"""canaries: records of fictional owners, made from the contract alone.

What belongs here: making them once for a run. What does not: reading data or model. A run's canaries are never replaced
after the training, since the audit's conclusions depend on their coins.
"""

from collections.abc import Callable
from pathlib import Path

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import StepRecord
from dpsynth_platform.operations.roles import attacked_role
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.synth.interface import generator


def body(step: StepContext) -> Outcome:
    """Draws the canaries and their coins."""
    from dpsynth_platform.linked_rows.line import rows_schema

    contract, raw = step.sealed()
    earlier = step.reusable(raw, "canaries")
    if earlier is not None:
        return Outcome(earlier, rows_schema(contract, earlier.directory), earlier.facts["rows"], reused=True)
    role = attacked_role(contract)
    entry = step.ledger.entry_for_key(role.key(raw.run_key))
    model = step.storage.location(step.place, role.step)
    if entry is not None and generator(raw.facts["method"]).is_complete(model / entry.entry_id):
        raise StaleInput(
            f"{step.place.label}/canaries: the canaries of the model's training are deleted, and new ones cannot audit "
            "it. Earlier audits stay valid; a new version of the source, or a changed contract, is a new run"
        )
    make = _families if contract.tables else _records
    write = make(step, contract, raw)
    with step.storage.new_output(step.place, "canaries") as directory:
        rows = write(directory)
        facts = {"rows": rows, "canaries": contract.canary_count}
        record = step.record("canaries", run_key=raw.run_key, directory=directory, inputs=[raw], facts=facts)
    schema = rows_schema(contract, record.directory)
    return Outcome(record, schema, rows, metadata={"canary owners": contract.canary_count})


def _records(step: StepContext, contract: DataContract, raw: StepRecord) -> Callable[[Path], int]:
    """Records of fictional owners; what is returned writes them, and returns their number."""
    from dpsynth_platform.audit.canaries import make_canaries, write_canaries
    from dpsynth_platform.scrub.scrub import scrubbed_schema

    canaries = make_canaries(
        contract,
        scrubbed_schema(contract, step.source_schema(raw)),
        contract.canary_count,
        contract.unit_records,
        step.place.period,
    )
    return lambda directory: write_canaries(canaries, directory / "table")


def _families(step: StepContext, contract: DataContract, raw: StepRecord) -> Callable[[Path], int]:
    """As `_records`, of linked tables: fictional owners with rows in all of them."""
    from dpsynth_platform.audit.linked_canaries import make_families, write_families
    from dpsynth_platform.linked_rows.line import stored_schemas
    from dpsynth_platform.synth.relational.sealing import SealedTables

    sealed = SealedTables.of(step.plan(raw))
    families = make_families(sealed.tables, sealed.lookups, stored_schemas(raw.facts), contract.canary_count)
    return lambda directory: write_families(families, directory)


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
