"""Releases that were expected and did not happen, and why, as far as it can be told.

What belongs here: which periods of which datasets are overdue, and Dagster's daemon. What does not: sending notices
(`watch`), and whether a run may be started. What is due follows from contracts, the ledger and this machine's clock;
Dagster's records only add to the reason, so that nothing here needs the daemon.

A period is expected once its run is due (`release.schedule`), and overdue when it has no release after the contract's
grace. It is settled by a release, a withdrawn one too, or a refusal. A settled period settles those before it, unless
their candidates still wait. Demonstrations are not expected: their schedules are off.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.periods import Cron, period_bounds, periods_from
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.ledger import chain
from dpsynth_platform.notices.notifying import PUBLIC_REASONS
from dpsynth_platform.release.evidence import standing_approvals
from dpsynth_platform.reviewing.catalogue import catalogue, places_of
from dpsynth_platform.reviewing.chronicle import Chronicle, chronicle
from dpsynth_platform.sources.periods import period_instants

if TYPE_CHECKING:
    from dpsynth_platform.operations.observing import LastRun, Observed

QUIET = dt.timedelta(minutes=10)
"""Without a sign for so long the daemon counts as dead: it gives one every half minute."""
SENTENCES: Mapping[str, str] = read_yaml(Path(__file__).with_name("overdue.yaml"))
"""Reasons, by their names."""


@dataclass(frozen=True)
class Overdue:
    """A period without the release that was expected.

    Attributes:
        due: when its run was to start.
        since: when its grace ended.
        reason: a name in `overdue.yaml`; `facts` fill its sentence. Public facts only.
    """

    place: Place
    due: dt.datetime
    since: dt.datetime
    reason: str
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def why(self) -> str:
        return SENTENCES[self.reason].format(arguments=self.place.arguments, **self.facts)

    @property
    def words(self) -> str:
        return f"no release, expected from {moment(self.due.isoformat())} on: {self.why}"


def expected(settings: Settings) -> list[DataContract]:
    """The contracts whose releases are expected: with a cadence, and no demonstrations."""
    contracts = (contract for contract, _ in catalogue(settings).datasets.values())
    return [contract for contract in contracts if contract.release.cadence and not contract.demo]


def needs_daemon(settings: Settings) -> bool:
    """Whether some contract expects runs that only Dagster's daemon starts."""
    return any(
        not contract.demo and (contract.release.cadence or contract.release.on_new_version)
        for contract, _ in catalogue(settings).datasets.values()
    )


def daemon_problem(settings: Settings, now: dt.datetime) -> str:
    """Why no run will be started by itself, in words; empty where the daemon lives or nothing needs it."""
    if not needs_daemon(settings):
        return ""
    from dpsynth_platform.operations.observing import observe

    reason, facts = _silence(observe(settings), now)
    return SENTENCES[reason].format(**facts) if reason else ""


def overdue(settings: Settings, now: dt.datetime) -> list[Overdue]:
    """What is overdue, by dataset and period. Raises `LedgerError` if the ledger cannot be read."""
    contracts = expected(settings)
    if not contracts:
        return []
    history = chronicle(settings)
    late = [
        (contract, Place(contract.dataset, period), due)
        for contract in contracts
        for period, due in _unsettled(settings, contract, history, now)
    ]
    seen = _observed(settings, [place for _, place, _ in late]) if late else None
    found = []
    for contract, place, due in late:
        reason, facts = _reason(contract, place, history, seen, now)
        found.append(Overdue(place, due, due + contract.release.grace, reason, facts))
    return found


def due_at(contract: DataContract, period: str) -> dt.datetime:
    """When the schedule starts a period's run, UTC."""
    release, day = contract.release, period_bounds(period)[1] + dt.timedelta(days=1)
    end = period_instants(period, release.time_zone)[1]
    if release.schedule is None:
        return end
    first = Cron.parse(release.schedule).first_from(day)
    return max(end, first.replace(tzinfo=ZoneInfo(release.time_zone)).astimezone(dt.UTC))


