"""Approvals: a recorded approval, or a candidate that needs none, starts the `released` run.

What belongs here: finding new approvals and candidates in the ledger's chain. What does not: judging them. The run
itself re-reads all evidence and refuses if approvals are missing or the content has changed since.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

import resources as res
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import ChainEvent
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.release.evidence import standing_approvals
from sensors.safe import safe_sensor

KINDS = (chain.APPROVED, chain.CANDIDATE)


@dataclass(frozen=True)
class Cursor:
    """How far the chain was read.

    Attributes:
        after: sequence number of the last event.
        waiting: dataset and sequence number of earlier events whose dataset has no valid contract now.
    """

    after: int = 0
    waiting: tuple[tuple[str, int], ...] = ()

    @classmethod
    def read(cls, text: str | None) -> Self:
        """The cursor from its `str`; None is the beginning."""
        after, *waiting = (text or "0").split()
        pairs = (item.rpartition(":") for item in waiting)
        return cls(int(after), tuple((dataset, int(sequence)) for dataset, _, sequence in pairs))

    def __str__(self) -> str:
        return " ".join([str(self.after), *(f"{dataset}:{sequence}" for dataset, sequence in self.waiting)])


def approval_sensor(
    settings: Settings, contracts: Sequence[DataContract], release_jobs: Sequence[UnresolvedAssetJobDefinition]
) -> dg.SensorDefinition:
    """Requests a run for each event. Its cursor only saves work: Dagster runs each run key, an event's number, once."""
    jobs = {contract.dataset: job.name for contract, job in zip(contracts, release_jobs, strict=True)}
    needed = {contract.dataset: contract.release.approvals for contract in contracts}

    @safe_sensor(
        settings,
        "approvals",
        "Starts the release of a candidate whose approval was recorded, or that needs none.",
        seconds=30,
        jobs=release_jobs,
    )
    def sensor(
        context: dg.SensorEvaluationContext, ledger: dg.ResourceParam[res.LedgerResource]
    ) -> Iterator[dg.RunRequest]:
        store, seen = ledger.open(), Cursor.read(context.cursor)
        after, waiting = seen.after, dict.fromkeys(seen.waiting)
        for event in _due(store, seen, jobs):
            dataset = store.entry(event.payload["entry"]).request.dataset
            here = (dataset, event.sequence)
            if dataset not in jobs:
                waiting[here] = None
            else:
                waiting.pop(here, None)
                if _is_enough(store, event, needed[dataset]):
                    yield dg.RunRequest(
                        run_key=f"approval-{event.sequence}",
                        job_name=jobs[dataset],
                        partition_key=store.entry(event.payload["entry"]).request.period,
                        tags={"dpsynth/approved_by": event.payload["by"][:63]} if "by" in event.payload else {},
                    )
            after = max(after, event.sequence)
            context.update_cursor(str(Cursor(after, tuple(waiting))))

    return sensor


def _due(store: Ledger, seen: Cursor, datasets: Collection[str]) -> Iterator[ChainEvent]:
    """New events, and earlier ones whose dataset has a contract again."""
    for dataset, sequence in seen.waiting:
        if dataset in datasets:
            yield from store.history(after=sequence - 1, kinds=KINDS)[:1]
    yield from store.history(after=seen.after, kinds=KINDS)


def _is_enough(store: Ledger, event: ChainEvent, needed: int) -> bool:
    """Whether a candidate has all its approvals with this event, and is not published yet."""
    decisions = store.approvals(event.subject, event.payload["entry"])
    withdrawn = {item.release for item in decisions}
    if any(
        item.payload.get("candidate") == event.subject and item.subject not in withdrawn
        for item in store.history(kinds=[chain.RELEASED])
    ):
        return False
    standing = standing_approvals(decisions)
    # A candidate that needs no approval is published unless there is an objection; others with the last approval.
    decided = bool(standing) if event.kind == chain.APPROVED else not decisions
    return decided and len(standing) >= needed
