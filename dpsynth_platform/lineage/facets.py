"""The facets of our events: the standard ones through openlineage-python, our own for what has none.

What belongs here: building facets from public facts, and the classes of our own facets. What does not: their names and
schemas (`own_facets`), emitting, or reading data. Events are exported, so nothing in a facet may tell of the data: no
counts of restricted tables, no content hashes; row counts only of a published release (`output_statistics`).

With it comes OpenLineage's client, which takes its time: import it where facets are made.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Any

import attr
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    JobFacet,
    OutputDatasetFacet,
    RunFacet,
    column_lineage_dataset,
    data_quality_assertions_dataset,
    dataset_type_dataset,
    dataset_version_dataset,
    documentation_dataset,
    documentation_job,
    error_message_run,
    job_type_job,
    lifecycle_state_change_dataset,
    nominal_time_run,
    output_statistics_output_dataset,
    ownership_dataset,
    ownership_job,
    parent_run,
    processing_engine_run,
    schema_dataset,
    storage_dataset,
    symlinks_dataset,
    tags_dataset,
)

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.lineage.columns import ColumnDescent, ColumnOrigin
from dpsynth_platform.lineage.custom_facets import AUDIT_ASSERTION, ROWS_ASSERTION, schema_url
from dpsynth_platform.lineage.naming import JOB_NAMESPACE, DatasetName

if TYPE_CHECKING:
    import pyarrow as pa

    from dpsynth_platform.ledger.records import Head

PSEUDONYMS = frozenset({"_owner", "_owners", "_record"})
"""Columns of our own that stand for one person or record."""
PRODUCER = f"urn:dpsynth-platform:{package_version('dpsynth-platform')}"


@attr.define
class PrivacyUnitDatasetFacet(DatasetFacet):
    """Whom one guarantee over this dataset protects, with adjacency and contribution bound (all declared)."""

    unit: str
    adjacency: str
    namespace: str
    ownerColumns: list[str]  # noqa: N815 - OpenLineage writes its fields so
    maxContributions: int  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return schema_url("PrivacyUnitDatasetFacet")


@attr.define
class GuaranteeDatasetFacet(DatasetFacet):
    """The differential privacy guarantee under which this dataset was made, and the ledger entry that paid for it."""

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    maxContributions: int  # noqa: N815
    weighting: str
    tier: str
    method: str
    accounting: str
    ledgerEntry: str  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return schema_url("GuaranteeDatasetFacet")


@attr.define
class ClearanceRunFacet(RunFacet):
    """The verdict before the mechanism, as far as public facts decide it."""

    verdict: str
    ledgerEntry: str  # noqa: N815
    family: str
    policy: str
    planDigest: str  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return schema_url("ClearanceRunFacet")


@attr.define
class AuditVerdictRunFacet(RunFacet):
    """What attacks on canaries showed. Canaries are independent of the data, so the numbers may be published."""

    verdict: str
    epsilonLowerBound: float  # noqa: N815
    epsilonHighestReachable: float  # noqa: N815
    epsilonThreshold: float  # noqa: N815
    confidence: float

    @staticmethod
    def _get_schema() -> str:
        return schema_url("AuditVerdictRunFacet")


@attr.define
class ParticipantsRunFacet(RunFacet):
    """A reference to the participants of a mechanism: a hiding commitment, never their number or fingerprints."""

    ledgerEntry: str  # noqa: N815
    namespace: str
    commitment: str

    @staticmethod
    def _get_schema() -> str:
        return schema_url("ParticipantsRunFacet")


@attr.define
class ReleaseDatasetFacet(DatasetFacet):
    """Which release a published dataset is, what was approved, and the ledger's head when it was published."""

    releaseId: str  # noqa: N815
    candidateCommitment: str  # noqa: N815
    ledgerSequence: int  # noqa: N815
    ledgerHash: str  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return schema_url("ReleaseDatasetFacet")


@attr.define
class Ancestor:
    """A dataset or model that a model was made from. The version is `unknown` where nobody said which."""

    namespace: str
    name: str
    version: str = "unknown"


@attr.define
class BaseModelDatasetFacet(DatasetFacet):
    """The checkpoints that a model was initialized from: its nearest ancestors, not all of them."""

    baseModels: list[Ancestor]  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return schema_url("BaseModelDatasetFacet")


@attr.define
class TrainingDatasetFacet(DatasetFacet):
    """The datasets that a model was itself trained on, beside what its base models had seen before."""

    trainedOn: list[Ancestor]  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return schema_url("TrainingDatasetFacet")


