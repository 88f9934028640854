from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from event_cases import TEAM, dataset, event, model, name, own
from sent_cases import BASE, sent, whole

from dpsynth_platform.errors import ConfigurationError, LineageRefused
from dpsynth_platform.lineage import ingest
from dpsynth_platform.lineage.store import LineageStore

SECRET = "jane.doe@example.org"


def deep(levels: int) -> bytes:
    return b'{"x":' * levels + b"1" + b"}" * levels


UNREADABLE = {
    "nothing": b"",
    "cut off": b'{"eventTime": ',
    "two values": b"{} {}",
    "a key twice": b'{"eventTime": "a", "eventTime": "b"}',
    "a key twice, deep": b'{"run": {"facets": {"x": {"y": 1, "y": 2}}}}',
    "a key twice, escaped": b'{"a": 1, "\\u0061": 2}',
    "not a number": b'{"x": NaN}',
    "infinite": b'{"x": -Infinity}',
    "infinite by its size": b'{"x": 1e999}',
    "65 bits": b'{"x": 9223372036854775808}',
    "a million digits": b'{"x": ' + b"9" * 900_000 + b"}",
    "UTF-16": '{"x": 1}'.encode("utf-16"),
    "Latin-1": '{"x": "é"}'.encode("latin-1"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "deep": deep(ingest.MOST_DEPTH + 1),
    "very deep": b"[" * 900_000,
    "large": b'"' + b"x" * ingest.MOST_BYTES + b'"',
}


def test_what_can_be_read_in_two_ways_is_refused(store: LineageStore) -> None:
    started = time.process_time()
    for case, data in UNREADABLE.items():
        with pytest.raises(LineageRefused, match="cannot be read; accepted: one JSON value") as refused:
            ingest.take(store, data, TEAM)
        assert (case, refused.value.conflict) == (case, False)
    assert time.process_time() - started < 5
    assert ingest.read(deep(ingest.MOST_DEPTH - 1)) is not None
    assert ingest.read(b"[-9223372036854775808, 9223372036854775807, 1.5]") == [-(2**63), 2**63 - 1, 1.5]


def changed(**parts: Any) -> dict[str, Any]:
    return whole(event(inputs=["a"])) | parts


def with_facet(facet: Any) -> dict[str, Any]:
    return changed(inputs=[{"namespace": "n", "name": "a", "facets": {SECRET: facet}}])


FORMLESS: dict[str, tuple[Any, str]] = {
    "a list": ([], "JSON object"),
    "a text": (SECRET, "JSON object"),
    "nothing": ({}, "a run and a job"),
    "a run alone": ({"run": {"runId": str(uuid.uuid4())}}, "eventTime is required"),
    "no time": ({key: value for key, value in changed().items() if key != "eventTime"}, "eventTime is required"),
    "no zone": (changed(eventTime="2026-01-01T00:00:00"), "eventTime has another form"),
    "no such day": (changed(eventTime="2026-02-30T00:00:00Z"), "eventTime has another form"),
    "a number for a time": (changed(eventTime=0), "eventTime has another form"),
    "no schema": ({key: value for key, value in changed().items() if key != "schemaURL"}, "schemaURL is required"),
    "no job": ({key: value for key, value in changed().items() if key != "job"}, "job is required"),
    "a job without a name": (changed(job={"namespace": SECRET}), "job.name is required"),
    "another type": (changed(eventType=SECRET), "eventType has another form"),
    "no UUID": (changed(run={"runId": SECRET}), "run.runId has another form"),
    "upper case": (changed(run={"runId": str(uuid.uuid4()).upper()}), "run.runId has another form"),
    "a dataset beside a run": (changed(dataset=dataset("a")), "stands alone"),
    "inputs of null": (changed(inputs=None), "inputs has another form"),
    "a name of null": (changed(inputs=[{"namespace": "n", "name": None}]), "inputs[0].name has another form"),
    "reversed writing": (changed(outputs=[dataset("a\u202eb")]), "outputs[0].name has another form"),
    "an escape": (changed(outputs=[dataset("\x1b[2J")]), "outputs[0].name has another form"),
    "half a character": (changed(outputs=[dataset("\ud800")]), "outputs[0].name has another form"),
    "a long name": (changed(inputs=[dataset("x" * 2001)]), "inputs[0].name has another form"),
    "10,000 datasets": (changed(inputs=[dataset(str(n)) for n in range(10_000)]), "inputs has another form"),
    "a facet of text": (with_facet(SECRET), "inputs[0].facets.* has another form"),
    "a facet without a schema": (with_facet({"_producer": "p"}), "inputs[0].facets.*._schemaURL is required"),
    "facets of null": (changed(job={"namespace": "n", "name": "j", "facets": None}), "job.facets has another form"),
    "101 facets": (
        changed(run={"runId": str(uuid.uuid4()), "facets": {str(n): BASE for n in range(101)}}),
        "run.facets has another form",
    ),
}


def test_what_the_specification_does_not_allow_is_refused_with_its_place(store: LineageStore) -> None:
    for case, (told, where) in FORMLESS.items():
        with pytest.raises(LineageRefused, match="no OpenLineage event") as refused:
            ingest.take(store, json.dumps(told).encode(), TEAM)
        assert where in str(refused.value), case
        assert SECRET not in str(refused.value)
    assert list(store.events()) == []


def test_every_kind_of_event_is_taken_in_once(store: LineageStore) -> None:
    run = sent("START", ["a"], [model("m")], parent={"run": {"runId": "x"}})
    without_run = {key: value for key, value in event(inputs=["b"]).items() if key not in ("run", "eventType")}
    job, static = json.dumps(whole(without_run)), json.dumps(whole({"dataset": dataset("c", "1")}))
    for data in (run, job.encode(), static.encode()):
        assert ingest.take(store, data, TEAM).new
        assert not ingest.take(store, b"  " + data + b"\n", TEAM).new
    assert [(item.kind, item.origin, item.source) for item in store.events()] == [
        (kind, "ingested", TEAM) for kind in ("START", "JOB", "DATASET")
    ]


def test_our_own_events_have_the_form(store: LineageStore, emitter: Any, record: Path, events: Any) -> None:
    from dpsynth_platform.lineage.emitter import StepRun

    emitter.complete(StepRun("run", "census", "raw"))
    for told in events(record):
        ingest.check(told)


def test_lies_about_us_change_nothing_of_ours(store: LineageStore) -> None:
    mine = own("START", ["raw"], job="census.released")
    made = own(
        inputs=["raw"], outputs=[dataset("r", "v1", dpsynth_privacyUnit={"unit": "user"})], job="census.released"
    )
    for told in (mine, made):
        store.record(told)
    before = [store.node(name(item)) for item in ("raw", "r")]
    for conflicting in (
        sent(namespace="dpsynth"),
        sent("FAIL", run=mine["run"]["runId"]),
        sent("COMPLETE", run=made["run"]["runId"]),
        sent(outputs=[{"namespace": "dpsynth:ledger", "name": "0" * 32}]),
    ):
        with pytest.raises(LineageRefused) as refused:
            ingest.take(store, conflicting, TEAM)
        assert refused.value.conflict
    forged = {"dpsynth_privacyUnit": {"unit": "none"}, "dpsynth_guarantee": {"ledgerEntry": "0" * 32, "epsilon": 0.1}}
    assert ingest.take(store, sent(outputs=[dataset("r", "v2", **forged)], time="1970-01-01T00:00:00Z"), TEAM).new
    assert [store.node(name(item)) for item in ("raw", "r")] == before
    assert [run.run_id for run in store.open_runs()] == [mine["run"]["runId"]]


def test_a_batch_is_taken_in_one_by_one(store: LineageStore) -> None:
    first, run = sent(inputs=["a"], outputs=["b"]), str(uuid.uuid4())
    end = sent("COMPLETE", run=run)
    parts = [first, first, sent(namespace="dpsynth"), b'{"run": 1}', end, sent("FAIL", run=run)]
    outcomes = ingest.take_all(store, b"[" + b",".join(parts) + b"]", TEAM)
    states = ["recorded", "known", "conflict", "refused", "recorded", "conflict"]
    assert [(item.number, item.state) for item in outcomes] == list(enumerate(states, 1))
    assert [bool(item.reason) for item in outcomes] == [not item.taken for item in outcomes]
    assert len(list(store.events())) == 2
    for bad in (b"[]", first, b"[" + b",".join([b"1"] * 1001) + b"]"):
        with pytest.raises(LineageRefused, match="a list of 1 to 1000 events"):
            ingest.take_all(store, bad, TEAM)


def test_a_file_is_one_event_or_one_on_each_line(store: LineageStore, tmp_path: Path) -> None:
    file = tmp_path / "events"
    first, second = sent(outputs=["a"]), sent(outputs=["b"])

    def states(content: bytes) -> list[tuple[int, str]]:
        file.write_bytes(content)
        return [(item.number, item.state) for item in ingest.take_file(store, file, TEAM)]

    assert states(json.dumps(json.loads(first), indent=2).encode()) == [(1, "recorded")]
    assert states(first + b"\r\n\n" + second + b"\n{\n") == [(1, "known"), (3, "recorded"), (4, "refused")]
    assert states(b'{\n"a": 1,\n"a": 2}') == [(1, "refused")]
    assert states(b"") == []
    long = b'{"x": "' + b"x" * ingest.MOST_BYTES + b'"}\n'
    assert states(long + second) == [(1, "refused"), (2, "known")]
    assert states(first + b"\n" + long.rstrip()) == [(1, "known"), (2, "refused")]
    with pytest.raises(ConfigurationError, match="no such file"):
        list(ingest.take_file(store, tmp_path / "none", TEAM))


def test_names_of_producers() -> None:
    assert ingest.producer_name("team-search.eu_1") == "team-search.eu_1"
    for bad in ("", " a", "a b", "a\n", "-a", "x" * 101, "é"):
        with pytest.raises(ConfigurationError, match="accepted: up to 100 letters"):
            ingest.producer_name(bad)
