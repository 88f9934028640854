"""Approvals: a recorded approval becomes the `released` run, as does a candidate that needs none.

What belongs here: noticing new approvals and candidates in the ledger's chain. What does not: judging them. The run
itself re-reads all evidence and refuses if too few people have approved, or if the content has changed since.
"""

from collections.abc import Iterator, Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

import resources as res
from dpsynth_platform.contracts import DataContract
from dpsynth_platform.ledger import chain
from dpsynth_platform.release.evidence import standing_approvals


def approval_sensor(
    contracts: Sequence[DataContract], release_jobs: Sequence[UnresolvedAssetJobDefinition]
) -> dg.SensorDefinition:
    """Looks every half minute; its cursor is the chain's sequence number."""
    jobs = {contract.dataset: job for contract, job in zip(contracts, release_jobs, strict=True)}
    needed = {contract.dataset: contract.release.approvals for contract in contracts}

    @dg.sensor(
        name="approvals",
        description="Starts the release of a candidate whose approval was recorded, or that needs none.",
        jobs=list(release_jobs),
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def sensor(
        context: dg.SensorEvaluationContext, ledger: dg.ResourceParam[res.LedgerResource]
    ) -> Iterator[dg.RunRequest]:
        store = ledger.open()
        for event in store.history(after=int(context.cursor or 0), kinds=[chain.APPROVED, chain.CANDIDATE]):
            entry = store.entry(event.payload["entry"])
            request, decisions = entry.request, store.approvals(event.subject, entry.entry_id)
            standing = standing_approvals(decisions)
            withdrawn = {item.release for item in decisions}
            published = any(
                item.payload.get("candidate") == event.subject and item.subject not in withdrawn
                for item in store.history(kinds=[chain.RELEASED])
            )
            missing = needed.get(request.dataset, 0) - len(standing)
            # A candidate that needs nobody's approval is published unless somebody objected; others, when the last of
            # those who are needed has approved.
            enough = missing <= 0 and bool(standing) if event.kind == chain.APPROVED else missing <= 0 and not decisions
            if request.dataset in jobs and not published and enough:
                yield dg.RunRequest(
                    run_key=f"approval-{event.sequence}",
                    job_name=jobs[request.dataset].name,
                    partition_key=request.period,
                    tags={"dpsynth/approved_by": event.payload["by"][:63]} if "by" in event.payload else {},
                )
            context.update_cursor(str(event.sequence))

    return sensor
