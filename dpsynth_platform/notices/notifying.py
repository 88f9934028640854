"""Sends notices about candidates, releases and runs.

What belongs here: which events of the ledger's chain become notices, and delivery of any stream of events: at least
once, in order, by a durable cursor. What does not: sentences (`notices.yaml`), the transport (`receivers`), and when to
run (the sensors, `dpsynth notify`). Nothing here runs inside a step, so that an unreachable receiver blocks none.

A notice leaves the operator's environment, so it contains public facts only: no person, free text or content hash. A
blocked request becomes a notice only if the verdict depends on public facts alone.
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

from dpsynth_platform.foundation.addresses import candidate_page, dataset_page, release_page
from dpsynth_platform.foundation.errors import NotificationFailed, file_problem
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, write_durably
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.ledger import chain, rows
from dpsynth_platform.ledger.records import ChainEvent
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.notices.receivers import Notice, Receiver, receivers_of
from dpsynth_platform.reviewing import accounts

EVENTS = {
    chain.CANDIDATE: "candidate-ready",
    chain.APPROVED: "approved",
    chain.REFUSED: "refused",
    chain.RELEASED: "released",
    chain.WITHDRAWN: "withdrawn",
    chain.BLOCKED: "blocked",
    chain.LINEAGE_ALERT: "lineage-alert",
}
"""The notice's event for each kind of chain event that is sent."""
_OF_CANDIDATES = (chain.CANDIDATE, chain.APPROVED, chain.REFUSED)
PUBLIC_REASONS = ("cap", "delta", "slack", "incomparable")
"""Reasons of blocked requests that depend on public facts alone (`ledger.verdicts`)."""
STUCK_AFTER = 5
"""Failed attempts at one notice after which an operator must act."""
LONGEST_WAIT = dt.timedelta(hours=1)
REACH_BACK = dt.timedelta(days=1)
"""A new receiver gets the notices of this period."""
ALERT_EVERY = dt.timedelta(days=1)
"""Interval of alerts about undelivered lineage events."""
SENTENCES = read_yaml(Path(__file__).with_name("notices.yaml"))
"""The sentences of notices, by kind of chain event; those of failed runs by the notice's event."""
_FIRST_WAIT = dt.timedelta(seconds=30)
_PASS_SECONDS = 20.0


@dataclass(frozen=True)
class StreamEvent:
    """An event of a stream.

    Attributes:
        number: its position in the stream; ascending.
        at: ISO 8601, UTC.
        notice: None where no notice is sent.
    """

    number: int
    at: str
    notice: Notice | None


Stream = Callable[[int], Iterable[StreamEvent]]
"""Maps a number to the events after it, in order."""


def notice_of(event: ChainEvent, store: Ledger, console: str = "") -> Notice | None:
    """The notice about an event of the chain, or None. `console` is the console's address, for links."""
    if event.kind not in EVENTS:
        return None
    if event.kind == chain.LINEAGE_ALERT:
        return Notice(
            event.sequence, EVENTS[event.kind], event.at, None, None, None, SENTENCES[event.kind], console or None
        )
    if event.kind == chain.BLOCKED:
        if event.payload["reason"] not in PUBLIC_REASONS:
            return None
        place = Place(event.payload["dataset"], event.payload["period"])
    else:
        request = store.entry(event.payload["entry"]).request
        place = Place(request.dataset, request.period)
    release = event.subject if event.kind in (chain.RELEASED, chain.WITHDRAWN) else None
    sentence = SENTENCES[event.kind].format(arguments=place.arguments, release=release)
    return Notice(
        id=event.sequence,
        event=EVENTS[event.kind],
        at=event.at,
        dataset=place.dataset,
        period=place.period,
        release=release,
        text=f"{place.label}: {sentence}",
        link=link_to(console, place, release=release, candidate=event.kind in _OF_CANDIDATES),
    )


