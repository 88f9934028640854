"""Events with every facet that the platform can make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.serde import Serde

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.lineage import columns, facets, naming
from dpsynth_platform.lineage.runs import DatasetRef, StepRun
from dpsynth_platform.privacy.guarantee import Guarantee

SOURCE = naming.dataset_name("/data/visits")
SCHEMA = pa.schema([("patient_id", pa.string()), ("email", pa.string()), ("age", pa.int32()), ("_owner", pa.string())])
CHECKPOINT = naming.DatasetName("hub", "tiny-lm")
DIGEST = "ab" * 32
ENTRY = "0e" * 16
RELEASE = "visits-2026-12-0123456789abcdef"


def every_facet(contract: DataContract) -> StepRun:
    """A run that carries every facet that the platform can make."""
    table = facets.merge(
        facets.schema(SCHEMA),
        facets.column_lineage(columns.scrubbed(contract, SOURCE, SCHEMA.names)),
        facets.tags(contract, "public", SCHEMA.names, {"age": "modelled"}),
        facets.ownership(contract.owners),
        facets.version("5ae1f00d5ae1f00d"),
        facets.documentation(contract.description),
        facets.symlink(naming.logical_name("visits", "scrubbed", "2026-12")),
        facets.table_type(),
        facets.privacy_unit(contract),
        facets.guarantee(
            replace(Guarantee.target(contract), epsilon=1.0, delta=1e-5),
            method="mst",
            accounting="pld",
            ledger_entry=ENTRY,
        ),
        facets.release(release_id=RELEASE, candidate_commitment=DIGEST, head=Head(7, DIGEST)),
    )
    checks = facets.audit_assertion(verdict="pass", threshold=1.0, lower_bound=0.2)
    model = facets.merge(
        facets.file_type("MODEL"), facets.dropped(), facets.base_model(CHECKPOINT), facets.training(SOURCE)
    )
    return StepRun(
        dagster_run_id="6f0c3f0e-7d1c-4b0a-9a53-0d6c2b9d8f11",
        dataset="visits",
        step="scrubbed",
        period="2026-12",
        description="Removes personal data.",
        owners=("clinic@example.org",),
        inputs=(DatasetRef(SOURCE, facets.privacy_unit(contract), input_facets=checks),),
        outputs=(
            DatasetRef(
                naming.dataset_name("/r/visits/scrubbed"),
                table,
                output_facets=facets.output_statistics(rows=3, size=10, file_count=1),
            ),
            DatasetRef(naming.dataset_name("/r/visits/model"), model),
        ),
        run_facets=facets.clearance(contract, verdict="cleared", ledger_entry=ENTRY, plan_digest=DIGEST)
        | facets.participants(contract, ledger_entry=ENTRY, commitment=DIGEST)
        | facets.audit_verdict(verdict="pass", lower_bound=0.2, highest_reachable=3.1, threshold=1.0, confidence=0.95)
        | facets.use(RELEASE, purpose="train", product="classifier", by="ann", reason="a trial"),
    )


def event_of(run: StepRun, contract: DataContract) -> dict[str, Any]:
    """A FAIL event of a run with everything in it, as a JSON value."""
    more = facets.parent(run.run_id, "dagster", "visits_candidate") | facets.processing_engine()
    more |= facets.nominal_time("2026-12") | facets.error_message("source", "the table has 4711 rows of Jane Doe")
    made = RunEvent(
        eventType=RunState.FAIL,
        eventTime="2026-12-31T23:59:59.123456+00:00",
        run=Run(run.run_id, {**more, **run.run_facets}),
        job=Job(naming.JOB_NAMESPACE, run.job_name, facets.job(run.description, run.owners)),
        inputs=[
            InputDataset(*_name(ref), facets=dict(ref.facets), inputFacets=dict(ref.input_facets)) for ref in run.inputs
        ],
        outputs=[
            OutputDataset(*_name(ref), facets=dict(ref.facets), outputFacets=dict(ref.output_facets))
            for ref in run.outputs
        ],
        producer=facets.PRODUCER,
    )
    event: dict[str, Any] = Serde.to_dict(made)
    return event


def _name(ref: DatasetRef) -> tuple[str, str]:
    return ref.name.namespace, ref.name.name