@attr.define
class UseRunFacet(RunFacet):
    """What a release is used for downstream, for which product, and who says so. Who and why stay with the operator."""

    release: str
    purpose: str
    product: str
    by: str | None = None
    reason: str | None = None

    @staticmethod
    def _get_schema() -> str:
        return schema_url("UseRunFacet")


def schema(arrow: pa.Schema) -> dict[str, DatasetFacet]:
    """Names and types of the columns. No statistics."""
    fields = [
        schema_dataset.SchemaDatasetFacetFields(name=field.name, type=str(field.type), ordinal_position=index)
        for index, field in enumerate(arrow, start=1)
    ]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)}


def column_lineage(descent: ColumnDescent) -> dict[str, DatasetFacet]:
    """Which columns come from which, which of them are masked on the way, and why a column comes from none."""
    fields = {
        name: column_lineage_dataset.Fields(inputFields=[_input_field(origin) for origin in origins])
        for name, origins in descent.origins.items()
    } | {
        # The only field that the specification has for a word on a column as a whole.
        name: column_lineage_dataset.Fields(inputFields=[], transformationDescription=reason)
        for name, reason in descent.without.items()
    }
    facet = column_lineage_dataset.ColumnLineageDatasetFacet(
        fields=fields, dataset=[_input_field(origin) for origin in descent.rows], producer=PRODUCER
    )
    return {"columnLineage": facet}


def _input_field(origin: ColumnOrigin) -> column_lineage_dataset.InputField:
    step = column_lineage_dataset.Transformation(
        type="DIRECT" if origin.direct else "INDIRECT",
        subtype=origin.subtype,
        description=origin.description or None,
        masking=origin.masking,
    )
    return column_lineage_dataset.InputField(
        namespace=origin.source.namespace, name=origin.source.name, field=origin.column, transformations=[step]
    )


def tags(
    contract: DataContract, zone: str, columns: Iterable[str] = (), treatments: Mapping[str, str] | None = None
) -> dict[str, DatasetFacet]:
    """The zone of a dataset, and the declared class of each of its columns that identifies people.

    Args:
        columns: those of the dataset. Owners' fingerprints and record ids, which are no declared columns, are
            pseudonyms: keyed, and of one person or record each.
        treatments: of synthetic columns, what became of each (`columns.treatments_of`).
    """
    found = [tags_dataset.TagsDatasetFacetFields(key="zone", value=zone, source="INTEGRATION")]
    for name in columns:
        column = contract.columns.get(name)
        if column is None:
            if name in PSEUDONYMS:
                found.append(_tag("pseudonym", "true", "INTEGRATION", name))
        elif column.type == "text":
            found.append(_tag("pii", column.pii, "USER", name))
        elif column.type == "ignored":
            found.append(_tag("ignored", "true", "USER", name))
        elif column.type == "identifier":
            found.append(_tag("identifier", "true", "USER", name))
        if treatments and name in treatments:
            found.append(_tag("treatment", treatments[name], "INTEGRATION", name))
    return {"tags": tags_dataset.TagsDatasetFacet(tags=found, producer=PRODUCER)}


def _tag(key: str, value: str, source: str, column: str) -> tags_dataset.TagsDatasetFacetFields:
    return tags_dataset.TagsDatasetFacetFields(key=key, value=value, source=source, field=column)


def ownership(owners: Sequence[str]) -> dict[str, DatasetFacet]:
    """The people to ask about a dataset."""
    people = [ownership_dataset.Owner(name=owner, type="MAINTAINER") for owner in owners]
    return {"ownership": ownership_dataset.OwnershipDatasetFacet(owners=people, producer=PRODUCER)}


def version(name: str) -> dict[str, DatasetFacet]:
    """A version that tells nothing of the content: a table version, or the random name of an output."""
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=name, producer=PRODUCER)}


def documentation(description: str) -> dict[str, DatasetFacet]:
    """What a dataset is, in the contract's words."""
    facet = documentation_dataset.DocumentationDatasetFacet(
        description=description, contentType="text/plain", producer=PRODUCER
    )
    return {"documentation": facet}


def symlink(other: DatasetName) -> dict[str, DatasetFacet]:
    """Another name of a dataset: its logical one, or the place that links lead to."""
    identifier = symlinks_dataset.Identifier(namespace=other.namespace, name=other.name, type="TABLE")
    return {"symlinks": symlinks_dataset.SymlinksDatasetFacet(identifiers=[identifier], producer=PRODUCER)}


