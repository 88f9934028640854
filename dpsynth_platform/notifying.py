"""Telling people outside what happened to candidates and releases, by a command or a webhook.

What belongs here: which events of the ledger's chain are told, in which words, and delivering them: each at least once,
in order, by a cursor that survives. What does not: when to look (the sensor, `dpsynth notify`), and deciding anything.
Nothing here runs inside a step, so that a receiver that is away holds nothing up.

A notice leaves the operator's place, so it holds public facts only: no person, no free words, no content hash. A
blocked request is told where the verdict depends on public facts, and not where it looked at the data.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from dpsynth_platform.errors import NotificationFailed
from dpsynth_platform.ledger import chain, rows
from dpsynth_platform.ledger.records import ChainEvent
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.permissions import private_directory
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.settings import THIS_MACHINE, Settings, inherited_environment
from dpsynth_platform.storage import Place, write_durably

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
_SECONDS = 15.0
_LOOK_SECONDS = 20.0
_OWN_VARIABLES = ("DPSYNTH_", "OPENLINEAGE_", "DAGSTER_")


@dataclass(frozen=True)
class Notice:
    """What a receiver is told. Every field is public.

    Attributes:
        id: the event's number in the chain; a notice that comes twice has the same.
        event: one of the values of `TOLD`.
        at: when it happened, ISO 8601, UTC.
        dataset, period: what it is about; none where it is about the deployment.
        release: id of the release, where there is one.
        text: the same as a sentence, and what to do.
    """

    id: int
    event: str
    at: str
    dataset: str | None
    period: str | None
    release: str | None
    text: str

    def to_bytes(self) -> bytes:
        """One JSON object in UTF-8, on a line of its own."""
        return f"{json.dumps(asdict(self), ensure_ascii=False)}\n".encode()


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


class Receiver(Protocol):
    """Where notices go."""

    @property
    def name(self) -> str:
        """Names it in messages and in its file."""

    def send(self, notice: Notice) -> None:
        """Returns when it was taken; raises `NotificationFailed` with safe words if not."""


@dataclass(frozen=True)
class Command:
    """A command that reads one notice on standard input and ends with status 0 when it has taken it.

    It has the deployment's environment without the platform's own variables: those may hold passwords.
    """

    arguments: tuple[str, ...]
    name: str = "command"

    def send(self, notice: Notice) -> None:
        """Runs the command in a session of its own, which is ended with it where it takes too long."""
        environment = {
            name: value for name, value in inherited_environment().items() if not name.startswith(_OWN_VARIABLES)
        }
        try:
            process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise NotificationFailed(f"it cannot be started ({type(error).__name__})") from None
        try:
            process.communicate(notice.to_bytes(), timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise NotificationFailed(f"it did not end within {_SECONDS:g} seconds") from None
        if process.returncode != 0:
            raise NotificationFailed(f"it ended with status {process.returncode}")


@dataclass(frozen=True)
class Webhook:
    """A URL that takes one notice a POST request and answers with a status of 200 to 299. May hold a secret."""

    url: str
    name: str = "webhook"

    def send(self, notice: Notice) -> None:
        """Posts; follows no redirection, which could lead anywhere.

        What is for this machine goes by no proxy: on another machine, it would tell that one the secret in clear.
        """
        here = urlsplit(self.url).hostname in THIS_MACHINE
        handlers = (_NoRedirection(), urllib.request.ProxyHandler({})) if here else (_NoRedirection(),)
        request = urllib.request.Request(  # noqa: S310 - https, or this machine: settings see to it
            self.url, data=notice.to_bytes(), headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=_SECONDS):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            raise NotificationFailed(f"it answered with status {error.code}") from None
        except (OSError, HTTPException, ValueError) as error:  # `URLError` is an `OSError`
            raise NotificationFailed(f"it cannot be reached ({type(error).__name__})") from None


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Makes an error of every redirection."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


@dataclass(frozen=True)
class Standing:
    """Where one receiver stands.

    Attributes:
        receiver: its name.
        after: it was told of everything up to this event of the chain.
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

    def passed(self, event: ChainEvent) -> Standing:
        """After an event was told, or need not be."""
        return replace(self, after=event.sequence, attempts=0, not_before="", problem="")

    def failed(self, problem: str, now: dt.datetime) -> Standing:
        """After an attempt in vain; the next one waits twice as long."""
        wait = min(_FIRST_WAIT * 2 ** min(self.attempts, 20), LONGEST_WAIT)
        return replace(self, attempts=self.attempts + 1, not_before=(now + wait).isoformat(), problem=problem)


