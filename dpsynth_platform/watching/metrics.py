"""A deployment's metrics in Prometheus' text format.

What belongs here: what is told, and writing it down. What does not: HTTP (`server`), and judging whether the deployment
is well (`health`). All follows from the ledger's chain and tables, and from which outputs are there, and depends on
public facts: what is left of a family's cap is what an owner who was never charged has (`Ledger.left`), never what
others have.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger import chain
from dpsynth_platform.lifecycle.purging import due_and_held
from dpsynth_platform.lineage import outbox
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.reviewing import chronicle
from dpsynth_platform.reviewing.catalogue import catalogue, record_of
from dpsynth_platform.reviewing.chronicle import Chronicle
from dpsynth_platform.watching.health import Check

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SWEEP_LATE = dt.timedelta(hours=2)
"""The sweep looks every hour; what was due two hours ago and is still there was missed."""

_Samples = dict[tuple[str, ...], float]


@dataclass(frozen=True)
class Metric:
    """One gauge.

    Attributes:
        name: with its unit at the end, as Prometheus' conventions have it.
        help: one sentence.
        samples: values by label values, in the order of `labels`.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    samples: _Samples

    def lines(self) -> Iterator[str]:
        """As text."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for values, number in self.samples.items():
            shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(self.labels, values, strict=True))
            yield f"{self.name}{{{shown}}} {number!r}" if shown else f"{self.name} {number!r}"


def text_of(metrics: Iterable[Metric]) -> str:
    """The exposition of some metrics."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def of_health(checks: Iterable[Check]) -> Metric:
    """What the checks of `health` found, so that one scrape tells it."""
    found: _Samples = {(check.name,): float(check.ok) for check in checks}
    return Metric("dpsynth_health", "1 where a check of the deployment's health passed.", ("check",), found)


def of_deployment(settings: Settings, now: dt.datetime) -> list[Metric]:
    """Everything that is told while the ledger can be read.

    Raises:
        LedgerError: it cannot.
    """
    told = chronicle.chronicle(settings)
    return [
        *_budgets(settings, told),
        *_entries(told, now),
        *_candidates(settings, told, now),
        *_chain(told),
        *(_lineage(settings) if told.events else []),
        _sweep(settings, now),
        _disk(settings),
    ]


def _budgets(settings: Settings, told: Chronicle) -> list[Metric]:
    left = chronicle.opened(settings).left_of_all() if told.accounts else {}
    return [
        Metric(
            "dpsynth_budget_epsilon_left",
            "Largest epsilon, at the cap's delta, of a Gaussian-like release that still fits a family's cap; of a "
            "family of mode per-owner, for an owner who was never charged.",
            ("family", "mode"),
            {
                (family, told.accounts[family].mode): number
                for family, number in left.items()
                if family in told.accounts
            },
        ),
        Metric(
            "dpsynth_budget_epsilon_cap",
            "Epsilon of a family's cap.",
            ("family", "mode"),
            {(item.family, item.mode): item.epsilon for item in told.accounts.values()},
        ),
    ]


def _entries(told: Chronicle, now: dt.datetime) -> list[Metric]:
    states = Counter((item.family, item.state) for item in told.entries.values())
    overdue = Counter(
        (item.family,)
        for item in told.entries.values()
        if item.state == chain.RESERVED and dt.datetime.fromisoformat(item.deadline) < now
    )
    last: _Samples = {}
    for item in told.entries.values():
        at = _seconds(item.finished_at or item.started_at or item.reserved_at)
        last[(item.request.dataset,)] = max(at, last.get((item.request.dataset,), at))
    blocked = Counter((event.subject,) for event in told.events if event.kind == chain.BLOCKED)
    families = told.accounts.keys()
    return [
        Metric(
            "dpsynth_ledger_entries",
            "Ledger entries by family and state; reserved ones are open reservations, started ones mechanisms that "
            "run or were lost.",
            ("family", "state"),
            {
                (family, state): float(states[family, state])
                for family in families
                for state in ("reserved", "started", "spent", "void")
            },
        ),
        Metric(
            "dpsynth_reservations_overdue",
            "Reservations past their deadline that nobody has voided.",
            ("family",),
            {(family,): float(overdue[(family,)]) for family in families},
        ),
        Metric(
            "dpsynth_requests_blocked",
            "Requests of a family that were refused, since its account was opened.",
            ("family",),
            {(family,): float(blocked[(family,)]) for family in families},
        ),
        Metric(
            "dpsynth_last_run_timestamp_seconds",
            "When a run of a dataset was last charged, or ended, in the ledger (Unix time).",
            ("dataset",),
            last,
        ),
    ]