def table_type() -> dict[str, DatasetFacet]:
    """A Delta table of Parquet files."""
    return {
        "datasetType": dataset_type_dataset.DatasetTypeDatasetFacet(datasetType="TABLE", producer=PRODUCER),
        "storage": storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet", producer=PRODUCER),
    }


def file_type(kind: str) -> dict[str, DatasetFacet]:
    """What is no table: `MODEL` or `FILE`."""
    return {"datasetType": dataset_type_dataset.DatasetTypeDatasetFacet(datasetType=kind, producer=PRODUCER)}


def purged() -> dict[str, DatasetFacet]:
    """The dataset's files were deleted when their time-to-live had passed."""
    return _dropped()


def withdrawn() -> dict[str, DatasetFacet]:
    """The release was withdrawn: its rows were deleted, its dossier stays. What it cost stays spent."""
    return _dropped()


def _dropped() -> dict[str, DatasetFacet]:
    facet = lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(
        lifecycleStateChange=lifecycle_state_change_dataset.LifecycleStateChange.DROP, producer=PRODUCER
    )
    return {"lifecycleStateChange": facet}


def privacy_unit(contract: DataContract) -> dict[str, DatasetFacet]:
    """The declared privacy unit of a dataset."""
    privacy = contract.privacy
    facet = PrivacyUnitDatasetFacet(
        unit=privacy.unit,
        adjacency=privacy.adjacency,
        namespace=privacy.namespace,
        ownerColumns=list(privacy.owner_columns),
        maxContributions=privacy.max_contributions,
        producer=PRODUCER,
    )
    return {"dpsynth_privacyUnit": facet}


def guarantee(
    contract: DataContract,
    *,
    epsilon: float,
    delta: float,
    tier: str,
    method: str,
    accounting: str,
    ledger_entry: str,
    max_contributions: int | None = None,
) -> dict[str, DatasetFacet]:
    """The guarantee of what a mechanism made and of what was sampled from it.

    Args:
        method: the generator's name, or what else looked at the data.
        accounting: the smaller bound: pld or renyi.
        max_contributions: how often a unit counts, where it is not the contract's bound.
    """
    facet = GuaranteeDatasetFacet(
        epsilon=epsilon,
        delta=delta,
        unit=contract.privacy.unit,
        adjacency=contract.privacy.adjacency,
        maxContributions=max_contributions or contract.privacy.max_contributions,
        weighting=contract.privacy.weighting,
        tier=tier,
        method=method,
        accounting=accounting,
        ledgerEntry=ledger_entry,
        producer=PRODUCER,
    )
    return {"dpsynth_guarantee": facet}


def release(*, release_id: str, candidate_commitment: str, head: Head) -> dict[str, DatasetFacet]:
    """The release that a published dataset is; all of it stands in the public dossier, too."""
    facet = ReleaseDatasetFacet(
        releaseId=release_id,
        candidateCommitment=candidate_commitment,
        ledgerSequence=head.sequence,
        ledgerHash=head.hash,
        producer=PRODUCER,
    )
    return {"dpsynth_release": facet}


def base_model(*checkpoints: DatasetName) -> dict[str, DatasetFacet]:
    """The checkpoints that a model was initialized from."""
    return {"dpsynth_baseModel": BaseModelDatasetFacet(baseModels=_ancestors(checkpoints), producer=PRODUCER)}


def training(*datasets: DatasetName) -> dict[str, DatasetFacet]:
    """The datasets that a model was itself trained on."""
    return {"dpsynth_training": TrainingDatasetFacet(trainedOn=_ancestors(datasets), producer=PRODUCER)}


def _ancestors(names: Iterable[DatasetName]) -> list[Ancestor]:
    return [Ancestor(name.namespace, name.name) for name in names]


def use(release: str, *, purpose: str, product: str, by: str, reason: str) -> dict[str, RunFacet]:
    """A use of a release: `train`, `evaluate` or `other`."""
    facet = UseRunFacet(release=release, purpose=purpose, product=product, by=by, reason=reason, producer=PRODUCER)
    return {"dpsynth_use": facet}


def clearance(contract: DataContract, *, verdict: str, ledger_entry: str, plan_digest: str) -> dict[str, RunFacet]:
    """The clearance of a mechanism: `cleared` or `blocked`, by public facts only."""
    facet = ClearanceRunFacet(
        verdict=verdict,
        ledgerEntry=ledger_entry,
        family=contract.family,
        policy=contract.privacy.on_overlap,
        planDigest=plan_digest,
        producer=PRODUCER,
    )
    return {"dpsynth_clearance": facet}


