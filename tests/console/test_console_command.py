"""`dpsynth console` as a process of its own: it starts, lets somebody in, tells nothing, and ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from gate_cases import PHRASE, quick_hashes
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from dpsynth_platform.console.store import Store
from dpsynth_platform.console.users import Users
from dpsynth_platform.foundation.settings import PACKAGE_ROOT

SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket&implicit_handshake=true&client_id="
PATIENT: Any = {"open_timeout": 120, "ping_interval": None}


@dataclass
class Running:
    """The process, and where it is."""

    process: subprocess.Popen[str]
    url: str
    home: Path

    def sign_in(self) -> httpx.Client:
        client = httpx.Client(base_url=self.url, timeout=300)
        csrf = re.search(r'name="csrf" value="([^"]+)"', client.get("/sign-in").text)
        assert csrf
        form = {"name": "Rita", "password": PHRASE, "csrf": csrf[1], "next": "/"}
        assert client.post("/sign-in", data=form, headers={"Origin": self.url}).status_code == 303
        return client


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("console")
    with pytest.MonkeyPatch.context() as patch:
        quick_hashes(patch)
        Users(Store(home / "console")).add("Rita", ["reviewer"], PHRASE)
    with socket.socket() as held:  # bound and not listening: nobody else is given the port meanwhile
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield from _running(home, held.getsockname()[1])


def _running(home: Path, port: int) -> Iterator[Running]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DPSYNTH")}
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dpsynth_platform", "console", "--port", str(port), "--json"],
            cwd=home,
            env=environment | {"DPSYNTH_HOME": str(home), "DPSYNTH_DEPLOY": str(PACKAGE_ROOT / "deploy")},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout
    told = ""
    while not told.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, (home / "log").read_text()
        told += line
    url = json.loads(told)["url"]
    assert url == f"http://127.0.0.1:{port}"
    end = time.monotonic() + 120
    while True:  # it listens already, and answers once it has started
        try:
            assert httpx.get(f"{url}/health", timeout=300).json() == {"state": "ok"}
            break
        except httpx.TransportError:
            assert time.monotonic() < end
    yield Running(process, url, home)
    process.kill()
    process.wait()


def test_somebody_is_let_in(running: Running) -> None:
    client = running.sign_in()
    assert client.get("/api/v1/session").json()["name"] == "Rita"
    assert client.get("/api/v1/overview").json()["waiting"] == []
    gone = client.get("/api/v1/no-such-address")
    assert (gone.status_code, gone.headers["content-type"]) == (404, "application/problem+json")
    page = client.get("/", headers={"Accept-Encoding": "gzip"})
    assert (page.status_code, page.headers.get("content-encoding")) == (200, None)
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "http" not in policy
    gone = client.get("/no-such-page")
    assert (gone.status_code, gone.headers["content-type"]) == (404, "text/html; charset=utf-8")
    for file in ("nicegui.js", "quasar.umd.prod.js"):
        assert httpx.get(f"{running.url}/_nicegui/{version('nicegui')}/static/{file}", timeout=120).status_code == 200
    assert httpx.get(f"{running.url}/_nicegui/auto/x", follow_redirects=False, timeout=120).status_code == 303


def test_a_websocket_needs_a_session_and_its_page(running: Running) -> None:
    client = running.sign_in()
    cookie = {"Cookie": f"dpsynth={client.cookies['dpsynth']}"}
    address = running.url.replace("http", "ws") + SOCKET
    with (
        pytest.raises(InvalidStatus) as caught,
        connect(address + "x", additional_headers=cookie, origin=None, **PATIENT),
    ):
        pass
    assert caught.value.response.status_code == 403
    for headers in (cookie, {}):
        with connect(address + "no-such-page", additional_headers=headers, origin=running.url, **PATIENT) as page:
            assert page.recv().startswith("0")  # the protocol's own greeting
            page.send("40")
            assert page.recv() == '44{"message":"Implicit handshake failed"}'  # NiceGUI's script loads the page again
            page.send('42["event",{}]')
            with pytest.raises(Exception, match="4401"):
                page.recv(timeout=120)


def test_it_leaves_nothing_but_its_database(running: Running) -> None:
    assert {path.name for path in running.home.iterdir()} <= {"console", "log"}


def test_it_ends_when_asked_to_and_its_log_tells_no_name(running: Running) -> None:
    secret = "jane.doe@example.org"
    client = running.sign_in()
    client.get(f"/{secret}?{secret}={secret}")
    client.get(f"/api/v1/datasets/{secret}")
    client.post(f"/api/v1/{secret}", content=secret, headers={"Origin": running.url})
    running.process.send_signal(signal.SIGTERM)
    # After it has finished what it served: by itself, or by the signal that it was sent.
    assert running.process.wait(timeout=120) in (0, -signal.SIGTERM)
    log = (running.home / "log").read_text()
    assert "sign-in: by password" in log
    assert "GET /api 4" in log
    for word in (secret, "jane", "Rita", PHRASE, client.cookies["dpsynth"], "Traceback"):
        assert word not in log