def link_to(console: str, place: Place, *, release: str | None = None, candidate: bool = False) -> str | None:
    """The address of a release's page, of a candidate's or of a dataset's; None without the console's address."""
    if not console:
        return None
    if release:
        return console + release_page(release)
    return console + (candidate_page(place.dataset, place.period) if candidate else dataset_page(place.dataset))


def send_test(settings: Settings) -> dict[str, str]:
    """Sends a test notice to every receiver; returns why it failed by the receiver's name, empty where it did not."""
    at, failures = _now().isoformat(), {}
    notice = Notice(f"test-{at}", "test", at, None, None, None, SENTENCES["test"], settings.console_url or None)
    for receiver in receivers_of(settings):
        failures[receiver.name] = ""
        try:
            receiver.send(notice)
        except NotificationFailed as failure:
            failures[receiver.name] = str(failure)
    return failures


@dataclass(frozen=True)
class Cursor:
    """One receiver's position in a stream.

    Attributes:
        after: number of the last event that was delivered or skipped.
        since: earlier events are skipped.
        attempts: failed attempts at the next notice.
        not_before: time of the next attempt, ISO 8601, UTC.
        problem: why the last attempt failed, in safe words.
    """

    receiver: str
    after: int = 0
    since: str = ""
    attempts: int = 0
    not_before: str = ""
    problem: str = ""

    @property
    def stuck(self) -> bool:
        return self.attempts >= STUCK_AFTER

    def is_due(self, now: dt.datetime) -> bool:
        """Whether to make the next attempt. After a clock was set back, the wait is at most `LONGEST_WAIT`."""
        if not self.not_before:
            return True
        return not now < dt.datetime.fromisoformat(self.not_before) <= now + LONGEST_WAIT

    def passed(self, event: StreamEvent) -> Cursor:
        """After an event was delivered or skipped."""
        return replace(self, after=event.number, attempts=0, not_before="", problem="")

    def failed(self, problem: str, now: dt.datetime) -> Cursor:
        """After a failed attempt; the wait doubles."""
        wait = min(_FIRST_WAIT * 2 ** min(self.attempts, 20), LONGEST_WAIT)
        return replace(self, attempts=self.attempts + 1, not_before=(now + wait).isoformat(), problem=problem)


@dataclass(frozen=True)
class DeliveryReport:
    """The result of one pass over a stream; `sent` and `waiting` are by receivers' names."""

    cursors: tuple[Cursor, ...]
    sent: dict[str, int]
    waiting: dict[str, tuple[Notice, ...]]

    def to_json(self) -> list[dict[str, Any]]:
        return [
            asdict(item)
            | {
                "stuck": item.stuck,
                "sent": self.sent[item.receiver],
                "waiting": [asdict(notice) for notice in self.waiting[item.receiver]],
            }
            for item in self.cursors
        ]

    def raise_if_stuck(self) -> None:
        """Raises `NotificationFailed` if an operator must repair a receiver."""
        stuck = [
            f"the {item.receiver} was tried {item.attempts} times without success: {item.problem}"
            for item in self.cursors
            if item.stuck
        ]
        if stuck:
            raise NotificationFailed(
                "; ".join(stuck)
                + ". Only its notices wait. Repair the receiver, or unset its variable, DPSYNTH_NOTIFY..."
            )


def notify(settings: Settings, *, dry_run: bool = False) -> DeliveryReport:
    """Sends notices about the ledger's chain, as `deliver` does.

    Raises:
        NotificationFailed: a cursor cannot be read or written.
        LedgerError: the ledger cannot be read.
    """
    if not receivers_of(settings) or not settings.has_ledger:
        return DeliveryReport((), {}, {})
    store = accounts.ledger(settings)

    def stream(after: int) -> Iterator[StreamEvent]:
        for event in store.history(after=after, kinds=EVENTS):
            yield StreamEvent(event.sequence, event.at, notice_of(event, store, settings.console_url))

    return deliver(settings, stream, before=lambda: _note_lineage(settings, store), dry_run=dry_run)


