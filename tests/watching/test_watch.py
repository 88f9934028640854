"""The watch: each finding is told once, to a real HTTP receiver, again after a relapse, and whoever else is dead."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from watching_cases import NOW, REASON, beat, candidate, deployment, digest_of, ledger_of, released

from dpsynth_platform.foundation.errors import NotificationFailed
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.notices import notifying
from dpsynth_platform.watching import heartbeat
from dpsynth_platform.watching.watch import look

MINUTE = dt.timedelta(minutes=1)


class Receiver:
    """A real HTTP server that keeps what it is sent, and answers as it is told."""

    def __init__(self) -> None:
        self.status, self.bodies = 204, list[dict[str, Any]]()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if owner.status < 300:
                    owner.bodies.append(json.loads(body))
                self.send_response(owner.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/whsec-1234"

    def taken(self) -> list[tuple[str, str]]:
        """Events and texts since the last call, of the watch alone."""
        found = [(item["event"], item["text"]) for item in self.bodies if str(item["id"]).startswith("watch-")]
        self.bodies.clear()
        return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def settings(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(notifying, "_now", lambda: NOW)
    monkeypatch.setattr(notifying, "_PASS_SECONDS", 600.0)
    made = replace(deployment(tmp_path), notify_url=receiver.url, console_url="https://console.example.org")
    ledger_of(made)
    beat(made, NOW)
    return made


def test_each_finding_is_told_once_and_when_it_ends_and_again(settings: Settings, receiver: Receiver) -> None:
    late = "visits/2026-02: no release, expected from 2026-03-01 00:00:00 UTC on: "
    look(settings, NOW)
    (notice,) = receiver.bodies
    assert (notice["event"], notice["dataset"], notice["period"]) == ("overdue", "visits", "2026-02")
    assert notice["text"] == f"{late}no run was started for it; start one: dpsynth run visits --period 2026-02"
    assert notice["link"] == "https://console.example.org/datasets/visits"
    receiver.taken()
    look(settings, NOW + MINUTE)
    assert receiver.taken() == []

    silent = NOW + 11 * MINUTE
    look(settings, silent)
    ((event, text),) = receiver.taken()
    assert event == "daemon-silent"
    assert text.endswith("has given no sign since 2026-03-10 12:00:00 UTC; start it again")
    beat(settings, silent)
    look(settings, silent)
    assert receiver.taken() == [("daemon-back", "Dagster's daemon gives signs again")]
    look(settings, silent + 11 * MINUTE)
    assert [event for event, _ in receiver.taken()] == ["daemon-silent"]

    # Its candidate waits: the same release is overdue for another reason, and nobody is told twice.
    beat(settings, silent + 11 * MINUTE)
    entry = candidate(settings, "2026-02")
    look(settings, silent + 11 * MINUTE)
    assert [event for event, _ in receiver.taken()] == ["daemon-back"]
    released(settings, "2026-02", entry)
    look(settings, silent + 11 * MINUTE)
    assert "released" in [item["event"] for item in receiver.bodies], "the ledger's notices, without any daemon"
    assert receiver.taken() == [("overdue-ended", "visits/2026-02: the release is no longer overdue")]
    assert REASON not in (settings.home / "watch" / "state.json").read_text()


def test_releases_that_cannot_be_looked_at_are_a_finding(
    settings: Settings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is overdue is not known then, and what was stays open."""
    look(settings, NOW)
    assert [event for event, _ in receiver.taken()] == ["overdue"]
    with monkeypatch.context() as patched:
        patched.setattr("dpsynth_platform.watching.watch.overdue", Mock(side_effect=ValueError("row 17")))
        for _ in range(2):
            seen = look(settings, NOW)
        assert sorted(seen.open) == ["check releases", "overdue visits/2026-02"]
        assert receiver.taken() == [("check-failed", "the check releases of this deployment fails: dpsynth health")]
        patched.setattr("dpsynth_platform.watching.health._ledger", Mock(side_effect=ValueError("row 17")))
        assert "check releases" in look(settings, NOW).open, "they still cannot be looked at"
        assert [event for event, _ in receiver.taken()] == ["check-failed"]
    look(settings, NOW)
    assert sorted(receiver.taken()) == [
        ("check-passed", f"the check {name} of this deployment passes again") for name in ("ledger", "releases")
    ]


