"""Telling people outside what happened to candidates, releases and runs.

What belongs here: which events of the ledger's chain are told, in which words, and delivering what is told, of the
chain or of any other stream of events: each at least once, in order, by a cursor that survives. What does not: handing
a notice over (`receivers`), when to look (the sensors, `dpsynth notify`), and deciding anything. Nothing here runs
inside a step, so that a receiver that is away holds nothing up.

A notice leaves the operator's place, so it holds public facts only: no person, no free words, no content hash. A
blocked request is told where the verdict depends on public facts, and not where it looked at the data.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.errors import NotificationFailed, file_problem
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, write_durably
from dpsynth_platform.ledger import chain, rows
from dpsynth_platform.ledger.records import ChainEvent
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.notices.receivers import Notice, Receiver, receivers_of
from dpsynth_platform.reviewing import accounts

TOLD = {
    chain.CANDIDATE: "candidate-ready",
    chain.APPROVED: "approved",
    chain.REFUSED: "refused",
    chain.RELEASED: "released",
    chain.WITHDRAWN: "withdrawn",
    chain.BLOCKED: "blocked",
    chain.LINEAGE_ALERT: "lineage-alert",
}
"""Kinds of the chain's events that are told, and under which name."""
PUBLIC_REASONS = ("cap", "delta", "slack", "incomparable")
"""Why a request may be blocked on public facts alone (`ledger.verdicts`)."""
STUCK_AFTER = 5
"""Attempts at one notice after which somebody has to look."""
LONGEST_WAIT = dt.timedelta(hours=1)
REACH_BACK = dt.timedelta(days=1)
"""How far back a receiver is told that was not there before."""
ALERT_EVERY = dt.timedelta(days=1)
"""How often it is told that lineage events do not arrive, for as long as it lasts."""
_LINEAGE = "lineage events wait for a receiver, or were refused by one: dpsynth lineage status"
_FIRST_WAIT = dt.timedelta(seconds=30)
_LOOK_SECONDS = 20.0


@dataclass(frozen=True)
class Happening:
    """Something that happened, and what is told of it.

    Attributes:
        number: its place in its stream; numbers grow.
        at: when, ISO 8601, UTC.
        notice: None where nothing is told.
    """

    number: int
    at: str
    notice: Notice | None


Stream = Callable[[int], Iterable[Happening]]
"""What happened after a number, in order."""


def notice_of(event: ChainEvent, store: Ledger) -> Notice | None:
    """What is told of an event of the chain, or None where nothing is."""
    if event.kind not in TOLD:
        return None
    if event.kind == chain.LINEAGE_ALERT:
        return Notice(event.sequence, TOLD[event.kind], event.at, None, None, None, _LINEAGE)
    if event.kind == chain.BLOCKED:
        if event.payload["reason"] not in PUBLIC_REASONS:
            return None
        place = Place(event.payload["dataset"], event.payload["period"])
    else:
        request = store.entry(event.payload["entry"]).request
        place = Place(request.dataset, request.period)
    release = event.subject if event.kind in (chain.RELEASED, chain.WITHDRAWN) else None
    return Notice(
        id=event.sequence,
        event=TOLD[event.kind],
        at=event.at,
        dataset=place.dataset,
        period=place.period,
        release=release,
        text=f"{place.label}: {_words(event.kind, place, release)}",
    )


def _words(kind: str, place: Place, release: str | None) -> str:
    return {
        chain.CANDIDATE: f"a release candidate waits for a decision: dpsynth release show {place.arguments}",
        chain.APPROVED: "an approval of the release candidate was recorded",
        chain.REFUSED: "the release candidate was refused",
        chain.RELEASED: f"release {release} was published",
        chain.WITHDRAWN: f"release {release} was withdrawn; whoever has a copy is asked to delete it",
        chain.BLOCKED: f"a request was blocked, and nothing was spent: dpsynth plan {place.arguments}",
    }[kind]


@dataclass(frozen=True)
class Standing:
    """Where one receiver stands.

    Attributes:
        receiver: its name.
        after: it was told of everything up to this event of the stream.
        since: what happened before is not told.
        attempts: how often the next notice was tried in vain.
        not_before: when it is tried again, ISO 8601, UTC.
        problem: what the last attempt failed for, in safe words.
    """

    receiver: str
    after: int = 0
    since: str = ""
    attempts: int = 0
    not_before: str = ""
    problem: str = ""

    @property
    def stuck(self) -> bool:
        """Whether somebody has to look."""
        return self.attempts >= STUCK_AFTER

    def is_due(self, now: dt.datetime) -> bool:
        """Whether the next attempt may be made. A clock that was set back makes nobody wait longer than the longest."""
        if not self.not_before:
            return True
        return not now < dt.datetime.fromisoformat(self.not_before) <= now + LONGEST_WAIT

    def passed(self, event: Happening) -> Standing:
        """After an event was told, or need not be."""
        return replace(self, after=event.number, attempts=0, not_before="", problem="")

    def failed(self, problem: str, now: dt.datetime) -> Standing:
        """After an attempt in vain; the next one waits twice as long."""
        wait = min(_FIRST_WAIT * 2 ** min(self.attempts, 20), LONGEST_WAIT)
        return replace(self, attempts=self.attempts + 1, not_before=(now + wait).isoformat(), problem=problem)


