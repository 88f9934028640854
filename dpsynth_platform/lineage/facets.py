"""The facets of our events: the standard ones of openlineage-python, and our own where there is no standard one.

What belongs here: building facets from public facts. What does not: the schemas of our own facets (`custom_facets`),
emitting, or reading data. Events are exported, so no facet may depend on the data: no counts of restricted tables, no
content hashes; row counts only of a published release (`output_statistics`).

Importing this module loads OpenLineage's client, which is slow: import it where facets are made.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Any

from openlineage.client import facet_v2 as ol
from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet, JobFacet, OutputDatasetFacet, RunFacet

from dpsynth_platform.compute.plain_types import type_name
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.periods import period_bounds
from dpsynth_platform.lineage.columns import ColumnDescent, ColumnOrigin
from dpsynth_platform.lineage.custom_facets import AUDIT_ASSERTION, CUSTOM_FACETS, ROWS_ASSERTION, schema_url
from dpsynth_platform.lineage.naming import JOB_NAMESPACE, DatasetName

if TYPE_CHECKING:
    import pyarrow as pa

    from dpsynth_platform.ledger.records import Head
    from dpsynth_platform.privacy.guarantee import Guarantee

PSEUDONYMS = frozenset({"_owner", "_owners", "_record"})
"""Columns of our own that identify one person or record."""
PRODUCER = f"urn:dpsynth-platform:{package_version('dpsynth-platform')}"


def _custom(key: str, **fields: Any) -> dict[str, Any]:
    """One of our own facets, by its key; its JSON schema (`custom_facets`) declares the fields."""
    return {key: {"_producer": PRODUCER, "_schemaURL": schema_url(CUSTOM_FACETS[key]), **fields}}


def schema(arrow: pa.Schema) -> dict[str, DatasetFacet]:
    """Names and types of the columns. No statistics, and no names of the fields of a nested type."""
    fields = [
        ol.schema_dataset.SchemaDatasetFacetFields(name=field.name, type=type_name(field.type), ordinal_position=index)
        for index, field in enumerate(arrow, start=1)
    ]
    return {"schema": ol.schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)}


def column_lineage(descent: ColumnDescent) -> dict[str, DatasetFacet]:
    """The origins of each column, which of them are masked, and why a column has none."""
    fields = {
        name: ol.column_lineage_dataset.Fields(inputFields=[_input_field(origin) for origin in origins])
        for name, origins in descent.origins.items()
    } | {
        # The only field of the specification that describes a whole column.
        name: ol.column_lineage_dataset.Fields(inputFields=[], transformationDescription=reason)
        for name, reason in descent.without.items()
    }
    facet = ol.column_lineage_dataset.ColumnLineageDatasetFacet(
        fields=fields, dataset=[_input_field(origin) for origin in descent.rows], producer=PRODUCER
    )
    return {"columnLineage": facet}


def _input_field(origin: ColumnOrigin) -> ol.column_lineage_dataset.InputField:
    step = ol.column_lineage_dataset.Transformation(
        type="DIRECT" if origin.direct else "INDIRECT",
        subtype=origin.subtype,
        description=origin.description or None,
        masking=origin.masking,
    )
    return ol.column_lineage_dataset.InputField(
        namespace=origin.source.namespace, name=origin.source.name, field=origin.column, transformations=[step]
    )


def tags(
    contract: DataContract, zone: str, columns: Iterable[str] = (), treatments: Mapping[str, str] | None = None
) -> dict[str, DatasetFacet]:
    """The zone of a dataset, and the declared class of each of its columns that identifies people.

    Args:
        columns: those of the dataset. Fingerprints of owners and record ids are undeclared columns; they are tagged as
            pseudonyms.
        treatments: of synthetic columns, how each was made (`columns.treatments_of`).
    """
    found = [ol.tags_dataset.TagsDatasetFacetFields(key="zone", value=zone, source="INTEGRATION")]
    for name in columns:
        column = contract.columns.get(name)
        if column is None:
            if name in PSEUDONYMS:
                found.append(_tag("pseudonym", "true", "INTEGRATION", name))
        elif column.type == "text":
            found.append(_tag("pii", column.pii, "USER", name))
        elif column.type == "image":
            found.append(_tag("image", "unscrubbed", "USER", name))
        elif column.type in ("ignored", "identifier"):
            found.append(_tag(column.type, "true", "USER", name))
        if treatments and name in treatments:
            found.append(_tag("treatment", treatments[name], "INTEGRATION", name))
    return {"tags": ol.tags_dataset.TagsDatasetFacet(tags=found, producer=PRODUCER)}


def _tag(key: str, value: str, source: str, column: str) -> ol.tags_dataset.TagsDatasetFacetFields:
    return ol.tags_dataset.TagsDatasetFacetFields(key=key, value=value, source=source, field=column)


def ownership(owners: Sequence[str]) -> dict[str, DatasetFacet]:
    """The people to ask about a dataset."""
    people = [ol.ownership_dataset.Owner(name=owner, type="MAINTAINER") for owner in owners]
    return {"ownership": ol.ownership_dataset.OwnershipDatasetFacet(owners=people, producer=PRODUCER)}


def version(name: str) -> dict[str, DatasetFacet]:
    """A version that does not depend on the content: a table version, or the random name of an output."""
    return {"version": ol.dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=name, producer=PRODUCER)}


def documentation(description: str) -> dict[str, DatasetFacet]:
    """The contract's description of a dataset."""
    facet = ol.documentation_dataset.DocumentationDatasetFacet(
        description=description, contentType="text/plain", producer=PRODUCER
    )
    return {"documentation": facet}


