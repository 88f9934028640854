"""What lineage events say of a step: its inputs and outputs with public facts about them.

What belongs here: datasets and facets of one attempt. What does not: emitting, and any count or hash of restricted
content: events are exported.
"""

from dataclasses import replace
from pathlib import Path

import dagster as dg

from assets.step import Outcome, Step
from dpsynth_platform.contracts import DataContract
from dpsynth_platform.lineage import facets, naming
from dpsynth_platform.lineage.emitter import DatasetRef, StepRun
from dpsynth_platform.storage import Place, StepRecord, Storage

READS_SOURCE = ("raw", "scrubbed")


def step_run(
    context: dg.AssetExecutionContext, step: Step, contract: DataContract, place: Place, storage: Storage
) -> StepRun:
    """The attempt as it starts: what it will read is known by name, what it will write is not. Reads nothing."""
    inputs = [_upstream(None, name, place, storage) for name in step.upstream]
    if step.name in READS_SOURCE:
        source = naming.dataset_name(contract.source.uri)
        inputs.append(
            DatasetRef(source, facets.merge(facets.ownership(contract.owners), facets.privacy_unit(contract)))
        )
    return StepRun(
        dagster_run_id=context.run.run_id,
        dagster_job=context.job_name,
        dataset=contract.dataset,
        step=step.name,
        period=place.period,
        attempt=context.retry_number,
        description=step.description,
        owners=tuple(contract.owners),
        inputs=tuple(inputs),
    )


def finished_run(
    run: StepRun, step: Step, contract: DataContract, place: Place, storage: Storage, outcome: Outcome
) -> StepRun:
    """The attempt as it completed, with what it wrote and the versions that it really read."""
    inputs = [_upstream(storage.read(place, name), name, place, storage) for name in step.upstream]
    return replace(
        run,
        inputs=(*inputs, *run.inputs[len(inputs) :]),
        outputs=(_output(step, contract, place, storage, outcome),),
        run_facets=outcome.run_facets,
    )


def _upstream(record: StepRecord | None, step: str, place: Place, storage: Storage) -> DatasetRef:
    known = [facets.symlink(naming.logical_name(place.dataset, step, place.period))]
    if record is not None and record.path is not None:
        known.append(facets.version(Path(record.path).name))
    return DatasetRef(naming.dataset_name(storage.location(place, step)), facets.merge(*known))


def _output(step: Step, contract: DataContract, place: Place, storage: Storage, outcome: Outcome) -> DatasetRef:
    names = outcome.schema.names if outcome.schema is not None else []
    parts = [
        facets.symlink(naming.logical_name(place.dataset, step.name, place.period)),
        facets.ownership(contract.owners),
        facets.documentation(step.description),
        facets.tags(contract, step.zone, [name for name in names if name in contract.columns]),
        outcome.facets,
    ]
    if outcome.schema is not None:
        parts += [facets.schema(outcome.schema), facets.table_type()]
    if step.name == "scrubbed":
        source = naming.dataset_name(contract.source.uri)
        kept = [name for name in names if name in contract.columns]
        parts.append(facets.column_lineage(facets.scrub_origins(contract, source, kept)))
    if outcome.published is not None:
        made = outcome.published
        statistics = facets.output_statistics(rows=made.rows, size=made.size, file_count=made.file_count)
        parts.append(facets.version(made.release_id))
        return DatasetRef(naming.dataset_name(made.path / "data"), facets.merge(*parts), output_facets=statistics)
    if outcome.record.path is not None:
        parts.append(facets.version(Path(outcome.record.path).name))
    return DatasetRef(naming.dataset_name(storage.location(place, step.name)), facets.merge(*parts))
