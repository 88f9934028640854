from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from writing_processes import a_run, emit_many

from dpsynth_platform.foundation.errors import BudgetExceeded
from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.emitter import LineageEmitter, standard_client
from dpsynth_platform.lineage.runs import DatasetRef, StepRun

SECRET = "Ada Lovelace 078-05-1120"
TARGET = DatasetRef(naming.dataset_name("/r/census/raw"))


def kinds(record: Path) -> list[str]:
    return [json.loads(line)["eventType"] for line in record.read_text(encoding="utf-8").splitlines()]


def test_a_run_leaves_start_and_complete(emitter: LineageEmitter, record: Path, events: Any, check: Any) -> None:
    run = a_run()
    assert emitter.start(run).recorded
    assert emitter.complete(replace(run, outputs=(TARGET,))).recorded
    start, end = events(record)
    for event in (start, end):
        check(event)
        assert event["run"]["runId"] == run.run_id
        assert event["run"]["facets"]["parent"]["run"]["runId"] == run.dagster_run_id
        assert event["job"] == {**event["job"], "namespace": "dpsynth", "name": "census.raw"}
        assert event["inputs"][0]["name"] == "/data/census"
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert end["outputs"][0]["name"] == "/r/census/raw"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700


END: dict[str, Callable[[LineageEmitter, StepRun], object]] = {
    "COMPLETE": lambda emitter, run: emitter.complete(run),
    "FAIL": lambda emitter, run: emitter.fail(run, ValueError(SECRET)),
    "ABORT": lambda emitter, run: emitter.abort(run),
}


@pytest.mark.parametrize("first", END)
@pytest.mark.parametrize("second", END)
def test_only_the_first_terminal_event_counts(
    record: Path, emitter: LineageEmitter, emitting: Any, first: str, second: str
) -> None:
    run = a_run()
    emitter.start(run)
    emitter.start(run)
    END[first](emitter, run)
    END[second](emitting(), run)
    emitter.start(run)
    assert kinds(record) == ["START", first]


def test_attempts_are_runs_of_their_own(emitter: LineageEmitter, record: Path, events: Any) -> None:
    run = a_run()
    for attempt in (0, 1):
        emitter.start(replace(run, attempt=attempt))
        emitter.fail(replace(run, attempt=attempt), ValueError())
    assert kinds(record) == ["START", "FAIL"] * 2
    assert len({event["run"]["runId"] for event in events(record)}) == 2


def test_an_end_without_a_start_brings_its_start(emitter: LineageEmitter, record: Path) -> None:
    emitter.complete(a_run())
    assert kinds(record) == ["START", "COMPLETE"]


def test_errors_are_told_without_data(emitter: LineageEmitter, record: Path, events: Any) -> None:
    one, two = a_run(), a_run()
    emitter.fail(one, ValueError(SECRET))
    emitter.fail(two, BudgetExceeded("0.5 is left of the cap"))
    text = record.read_text()
    assert SECRET not in text
    messages = [event["run"]["facets"]["errorMessage"]["message"] for event in events(record)[1::2]]
    assert messages == ["unexpected: ValueError", "budget: 0.5 is left of the cap"]
    assert "stackTrace" not in text


def test_open_runs_of_ended_dagster_runs_are_closed(
    emitter: LineageEmitter, emitting: Any, record: Path, events: Any, check: Any
) -> None:
    killed, going, done = a_run("model"), a_run("raw"), a_run("raw")
    for run in (killed, going, done):
        emitter.start(replace(run, outputs=(TARGET,)))
    emitter.complete(done)
    other = emitting()
    assert [run.run_id for run in other.open_runs()] == [killed.run_id, going.run_id]
    assert [delivery.recorded for delivery in other.close_out({killed.dagster_run_id, "nobody"})] == [True]
    assert other.close_out([killed.dagster_run_id]) == []
    assert [run.run_id for run in emitter.open_runs()] == [going.run_id]
    closing = events(record)[-1]
    check(closing)
    assert closing["eventType"] == "FAIL"
    assert closing["run"]["runId"] == killed.run_id
    assert closing["job"]["name"] == "census.model"
    assert closing["run"]["facets"]["parent"]["run"]["runId"] == killed.dagster_run_id
    assert closing["outputs"] == []


@pytest.mark.parametrize("torn", [b'{"eventType":"STA', b"\x00\xff", b"{}", b'{"eventType":"START","run":[]}'])
def test_a_torn_line_is_never_merged_with_the_next_event(
    emitter: LineageEmitter, emitting: Any, record: Path, torn: bytes
) -> None:
    first, second = a_run(), a_run()
    emitter.start(first)
    with record.open("ab") as file:
        file.write(torn)
    assert emitting().start(second).warnings == ()
    lines = record.read_bytes().splitlines()
    assert lines[1] == torn
    assert json.loads(lines[2])["run"]["runId"] == second.run_id
    assert [run.run_id for run in emitter.open_runs()] == [first.run_id, second.run_id]


