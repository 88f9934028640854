"""Delivery to a real HTTP receiver, through OpenLineage's own client and its standard configuration."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from openlineage.client.serde import Serde
from writing_processes import a_run, emit, send_many

from dpsynth_platform.ledger import database, rows
from dpsynth_platform.lineage import outbox
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.events import run_event
from dpsynth_platform.lineage.export import public_event
from dpsynth_platform.lineage.store import LineageStore

SECRET = "Ada Lovelace 078-05-1120"


class Receiver:
    """An OpenLineage endpoint. `answer` decides on each event, and may take its time."""

    def __init__(self, port: int) -> None:
        self.got: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], int] = lambda event: 201
        self.port = port
        self.server: ThreadingHTTPServer | None = None

    def up(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = outer.answer(event)
                if status < 300:
                    outer.got.append(event)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def down(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    @property
    def names(self) -> list[tuple[str, str]]:
        return [(event["run"]["runId"], event["eventType"]) for event in self.got]


@pytest.fixture
def receiver(tmp_path: Path, own_port: int) -> Iterator[Receiver]:
    made = Receiver(own_port)
    made.up()
    configure(made, tmp_path, timeout=120)
    yield made
    made.down()


def configure(receiver: Receiver, directory: Path, timeout: float) -> None:
    """The client's configuration in the working directory. Its timeout is in seconds."""
    transport = {"type": "http", "url": f"http://127.0.0.1:{receiver.port}", "timeout": timeout, "retry": {"total": 0}}
    (directory / "openlineage.yml").write_text(json.dumps({"transport": transport}))