def _unsettled(
    settings: Settings, contract: DataContract, history: Chronicle, now: dt.datetime
) -> Iterator[tuple[str, dt.datetime]]:
    """Periods whose grace has ended and that are not settled, with the time at which their run was due."""
    late: list[tuple[str, dt.datetime]] = []
    for period in periods_from(str(contract.release.start)):
        due = due_at(contract, period)
        if due + contract.release.grace >= now:
            break
        late.append((period, due))
    candidates = [item for item in history.candidates.values() if item.place.dataset == contract.dataset]
    refused = {item.place.period for item in candidates if history.is_ended(item)}
    settled = {item.place.period for item in history.published_of(contract.dataset)} | refused
    waiting = {item.place.period for item in candidates} - settled
    last = max((number for number, (period, _) in enumerate(late) if period in settled), default=-1)
    if last < 0:
        begun = _begun(settings, contract, history)
        # What ended before the first run is a backfill's, as for the schedule; without any run, all but the last is.
        first = min((number for number, (period, _) in enumerate(late) if period in begun), default=None)
        last = (len(late) - (not begun) if first is None else first) - 1
    for number, (period, due) in enumerate(late):
        if period not in settled and (number > last or period in waiting):
            yield period, due


def _begun(settings: Settings, contract: DataContract, history: Chronicle) -> set[str | None]:
    """Periods that a run was started for."""
    entries = {item.request.period for item in history.entries.values() if item.request.dataset == contract.dataset}
    blocked = {event.payload["period"] for event in _blocked(history, contract.dataset)}
    return entries | blocked | {place.period for place in places_of(settings, contract.dataset)}


def _blocked(history: Chronicle, dataset: str) -> list[Any]:
    events = (event for event in history.events if event.kind == chain.BLOCKED)
    return [event for event in events if event.payload["dataset"] == dataset]


def _observed(settings: Settings, places: list[Place]) -> Observed | None:
    """What Dagster says; None where its records cannot be read, which is no reason to send no notice."""
    from dpsynth_platform.operations.observing import observe

    try:
        return observe(settings, [(f"{place.dataset}_{job}", place) for place in places for job in _JOBS])
    except Exception:
        return None


_JOBS = ("candidate", "release")


def _reason(
    contract: DataContract, place: Place, history: Chronicle, seen: Observed | None, now: dt.datetime
) -> tuple[str, dict[str, str]]:
    """The name of the reason, and what its sentence says."""
    candidate = history.candidates.get(place.label)
    if candidate is not None:
        decided = history.decisions_on(candidate.digest, candidate.entry.entry_id)
        missing = contract.release.approvals - len(standing_approvals(decided))
        if missing > 0:
            return "approvals", {"since": moment(candidate.at), "missing": str(missing)}
    job = "candidate" if candidate is None else "release"
    run = None if seen is None else seen.runs.get((f"{place.dataset}_{job}", place.period))
    if run is not None and run.state == "failed" and run.code != "budget":
        return "failed", {"step": run.step, "code": run.code}
    blocked = [event for event in _blocked(history, place.dataset) if event.payload["period"] == place.period]
    if candidate is None and blocked and blocked[-1].payload["reason"] in PUBLIC_REASONS:
        return "blocked", {"at": moment(blocked[-1].at)}
    return _stopped(run, seen, now, approved=candidate is not None)


def _stopped(
    run: LastRun | None, seen: Observed | None, now: dt.datetime, *, approved: bool
) -> tuple[str, dict[str, str]]:
    if run is not None and run.state == "under way":
        return "under-way", {}
    if seen is None:
        return "unknown", {}
    reason, facts = _silence(seen, now)
    if reason:
        return reason, facts
    # A refusal of the budget that depends on the data is not named: only that there is no candidate.
    return "approved" if approved else ("no-candidate" if run else "not-started"), {}


def _silence(seen: Observed, now: dt.datetime) -> tuple[str, dict[str, str]]:
    if seen.heartbeat is None:
        return "no-daemon", {}
    if now - seen.heartbeat > QUIET:
        return "daemon", {"since": moment(seen.heartbeat.isoformat())}
    return "", {}