def test_a_write_cut_short_is_taken_back_and_repeated(
    emitter: LineageEmitter, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run()
    emitter.start(run)
    before = record.read_bytes()
    write = os.write
    target = record.stat().st_ino

    def short(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[: len(data) // 2] if os.fstat(descriptor).st_ino == target else data)

    monkeypatch.setattr(os, "write", short)
    delivery = emitter.complete(run)
    monkeypatch.undo()
    assert record.read_bytes() == before
    assert delivery.recorded
    assert "did not reach the record lineage/events.jsonl (no space left on device)" in delivery.warnings[0]
    assert emitter.flush().delivered == {"file": 1}
    assert kinds(record) == ["START", "COMPLETE"]


class Receiver:
    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.got = error, []

    def emit(self, event: Any) -> None:
        if self.error:
            raise self.error
        self.got.append(event.eventType.value)


def test_the_configured_transport_gets_every_event_once(record: Path, emitting: Any) -> None:
    receiver = Receiver()
    emitter = emitting(lambda: receiver)
    run = a_run()
    emitter.start(run)
    emitter.complete(run)
    emitter.complete(run)
    assert receiver.got == ["START", "COMPLETE"] == kinds(record)


def test_a_failed_transport_fails_nothing_and_is_seen(record: Path, emitting: Any) -> None:
    receiver = Receiver(ConnectionError(SECRET))
    emitter = emitting(lambda: receiver)
    run = a_run()
    delivery = emitter.start(run)
    assert delivery.recorded
    assert "did not reach the OpenLineage transport (ConnectionError)" in delivery.warnings[0]
    assert SECRET not in str(delivery)
    emitter.complete(run)
    file, transport = emitter.status().targets
    assert (file.waiting, transport.waiting, transport.attempts) == (0, 2, 1)
    receiver.error = None
    assert emitter.flush().delivered == {"file": 0, "transport": 2}
    assert receiver.got == ["START", "COMPLETE"]


def test_an_unusable_configuration_fails_nothing_is_seen_and_may_be_mended(emitting: Any) -> None:
    receivers: list[Any] = []

    def find() -> Any:
        if not receivers:
            raise ValueError(SECRET)
        return receivers[0]

    emitter = emitting(find)
    delivery = emitter.start(a_run())
    assert delivery.recorded
    assert "(ValueError)" in delivery.warnings[0]
    receivers.append(Receiver())
    emitter.flush()
    assert receivers[0].got == ["START"]


def test_an_unwritable_record_fails_nothing_and_the_transport_still_gets_each_event_once(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    receiver = Receiver()
    emitter = LineageEmitter(url, tmp_path / "file", client=lambda: receiver)
    run = a_run()
    first = emitter.start(run)
    emitter.complete(run)
    assert first.recorded
    assert "did not reach the record" in first.warnings[0]
    assert receiver.got == ["START", "COMPLETE"]


def test_without_database_and_disk_emission_still_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    emitter = LineageEmitter(f"sqlite:///{tmp_path}/file/ledger.db", tmp_path / "file", client=lambda: None)
    delivery = emitter.complete(a_run())
    assert not delivery.recorded
    assert all("nor could it be kept in spool.jsonl" in warning for warning in delivery.warnings)


def test_an_event_that_nobody_could_record_is_kept_and_told(emitter: LineageEmitter, record: Path) -> None:
    endless = DatasetRef(naming.DatasetName("file", "/" + "x" * 3000))
    delivery = emitter.start(replace(a_run(), inputs=(endless,)))
    assert not delivery.recorded
    assert "it cannot be; it is kept in unrecorded.jsonl" in delivery.warnings[0]
    assert emitter.start(a_run()).recorded
    status = emitter.status()
    assert (status.spooled, status.unrecorded) == (0, 1)
    assert "1 lineage events could not be recorded" in status.alerts()[0]
    assert stat.S_IMODE(record.with_name("unrecorded.jsonl").stat().st_mode) == 0o600


def test_without_configuration_nothing_is_printed(url: str, record: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert standard_client() is None
    emitter = LineageEmitter(url, record.parent)
    emitter.complete(a_run())
    out, err = capfd.readouterr()
    assert out == ""
    assert "console" not in err


def test_the_standard_configuration_is_followed(
    url: str, record: Path, tmp_path: Path, events: Any, check: Any
) -> None:
    log = tmp_path / "elsewhere.jsonl"
    config = {"transport": {"type": "file", "log_file_path": str(log), "append": True}}
    (tmp_path / "openlineage.yml").write_text(json.dumps(config))
    emitter = LineageEmitter(url, record.parent)
    assert emitter.complete(a_run()).warnings == ()
    assert kinds(log) == ["START", "COMPLETE"]
    for event in events(log):
        check(event)


def test_variables_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "console")
    client: Any = standard_client()
    assert client.transport.kind == "console"


def test_a_transport_without_a_type_is_an_error_not_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", "/nowhere")
    with pytest.raises(ValueError, match="without a type"):
        standard_client()


def test_processes_share_a_record(url: str, record: Path, events: Any) -> None:
    shared = [str(uuid.uuid4()) for _ in range(10)]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=emit_many, args=(url, str(record.parent), shared, 10)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    seen = [(event["run"]["runId"], event["eventType"]) for event in events(record)]
    assert len(seen) == len(set(seen)) == 2 * (10 + 3 * 10)


def test_a_killed_writer_leaves_a_usable_record(url: str, record: Path, emitter: LineageEmitter, events: Any) -> None:
    program = (
        "import sys, pathlib, uuid; from dpsynth_platform.lineage.emitter import *\n"
        "e = LineageEmitter(sys.argv[1], pathlib.Path(sys.argv[2]), client=lambda: None)\n"
        "while True:\n"
        "    r = StepRun(str(uuid.uuid4()), 'census', 'raw'); e.start(r); print(flush=True); e.complete(r)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, url, str(record.parent)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    emitter.close_out({run.parent_run_id for run in emitter.open_runs()})
    assert emitter.open_runs() == []
    emitter.complete(a_run())
    by_run: dict[str, list[str]] = {}
    for event in events(record):
        by_run.setdefault(event["run"]["runId"], []).append(event["eventType"])
    assert len(by_run) >= 5
    assert all(pair[0] == "START" and len(pair) == 2 for pair in by_run.values())
