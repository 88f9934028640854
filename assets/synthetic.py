"""synthetic: rows drawn from the model.

What belongs here: post-processing only. This step is handed the model, never the data.
"""

from assets.step import Outcome, Step, StepContext
from dpsynth_platform.lineage import facets
from dpsynth_platform.storage import table_schema, write_table
from dpsynth_platform.synth.interface import generator


def body(step: StepContext) -> Outcome:
    """Draws as many rows as the contract declares."""
    contract, raw = step.sealed()
    (model,) = step.same_run(raw, "model")
    earlier = step.reusable(raw, "synthetic", model)
    if earlier is not None and earlier.facts["rows"] == contract.generate.rows:
        return Outcome(earlier, table_schema(earlier.directory / "table"), earlier.facts["rows"], reused=True)
    table = generator(contract.generate.method).sample(model.directory, contract.generate.rows)
    with step.storage.new_output(step.place, "synthetic") as directory:
        write_table(directory / "table", table.schema, table.to_batches())
        record = step.record(
            "synthetic",
            run_key=model.run_key,
            directory=directory,
            inputs=[model],
            facts={"rows": table.num_rows, "entry_id": model.facts["entry_id"]},
        )
    return Outcome(record, table.schema, table.num_rows, facets=facets.privacy_unit(contract))


STEP = Step(
    name="synthetic",
    description="Rows drawn from the model, in the source's schema. Restricted until they are released.",
    upstream=("model",),
    kinds=frozenset({"deltalake"}),
    zone="restricted",
    code_version="1",
    body=body,
)
