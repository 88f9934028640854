"""Attempts at steps, and the datasets that they use or make, as lineage events describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.naming import DatasetName

if TYPE_CHECKING:
    from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet, OutputDatasetFacet, RunFacet

INTERRUPTED = "interrupted"
"""Code of a run that ended without an error of its own."""


@dataclass(frozen=True)
class DatasetRef:
    """A dataset as a step uses or makes it: its physical name and what public facts say of it.

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
    """One attempt at one step of a dataset's line, or at what a command does by itself.

    What is known only later (outputs, more facets) goes in with `dataclasses.replace`; the ids stay the same.

    Attributes:
        dagster_run_id: id of the Dagster run, the parent; of a command, an id of its own.
        dagster_job: name of the Dagster job that the run executes; of a command, its name.
        launcher: namespace of the parent: who runs it.
        period: month (`YYYY-MM`) of a dataset with a cadence.
        attempt: Dagster's retry number, from 0.
        description, owners: of the job, from the contract.
        run_facets: facets of the run beside parent, period and engine, which are always there.
    """

    dagster_run_id: str
    dataset: str
    step: str
    dagster_job: str = "__ASSET_JOB"
    period: str | None = None
    attempt: int = 0
    launcher: Literal["dagster", "dpsynth"] = naming.PARENT_NAMESPACE
    description: str = ""
    owners: tuple[str, ...] = ()
    inputs: tuple[DatasetRef, ...] = ()
    outputs: tuple[DatasetRef, ...] = ()
    run_facets: Mapping[str, RunFacet] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """The OpenLineage run id."""
        return naming.run_id(self.dagster_run_id, f"{self.dataset}/{self.step}", self.attempt, self.period)

    @property
    def job_name(self) -> str:
        """The OpenLineage job name."""
        return naming.job_name(self.dataset, self.step)
