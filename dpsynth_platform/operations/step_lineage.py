"""Inputs and outputs of a step in lineage events, with public facts about them.

What belongs here: datasets and facets of one attempt. What does not: emitting, column lineage (`lineage.columns`), and
any count or hash of restricted content: events are exported. Imported late, since it imports OpenLineage's client.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pyarrow as pa
from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.release import DATABASE_FILES, Target
from dpsynth_platform.foundation.storage import MODELS, Place, StepRecord, Storage
from dpsynth_platform.lineage import columns, facets, linked_columns, naming
from dpsynth_platform.lineage.clearance import CLEARANCE, Clearance
from dpsynth_platform.lineage.columns import ColumnDescent
from dpsynth_platform.lineage.guarded_places import file_of
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.runs import DatasetRef, StepRun
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_from_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import SealedPlan

READS_SOURCE = ("raw", "scrubbed")


def step_run(
    context: dg.AssetExecutionContext, step: Step, contract: DataContract, place: Place, storage: Storage
) -> StepRun:
    """The attempt at its start: with the names of its inputs, without outputs. Reads no data."""
    inputs = [_upstream(None, name, place, storage) for name in step.upstream]
    if step.name in READS_SOURCE:
        inputs.append(_source(contract, list(contract.columns)))
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


def finished_run(run: StepRun, step: Step, place: Place, storage: Storage, outcome: Outcome) -> StepRun:
    """The completed attempt, with its outputs and the versions that it read, by the contract that `raw` sealed."""
    raw = storage.require(place, "raw")
    contract, source = DataContract.model_validate(raw.facts["contract"]), StepContext.source_schema(raw)
    inputs = [
        _upstream(storage.read(place, name), name, place, storage, outcome.input_facets.get(name))
        for name in step.upstream
    ]
    if step.name in READS_SOURCE:
        inputs.append(_source(contract, source.names, facets.schema(source)))
    bases = _bases(step, place, storage)
    inputs += bases
    output = _output(step, contract, source, place, storage, outcome, tuple(base.name for base in bases))
    copies = (_copy(output, target, outcome.record.facts["release_id"]) for target in outcome.targets)
    return replace(run, inputs=tuple(inputs), outputs=(output, *copies), run_facets=outcome.run_facets)


def _bases(step: Step, place: Place, storage: Storage) -> list[DatasetRef]:
    """The public bases that a step reads, under the names in the clearance. What writes or draws is a model."""
    if step.name not in (*MODELS, "synthetic"):
        return []
    cleared = Clearance.from_json(storage.require(place, "clearance").facts[CLEARANCE])
    read_by = "model" if step.name in MODELS else step.name
    types = {"checkpoint": "MODEL", "endpoint": "MODEL", "table": "TABLE", "lookup": "TABLE"}
    found = {
        base.name: facets.merge(
            facets.file_type(types.get(base.kind, "FILE")),
            facets.symlink(file_of(base.name)) if base.kind == "lookup" else without_links(base.name),
        )
        for base in cleared.bases
        if base.step == read_by
    }
    return [DatasetRef(name, known) for name, known in found.items()]


def _copy(release: DatasetRef, target: Target, release_id: str) -> DatasetRef:
    """A target that holds a copy of a release, as another output.

    It has no other name, and does not claim to be this release: it may hold earlier ones, too.
    """
    stored = not target.in_database and target.format not in DATABASE_FILES
    left_out = {"symlinks", "dpsynth_release", *([] if stored else ["storage"])}
    kept = {name: facet for name, facet in release.facets.items() if name not in left_out}
    return DatasetRef(naming.dataset_name(target.place_of(release_id)), kept)


def paid_by(contract: DataContract, plan: SealedPlan, entry_id: str) -> dict[str, DatasetFacet]:
    """The guarantee of a mechanism's output and of its post-processing, with the ledger entry that paid."""
    result = epsilon(event_from_json(plan.event), contract.privacy.delta)
    return facets.guarantee(
        replace(Guarantee.target(contract), epsilon=result.epsilon, delta=result.delta),
        method=plan.method,
        accounting=result.method,
        ledger_entry=entry_id,
    )