def symlink(other: DatasetName) -> dict[str, DatasetFacet]:
    """Another name of a dataset: its logical one, or the target of a link."""
    identifier = ol.symlinks_dataset.Identifier(namespace=other.namespace, name=other.name, type="TABLE")
    return {"symlinks": ol.symlinks_dataset.SymlinksDatasetFacet(identifiers=[identifier], producer=PRODUCER)}


def table_type() -> dict[str, DatasetFacet]:
    """A Delta table of Parquet files."""
    storage = ol.storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet", producer=PRODUCER)
    return {**file_type("TABLE"), "storage": storage}


def file_type(kind: str) -> dict[str, DatasetFacet]:
    """`MODEL`, or `FILE` for what is neither model nor table."""
    return {"datasetType": ol.dataset_type_dataset.DatasetTypeDatasetFacet(datasetType=kind, producer=PRODUCER)}


def dropped() -> dict[str, DatasetFacet]:
    """The files of the dataset were deleted: its time-to-live has passed, or the release was withdrawn."""
    facet = ol.lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(
        lifecycleStateChange=ol.lifecycle_state_change_dataset.LifecycleStateChange.DROP, producer=PRODUCER
    )
    return {"lifecycleStateChange": facet}


def privacy_unit(contract: DataContract) -> dict[str, DatasetFacet]:
    """The declared privacy unit of a dataset."""
    privacy = contract.privacy
    return _custom(
        "dpsynth_privacyUnit",
        unit=privacy.unit,
        adjacency=privacy.adjacency,
        namespace=privacy.namespace,
        ownerColumns=list(privacy.owner_columns),
        maxContributions=contract.unit_records,
    )


def guarantee(made: Guarantee, *, method: str, accounting: str, ledger_entry: str) -> dict[str, DatasetFacet]:
    """The guarantee of what a mechanism made and of what was sampled from it.

    Args:
        method: the generator's name, or another access to the data.
        accounting: the smaller bound: pld or renyi.
    """
    return _custom(
        "dpsynth_guarantee",
        epsilon=made.epsilon,
        delta=made.delta,
        unit=made.unit,
        adjacency=made.adjacency,
        maxContributions=made.max_contributions,
        weighting=made.weighting,
        tier=made.tier,
        method=method,
        accounting=accounting,
        ledgerEntry=ledger_entry,
    )


def release(*, release_id: str, candidate_commitment: str, head: Head) -> dict[str, DatasetFacet]:
    """The release that a published dataset is; the public dossier has all of it, too."""
    return _custom(
        "dpsynth_release",
        releaseId=release_id,
        candidateCommitment=candidate_commitment,
        ledgerSequence=head.sequence,
        ledgerHash=head.hash,
    )


def base_model(*checkpoints: DatasetName) -> dict[str, DatasetFacet]:
    """The checkpoints that a model was initialized from, and other public bases that were read in clear."""
    return _custom("dpsynth_baseModel", baseModels=_ancestors(checkpoints))


def training(*datasets: DatasetName) -> dict[str, DatasetFacet]:
    """The datasets that a model was itself trained on."""
    return _custom("dpsynth_training", trainedOn=_ancestors(datasets))


def _ancestors(names: Iterable[DatasetName]) -> list[dict[str, str]]:
    return [asdict(name) | {"version": "unknown"} for name in names]


def use(release: str, *, purpose: str, product: str, by: str, reason: str) -> dict[str, RunFacet]:
    """A use of a release: `train`, `evaluate` or `other`."""
    return _custom("dpsynth_use", release=release, purpose=purpose, product=product, by=by, reason=reason)


def clearance(contract: DataContract, *, verdict: str, ledger_entry: str, plan_digest: str) -> dict[str, RunFacet]:
    """The clearance of a mechanism: `cleared` or `blocked`, by public facts only."""
    return _custom(
        "dpsynth_clearance",
        verdict=verdict,
        ledgerEntry=ledger_entry,
        family=contract.family,
        policy=contract.privacy.on_overlap,
        planDigest=plan_digest,
    )


