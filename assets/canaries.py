"""canaries: records of fictional owners, made from the contract alone.

What belongs here: making them once for a run. What does not: reading data or model. A run's canaries are never replaced
after the training, since the audit's conclusions depend on their coins.
"""

from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import table_schema
from dpsynth_platform.operations.roles import attacked_role
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.synth.interface import generator


def body(step: StepContext) -> Outcome:
    """Draws the canaries and their coins."""
    from dpsynth_platform.audit.canaries import make_canaries, write_canaries
    from dpsynth_platform.scrub.scrub import scrubbed_schema

    contract, raw = step.sealed()
    earlier = step.reusable(raw, "canaries")
    if earlier is not None:
        return Outcome(earlier, table_schema(earlier.directory / "table"), earlier.facts["rows"], reused=True)
    role = attacked_role(contract)
    entry = step.ledger.entry_for_key(role.key(raw.run_key))
    model = step.storage.location(step.place, role.step)
    if entry is not None and generator(raw.facts["method"]).is_complete(model / entry.entry_id):
        raise StaleInput(
            f"{step.place.label}/canaries: the canaries of the model's training are deleted, and new ones cannot audit "
            "it. Earlier audits stay valid; a new version of the source, or a changed contract, is a new run"
        )
    canaries = make_canaries(
        contract,
        scrubbed_schema(contract, step.source_schema(raw)),
        contract.canary_count,
        contract.privacy.max_contributions,
        step.place.period,
    )
    with step.storage.new_output(step.place, "canaries") as directory:
        rows = write_canaries(canaries, directory / "table")
        facts = {"rows": rows, "canaries": contract.canary_count}
        record = step.record("canaries", run_key=raw.run_key, directory=directory, inputs=[raw], facts=facts)
    return Outcome(record, canaries.table.schema, rows, metadata={"canary owners": contract.canary_count})


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