@pytest.fixture
def emitter(url: str, record: Path, receiver: Receiver) -> LineageEmitter:
    """With the standard client, configured by the file in the working directory."""
    return LineageEmitter(url, record.parent)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Moves the clock of the ledger and of lineage on, which stands still otherwise: no pause ends meanwhile."""
    now = rows.now()
    monkeypatch.setattr(rows, "now", lambda: now)

    def move(**by: float) -> None:
        nonlocal now
        now += dt.timedelta(**by)

    return move


def recorded(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text().splitlines()]


def check_agreement(receiver: Receiver, record: Path, url: str, runs: int) -> None:
    """Receiver, file and stored graph hold the same events in the same order, each once."""
    events = recorded(record)
    assert len(events) == 2 * runs
    assert [dict(item.payload) for item in LineageStore(url).events()] == events
    sent = [Serde.to_dict(run_event(public_event(event))) for event in events]
    for event in receiver.got:
        del event["run"]["facets"]["tags"]  # the client's own: its version
    assert receiver.got == sent


def test_receiver_and_file_agree_event_by_event(
    emitter: LineageEmitter, receiver: Receiver, record: Path, url: str, check: Any
) -> None:
    emit(emitter, 3)
    check_agreement(receiver, record, url, 3)
    for event in receiver.got:
        check(event)
    assert emitter.status().alerts() == ()


def test_a_receiver_that_is_down_for_a_while_loses_nothing_and_reorders_nothing(
    emitter: LineageEmitter, receiver: Receiver, record: Path, url: str, later: Any
) -> None:
    emit(emitter, 1)
    receiver.down()
    delivery = emitter.complete(a_run())
    assert delivery.recorded
    assert "did not reach the OpenLineage transport (ConnectionError)" in delivery.warnings[0]
    emit(emitter, 2)
    (transport,) = [item for item in emitter.status().targets if item.target == "transport"]
    assert (transport.waiting, transport.attempts, transport.delivered) == (6, 1, 2), "it pauses, steps do not wait"
    assert emitter.status().alerts() == ()
    later(minutes=16)
    assert emitter.flush(now=False).delivered == {"file": 0, "transport": 0}
    assert len(recorded(record)) == 8, "the record does not wait for another receiver"
    receiver.up()
    assert emitter.flush(now=False).delivered["transport"] == 0, "after two failures it pauses longer"
    later(seconds=11)
    emit(emitter, 1)
    check_agreement(receiver, record, url, 5)


def test_what_is_stuck_is_told(emitter: LineageEmitter, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver.down()
    emit(emitter, 1)
    (transport,) = [item for item in emitter.status().targets if item.target == "transport"]
    now = dt.datetime.now(dt.UTC)
    assert transport.alerts(now + dt.timedelta(minutes=14)) == []
    (alert,) = transport.alerts(now + dt.timedelta(minutes=16))
    assert alert.startswith("2 lineage events wait for the OpenLineage transport since 20")
    assert outbox.give_up(LineageStore(emitter._url), "transport") == 2
    assert "2 lineage events were refused by the OpenLineage transport" in emitter.status().alerts()[0]


@pytest.mark.parametrize("status", [500, 503, 429, 408, 401, 404])
def test_an_answer_that_may_change_is_waited_for(
    emitter: LineageEmitter, receiver: Receiver, record: Path, url: str, status: int
) -> None:
    receiver.answer = lambda event: status
    emit(emitter, 2)
    assert receiver.got == []
    receiver.answer = lambda event: 201
    assert emitter.flush().delivered["transport"] == 4
    check_agreement(receiver, record, url, 2)


def test_an_event_that_is_refused_for_good_is_told_and_passed(emitter: LineageEmitter, receiver: Receiver) -> None:
    receiver.answer = lambda event: 422 if event["eventType"] == "START" else 201
    delivery = emitter.start(a_run())
    assert "was refused by the OpenLineage transport (HTTP 422) and skipped" in delivery.warnings[0]
    emit(emitter, 1)
    assert [kind for _, kind in receiver.names] == ["COMPLETE"]
    status = emitter.status()
    assert [(item.waiting, item.refused) for item in status.targets] == [(0, 0), (0, 2)]
    assert "2 lineage events were refused by the OpenLineage transport within a day" in status.alerts()[0]
    (transport,) = [item for item in status.targets if item.target == "transport"]
    assert transport.news == 2


def test_a_receiver_that_hangs_holds_a_step_up_once(
    emitter: LineageEmitter,
    receiver: Receiver,
    record: Path,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_FIRST_PAUSE", outbox._LONGEST_PAUSE)  # longer than a busy machine takes for the rest
    configure(receiver, tmp_path, timeout=0.5)
    free = threading.Event()
    receiver.answer = lambda event: 201 if free.wait(120) else 500
    emit(emitter, 3)
    (transport,) = [item for item in emitter.status().targets if item.target == "transport"]
    assert (transport.waiting, transport.attempts) == (6, 1), "the steps after the first did not wait"
    assert "did not reach the OpenLineage transport" in "".join(emitter.flush().warnings)
    receiver.answer = lambda event: 201
    configure(receiver, tmp_path, timeout=120)
    free.set()
    hung, until = 2, time.monotonic() + 120
    while len(receiver.got) < hung and time.monotonic() < until:  # the requests that hung are taken after all
        time.sleep(0.01)
    LineageEmitter(url, record.parent).flush()
    receiver.got[:hung] = []  # the one event that was taken but not acknowledged came again, unchanged
    check_agreement(receiver, record, url, 3)


def test_what_leaves_is_the_public_part(emitter: LineageEmitter, receiver: Receiver, record: Path) -> None:
    emitter.fail(a_run(run_facets={"planted": {"text": SECRET}}), ValueError(SECRET))  # type: ignore[dict-item]
    assert SECRET in record.read_text()
    assert SECRET not in json.dumps(receiver.got)
    assert [kind for _, kind in receiver.names] == ["START", "FAIL"]


# Crashes

KILLED = """
import os, pathlib, signal, sys
from dpsynth_platform.lineage import emitter, outbox, receivers

def killed(*_, **__): os.kill(os.getpid(), signal.SIGKILL)

where = sys.argv[3]
if where == "recorded":
    outbox.flush = killed
elif where == "delivering":
    receivers.StandardTransport.send = killed
elif where == "file":
    send = receivers.RecordFile.send
    receivers.RecordFile.send = lambda *a: (send(*a), killed())
else:
    send = receivers.StandardTransport.send
    receivers.StandardTransport.send = lambda *a: (send(*a), killed())