def test_a_receiver_that_is_away_gets_it_later_and_the_watch_then_gives_no_sign(
    settings: Settings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.status = 503
    for hours in range(notifying.STUCK_AFTER):
        monkeypatch.setattr(notifying, "_now", lambda hours=hours: NOW + dt.timedelta(hours=2 * hours))
        seen = look(settings, NOW)
    assert seen.stuck
    assert seen.undelivered == ("webhook: it answered with status 503",)
    assert heartbeat.last_sign(settings) == NOW, "of the looks before"
    look(settings, NOW + MINUTE)
    assert heartbeat.last_sign(settings) == NOW
    receiver.status = 204
    monkeypatch.setattr(notifying, "_now", lambda: NOW + dt.timedelta(hours=12))
    look(settings, NOW + MINUTE)
    assert [event for event, _ in receiver.taken()] == ["overdue"]
    assert heartbeat.last_sign(settings) == NOW + MINUTE


def test_a_ledger_that_is_away_is_told_and_ends_no_other_finding(settings: Settings, receiver: Receiver) -> None:
    look(settings, NOW)
    receiver.taken()
    shutil.move(settings.ledger, settings.home / "aside")
    settings.ledger.mkdir()
    (settings.ledger / "ledger.db").write_bytes(b"no ledger" * 1000)
    look(settings, NOW)
    assert sorted(receiver.taken()) == [
        ("check-failed", "the check chain of this deployment fails: dpsynth health"),
        ("check-failed", "the check ledger of this deployment fails: dpsynth health"),
    ]
    shutil.rmtree(settings.ledger)
    shutil.move(settings.home / "aside", settings.ledger)
    look(settings, NOW)
    assert {event for event, _ in receiver.taken()} == {"check-passed"}


def test_a_damaged_state_is_a_clear_error(settings: Settings) -> None:
    look(settings, NOW)
    (settings.home / "watch" / "state.json").write_text("{")
    with pytest.raises(NotificationFailed, match="it is damaged"):
        look(settings, NOW)


def test_the_sign_of_life(settings: Settings) -> None:
    assert "not completed a look" in heartbeat.silence(settings, NOW)
    look(settings, NOW)
    assert heartbeat.silence(settings, NOW + 30 * MINUTE) == ""
    assert "since 2026-03-10 12:00:00 UTC" in heartbeat.silence(settings, NOW + 31 * MINUTE)


def test_the_command_looks_and_says_so(settings: Settings, receiver: Receiver) -> None:
    """As a real process, by this machine's clock: February 2026 is over."""
    candidate(settings, "2026-02")
    assert digest_of("2026-02")[:6] == "202602"
    environment = os.environ | {
        "DPSYNTH_HOME": str(settings.home),
        "DPSYNTH_DEPLOY": str(settings.deploy),
        "DPSYNTH_NOTIFY_URL": receiver.url,
    }

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dpsynth_platform", "watch", *arguments]
        return subprocess.run(command, env=environment | more, capture_output=True, text=True, timeout=300, check=False)

    assert run("--check").returncode == 1
    done = run("--once", "--json")
    assert done.returncode == 0, done.stderr
    assert "overdue visits/2026-02" in json.loads(done.stdout)["open"]
    assert ("overdue" in [event for event, _ in receiver.taken()]) is True
    assert run("--check").returncode == 0
    assert re.fullmatch(r"new notices: 0; open findings: \d+\n", run("--once").stdout)
    refused = run("--once", DPSYNTH_NOTIFY_URL="")
    assert (refused.returncode, "there is no receiver of notices" in refused.stderr) == (1, True)