def deliver(
    settings: Settings,
    stream: Stream,
    *,
    name: str = "",
    before: Callable[[], None] = lambda: None,
    dry_run: bool = False,
) -> DeliveryReport:
    """Sends every receiver the undelivered notices of a stream, in order; receivers are independent.

    After a failure the receiver's notices wait, and attempts follow at doubling intervals. While another process sends,
    this one sends nothing and only reports.

    Args:
        name: of the stream, which has separate cursors. Empty: the ledger's chain.
        before: is called first, while no other process sends.
        dry_run: only report what waits.

    Raises:
        NotificationFailed: a cursor cannot be read or written. Failures to deliver are in the result instead.
    """
    receivers, directory = receivers_of(settings), private_directory(settings.home / "notify")
    suffix = f".{name}" if name else ""
    files = {receiver: directory / f"{receiver.name}{suffix}.json" for receiver in receivers}
    sent = dict.fromkeys((receiver.name for receiver in receivers), 0)
    with _locked(directory / f".lock{suffix}") as locked:
        if locked and not dry_run:
            before()
            until = time.monotonic() + _PASS_SECONDS
            for receiver, file in files.items():
                sent[receiver.name] = _deliver_to(stream, receiver, file, until)
    cursors = tuple(_read(file, receiver.name) for receiver, file in files.items())
    waiting = {
        item.receiver: tuple(event.notice for event in _due(stream, item) if event.notice is not None)
        for item in cursors
    }
    return DeliveryReport(cursors, sent, waiting)


def _note_lineage(settings: Settings, store: Ledger) -> None:
    """Records an alert about undelivered lineage events in the chain, which orders its notice."""
    lately = rows.time_text(_now() - ALERT_EVERY)
    if any(event.at > lately for event in store.history(kinds=[chain.LINEAGE_ALERT])):
        return
    if LineageEmitter.of(settings).status().alerts():
        store.record(chain.LINEAGE_ALERT, "lineage", {"reason": SENTENCES[chain.LINEAGE_ALERT]})


def _deliver_to(stream: Stream, receiver: Receiver, file: Path, until: float) -> int:
    """Delivers notices until one fails or the time is up; returns the number of delivered ones."""
    before = cursor = _read(file, receiver.name)
    sent, writable = 0, False
    for event in _due(stream, cursor):
        now = _now()
        if time.monotonic() > until:
            break
        if event.notice is None:
            cursor = cursor.passed(event)
        elif not cursor.is_due(now):
            break
        else:
            if not writable:  # without a writable cursor each pass would send the same notices again
                _write(file, cursor)
                writable = True
            try:
                receiver.send(event.notice)
            except NotificationFailed as failure:
                cursor = cursor.failed(str(failure), now)
                break
            cursor = cursor.passed(event)
            _write(file, cursor)  # at once: a delivered notice is not sent again
            sent += 1
    if cursor != before or not file.exists():
        _write(file, cursor)
    return sent


def _due(stream: Stream, cursor: Cursor) -> Iterator[StreamEvent]:
    """Events after a receiver's cursor; those before its `since` have no notice."""
    for event in stream(cursor.after):
        yield event if event.at >= cursor.since else replace(event, notice=None)


def _read(file: Path, receiver: str) -> Cursor:
    try:
        return Cursor(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Cursor(receiver, since=(_now() - REACH_BACK).isoformat())
    except (OSError, ValueError, TypeError) as error:
        raise NotificationFailed(
            f"{file} cannot be read ({reason_of(error)}); without it, the {receiver} gets the notices of "
            "the last day again. Repair or delete it"
        ) from None


def _write(file: Path, cursor: Cursor) -> None:
    try:
        write_durably(file, json.dumps(asdict(cursor)))
    except OSError as error:
        raise NotificationFailed(
            f"{file} cannot be written ({file_problem(error)}); without it no notice is sent. Free disk space, or "
            "repair its directory"
        ) from None


@contextmanager
def _locked(lock: Path) -> Iterator[bool]:
    """Takes the lock; yields whether no other process has it."""
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