def _candidates(settings: Settings, told: Chronicle, now: dt.datetime) -> list[Metric]:
    waiting = [
        item
        for item in told.candidates.values()
        if not told.is_published(item.digest) and not told.is_refused(item) and not _expired(settings, item.place)
    ]
    ages = [now.timestamp() - _seconds(item.at) for item in waiting]
    return [
        Metric(
            "dpsynth_candidates_waiting", "Release candidates that wait for a decision.", (), {(): float(len(ages))}
        ),
        Metric(
            "dpsynth_candidate_oldest_age_seconds",
            "Age of the oldest release candidate that is neither released nor refused; 0 without one.",
            (),
            {(): max(ages, default=0.0)},
        ),
        Metric(
            "dpsynth_last_release_timestamp_seconds",
            "When a dataset was last released (Unix time).",
            ("dataset",),
            {(item.place.dataset,): _seconds(item.at) for item in told.publications.values()},
        ),
    ]


def _expired(settings: Settings, place: Place) -> bool:
    """Whether a candidate's rows are gone, so that nobody can decide on it any more."""
    try:
        rows = record_of(settings, place, "synthetic")
    except StaleInput:  # damaged: it waits for somebody all the more
        return False
    return rows is not None and not Storage(settings.restricted).exists(rows)


def _chain(told: Chronicle) -> list[Metric]:
    last: _Samples = {(): _seconds(told.events[-1].at)} if told.events else {}
    return [
        Metric(
            "dpsynth_ledger_events",
            "Length of the ledger's chain. It never falls; a backup that is shorter than this was is too old "
            "(dpsynth restore --at-least).",
            (),
            {(): float(told.head.sequence)},
        ),
        Metric("dpsynth_ledger_last_event_timestamp_seconds", "When the chain last grew (Unix time).", (), last),
    ]


def _lineage(settings: Settings) -> list[Metric]:
    found = outbox.status(LineageStore(settings.ledger_url))
    return [
        Metric(
            "dpsynth_lineage_undelivered_events",
            "Lineage events that are recorded and did not reach a receiver yet.",
            ("target",),
            {(item.target,): float(item.waiting) for item in found},
        ),
        Metric(
            "dpsynth_lineage_refused_events",
            "Lineage events that a receiver refused for good.",
            ("target",),
            {(item.target,): float(item.refused) for item in found},
        ),
    ]


def _sweep(settings: Settings, now: dt.datetime) -> Metric:
    contracts = [contract for contract, _ in catalogue(settings).datasets.values()]
    unseen: list[str] = []
    looked = due_and_held(settings, contracts, now - SWEEP_LATE, lambda where, _: unseen.append(where))
    late = [item for item, hold in looked if hold is None]
    return Metric(
        "dpsynth_sweep_late_outputs",
        "Restricted outputs, logs and temporary files that were due for deletion two hours ago, are not on hold, and "
        "are still there; and places that cannot be looked at, of which nothing is deleted.",
        (),
        {(): float(len(late) + len(unseen))},
    )


def _disk(settings: Settings) -> Metric:
    free = float(shutil.disk_usage(settings.home).free)
    return Metric("dpsynth_disk_free_bytes", "Free space where DPSYNTH_HOME is.", (), {(): free})


def _seconds(at: str) -> float:
    return dt.datetime.fromisoformat(at).timestamp()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
