"""Lineage of a federated run: a run in each place, all of them children of the coordinator's.

What belongs here: which runs and datasets there are, and what each place says of them. What does not: recording and
sending (`lineage.emitter`). Each place reports to its own graph and its own receivers, and no event travels with a run:

    coordinator   meals.federated            reads dpsynth:meals/participant-north/sums, ...   makes its model
                  meals.federated-synthetic  reads the model                    makes the synthetic table
    participant   meals.participant-north    reads its own table    makes dpsynth:meals/participant-north/sums

All names and ids follow from the plan and the run's name, which all places know. So graphs that are brought together
later lead from each table to the synthetic one. A participant's event has no count, and nothing else of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dpsynth_platform.federation.participants import Run
from dpsynth_platform.federation.plans import FederatedPlan
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.settings import Settings, embedded_ledger
from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.emitter import Delivery, LineageEmitter
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.runs import DatasetRef, Launcher, StepRun
from dpsynth_platform.one_table.place import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from openlineage.client.facet_v2 import DatasetFacet

COMMAND = "federate run"
_SUMS = {"distributed": "Noisy sums", "central": "Exact sums, for the coordinator alone,", "local": "Private reports"}
"""What leaves a participant, by who adds the noise (`federation.trust`)."""
_STOPPED = "The participant's process ended before the coordinator had reported the end of the run."


def own_emitter(place: Place) -> LineageEmitter:
    """Into a graph beside the ledger of a directory, and to the standard client's receivers."""
    return LineageEmitter(embedded_ledger(place.ledger.resolve()), place.restricted / "lineage")


def coordinator_emitter(place: Place, settings: Settings) -> LineageEmitter:
    """Into the deployment's graph where there is one, which clearance walks; else into one of the output's own."""
    return LineageEmitter.of(settings) if settings.has_ledger else own_emitter(place)


def coordinator_run(
    plan: FederatedPlan,
    run: str,
    started: Iterable[str] = (),
    model: Path | None = None,
    *,
    launcher: Launcher = naming.COMMAND_NAMESPACE,
    job: str = COMMAND,
    attempt: str | None = None,
) -> StepRun:
    """The coordinator's run, the parent of all others.

    Args:
        started: the participants that took part, once they are known.
        attempt: of a run that continues, another name, as its first attempt has ended; None: the run's name.
        model: the directory of opened sums, once it is complete.
        launcher, job: of the parent, whose id is the run's name: a command, or the Dagster run of a line.
    """
    outputs = () if model is None else (_model(plan, run, model),)
    return StepRun(
        dagster_run_id=attempt or run,
        dataset=plan.sealed.dataset,
        step="federated",
        dagster_job=job,
        launcher=launcher,
        description="Opens sums of participants whose rows stay where they are.",
        inputs=tuple(DatasetRef(*_sums(plan, run, name)) for name in started),
        outputs=outputs,
    )


def drawing_run(plan: FederatedPlan, run: str, model: Path, synthetic: Path, schema: pa.Schema) -> StepRun:
    """The run that draws the synthetic table from the model."""
    from dpsynth_platform.lineage import facets

    about = facets.merge(facets.schema(schema), facets.version(run), _guarantee(plan, run))
    return replace(
        _child(plan, run, "federated-synthetic"),
        description="Rows drawn from the model.",
        inputs=(_model(plan, run, model),),
        outputs=(DatasetRef(naming.dataset_name(synthetic), about),),
    )


def participant_run(plan: FederatedPlan, run: str, name: str, table: Path, entry: str) -> StepRun:
    """The run of one participant.

    Args:
        entry: of its own ledger, that pays.
    """
    from dpsynth_platform.lineage import facets

    sums, version = _sums(plan, run, name)
    # What the coordinator opens without noise has no guarantee yet: its model has.
    promised = {} if plan.trust == "central" else _guarantee(plan, entry)
    return replace(
        _child(plan, run, f"participant-{name}"),
        description=f"{_SUMS[plan.trust]} of rows that stay here, under masks.",
        inputs=(DatasetRef(naming.dataset_name(table)),),
        outputs=(DatasetRef(sums, facets.merge(version, promised)),),
    )


def _child(plan: FederatedPlan, run: str, step: str) -> StepRun:
    parent = coordinator_run(plan, run)
    return replace(parent, dagster_run_id=parent.run_id, dagster_job=parent.job_name, step=step)


def _model(plan: FederatedPlan, run: str, directory: Path) -> DatasetRef:
    from dpsynth_platform.lineage import facets

    about = facets.merge(facets.file_type("MODEL"), facets.version(run), _guarantee(plan, run))
    return DatasetRef(naming.dataset_name(directory.parent), about)


def _sums(plan: FederatedPlan, run: str, name: str) -> tuple[DatasetName, dict[str, DatasetFacet]]:
    from dpsynth_platform.lineage import facets

    return naming.logical_name(plan.sealed.dataset, f"participant-{name}/sums"), facets.version(run)


def _guarantee(plan: FederatedPlan, entry: str) -> dict[str, DatasetFacet]:
    """That of the whole run; where no ledger of the place has paid, its name stands for the participants' entries."""
    from dpsynth_platform.lineage import facets
    from dpsynth_platform.privacy.accounting import epsilon

    made = plan.guarantee
    return facets.guarantee(
        made, method=plan.sealed.method, accounting=epsilon(plan.event, made.delta).method, ledger_entry=entry
    )


class NodeLineage:
    """A participant's runs, from their start to their end, in its own graph; a context for the process.

    Args:
        name: of the participant.
        table: its own rows.
        report: called with a line for each place that did not get an event.
    """

    def __init__(self, emitter: LineageEmitter, name: str, table: Path, report: Callable[[str], None]) -> None:
        self._emitter, self._name, self._table, self._report = emitter, name, table, report
        self._open: dict[str, Run] = {}
        # One after the other, and beside the answers: a receiver that is slow must not make a participant drop out.
        self._later = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        """Ends the runs that were open when an earlier process was killed. Raises `LedgerError`."""
        self._say(self._emitter.close_out([run.parent_run_id for run in self._emitter.open_runs()]))
        return self

    def __exit__(self, *_: object) -> None:
        for run_id, run in self._open.items():
            self._emit(partial(self._emitter.abort, reason=_STOPPED), run_id, run)
        self._later.shutdown()

    def started(self, run_id: str, run: Run) -> None:
        """Called once the run is paid for, which goes on whatever becomes of its lineage."""
        self._open[run_id] = run
        self._emit(self._emitter.start, run_id, run)

    def completed(self, run_id: str) -> None:
        """Called when the coordinator has reported the end of a run."""
        if (run := self._open.pop(run_id, None)) is not None:
            self._emit(self._emitter.complete, run_id, run)

    def _emit(self, event: Callable[[StepRun], Delivery], run_id: str, run: Run) -> None:
        def emit() -> None:
            try:
                self._say([event(participant_run(run.plan, run_id, self._name, self._table, run.entry_id))])
            except Exception as error:
                self._report(f"run {run_id}: its lineage is not recorded ({reason_of(error)})")

        self._later.submit(emit)

    def _say(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            for warning in delivery.warnings:
                self._report(f"lineage: {warning}")