def _descent(
    step: str, contract: DataContract, source: pa.Schema, place: Place, storage: Storage, names: list[str]
) -> ColumnDescent | None:
    """Where the columns of a step's table come from."""

    def output(of: str) -> DatasetName:
        return naming.dataset_name(storage.location(place, of))

    if contract.tables and step not in ("canaries", "released"):
        raw = storage.require(place, "raw")
        return _linked_descent(step, contract, output, raw.facts["names"], names)
    makers = {
        "scrubbed": lambda: columns.scrubbed(contract, _source_name(contract), names),
        "canaries": lambda: columns.canaries(names),
        "bounded": lambda: columns.bounded(contract, output("scrubbed"), output("canaries"), names),
        "synthetic": lambda: columns.synthetic(contract, _rows_of(contract, output), source),
        "released": lambda: columns.released(output("synthetic"), names),
    }
    return makers[step]() if step in makers else None


def _rows_of(contract: DataContract, output: Callable[[str], DatasetName]) -> DatasetName:
    """The rows that a mechanism reads; of a federated dataset those of all participants together."""
    return output("bounded") if contract.source.federation is None else _source_name(contract)


def _linked_descent(
    step: str,
    contract: DataContract,
    output: Callable[[str], DatasetName],
    given: linked_columns.Names,
    names: list[str],
) -> ColumnDescent | None:
    """As `_descent`, of linked tables."""
    if step == "scrubbed":
        return linked_columns.scrubbed(contract, _source_name(contract), given)
    if step == "bounded":
        return linked_columns.bounded(contract, output("scrubbed"), output("canaries"), given, names)
    if step == "synthetic":
        return linked_columns.synthetic(contract, output("bounded"), _source_name(contract), given)
    return None


def _source_name(contract: DataContract) -> DatasetName:
    return naming.dataset_name(contract.source.place)


def _source(contract: DataContract, names: list[str], schema: Mapping[str, DatasetFacet] | None = None) -> DatasetRef:
    """The source as an input; without a version: the number of its versions may disclose content."""
    known = facets.merge(
        facets.ownership(contract.owners),
        facets.documentation(contract.description),
        facets.tags(contract, "restricted", names),
        facets.table_type(),
        facets.privacy_unit(contract),
        without_links(_source_name(contract)),
        schema or {},
    )
    return DatasetRef(_source_name(contract), known)


def without_links(name: DatasetName) -> dict[str, DatasetFacet]:
    """The target of symbolic links in a local path, as another name: other producers may use it."""
    real = naming.dataset_name(Path(name.name).resolve()) if name.namespace == "file" else name
    return facets.symlink(real) if real != name else {}


def _upstream(
    record: StepRecord | None,
    step: str,
    place: Place,
    storage: Storage,
    found: Mapping[str, InputDatasetFacet] | None = None,
) -> DatasetRef:
    known = [facets.symlink(naming.logical_name(place.dataset, step, place.period))]
    if record is not None and record.path is not None:
        known.append(facets.version(Path(record.path).name))
    name = naming.dataset_name(storage.location(place, step))
    return DatasetRef(name, facets.merge(*known), input_facets=found or {})


def _output(
    step: Step,
    contract: DataContract,
    source: pa.Schema,
    place: Place,
    storage: Storage,
    outcome: Outcome,
    bases: tuple[DatasetName, ...],
) -> DatasetRef:
    treatments = columns.treatments_of(contract, source) if step.name in ("synthetic", "released") else None
    names = outcome.schema.names if outcome.schema is not None else []
    parts = [
        facets.symlink(naming.logical_name(place.dataset, step.name, place.period)),
        facets.ownership(contract.owners),
        facets.documentation(step.description),
        facets.tags(contract, step.zone, names, treatments),
        outcome.facets,
    ]
    if outcome.schema is not None:
        parts += [facets.schema(outcome.schema), facets.table_type()]
    else:
        parts.append(facets.file_type("MODEL" if step.name in MODELS else "FILE"))
    if bases:
        parts.append(facets.base_model(*bases))
    descent = _descent(step.name, contract, source, place, storage, names)
    if descent is not None:
        parts.append(facets.column_lineage(descent))
    if outcome.published is not None:
        made = outcome.published
        statistics = facets.output_statistics(rows=made.rows, size=made.size, file_count=made.file_count)
        parts.append(facets.version(made.release_id))
        return DatasetRef(naming.dataset_name(made.path / "data"), facets.merge(*parts), output_facets=statistics)
    if outcome.record.path is not None:
        parts.append(facets.version(Path(outcome.record.path).name))
    return DatasetRef(naming.dataset_name(storage.location(place, step.name)), facets.merge(*parts))