@dataclass(frozen=True)
class Look:
    """What one look at a stream did.

    Attributes:
        sent: how many notices each receiver has taken.
        waiting: what each receiver is still to be told, in order.
    """

    standings: tuple[Standing, ...]
    sent: dict[str, int]
    waiting: dict[str, tuple[Notice, ...]]

    def to_json(self) -> list[dict[str, Any]]:
        """Plain JSON values, one a receiver."""
        return [
            asdict(item)
            | {
                "stuck": item.stuck,
                "sent": self.sent[item.receiver],
                "waiting": [asdict(notice) for notice in self.waiting[item.receiver]],
            }
            for item in self.standings
        ]

    def raise_if_stuck(self) -> None:
        """Raises `NotificationFailed` where a receiver has failed so often that somebody has to look."""
        stuck = [
            f"the {item.receiver} was tried {item.attempts} times without success: {item.problem}"
            for item in self.standings
            if item.stuck
        ]
        if stuck:
            raise NotificationFailed(
                "; ".join(stuck) + ". Notices wait for it in order, and nothing else does. Mend it, or unset "
                "DPSYNTH_NOTIFY, DPSYNTH_NOTIFY_URL or DPSYNTH_NOTIFY_MAIL"
            )


def notify(settings: Settings, *, dry_run: bool = False) -> Look:
    """Tells every receiver what happened to candidates and releases, as `tell` does.

    Args:
        settings: the deployment.
        dry_run: only say what waits.

    Raises:
        NotificationFailed: as `tell`.
        LedgerError: the ledger cannot be read.
    """
    if not receivers_of(settings) or not settings.has_ledger:
        return Look((), {}, {})
    store = accounts.ledger(settings)

    def stream(after: int) -> Iterator[Happening]:
        for event in store.history(after=after, kinds=TOLD):
            yield Happening(event.sequence, event.at, notice_of(event, store))

    return tell(settings, stream, before=lambda: _note_lineage(settings, store), dry_run=dry_run)


def tell(
    settings: Settings,
    stream: Stream,
    *,
    name: str = "",
    before: Callable[[], None] = lambda: None,
    dry_run: bool = False,
) -> Look:
    """Tells every receiver what it has not been told of a stream yet, in order, each by itself.

    A receiver that fails is tried again later, at doubling intervals; until then what follows waits. Where another
    process is at it, this one only looks.

    Args:
        settings: the deployment.
        stream: what happened.
        name: the stream's; each has cursors of its own. Empty: the ledger's chain.
        before: is done first, while no other process is at it.
        dry_run: only say what waits.

    Raises:
        NotificationFailed: where a receiver stands cannot be read or written. Failures to deliver are in what is
            returned.
    """
    receivers, directory = receivers_of(settings), private_directory(settings.home / "notify")
    suffix = f".{name}" if name else ""
    files = {receiver: directory / f"{receiver.name}{suffix}.json" for receiver in receivers}
    sent = dict.fromkeys((receiver.name for receiver in receivers), 0)
    with _alone(directory / f".lock{suffix}") as alone:
        if alone and not dry_run:
            before()
            until = time.monotonic() + _LOOK_SECONDS
            for receiver, file in files.items():
                sent[receiver.name] = _tell(stream, receiver, file, until)
    standings = tuple(_read(file, receiver.name) for receiver, file in files.items())
    waiting = {
        item.receiver: tuple(event.notice for event in _due(stream, item) if event.notice is not None)
        for item in standings
    }
    return Look(standings, sent, waiting)


def _note_lineage(settings: Settings, store: Ledger) -> None:
    """Records in the chain, so that it is told in its place, that lineage events do not arrive."""
    lately = rows.time_text(_now() - ALERT_EVERY)
    if any(event.at > lately for event in store.history(kinds=[chain.LINEAGE_ALERT])):
        return
    if LineageEmitter.of(settings).status().alerts():
        store.record(chain.LINEAGE_ALERT, "lineage", {"reason": _LINEAGE})


def _tell(stream: Stream, receiver: Receiver, file: Path, until: float) -> int:
    """Delivers what is due until a delivery fails or the time is up; returns how many were taken."""
    before = standing = _read(file, receiver.name)
    sent, writable = 0, False
    for event in _due(stream, standing):
        now = _now()
        if time.monotonic() > until:
            break
        if event.notice is None:
            standing = standing.passed(event)
        elif not standing.is_due(now):
            break
        else:
            if not writable:  # where that cannot be kept, nothing is told: it would be told again at each look
                _write(file, standing)
                writable = True
            try:
                receiver.send(event.notice)
            except NotificationFailed as failure:
                standing = standing.failed(str(failure), now)
                break
            standing = standing.passed(event)
            _write(file, standing)  # at once: what was taken is not told again
            sent += 1
    if standing != before or not file.exists():
        _write(file, standing)
    return sent


def _due(stream: Stream, standing: Standing) -> Iterator[Happening]:
    """Events after a receiver's cursor; of those from before its time, nothing is told."""
    for event in stream(standing.after):
        yield event if event.at >= standing.since else replace(event, notice=None)


def _read(file: Path, receiver: str) -> Standing:
    try:
        return Standing(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Standing(receiver, since=(_now() - REACH_BACK).isoformat())
    except (OSError, ValueError, TypeError) as error:
        raise NotificationFailed(
            f"{file} cannot be read ({reason_of(error)}); without it, the {receiver} is told of the last day again"
        ) from None


def _write(file: Path, standing: Standing) -> None:
    try:
        write_durably(file, json.dumps(asdict(standing)))
    except OSError as error:
        problem = file_problem(error)
    else:
        return
    raise NotificationFailed(
        f"{file} cannot be written ({problem}); nobody is told anything that could not be noted there. Make room, or "
        "mend its directory"
    )


@contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    """Whether no other process is at it."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _now() -> dt.datetime:
    """The time, UTC; tests patch it."""
    return dt.datetime.now(dt.UTC)