def participants(contract: DataContract, *, ledger_entry: str, commitment: str) -> dict[str, RunFacet]:
    """The reference to the participants that a ledger entry covers."""
    namespace = contract.privacy.namespace
    return _custom("dpsynth_participants", ledgerEntry=ledger_entry, namespace=namespace, commitment=commitment)


def audit_verdict(
    *, verdict: str, lower_bound: float, highest_reachable: float, threshold: float, confidence: float
) -> dict[str, RunFacet]:
    """The verdict of an audit (`pass`, `fail`, `inconclusive`) with its bound on epsilon and its power."""
    return _custom(
        "dpsynth_auditVerdict",
        verdict=verdict,
        epsilonLowerBound=lower_bound,
        epsilonHighestReachable=highest_reachable,
        epsilonThreshold=threshold,
        confidence=confidence,
    )


def audit_assertion(*, verdict: str, threshold: float, lower_bound: float) -> dict[str, InputDatasetFacet]:
    """The audit as a check on its input, the synthetic dataset: the bound on epsilon stays below the threshold."""
    return _assertion(
        assertion=AUDIT_ASSERTION,
        success=verdict == "pass",
        severity="error",
        name="privacy-audit",
        description=f"The one-run audit's lower bound on epsilon; verdict {verdict}.",
        expected=f"{threshold:g}",
        actual=f"{lower_bound:.4g}",
    )


def rows_assertion(*, declared: int, published: int) -> dict[str, InputDatasetFacet]:
    """A release has as many rows as the contract declares. Both numbers are public."""
    return _assertion(
        assertion=ROWS_ASSERTION,
        success=declared == published,
        severity="warn",
        name="declared-rows",
        description="The release has as many rows as the contract declares.",
        expected=str(declared),
        actual=str(published),
    )


def _assertion(**fields: Any) -> dict[str, InputDatasetFacet]:
    found = [ol.data_quality_assertions_dataset.Assertion(**fields)]
    facet = ol.data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(assertions=found, producer=PRODUCER)
    return {"dataQualityAssertions": facet}


def output_statistics(*, rows: int, size: int, file_count: int) -> dict[str, OutputDatasetFacet]:
    """Rows, bytes and files of a *published* release, and of no other output."""
    facet = ol.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=rows, size=size, fileCount=file_count, producer=PRODUCER
    )
    return {"outputStatistics": facet}


def parent(run_id: str, namespace: str, name: str) -> dict[str, RunFacet]:
    """The Dagster run that a step belongs to."""
    facet = ol.parent_run.ParentRunFacet(
        run=ol.parent_run.Run(runId=run_id), job=ol.parent_run.Job(namespace=namespace, name=name), producer=PRODUCER
    )
    return {"parent": facet}


def nominal_time(period: str) -> dict[str, RunFacet]:
    """The period of a run, from its first day to the first of the next, in UTC."""
    first, last = period_bounds(period)
    start, end = (dt.datetime.combine(day, dt.time(), dt.UTC) for day in (first, last + dt.timedelta(days=1)))
    facet = ol.nominal_time_run.NominalTimeRunFacet(
        nominalStartTime=start.isoformat(), nominalEndTime=end.isoformat(), producer=PRODUCER
    )
    return {"nominalTime": facet}


@cache  # package_version reads files, and each event has this facet
def processing_engine() -> dict[str, RunFacet]:
    """Dagster and its version, with the version of this package as the adapter's."""
    facet = ol.processing_engine_run.ProcessingEngineRunFacet(
        version=package_version("dagster"),
        name="Dagster",
        openlineageAdapterVersion=package_version("dpsynth-platform"),
        producer=PRODUCER,
    )
    return {"processing_engine": facet}


def error_message(code: str, message: str) -> dict[str, RunFacet]:
    """A safe error (`redaction.safe_error`), without a stack trace: frames and messages may quote data."""
    facet = ol.error_message_run.ErrorMessageRunFacet(
        message=f"{code}: {message}", programmingLanguage="PYTHON", producer=PRODUCER
    )
    return {"errorMessage": facet}


def job(description: str, owners: Sequence[str]) -> dict[str, JobFacet]:
    """A step's job: a batch task of Dagster, its description and the people to ask."""
    people = [ol.ownership_job.Owner(name=owner, type="MAINTAINER") for owner in owners]
    facets: dict[str, JobFacet] = {
        "jobType": ol.job_type_job.JobTypeJobFacet(
            processingType="BATCH", integration=JOB_NAMESPACE.upper(), jobType="ASSET", producer=PRODUCER
        )
    }
    if description:
        facets["documentation"] = ol.documentation_job.DocumentationJobFacet(
            description=description, contentType="text/plain", producer=PRODUCER
        )
    if people:
        facets["ownership"] = ol.ownership_job.OwnershipJobFacet(owners=people, producer=PRODUCER)
    return facets


def merge(*parts: Mapping[str, DatasetFacet]) -> dict[str, DatasetFacet]:
    """Several groups of dataset facets as one."""
    return {name: facet for part in parts for name, facet in part.items()}
