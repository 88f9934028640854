"""Health checks for load balancers, supervisors and people.

What belongs here: quick checks with safe messages. What does not: the full verification of a ledger, which recomputes
every cost (`dpsynth ledger verify`; run it at night).
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.foundation.errors import DpsynthError, file_problem
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.redaction import safe_error
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Storage
from dpsynth_platform.ledger import chain, rows
from dpsynth_platform.ledger.database import Database
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.reviewing.catalogue import catalogue
from dpsynth_platform.reviewing.ledger_witnesses import lost_ledger, missing_from, published_ahead
from dpsynth_platform.watching import heartbeat
from dpsynth_platform.watching.overdue import daemon_problem, needs_daemon, overdue

MOST_SKEW = dt.timedelta(minutes=5)
"""How far the ledger's time may be ahead of this clock."""
MOST_NAMED = 5
"""Overdue releases that a check names."""
LEAST_FREE_BYTES = 2 * 10**9
"""With less, steps or the ledger may soon fill the disk."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: `ledger`, `chain`, `storage`, `disk`, `daemon`, `releases` or `watch`.
        words: what is wrong and what to do; or what was checked.
    """

    name: str
    ok: bool
    words: str


def checks(settings: Settings, now: dt.datetime | None = None) -> list[Check]:
    """Runs all checks; none raises. A deployment that has no ledger yet passes.

    Args:
        now: the time at which releases are overdue and signs of life are too old; None: this machine's clock.
    """
    at = now or dt.datetime.now(dt.UTC)
    return [
        _tried("ledger", lambda: _ledger(settings)),
        _tried("chain", lambda: _chain(settings)),
        _tried("storage", lambda: _storage(settings)),
        _tried("disk", lambda: _disk(settings)),
        _tried("daemon", lambda: _daemon(settings, at)),
        _tried("releases", lambda: _releases(settings, at)),
        _tried("watch", lambda: _watch(settings, at)),
    ]


class _CheckFailed(DpsynthError):
    """A check failed; the message says how."""


def _tried(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except Exception as error:
        return Check(name, False, safe_error(error)[1])


def _ledger(settings: Settings) -> str:
    if not settings.has_ledger:
        if lost := lost_ledger(Storage(settings.restricted)):
            raise _CheckFailed(f"{lost}; stop all runs, and restore its latest state (docs/guides/deployment.md)")
        return "no ledger yet; the first run creates it"
    return f"the chain has {Ledger(settings.ledger_url).head().sequence} events"


def _chain(settings: Settings) -> str:
    """Checks every link, and that no other record has later events than the chain."""
    if not settings.has_ledger:
        return "no ledger yet"
    events, problems = Database(settings.ledger_url).read(chain.check_links)
    ledger = Ledger(settings.ledger_url)
    problems += missing_from(settings, ledger, LineageStore(settings.ledger_url))
    problems += published_ahead(Storage(settings.restricted), ledger)
    if problems:
        raise _CheckFailed(f"{problems[0]}; stop all runs, and see: dpsynth ledger verify")
    if events:
        _check_clock(events[-1].at)
    return f"{len(events)} links are valid, and no run and no release is ahead of them"


def _check_clock(last: str) -> None:
    """The ledger's time never goes back: after a fast clock it stays until other clocks reach it."""
    ahead = dt.datetime.fromisoformat(last) - rows.now()
    if ahead > MOST_SKEW:
        raise _CheckFailed(
            f"the ledger's last event is dated {moment(last)}, {ahead.total_seconds() / 3600:.1f} hours ahead of this "
            "machine's clock: one of the clocks is wrong. Correct it. Runs continue, but until then no "
            "reservation expires; void those that no run will use: dpsynth ledger void ENTRY"
        )


def _daemon(settings: Settings, now: dt.datetime) -> str:
    if not needs_daemon(settings):
        return "no contract needs Dagster's daemon"
    problem = daemon_problem(settings, now)
    if problem:
        raise _CheckFailed(problem)
    return "Dagster's daemon gives signs"


def _releases(settings: Settings, now: dt.datetime) -> str:
    late = overdue(settings, now)
    if late:
        more = f"; and {len(late) - MOST_NAMED} more" if len(late) > MOST_NAMED else ""
        raise _CheckFailed("; ".join(f"{item.place.label}: {item.words}" for item in late[:MOST_NAMED]) + more)
    return "no release is overdue"


def _watch(settings: Settings, now: dt.datetime) -> str:
    if not heartbeat.has_run(settings):
        return "no watch runs here"
    problem = heartbeat.silence(settings, now)
    if problem:
        raise _CheckFailed(problem)
    return "the watch looks"


def _storage(settings: Settings) -> str:
    if not settings.home.is_dir():
        raise _CheckFailed(
            f"DPSYNTH_HOME: {settings.home} is not a directory; accepted: one that this user can write to"
        )
    releases = sorted(Path(contract.release.uri) for contract, _ in catalogue(settings).datasets.values())
    places = dict.fromkeys(map(_nearest_directory, (settings.home, settings.restricted, *releases)))
    for place in places:
        _write(place)
    return f"{len(places)} places can be written to"


def _write(place: Path) -> None:
    probe = place / f".health-{secrets.token_hex(8)}"
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as error:
        raise _CheckFailed(f"{place} cannot be written to: {file_problem(error)}") from None


def _nearest_directory(place: Path) -> Path:
    """The nearest existing directory: the path or one of its parents."""
    return next(path for path in (place.absolute(), *place.absolute().parents) if path.is_dir())


def _disk(settings: Settings) -> str:
    free = shutil.disk_usage(_nearest_directory(settings.home)).free
    if free < LEAST_FREE_BYTES:
        raise _CheckFailed(
            f"{settings.home} has {free / 1e9:.1f} GB free; required: at least {LEAST_FREE_BYTES / 1e9:.0f} GB"
        )
    return f"{free / 1e9:.0f} GB free"
