"""A deployment's metrics in Prometheus' text format.

What belongs here: the metrics and their text. What does not: HTTP (`server`) and health checks (`health`). Metrics come
from the ledger's chain and tables and the existing outputs, and depend on public facts: what is left of a family's cap
is that of an owner who was never charged (`Ledger.left`), never of others.

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
from dpsynth_platform.reviewing import accounts, chronicle
from dpsynth_platform.reviewing.catalogue import catalogue, record_of
from dpsynth_platform.reviewing.chronicle import Chronicle
from dpsynth_platform.watching.health import Check
from dpsynth_platform.watching.heartbeat import last_sign
from dpsynth_platform.watching.overdue import expected, overdue

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SWEEP_LATE = dt.timedelta(hours=2)
"""The sweep runs every hour; outputs that were due two hours ago were missed."""

_Samples = dict[tuple[str, ...], float]


@dataclass(frozen=True)
class Metric:
    """One gauge.

    Attributes:
        name: ends with its unit, by Prometheus' conventions.
        samples: values by label values, in the order of `labels`.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    samples: _Samples

    def lines(self) -> Iterator[str]:
        """The exposition of the gauge."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for values, number in self.samples.items():
            shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(self.labels, values, strict=True))
            yield f"{self.name}{{{shown}}} {number!r}" if shown else f"{self.name} {number!r}"


def text_of(metrics: Iterable[Metric]) -> str:
    """The exposition of metrics."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def of_health(checks: Iterable[Check]) -> Metric:
    """The results of health checks as a metric."""
    found: _Samples = {(check.name,): float(check.ok) for check in checks}
    return Metric("dpsynth_health", "1 where a check of the deployment's health passed.", ("check",), found)


def of_deployment(settings: Settings, now: dt.datetime) -> list[Metric]:
    """All metrics except those of health. Raises `LedgerError` if the ledger cannot be read."""
    history = chronicle.chronicle(settings)
    return [
        *_budgets(settings, history),
        *_entries(history, now),
        *_candidates(settings, history, now),
        *_chain(history),
        *(_lineage(settings) if history.events else []),
        _overdue(settings, now),
        _watch(settings),
        _sweep(settings, now),
        _disk(settings),
    ]


def _budgets(settings: Settings, history: Chronicle) -> list[Metric]:
    ledger = chronicle.cached_ledger(settings) if history.accounts else None
    left = accounts.left_like_last(ledger, history.entries.values()) if ledger else {}
    return [
        Metric(
            "dpsynth_budget_epsilon_left",
            "Largest epsilon, at its own delta, of another release like a dataset's last one that still fits its "
            "family's cap; of a family of mode per-owner, for an owner who was never charged.",
            ("family", "mode", "dataset"),
            {
                (family, history.accounts[family].mode, item.dataset): item.epsilon
                for family, items in left.items()
                for item in items
            },
        ),
        Metric(
            "dpsynth_budget_epsilon_cap",
            "Epsilon of a family's cap.",
            ("family", "mode"),
            {(item.family, item.mode): item.epsilon for item in history.accounts.values()},
        ),
    ]


def _entries(history: Chronicle, now: dt.datetime) -> list[Metric]:
    states = Counter((item.family, item.state) for item in history.entries.values())
    overdue = Counter(
        (item.family,)
        for item in history.entries.values()
        if item.state == chain.RESERVED and dt.datetime.fromisoformat(item.deadline) < now
    )
    last: _Samples = {}
    for item in history.entries.values():
        at = _seconds(item.finished_at or item.started_at or item.reserved_at)
        last[(item.request.dataset,)] = max(at, last.get((item.request.dataset,), at))
    blocked = Counter((event.subject,) for event in history.events if event.kind == chain.BLOCKED)
    families = history.accounts.keys()
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
            "Reservations past their deadline that are not void.",
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


def _candidates(settings: Settings, history: Chronicle, now: dt.datetime) -> list[Metric]:
    waiting = [
        item
        for item in history.candidates.values()
        if not history.is_published(item.digest) and not history.is_ended(item) and not _expired(settings, item.place)
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
            {(item.place.dataset,): _seconds(item.at) for item in history.publications.values()},
        ),
    ]


def _overdue(settings: Settings, now: dt.datetime) -> Metric:
    longest: _Samples = {(contract.dataset,): 0.0 for contract in expected(settings)}
    for item in overdue(settings, now):
        late = (now - item.since).total_seconds()
        longest[(item.place.dataset,)] = max(longest[(item.place.dataset,)], late)
    return Metric(
        "dpsynth_release_overdue_seconds",
        "How long the grace of a dataset's expected release has ended, of the one that is overdue longest; 0 without "
        "one.",
        ("dataset",),
        longest,
    )


def _watch(settings: Settings) -> Metric:
    last = last_sign(settings)
    return Metric(
        "dpsynth_watch_last_look_timestamp_seconds",
        "When dpsynth watch last completed a look (Unix time).",
        (),
        {} if last is None else {(): last.timestamp()},
    )


def _expired(settings: Settings, place: Place) -> bool:
    """Whether a candidate's rows are deleted, so that no decision is possible."""
    try:
        rows = record_of(settings, place, "synthetic")
    except StaleInput:  # damaged: it needs a person's attention
        return False
    return rows is not None and not Storage(settings.restricted).exists(rows)


def _chain(history: Chronicle) -> list[Metric]:
    last: _Samples = {(): _seconds(history.events[-1].at)} if history.events else {}
    return [
        Metric(
            "dpsynth_ledger_events",
            "Length of the ledger's chain. It never falls; a backup that is shorter than this was is too old "
            "(dpsynth restore --at-least).",
            (),
            {(): float(history.head.sequence)},
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
    found = due_and_held(settings, contracts, now - SWEEP_LATE, lambda where, _: unseen.append(where))
    late = [item for item, hold in found if hold is None]
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
