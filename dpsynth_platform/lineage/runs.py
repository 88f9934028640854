"""Attempts at steps, and the datasets that they use or make, as lineage events describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.naming import DatasetName

if TYPE_CHECKING:
    from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet, OutputDatasetFacet, RunFacet

Launcher = Literal["dagster", "dpsynth"]
INTERRUPTED = "interrupted"
"""Error code of a run that was cancelled or whose process was killed."""


@dataclass(frozen=True)
class DatasetRef:
    """A dataset as a step uses or makes it: its physical name, with facets from public facts.

    Attributes:
        facets: dataset facets (`facets.merge(facets.schema(...), facets.version(...), ...)`).
        input_facets, output_facets: facets of the dataset as this run's input or output.
    """

    name: DatasetName
    facets: Mapping[str, DatasetFacet] = field(default_factory=dict)
    input_facets: Mapping[str, InputDatasetFacet] = field(default_factory=dict)
    output_facets: Mapping[str, OutputDatasetFacet] = field(default_factory=dict)


@dataclass(frozen=True)
class StepRun:
    """One attempt at one step of a dataset's line, or at a command.

    Later facts (outputs, more facets) are added with `dataclasses.replace`; the ids stay the same.

    Attributes:
        dagster_run_id: id of the parent, a Dagster run; for a command, any new id.
        dagster_job: name of the Dagster job that the run executes, or of the command.
        launcher: namespace of the parent.
        attempt: Dagster's retry number, from 0.
        description, owners: of the job, from the contract.
        run_facets: facets of the run besides parent, period and engine, which are added to each event.
    """

    dagster_run_id: str
    dataset: str
    step: str
    dagster_job: str = "__ASSET_JOB"
    period: str | None = None
    attempt: int = 0
    launcher: Launcher = naming.PARENT_NAMESPACE
    description: str = ""
    owners: tuple[str, ...] = ()
    inputs: tuple[DatasetRef, ...] = ()
    outputs: tuple[DatasetRef, ...] = ()
    run_facets: Mapping[str, RunFacet] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        return naming.run_id(self.dagster_run_id, f"{self.dataset}/{self.step}", self.attempt, self.period)

    @property
    def job_name(self) -> str:
        return naming.job_name(self.dataset, self.step)
