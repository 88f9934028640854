"""What lineage events say of a step: its inputs and outputs with public facts about them.

What belongs here: datasets and facets of one attempt. What does not: emitting, how a step's columns descend from those
before it (`lineage.columns`), and any count or hash of restricted content: events are exported.

With it comes OpenLineage's client: it is imported where a step runs, and not where assets are declared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import dagster as dg
import pyarrow as pa
from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.storage import MODELS, Place, StepRecord, Storage
from dpsynth_platform.lineage import columns, facets, naming
from dpsynth_platform.lineage.clearance import CLEARANCE, Clearance
from dpsynth_platform.lineage.columns import ColumnDescent
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.runs import DatasetRef, StepRun
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_from_json
from dpsynth_platform.privacy.guarantee import tier
from dpsynth_platform.synth.interface import SealedPlan

READS_SOURCE = ("raw", "scrubbed")


def step_run(
    context: dg.AssetExecutionContext, step: Step, contract: DataContract, place: Place, storage: Storage
) -> StepRun:
    """The attempt as it starts: what it will read is known by name, what it will write is not. Reads no data."""
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
    """The attempt as it completed, with what it wrote and the versions that it really read.

    The contract is the one that `raw` sealed: what the step really did.
    """
    line = _Line.of(place, storage)
    inputs = [
        _upstream(storage.read(place, name), name, place, storage, outcome.input_facets.get(name))
        for name in step.upstream
    ]
    if step.name in READS_SOURCE:
        inputs.append(_source(line.contract, line.source.names, facets.schema(line.source)))
    if step.name in MODELS:
        inputs += [DatasetRef(name, facets.file_type("MODEL")) for name in line.base_models]
    return replace(run, inputs=tuple(inputs), outputs=(_output(step, line, outcome),), run_facets=outcome.run_facets)


def paid_by(contract: DataContract, plan: SealedPlan, entry_id: str) -> dict[str, DatasetFacet]:
    """The guarantee of what a mechanism made, and of what was made of that alone, with the entry that paid for it."""
    result = epsilon(event_from_json(plan.event), contract.privacy.delta)
    return facets.guarantee(
        contract,
        epsilon=result.epsilon,
        delta=result.delta,
        tier=tier(result.epsilon),
        method=plan.method,
        accounting=result.method,
        ledger_entry=entry_id,
    )


@dataclass(frozen=True)
class _Line:
    """What is known of the whole line: its places, the sealed contract and the pinned source's schema."""

    place: Place
    storage: Storage
    contract: DataContract
    source: pa.Schema

    @classmethod
    def of(cls, place: Place, storage: Storage) -> "_Line":
        raw = storage.require(place, "raw")
        return cls(place, storage, DataContract.model_validate(raw.facts["contract"]), StepContext.source_schema(raw))

    def name(self, step: str) -> DatasetName:
        """The name of a step's output."""
        return naming.dataset_name(self.storage.location(self.place, step))

    @property
    def base_models(self) -> tuple[DatasetName, ...]:
        """The checkpoint that training starts from, under the names that clearance found it by."""
        record = self.storage.require(self.place, "clearance")
        return Clearance.from_json(record.facts[CLEARANCE]).base_model

    def descent(self, step: str, names: list[str]) -> ColumnDescent | None:
        """Where the columns of a step's table come from."""
        makers = {
            "scrubbed": lambda: columns.scrubbed(self.contract, _source_name(self.contract), names),
            "canaries": lambda: columns.canaries(names),
            "bounded": lambda: columns.bounded(self.contract, self.name("scrubbed"), self.name("canaries"), names),
            "synthetic": lambda: columns.synthetic(self.contract, self.name("bounded"), self.source),
            "released": lambda: columns.released(self.name("synthetic"), names),
        }
        return makers[step]() if step in makers else None

    def treatments(self, step: str) -> dict[str, str] | None:
        """What became of each column, where rows are synthetic."""
        return columns.treatments_of(self.contract, self.source) if step in ("synthetic", "released") else None


def _source_name(contract: DataContract) -> DatasetName:
    return naming.dataset_name(contract.source.uri)


def _source(contract: DataContract, names: list[str], schema: Mapping[str, DatasetFacet] | None = None) -> DatasetRef:
    """The source as an input; without a version, since how often it was written may tell of what is in it."""
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
    """The place that links on a local path lead to, as another name of it: others may know the table by that."""
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


def _output(step: Step, line: _Line, outcome: Outcome) -> DatasetRef:
    contract, place = line.contract, line.place
    names = outcome.schema.names if outcome.schema is not None else []
    parts = [
        facets.symlink(naming.logical_name(place.dataset, step.name, place.period)),
        facets.ownership(contract.owners),
        facets.documentation(step.description),
        facets.tags(contract, step.zone, names, line.treatments(step.name)),
        outcome.facets,
    ]
    if outcome.schema is not None:
        parts += [facets.schema(outcome.schema), facets.table_type()]
    else:
        parts.append(facets.file_type("MODEL" if step.name in MODELS else "FILE"))
    if step.name in MODELS and line.base_models:
        parts.append(facets.base_model(*line.base_models))
    descent = line.descent(step.name, names)
    if descent is not None:
        parts.append(facets.column_lineage(descent))
    if outcome.published is not None:
        made = outcome.published
        statistics = facets.output_statistics(rows=made.rows, size=made.size, file_count=made.file_count)
        parts.append(facets.version(made.release_id))
        return DatasetRef(naming.dataset_name(made.path / "data"), facets.merge(*parts), output_facets=statistics)
    if outcome.record.path is not None:
        parts.append(facets.version(Path(outcome.record.path).name))
    return DatasetRef(line.name(step.name), facets.merge(*parts))
