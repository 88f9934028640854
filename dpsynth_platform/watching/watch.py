"""The watch: finds what went wrong or did not happen, and sends a notice of each once. It needs no Dagster daemon.

What belongs here: which findings are new, and which have ended. What does not: the checks (`health`, `overdue`),
delivery (`notices.notifying`), the sign of life (`heartbeat`), and when to look (`dpsynth watch`).

The state is one file, written before anything is sent: what is open, and the notices about it. A notice is sent when a
finding appears, and when it ends; another if it appears again. A receiver that is away gets its notices later.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.errors import NotificationFailed, file_problem
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, write_durably
from dpsynth_platform.notices.notifying import (
    SENTENCES,
    DeliveryReport,
    StreamEvent,
    deliver,
    link_to,
    notify,
)
from dpsynth_platform.notices.receivers import Notice
from dpsynth_platform.watching import health
from dpsynth_platform.watching.heartbeat import write_sign
from dpsynth_platform.watching.overdue import Overdue, overdue

KEPT = 1000
"""Notices that are kept for receivers that are away."""
_LEDGER = {"check ledger", "check chain"}
_RELEASES = "check releases"
_ENDED = {"overdue": "overdue-ended", "check-failed": "check-passed", "daemon-silent": "daemon-back"}
"""The event for the end of a finding, by that of its beginning."""


@dataclass(frozen=True)
class Finding:
    """Something of which a notice is sent, once.

    Attributes:
        key: identifies it from one look to the next.
        event: that of its notice, a key of `_ENDED`.
    """

    key: str
    event: str
    text: str
    dataset: str | None = None
    period: str | None = None
    link: str | None = None


@dataclass(frozen=True)
class Look:
    """What one look found.

    Attributes:
        open: every present finding, by key.
        new, ended: texts of the notices that it added.
        reports: of its own notices and the ledger's.
    """

    open: Mapping[str, Finding]
    new: tuple[str, ...]
    ended: tuple[str, ...]
    reports: tuple[DeliveryReport, ...]

    @property
    def stuck(self) -> bool:
        """Whether an operator must repair a receiver: then there is no sign of life either."""
        return any(item.stuck for report in self.reports for item in report.cursors)

    @property
    def undelivered(self) -> tuple[str, ...]:
        """Receivers that failed, each with the reason in safe words."""
        found = (
            f"{item.receiver}: {item.problem}" for report in self.reports for item in report.cursors if item.problem
        )
        return tuple(dict.fromkeys(found))


def look(settings: Settings, now: dt.datetime) -> Look:
    """Looks once, sends what is due, and gives the sign of life.

    Raises:
        NotificationFailed: the state cannot be read or written.
    """
    directory = private_directory(settings.home / "watch")
    with _locked(directory / ".lock"):
        state = _read(directory / "state.json")
        before = {key: Finding(**finding) for key, finding in state["open"].items()}
        present = _findings(settings, now, before)
        began = [finding for key, finding in present.items() if key not in before]
        ended = [
            replace(finding, event=_ENDED[finding.event], text=_end_of(finding))
            for key, finding in before.items()
            if key not in present
        ]
        for finding in (*began, *ended):
            state["number"] += 1
            state["notices"].append({"number": state["number"], "at": now.isoformat()} | asdict(finding))
        state |= {"open": {key: asdict(item) for key, item in present.items()}, "notices": state["notices"][-KEPT:]}
        _write(directory / "state.json", state)

    def stream(after: int) -> Iterator[StreamEvent]:
        for item in state["notices"]:
            if item["number"] > after:
                yield StreamEvent(item["number"], item["at"], _notice(item))

    reports = [deliver(settings, stream, name="watch")]
    if not _LEDGER & present.keys():  # those wait for the ledger, which the finding reports
        reports.append(notify(settings))
    seen = Look(present, tuple(item.text for item in began), tuple(item.text for item in ended), tuple(reports))
    if not seen.stuck:
        write_sign(settings, now)
    return seen


def _findings(settings: Settings, now: dt.datetime, before: Mapping[str, Finding]) -> dict[str, Finding]:
    """What is wrong now. Of what cannot be looked at, the findings of before stay open."""
    found: dict[str, Finding] = {}
    for check in health.checks(settings, now):
        if check.ok or check.name in ("releases", "watch"):
            continue
        event, words = ("daemon-silent", check.words) if check.name == "daemon" else ("check-failed", "")
        text = SENTENCES[event].format(name=check.name, words=words)
        found[f"check {check.name}"] = Finding(f"check {check.name}", event, text, link=settings.console_url or None)
    try:
        late = overdue(settings, now)
    except Exception:  # of any kind; its words may name what no notice may
        if not _LEDGER & found.keys():  # those say it already
            text = SENTENCES["check-failed"].format(name="releases")
            found[_RELEASES] = Finding(_RELEASES, "check-failed", text, link=settings.console_url or None)
        return found | {key: item for key, item in before.items() if item.event == "overdue" or key == _RELEASES}
    return found | {item.key: item for item in (_of(settings, release) for release in late)}


def _of(settings: Settings, item: Overdue) -> Finding:
    place = item.place
    return Finding(
        key=f"overdue {place.label}",
        event="overdue",
        text=f"{place.label}: {SENTENCES['overdue'].format(words=item.words)}",
        dataset=place.dataset,
        period=place.period,
        link=link_to(settings.console_url, place, candidate=item.reason in ("approvals", "approved")),
    )


def _end_of(finding: Finding) -> str:
    sentence = SENTENCES[_ENDED[finding.event]].format(name=finding.key.removeprefix("check "))
    return f"{Place(finding.dataset, finding.period).label}: {sentence}" if finding.dataset else sentence


def _notice(item: Mapping[str, Any]) -> Notice:
    names = ("event", "at", "dataset", "period", "text", "link")
    return Notice(id=f"watch-{item['number']}", release=None, **{name: item[name] for name in names})


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {"number": int(found["number"]), "open": dict(found["open"]), "notices": list(found["notices"])}
    except FileNotFoundError:
        return {"number": 0, "open": {}, "notices": []}
    except (OSError, ValueError, TypeError, KeyError) as error:
        problem = file_problem(error) if isinstance(error, OSError) else "it is damaged"
    raise NotificationFailed(
        f"{file} cannot be read ({problem}); without it the watch sends again what it sent. Repair or delete it"
    )


def _write(file: Path, state: Mapping[str, Any]) -> None:
    try:
        write_durably(file, json.dumps(state))
        return
    except OSError as error:
        problem = file_problem(error)
    raise NotificationFailed(
        f"{file} cannot be written ({problem}), so that no new notice is sent. Free disk space, or repair its directory"
    )


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Two watches look one after the other."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