@dataclass(frozen=True)
class Look:
    """What one look at the chain did.

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
                "DPSYNTH_NOTIFY or DPSYNTH_NOTIFY_URL"
            )


def receivers_of(settings: Settings) -> tuple[Receiver, ...]:
    """Those that the deployment names."""
    found: list[Receiver] = []
    if settings.notify:
        found.append(Command(settings.notify))
    if settings.notify_url:
        found.append(Webhook(settings.notify_url))
    return tuple(found)


def notify(settings: Settings, *, dry_run: bool = False) -> Look:
    """Tells every receiver what it has not been told yet, in order, each by itself.

    A receiver that fails is tried again later, at doubling intervals; until then what follows waits. Where another
    process is at it, this one only looks.

    Args:
        settings: the deployment.
        dry_run: only say what waits.

    Raises:
        NotificationFailed: where a receiver stands cannot be read. Failures to deliver are in what is returned.
    """
    receivers = receivers_of(settings)
    if not receivers or not accounts.has_ledger(settings):
        return Look((), {}, {})
    store, directory = accounts.ledger(settings), private_directory(settings.home / "notify")
    files = {receiver: directory / f"{receiver.name}.json" for receiver in receivers}
    sent = dict.fromkeys((receiver.name for receiver in receivers), 0)
    with _alone(directory) as alone:
        if alone and not dry_run:
            _note_lineage(settings, store)
            until = time.monotonic() + _LOOK_SECONDS
            for receiver, file in files.items():
                sent[receiver.name] = _tell(store, receiver, file, until)
    standings = tuple(_read(file, receiver.name) for receiver, file in files.items())
    waiting = {
        item.receiver: tuple(notice for _, notice in _due(store, item) if notice is not None) for item in standings
    }
    return Look(standings, sent, waiting)


def _note_lineage(settings: Settings, store: Ledger) -> None:
    """Records in the chain, so that it is told in its place, that lineage events do not arrive."""
    lately = rows.time_text(_now() - ALERT_EVERY)
    if any(event.at > lately for event in store.history(kinds=[chain.LINEAGE_ALERT])):
        return
    if LineageEmitter.of(settings).status().alerts():
        store.record(chain.LINEAGE_ALERT, "lineage", {"reason": _LINEAGE})


def _tell(store: Ledger, receiver: Receiver, file: Path, until: float) -> int:
    """Delivers what is due until a delivery fails or the time is up; returns how many were taken."""
    before = standing = _read(file, receiver.name)
    sent = 0
    for event, notice in _due(store, standing):
        now = _now()
        if notice is None:
            standing = standing.passed(event)
        elif now.isoformat() < standing.not_before or time.monotonic() > until:
            break
        else:
            try:
                receiver.send(notice)
            except NotificationFailed as failure:
                standing = standing.failed(str(failure), now)
                break
            standing = standing.passed(event)
            _write(file, standing)  # at once: what was taken is not told again
            sent += 1
    if standing != before or not file.exists():
        _write(file, standing)
    return sent


def _due(store: Ledger, standing: Standing) -> Iterator[tuple[ChainEvent, Notice | None]]:
    """Events after a receiver's cursor, each with what is told of it."""
    for event in store.history(after=standing.after, kinds=TOLD):
        yield event, notice_of(event, store) if event.at >= standing.since else None


def _read(file: Path, receiver: str) -> Standing:
    try:
        return Standing(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Standing(receiver, since=(_now() - REACH_BACK).isoformat())
    except (OSError, ValueError, TypeError) as error:
        raise NotificationFailed(
            f"{file} cannot be read ({type(error).__name__}); without it, the {receiver} is told of the last day again"
        ) from None


def _write(file: Path, standing: Standing) -> None:
    write_durably(file, json.dumps(asdict(standing)))


@contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Whether no other process is at it."""
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