one = emitter.LineageEmitter(sys.argv[1], pathlib.Path(sys.argv[2]))
one.start(emitter.StepRun("killed", "census", "raw"))
"""


@pytest.mark.parametrize(("where", "twice"), [("recorded", 0), ("file", 0), ("delivering", 0), ("delivered", 1)])
def test_a_process_that_is_killed_between_record_and_delivery(
    emitter: LineageEmitter, receiver: Receiver, record: Path, url: str, where: str, twice: int
) -> None:
    emit(emitter, 1)
    ended = subprocess.run([sys.executable, "-c", KILLED, url, str(record.parent), where], check=False, timeout=300)
    assert ended.returncode == -9
    (going,) = emitter.open_runs()
    emitter.close_out([going.parent_run_id])
    again = [index for index, name in enumerate(receiver.names) if name in receiver.names[:index]]
    assert len(again) == twice, "at least once: delivered and killed before that was written down"
    for index in again:
        assert receiver.got[index] == receiver.got[index - 1], "right after the first time, and the same"
        del receiver.got[index]
    check_agreement(receiver, record, url, 2)


@pytest.mark.parametrize("database", ["url", "postgresql_url"])
def test_processes_that_emit_at_once(
    receiver: Receiver, record: Path, database: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(database)
    emitter = LineageEmitter(url, record.parent)
    emit(emitter, 1)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=send_many, args=(url, str(record.parent), 8)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    assert all(item.waiting == 0 for item in emitter.status().targets), "whoever came last left nothing behind"
    check_agreement(receiver, record, url, 17)


def test_a_lease_of_a_process_elsewhere_ends_by_itself(
    emitter: LineageEmitter, receiver: Receiver, url: str, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.down()
    emit(emitter, 1)
    receiver.up()
    store = LineageStore(url)
    monkeypatch.setattr(outbox, "own_name", lambda: "another-host/1:1")
    served = outbox._Served(store, emitter._to()[1], now=True)
    assert served._write(served._begin) is not None
    assert emitter.flush().delivered["transport"] == 0
    later(minutes=6)
    assert emitter.flush().delivered["transport"] == 2


def test_a_flush_that_has_no_more_time_leaves_the_rest_and_the_lease(
    emitter: LineageEmitter, receiver: Receiver
) -> None:
    receiver.down()
    emit(emitter, 2)
    receiver.up()
    assert emitter.flush(seconds=-1).delivered["transport"] == 1
    assert emitter.flush().delivered["transport"] == 3


# The database away


def test_a_database_that_is_away_or_locked_loses_nothing_and_reorders_nothing(
    emitter: LineageEmitter, receiver: Receiver, record: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit(emitter, 1)
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    database._engine_of.cache_clear()  # one that is there waits as long as ever
    path = Path(url.removeprefix("sqlite:///"))
    started, ended = a_run(), a_run()
    with sqlite3.connect(path) as other:
        other.execute("BEGIN IMMEDIATE")
        locked = LineageEmitter(url, record.parent)
        delivery = locked.start(started)
        locked.complete(ended)
        other.rollback()
    assert not delivery.recorded
    assert "is not recorded (ledger); it is recorded later; it is kept in spool.jsonl" in delivery.warnings[0]
    (record.parent / "broken").mkdir(mode=0o700)
    broken = record.parent / "broken" / "ledger.db"
    broken.write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    unreachable = LineageEmitter(f"sqlite:///{broken}", record.parent)
    assert not unreachable.complete(replace(started, attempt=1)).recorded
    assert record.with_name("spool.jsonl").stat().st_size > 0
    assert emitter.complete(started).warnings == ()
    assert record.with_name("spool.jsonl").stat().st_size == 0
    names = [(item.run_id, item.kind) for item in LineageStore(url).events()][2:]
    expected = [(started, "START"), (ended, "START"), (ended, "COMPLETE"), (replace(started, attempt=1), "START")]
    expected += [(replace(started, attempt=1), "COMPLETE"), (started, "COMPLETE")]
    assert names == [(run.run_id, kind) for run, kind in expected]
    check_agreement(receiver, record, url, 4)


def test_a_flush_takes_in_what_was_spooled(emitter: LineageEmitter, record: Path, receiver: Receiver) -> None:
    emit(emitter, 1)
    event = recorded(record)[0]
    event["run"]["runId"] = str(uuid.uuid4())
    record.with_name("spool.jsonl").write_text(json.dumps(event) + "\n")
    assert emitter.flush().delivered == {"file": 1, "transport": 1}
    assert len(receiver.got) == 3
