"""A page's websocket: whose it is, and how long it lives."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gate_cases import URL, Gate, gate_of, quick_hashes
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from dpsynth_platform.console.access import AccessMiddleware
from dpsynth_platform.console.sessions import handle_of
from dpsynth_platform.foundation.settings import Settings

PATH = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket&implicit_handshake=true&client_id="
CLICK = '42["event",{"id":7,"client_id":"page","listener_id":"x","args":["\\"client_id\\":\\"other\\""]}]'


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Stands for NiceGUI: tells which page it was asked for, then repeats what comes."""
    socket = WebSocket(scope, receive, send)
    await socket.accept()
    await socket.send_text(socket.query_params["client_id"])
    with suppress(WebSocketDisconnect):
        while True:
            await socket.send_text(await socket.receive_text())
    await send({"type": "websocket.send", "text": "too late"})


class Page:
    """A page of somebody who signed in, and its websocket."""

    def __init__(self, gate: Gate, name: str = "Rita") -> None:
        self.gate = gate
        self.token = self.cookie = gate.signed_in(name).client.cookies["dpsynth"]

    def connect(self, page: str = "page", **headers: str) -> Any:
        pages = {"page": handle_of(self.token)}
        app = AccessMiddleware(echo, self.gate.services, pages.get, str)
        sent = {"Origin": URL, "Host": "127.0.0.1:3900", "Cookie": f"dpsynth={self.cookie}"} | headers
        return TestClient(app).websocket_connect(
            PATH + page, headers={name: value for name, value in sent.items() if value}
        )


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    quick_hashes(monkeypatch)
    return gate_of(Settings.from_environment({"DPSYNTH_HOME": str(tmp_path / "h"), "DPSYNTH_DEPLOY": str(tmp_path)}))


def closed(socket: Any) -> int:
    """What it was closed with, after one more message."""
    socket.send_text(CLICK)
    with pytest.raises(WebSocketDisconnect) as caught:
        socket.receive_text()
    return int(caught.value.code)


def test_it_lives_as_long_as_its_session(gate: Gate) -> None:
    page = Page(gate)
    with page.connect() as socket:
        assert socket.receive_text() == "page"
        for _ in range(3):
            socket.send_text(CLICK)
            assert socket.receive_text() == CLICK
        gate.services.sessions.end(handle_of(page.token))
        assert closed(socket) == 4401


@pytest.mark.parametrize("change", ["idle", "longest", "roles", "removed"])
def test_it_ends_with_its_session(gate: Gate, change: str) -> None:
    page, limits = Page(gate), gate.services.console.sessions
    with page.connect() as socket:
        assert socket.receive_text() == "page"
        match change:
            case "idle":  # its own traffic keeps no session alive
                for _ in range(4):
                    gate.clock.now += limits.idle / 4
                    socket.send_text("3")
                    assert socket.receive_text() == "3"
                gate.clock.now += 1
            case "longest":
                gate.clock.now += limits.longest + 1
            case "roles":
                gate.services.users.change_roles("Rita", ["reviewer", "auditor"])
            case "removed":
                gate.services.users.remove("Rita")
        assert closed(socket) == 4401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:3901"},
        {"Origin": "http://localhost:3900"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"X-Dpsynth-Roles": "reviewer"},
    ],
)
def test_another_sites_page_has_none(gate: Gate, headers: dict[str, str]) -> None:
    with pytest.raises(WebSocketDisconnect) as caught, Page(gate).connect(**headers):
        pass
    assert caught.value.code == 4403


def test_whoever_is_not_in_is_told_to_load_the_page_again(gate: Gate) -> None:
    """NiceGUI answers so for a page that it does not know, and nothing else can be said to it."""
    ended = Page(gate)
    gate.services.sessions.end(handle_of(ended.token))
    stranger = Page(gate)
    stranger.cookie = ""
    for page in (ended, stranger):
        with page.connect() as socket:
            assert socket.receive_text() == "signed-out"
            socket.send_text("40")
            assert socket.receive_text() == "40"
            assert closed(socket) == 4401


def test_another_sessions_page_is_nobodys(gate: Gate) -> None:
    """Such as the tab of somebody who signed out, after somebody else signed in at the same browser."""
    page = Page(gate)
    for other in ("unknown", ""):
        with page.connect(other) as socket:
            assert socket.receive_text() == "signed-out"
    rita, aud = Page(gate), Page(gate, "Aud")
    rita.cookie = aud.token
    with rita.connect() as socket:
        assert socket.receive_text() == "signed-out"


@pytest.mark.parametrize(
    "text",
    [
        '42["event",{"id":7,"client_id":"other"}]',
        '42["event",{"id":7,"client_id":"page","client_id":"other"}]',
        '42["event",{"id":7,"client\\u005fid":"other"}]',
        '420["handshake",{"client_id":"other"}]',
        '42["event",{"client_id":"page"},{"client_id":"other"}]',
        '42["event",{"client_id":["other"]}]',
        '42/admin,["event",{"client_id":"other"}]',
        '451-["event",{"client_id":"other","x":{"_placeholder":true,"num":0}}]',
        "42",
        '42["event"',
        "42" + "[" * 100_000,
        "6",
        "",
    ],
)
def test_it_presses_no_button_of_another_page(gate: Gate, text: str) -> None:
    """A page's name is a secret, which NiceGUI takes for a proof; who learns one must not act by it."""
    with Page(gate).connect() as socket:
        assert socket.receive_text() == "page"
        for own in (
            CLICK,
            "2probe",
            "3",
            "40",
            '420["handshake",{"client_id":"page"}]',
            '42["ack",{"client_id":"page"}]',
        ):
            socket.send_text(own)
            assert socket.receive_text() == own
        socket.send_text(text)
        with pytest.raises(WebSocketDisconnect) as caught:
            socket.receive_text()
        assert caught.value.code == 4401


def test_it_presses_none_in_bytes_either(gate: Gate) -> None:
    with Page(gate).connect() as socket:
        assert socket.receive_text() == "page"
        socket.send_bytes(b'42["event",{"client_id":"other"}]')
        with pytest.raises(WebSocketDisconnect):
            socket.receive_text()
