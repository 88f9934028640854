"""Our own run events, made with OpenLineage's client.

What belongs here: the events of a step, of a run that was closed afterwards, of a registered use and of making a model
of public texts, as documents, and a recorded event as the client sends it. What does not: facets (`facets`), and
recording or sending (`emitter`, `receivers`).

Importing this module loads OpenLineage's client, which is slow: import it where an event is made.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import DatasetFacet, RunFacet
from openlineage.client.serde import Serde

from dpsynth_platform.lineage import facets, naming
from dpsynth_platform.lineage.naming import DatasetName

if TYPE_CHECKING:
    from dpsynth_platform.lineage.nodes import Node, Purpose
    from dpsynth_platform.lineage.runs import StepRun

Kind = Literal["START", "COMPLETE", "FAIL", "ABORT"]
Event = dict[str, Any]


def step_event(run: StepRun, kind: Kind, error: tuple[str, str] | None = None) -> Event:
    """The start or an end of an attempt at a step, with its known inputs and outputs.

    Args:
        error: safe code and message (`redaction.safe_error`).
    """
    run_facets = facets.parent(naming.parent_run_id(run.dagster_run_id), run.launcher, run.dagster_job)
    if run.launcher == naming.PARENT_NAMESPACE:
        run_facets |= facets.processing_engine()
    if run.period is not None:
        run_facets |= facets.nominal_time(run.period)
    ended_by: Mapping[str, RunFacet] = {} if error is None else facets.error_message(*error)
    event = RunEvent(
        eventType=RunState[kind],
        eventTime=_now(),
        run=Run(run.run_id, {**run_facets, **run.run_facets, **ended_by}),
        job=Job(naming.JOB_NAMESPACE, run.job_name, facets.job(run.description, run.owners)),
        inputs=[
            InputDataset(ref.name.namespace, ref.name.name, facets=dict(ref.facets), inputFacets=dict(ref.input_facets))
            for ref in run.inputs
        ],
        outputs=[
            OutputDataset(
                ref.name.namespace, ref.name.name, facets=dict(ref.facets), outputFacets=dict(ref.output_facets)
            )
            for ref in run.outputs
        ],
        producer=facets.PRODUCER,
    )
    return _document(event)


def closing_event(start: Mapping[str, Any], error: tuple[str, str]) -> Event:
    """FAIL for a run with only a START event; without the outputs that it announced, which were never completed."""
    parent = start["run"]["facets"]["parent"]
    run_facets = facets.parent(parent["run"]["runId"], parent["job"]["namespace"], parent["job"]["name"])
    event = RunEvent(
        eventType=RunState.FAIL,
        eventTime=_now(),
        run=Run(start["run"]["runId"], run_facets | facets.error_message(*error)),
        job=Job(start["job"]["namespace"], start["job"]["name"]),
        inputs=[InputDataset(item["namespace"], item["name"]) for item in start.get("inputs", [])],
        producer=facets.PRODUCER,
    )
    return _document(event)


def use_event(release: Node, product: DatasetName | None, purpose: Purpose, by: str, reason: str) -> Event:
    """A run of our own that read the release and made the product, if one is named."""
    named = release.facets.get("version", {}).get("datasetVersion") or str(release.name)
    use = facets.use(named, purpose=purpose, product=str(product or ""), by=by, reason=reason)
    event = RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=_now(),
        run=Run(str(uuid.uuid4()), dict(use)),
        job=Job(naming.JOB_NAMESPACE, f"use.{purpose}", facets.job("", ())),
        inputs=[InputDataset(release.name.namespace, release.name.name)],
        outputs=[OutputDataset(product.namespace, product.name)] if product else [],
        producer=facets.PRODUCER,
    )
    return _document(event)


def public_model_event(
    step: str, made: tuple[DatasetName, str], public: tuple[DatasetName, str], why: str, base: DatasetName | None
) -> Event:
    """A run of our own that made a model of a public table, without privacy. The same model gives the same run.

    Args:
        step: what made it, such as `writer`.
        made, public: names, each with the digest of the content.
        why: why the table is public.
        base: the model that training started from.
    """
    (model, digest), (table, content) = made, public
    started: Mapping[str, DatasetFacet] = {} if base is None else facets.base_model(base)
    about = facets.merge(facets.file_type("MODEL"), facets.version(digest), started, facets.training(table))
    event = RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=_now(),
        run=Run(str(uuid.uuid5(uuid.NAMESPACE_URL, f"{model}@{digest}"))),
        job=Job(naming.JOB_NAMESPACE, step, facets.job("", ())),
        inputs=[
            InputDataset(
                table.namespace, table.name, facets=facets.merge(facets.documentation(why), facets.version(content))
            )
        ],
        outputs=[OutputDataset(model.namespace, model.name, facets=about)],
        producer=facets.PRODUCER,
    )
    return _document(event)


def run_event(event: Mapping[str, Any]) -> RunEvent:
    """A recorded run event for OpenLineage's client. KeyError, TypeError or ValueError: it is none of ours."""
    run, job = event["run"], event["job"]
    return RunEvent(
        eventType=RunState(event["eventType"]),
        eventTime=event["eventTime"],
        run=Run(run["runId"], dict(run.get("facets", {}))),
        job=Job(job["namespace"], job["name"], dict(job.get("facets", {}))),
        inputs=[InputDataset(**item) for item in event.get("inputs", [])],
        outputs=[OutputDataset(**item) for item in event.get("outputs", [])],
        producer=event["producer"],
    )


def _document(event: RunEvent) -> Event:
    document: Event = Serde.to_dict(event)
    return document


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat()
