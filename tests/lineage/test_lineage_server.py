"""The receiver: in this process against ASGI, and as a process of its own against OpenLineage's client."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from event_cases import TEAM
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.transport.http import HttpCompression, HttpConfig, HttpTransport
from requests import HTTPError
from sent_cases import sent

from dpsynth_platform.foundation.errors import ConfigurationError, LedgerError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.lineage import ingest, server
from dpsynth_platform.lineage.producers import add_token, load_producers
from dpsynth_platform.lineage.store import LineageStore

SECRET = "jane.doe@example.org"
JSON = {"Content-Type": "application/json"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def token(tmp_path: Path) -> str:
    return add_token(tmp_path / "tokens", TEAM).token


@pytest.fixture
def post(store: LineageStore, token: str, tmp_path: Path) -> Callable[..., httpx.Response]:
    """Sends one request to the receiver, with the team's token."""
    app = server.application(store, load_producers(tmp_path / "tokens"), server.Limits(seconds=300))

    def send(content: Any, path: str = server.PATH, method: str = "POST", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return asyncio.run(_request(app, method, path, content, JSON | bearer(token) | named))

    return send


async def _request(app: Any, method: str, path: str, content: Any, headers: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:1") as client:
        return await client.request(method, path, content=content, headers=headers)


def problem(response: httpx.Response) -> tuple[int, str]:
    """Status and code of an answer that is no success, after its form was checked."""
    assert response.headers["content-type"] == "application/problem+json"
    told = response.json()
    assert told["status"] == response.status_code
    assert told["type"] == f"urn:dpsynth-platform:problem:{told['title']}"
    assert told["detail"]
    assert SECRET not in response.text
    return response.status_code, told["title"]


def test_an_event_is_taken_in_once(post: Any, store: LineageStore) -> None:
    body = sent(inputs=["a"])
    assert [post(body).status_code, post(body).status_code] == [201, 200]
    packed = gzip.compress(body)
    assert post(packed, Content_Encoding="gzip").json() == {"state": "known"}
    assert post(packed, Content_Encoding="X-GZIP", Content_Type='application/json; charset="UTF-8"').status_code == 200
    assert post(body.replace(b"+00:00", b"Z").replace(b"COMPLETE", b"complete")).json() == {"state": "known"}
    (stored,) = store.events()
    assert (stored.origin, stored.source, stored.payload) == ("ingested", TEAM, json.loads(body))


def test_a_batch_tells_which_events_were_refused(post: Any, store: LineageStore) -> None:
    good, bad = sent(inputs=["a"]), sent(namespace="dpsynth", outputs=[SECRET])
    batch = f"{server.PATH}/batch"
    answer = post(b"[" + good + b"," + bad + b"]", batch)
    assert problem(answer) == (409, "events-refused")
    assert [(item["number"], item["state"]) for item in answer.json()["refused"]] == [(2, "conflict")]
    assert problem(post(b"[" + bad + b',{"run": 1}]', batch)) == (400, "events-refused")
    assert (post(b"[" + good + b"]", batch).status_code, len(list(store.events()))) == (200, 1)
    assert post(b"[" + good + b"," + sent(outputs=["b"]) + b"]", batch).json() == {"recorded": 1, "known": 1}
    assert problem(post(good, batch)) == (400, "event-refused")


def test_a_second_end_is_a_conflict(post: Any) -> None:
    run = str(uuid.uuid4())
    assert post(sent("COMPLETE", run=run)).status_code == 201
    assert problem(post(sent("FAIL", run=run))) == (409, "conflict")


def test_what_cannot_be_taken_in_is_refused_and_not_quoted(
    post: Any, store: LineageStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    good = sent(inputs=[SECRET])
    nan, another = f'{{"{SECRET}": NaN}}'.encode(), good.replace(b"COMPLETE", b"WHATEVER")
    for body in (b"", b"\xff", b"{}", nan, another):
        assert problem(post(body)) == (400, "event-refused")
    assert problem(post(b" " * (ingest.MOST_BYTES + 1))) == (413, "too-large")
    packed = gzip.compress(good)
    for body in (good, packed[:-9], packed + packed, packed + b"x", b""):
        assert problem(post(body, Content_Encoding="gzip")) == (400, "not-gzip")
    assert problem(post(gzip.compress(b" " * 50_000_000), Content_Encoding="gzip")) == (413, "too-large")
    many = b"[" + b"[]," * ingest.MOST_VALUES + b"[]]"
    assert problem(post(gzip.compress(many), Content_Encoding="gzip")) == (400, "event-refused")
    for headers in (
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/json; charset=latin-1"},
        {"Content_Encoding": "br"},
    ):
        assert post(good, **headers).status_code == 415
    for wrong in ("", "Bearer", f"Bearer {SECRET}", "Basic dTpw"):
        answer = post(good, Authorization=wrong)
        assert problem(answer) == (401, "no-token")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert problem(post(good, f"/{SECRET}")) == (404, "no-such-place")
    assert problem(post(None, method="GET")) == (405, "no-such-place")
    assert problem(post(None, method=SECRET.upper())) == (405, "no-such-place")
    assert list(store.events()) == []
    told = "\n".join(record.getMessage() for record in caplog.records if record.name == server.__name__)
    assert f"{TEAM} POST {server.PATH} 413" in told
    assert SECRET not in told.lower()


def test_a_body_that_dribbles_is_not_waited_for(store: LineageStore) -> None:
    app = server.application(store, (), server.Limits(seconds=0.2))

    async def dribble() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.1)

    assert problem(asyncio.run(_request(app, "POST", server.PATH, dribble(), JSON))) == (408, "too-slow")


def test_no_more_are_served_at_once_than_there_is_room_for(store: LineageStore) -> None:
    app = server.application(store, (), server.Limits(at_once=1, seconds=300))

    async def both() -> list[httpx.Response]:
        being_served, answered = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"{"
            being_served.set()
            await answered.wait()
            yield b"}"

        first = asyncio.create_task(_request(app, "POST", server.PATH, slow(), JSON))
        await being_served.wait()
        busy = await _request(app, "POST", server.PATH, b"{}", JSON)
        answered.set()
        return [busy, await first]

    busy, served = asyncio.run(both())
    assert (problem(busy), busy.headers["retry-after"]) == ((503, "busy"), "1")
    assert problem(served) == (400, "event-refused")


def test_a_database_away_may_be_tried_again_and_errors_show_nothing(
    post: Any, store: LineageStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert post(None, "/health", "GET").json() == {"state": "ok"}

    def fail(error: Exception) -> None:
        def record(*arguments: Any, **more: Any) -> None:
            raise error

        monkeypatch.setattr(LineageStore, "record", record)

    fail(LedgerError("away"))
    answer = post(sent())
    assert (problem(answer), answer.headers["retry-after"]) == ((503, "database-away"), "5")
    fail(RuntimeError(SECRET))
    assert problem(post(sent())) == (500, "unexpected")
    assert "unexpected error: RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_without_tokens_only_this_machine_is_served(store: LineageStore) -> None:
    app = server.application(store, ())
    for host, status in (("localhost:5000", 201), ("127.0.0.1:1", 200), ("evil.example:5000", 403), ("localhost", 403)):
        body = sent(run="5f6c1f80-0000-4000-8000-000000000000", time="2026-03-01T00:00:00Z")
        assert asyncio.run(_request(app, "POST", server.PATH, body, JSON | {"Host": host})).status_code == status
    assert [item.source for item in store.events()] == [server.LOCAL_PRODUCER]
    for host in ("0.0.0.0", "::", "", "192.0.2.1"):
        with pytest.raises(ConfigurationError, match="anyone who reaches the receiver may report"):
            server.listen(host, 0, ())
    with server.listen("127.0.0.1", 0, ()) as taken, pytest.raises(ConfigurationError, match="cannot be listened on"):
        taken.listen()
        server.listen("127.0.0.1", taken.getsockname()[1], ())


# A process of its own


class Process:
    """`dpsynth lineage serve`, started, killed and started again."""

    def __init__(self, home: Path, url: str) -> None:
        self._environment = os.environ | {
            "DPSYNTH_HOME": str(home),
            "DPSYNTH_LEDGER_URL": url,
            "DPSYNTH_LINEAGE_TOKENS": str(home / "tokens"),
        }
        self.log = (home / "log").open("w+")

    def start(self, port: int = 0) -> str:
        arguments = ["lineage", "serve", "--port", str(port), "--json"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dpsynth_platform", *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        assert self.process.stdout is not None
        lines = ""
        while "}" not in lines:
            line = self.process.stdout.readline()
            assert line, Path(self.log.name).read_text()
            lines += line
        return str(json.loads(lines)["url"])

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(120)


@pytest.fixture
def process(tmp_path: Path, url: str, token: str) -> Iterator[Process]:
    running = Process(tmp_path, url)
    yield running
    if running.process.poll() is None:
        running.end(signal.SIGKILL)
    running.log.close()


def run_event(state: RunState, run: str) -> RunEvent:
    return RunEvent(
        eventType=state,
        eventTime="2026-03-01T00:00:00Z",
        run=Run(run),
        job=Job("team", "train"),
        inputs=[InputDataset("s3://lake", "a")],
        outputs=[OutputDataset("s3://lake", "m")],
        producer="https://example.org/producer",
    )


def test_the_standard_client_reports_and_a_killed_receiver_loses_and_doubles_nothing(
    process: Process, own_port: int, token: str, store: LineageStore
) -> None:
    address = process.start(own_port)
    auth = {"type": "api_key", "apiKey": token}
    patient = {"url": address, "auth": auth, "timeout": 120}
    client = HttpTransport(HttpConfig.from_dict(patient | {"retry": {"total": 0}}))
    packing = HttpTransport(HttpConfig.from_dict(patient | {"compression": "gzip"}))
    assert packing.compression is HttpCompression.GZIP
    runs = [str(uuid.uuid4()) for _ in range(3)]
    events = [run_event(state, run) for run in runs for state in (RunState.START, RunState.COMPLETE)]
    assert [client.emit(item).status_code for item in events[:3]] == [201, 201, 201]
    half = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
    half.sendall(b"POST /api/v1/lineage HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    process.end(signal.SIGKILL)
    half.close()
    with pytest.raises(Exception, match=r"(?i)connection"):
        client.emit(events[3])
    assert process.start(own_port) == address
    assert [client.emit(item).status_code for item in events] == [200] * 3 + [201] * 3
    assert packing.emit(events[0]).status_code == 200
    with pytest.raises(HTTPError) as conflict:
        client.emit(run_event(RunState.FAIL, runs[0]))
    assert conflict.value.response.status_code == 409
    stranger = HttpTransport(HttpConfig.from_dict(patient | {"auth": {"type": "api_key", "apiKey": "no"}}))
    with pytest.raises(HTTPError) as unknown:
        stranger.emit(events[0])
    assert unknown.value.response.status_code == 401
    whole = b" " * (2 * ingest.MOST_BYTES)
    large = httpx.post(f"{address}{server.PATH}", content=whole, headers=JSON | bearer(token), timeout=120)
    assert problem(large) == (413, "too-large")
    process.end(signal.SIGTERM)
    assert [(item.run_id, item.kind) for item in store.events()] == [
        (run, kind) for run in runs for kind in ("START", "COMPLETE")
    ]
    log = Path(process.log.name).read_text()
    assert f"{TEAM} POST {server.PATH} 409" in log
    assert "Traceback" not in log
    assert token not in log


def test_the_event_of_the_documents_can_be_sent_as_it_stands_there(
    process: Process, token: str, store: LineageStore, tmp_path: Path
) -> None:
    """With the page's own command, where there is `curl`."""
    page = (PACKAGE_ROOT / "docs/guides/lineage.md").read_text()
    (event,) = (block for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if "dpsynth:products" in block)
    (command,) = re.findall(r"^curl .*\\\n.*$", page, re.MULTILINE)
    address = process.start()
    if shutil.which("curl") is None:
        sent_here = httpx.post(f"{address}{server.PATH}", content=event, headers=JSON | bearer(token), timeout=120)
        assert sent_here.status_code == 201
    else:
        (tmp_path / "event.json").write_text(event)
        asked = command.replace("http://dpsynth.example.org:5000", address)
        environment = {"PATH": os.environ["PATH"], "TOKEN": token}
        sent_by = subprocess.run(["sh", "-c", asked], cwd=tmp_path, env=environment, capture_output=True, check=True)
        assert json.loads(sent_by.stdout) == {"state": "recorded"}
    (stored,) = store.events()
    assert (stored.source, stored.payload) == (TEAM, json.loads(event))
    (ranker,) = store.find("ranker")
    assert (str(ranker.name), ranker.kind) == ("dpsynth:products:ranker", "checkpoint")
    (above,) = [item for item in store.ancestry([ranker.name]).relatives if item.previous is not None]
    assert (above.relation, above.node.name.name[:12]) == ("trained-on", "/srv/dpsynth")