def participants(contract: DataContract, *, ledger_entry: str, commitment: str) -> dict[str, RunFacet]:
    """The reference to the participants that a ledger entry covers."""
    facet = ParticipantsRunFacet(
        ledgerEntry=ledger_entry, namespace=contract.privacy.namespace, commitment=commitment, producer=PRODUCER
    )
    return {"dpsynth_participants": facet}


def audit_verdict(
    *, verdict: str, lower_bound: float, highest_reachable: float, threshold: float, confidence: float
) -> dict[str, RunFacet]:
    """The verdict of an audit (`pass`, `fail`, `inconclusive`) with its bound on epsilon and its power."""
    facet = AuditVerdictRunFacet(
        verdict=verdict,
        epsilonLowerBound=lower_bound,
        epsilonHighestReachable=highest_reachable,
        epsilonThreshold=threshold,
        confidence=confidence,
        producer=PRODUCER,
    )
    return {"dpsynth_auditVerdict": facet}


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
    """The one declared figure of quality: a release has as many rows as the contract says. Both numbers are public."""
    return _assertion(
        assertion=ROWS_ASSERTION,
        success=declared == published,
        severity="warn",
        name="declared-rows",
        description="The release has as many rows as the contract declares.",
        expected=str(declared),
        actual=str(published),
    )


def _assertion(**words: Any) -> dict[str, InputDatasetFacet]:
    found = [data_quality_assertions_dataset.Assertion(**words)]
    facet = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(assertions=found, producer=PRODUCER)
    return {"dataQualityAssertions": facet}


def output_statistics(*, rows: int, size: int, file_count: int) -> dict[str, OutputDatasetFacet]:
    """Rows, bytes and files of a *published* release; of nothing else."""
    facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=rows, size=size, fileCount=file_count, producer=PRODUCER
    )
    return {"outputStatistics": facet}


def parent(run_id: str, namespace: str, name: str) -> dict[str, RunFacet]:
    """The Dagster run that a step belongs to."""
    facet = parent_run.ParentRunFacet(
        run=parent_run.Run(runId=run_id), job=parent_run.Job(namespace=namespace, name=name), producer=PRODUCER
    )
    return {"parent": facet}


def nominal_time(period: str) -> dict[str, RunFacet]:
    """The month (`YYYY-MM`) that a run is about, from its first day to the first of the next, in UTC."""
    start = dt.datetime.strptime(period, "%Y-%m").replace(tzinfo=dt.UTC)
    end = (start + dt.timedelta(days=32)).replace(day=1)
    facet = nominal_time_run.NominalTimeRunFacet(
        nominalStartTime=start.isoformat(), nominalEndTime=end.isoformat(), producer=PRODUCER
    )
    return {"nominalTime": facet}


@cache  # the versions stand in files, and each event has them
def processing_engine() -> dict[str, RunFacet]:
    """Dagster and its version, with the version of this package as the adapter's."""
    facet = processing_engine_run.ProcessingEngineRunFacet(
        version=package_version("dagster"),
        name="Dagster",
        openlineageAdapterVersion=package_version("dpsynth-platform"),
        producer=PRODUCER,
    )
    return {"processing_engine": facet}


def error_message(code: str, message: str) -> dict[str, RunFacet]:
    """A safe error (`redaction.safe_error`), without a stack trace: frames and messages may quote data."""
    facet = error_message_run.ErrorMessageRunFacet(
        message=f"{code}: {message}", programmingLanguage="PYTHON", producer=PRODUCER
    )
    return {"errorMessage": facet}


def job(description: str, owners: Sequence[str]) -> dict[str, JobFacet]:
    """What a step's job is: a batch task of Dagster, its description and whom to ask."""
    people = [ownership_job.Owner(name=owner, type="MAINTAINER") for owner in owners]
    facets: dict[str, JobFacet] = {
        "jobType": job_type_job.JobTypeJobFacet(
            processingType="BATCH", integration=JOB_NAMESPACE.upper(), jobType="ASSET", producer=PRODUCER
        )
    }
    if description:
        facets["documentation"] = documentation_job.DocumentationJobFacet(
            description=description, contentType="text/plain", producer=PRODUCER
        )
    if people:
        facets["ownership"] = ownership_job.OwnershipJobFacet(owners=people, producer=PRODUCER)
    return facets


def merge(*parts: Mapping[str, DatasetFacet]) -> dict[str, DatasetFacet]:
    """Several groups of dataset facets as one."""
    return {name: facet for part in parts for name, facet in part.items()}
