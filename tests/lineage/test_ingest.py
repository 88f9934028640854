from __future__ import annotations

import gzip
import json
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from event_cases import TEAM, dataset, event, model, name, own
from sent_cases import BASE, sent, whole

from dpsynth_platform.foundation.errors import ConfigurationError, LineageRefused
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
    "many values": b"[" + b"1," * ingest.MOST_VALUES + b"1]",
    "many lists": b"[" * 30 + b"[]," * ingest.MOST_VALUES + b"[]" + b"]" * 30,
}


def test_what_can_be_read_in_two_ways_is_refused(store: LineageStore) -> None:
    started = time.process_time()
    for case, data in UNREADABLE.items():
        with pytest.raises(
            LineageRefused, match=r"cannot be read: [a-zA-Z0-9 ,-]+; accepted: one JSON value"
        ) as refused:
            ingest.record(store, data, TEAM)
        assert (case, refused.value.conflict) == (case, False)
    assert time.process_time() - started < 5
    assert ingest.read(deep(ingest.MOST_DEPTH - 1)) is not None
    assert ingest.read(b"[-9223372036854775808, 9223372036854775807, 1.5]") == [-(2**63), 2**63 - 1, 1.5]
    # What stands in a text is no value: queries are full of commas.
    assert len(ingest.read(b'["' + b'a,[{\\"' * ingest.MOST_VALUES + b'", 1]')) == 2


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
    "a day": (changed(eventTime="2026-01-01"), "eventTime has another form; accepted: a date and time, as 2026"),
    "no such hour": (changed(eventTime="2026-01-01T25:00:00Z"), "without an offset it is UTC"),
    "no such offset": (changed(eventTime="2026-01-01T00:00:00+25:00"), "eventTime has another form"),
    "a zone by name alone": (changed(eventTime="2026-01-01T00:00:00[Europe/Paris]"), "eventTime has another form"),
    "before all time": (changed(eventTime="0001-01-01T00:00:00+01:00"), "eventTime has another form"),
    "time of null": (changed(eventTime=None), "eventTime is required"),
    "no such day": (changed(eventTime="2026-02-30T00:00:00Z"), "eventTime has another form"),
    "a number for a time": (changed(eventTime=0), "eventTime has another form"),
    "no schema": ({key: value for key, value in changed().items() if key != "schemaURL"}, "schemaURL is required"),
    "no job": ({key: value for key, value in changed().items() if key != "job"}, "job is required"),
    "a job without a name": (changed(job={"namespace": SECRET}), "job.name is required"),
    "another type": (changed(eventType=SECRET), "eventType has another form; accepted: START, RUNNING, COMPLETE"),
    "no UUID": (changed(run={"runId": SECRET}), "run.runId has another form; accepted: a UUID, as 0195"),
    "dashes elsewhere": (changed(run={"runId": "0195a8f27-c1e-7b3a-9f60-2d9e4c7a1b05"}), "run.runId has another form"),
    "half a brace": (changed(run={"runId": "{0195a8f2-7c1e-7b3a-9f60-2d9e4c7a1b05"}), "run.runId has another form"),
    "a dataset beside a run": (changed(dataset=dataset("a")), "has no run and no job"),
    "inputs of text": (changed(inputs=SECRET), "inputs has another form; accepted: a list of at most 1000"),
    "a name of null": (
        changed(inputs=[{"namespace": "n", "name": None}]),
        "inputs[0].name is required; accepted: a text",
    ),
    "reversed writing": (changed(outputs=[dataset("a\u202eb")]), "outputs[0].name has another form"),
    "an escape": (changed(outputs=[dataset("\x1b[2J")]), "outputs[0].name has another form"),
    "half a character": (changed(outputs=[dataset("\ud800")]), "outputs[0].name has another form"),
    "a long name": (changed(inputs=[dataset("x" * 2001)]), "inputs[0].name has another form"),
    "10,000 datasets": (changed(inputs=[dataset(str(n)) for n in range(10_000)]), "inputs has another form"),
    "a facet of text": (with_facet(SECRET), "inputs[0].facets.* has another form"),
    "a facet without a schema": (with_facet({"_producer": "p"}), "inputs[0].facets.*._schemaURL is required"),
    "facets of text": (changed(job={"namespace": "n", "name": "j", "facets": SECRET}), "at most 100 objects by name"),
    "101 facets": (
        changed(run={"runId": str(uuid.uuid4()), "facets": {str(n): BASE for n in range(101)}}),
        "run.facets has another form",
    ),
}


def test_what_the_specification_does_not_allow_is_refused_with_its_place(store: LineageStore) -> None:
    for case, (told, where) in FORMLESS.items():
        with pytest.raises(LineageRefused, match="no OpenLineage event") as refused:
            ingest.record(store, json.dumps(told).encode(), TEAM)
        assert where in str(refused.value), case
        assert SECRET not in str(refused.value)
    assert list(store.events()) == []


def test_every_kind_of_event_is_taken_in_once(store: LineageStore) -> None:
    run = sent("START", ["a"], [model("m")], parent={"run": {"runId": "x"}})
    without_run = {key: value for key, value in event(inputs=["b"]).items() if key not in ("run", "eventType")}
    job, static = json.dumps(whole(without_run)), json.dumps(whole({"dataset": dataset("c", "1")}))
    for data in (run, job.encode(), static.encode()):
        assert ingest.record(store, data, TEAM).new
        assert not ingest.record(store, b"  " + data + b"\n", TEAM).new
    assert [(item.kind, item.origin, item.source) for item in store.events()] == [
        (kind, "ingested", TEAM) for kind in ("START", "JOB", "DATASET")
    ]


RUN = "0195a8f2-7c1e-7b3a-9f60-2d9e4c7a1b05"
SPELLINGS = [
    # What stands first is recorded; senders write the others. Moments, ids, types, and null for what is absent.
    [
        {"eventTime": text}
        for text in (
            "2026-03-01T12:00:00Z",
            "2026-03-01T12:00:00",  # Airflow's older integration
            "2026-03-01T12:00:00.000000",
            "2026-03-01t12:00:00z",
            "2026-03-01 12:00:00+00:00",
            "2026-03-01T13:30:00.000+01:30",
            "2026-03-01T13:30:00+0130",
            "2026-03-01T07:00:00-05",
            "2026-03-01T12:00:00-00:00",
            "2026-03-01T12:00Z",  # Java's, where seconds are zero
            "2026-03-01T13:00:00.000000000+01:00[Europe/Paris]",
            "2026-03-01T12:00Z[UTC]",
        )
    ],
    [
        {"eventTime": text}
        for text in (
            "2024-03-01T00:30:00.123456789Z",
            "2024-02-29T23:30:00,123456789-01:00",
            "2024-03-01T00:30:00.123456789",
        )
    ],
    [
        {"run": {"runId": text}}
        for text in (RUN, RUN.upper(), RUN.replace("-", ""), f"urn:uuid:{RUN}", f"{{{RUN.upper()}}}", f"URN:UUID:{RUN}")
    ],
    [
        {"run": {"runId": RUN, "facets": {"parent": BASE | {"run": {"runId": text}, "root": {"run": {"runId": text}}}}}}
        for text in (RUN, RUN.upper(), RUN.replace("-", ""))
    ],
    [{"eventType": text} for text in ("ABORT", "abort", "Abort")],
    [
        {"job": {"namespace": "team", "name": "train"}, "inputs": [{"namespace": "n", "name": "a"}]},
        {
            "dataset": None,
            "job": {"namespace": "team", "name": "train", "facets": None},
            "inputs": [{"namespace": "n", "name": "a", "facets": {"schema": None}, "inputFacets": None}],
        },
    ],
    [
        {"outputs": [{"namespace": "n", "name": "a", "facets": {"symlinks": BASE}}]},
        {"outputs": [{"namespace": "n", "name": "a", "facets": {"symlinks": BASE | {"identifiers": None}}}]},
    ],
]


@pytest.mark.parametrize("spellings", SPELLINGS, ids=lambda item: next(iter(item[0])))
def test_one_event_in_several_spellings_is_one_event(store: LineageStore, spellings: list[dict[str, Any]]) -> None:
    base = changed(run={"runId": RUN})
    if "inputs" in spellings[0] or "outputs" in spellings[0]:
        base |= {"inputs": [], "outputs": []}

    first, *others = ({**base, **item} for item in spellings)
    assert ingest.record(store, json.dumps(first).encode(), TEAM).new
    for told in others:
        assert not ingest.record(store, json.dumps(told).encode(), TEAM).new
    (stored,) = store.events()
    assert stored.payload == {key: value for key, value in first.items() if value is not None}
    assert stored.kind == first["eventType"]


def test_what_an_earlier_version_recorded_as_it_was_sent_is_known(store: LineageStore) -> None:
    told = changed(eventTime="2026-03-01T13:00:00.500+01:00")
    assert store.record(told, origin="ingested", source=TEAM).new
    assert not ingest.record(store, json.dumps(told).encode(), TEAM).new


def test_a_run_of_ours_is_ours_in_every_spelling(store: LineageStore) -> None:
    mine = own("START", ["raw"], job="census.released")
    store.record(mine)
    with pytest.raises(LineageRefused, match="platform's own") as refused:
        ingest.record(store, sent("FAIL", run=mine["run"]["runId"].upper()), TEAM)
    assert refused.value.conflict


def wide(columns: int) -> bytes:
    """An event about a table of so many columns, as Spark's integration sends it: types, and each column's origin."""
    fields = [
        {"name": f"column_{n:05}", "type": "string", "description": f"Number {n} of them"} for n in range(columns)
    ]
    change = [{"type": "DIRECT", "subtype": "IDENTITY", "description": "", "masking": False}]
    origins = {
        item["name"]: {
            "inputFields": [{"namespace": "s3://lake", "name": "a", "field": item["name"], "transformations": change}]
        }
        for item in fields
    }
    made = dataset("wide", schema={"fields": fields}, columnLineage={"fields": origins})
    return sent(inputs=["a"], outputs=[made])


def test_a_table_of_very_many_columns_is_taken_in(store: LineageStore) -> None:
    data = wide(12_000)
    assert 3_000_000 < len(data) < ingest.MOST_BYTES
    assert ingest.record(store, data, TEAM).new
    assert not ingest.record(store, data, TEAM).new
    node = store.node(name("wide"))
    assert node is not None
    assert len(node.facets["schema"]["fields"]) == 12_000
    with pytest.raises(
        LineageRefused, match=r"more than .* leave out facets, or spread its datasets over several events"
    ):
        ingest.record(store, wide(30_000), TEAM)


def test_datasets_of_one_run_may_come_in_several_events(store: LineageStore) -> None:
    """What the refusal of a large event advises."""
    for kind, part in (("START", "a"), ("RUNNING", "b"), ("RUNNING", "c")):
        assert ingest.record(store, sent(kind, [part], run=RUN), TEAM).new
    assert ingest.record(store, sent("COMPLETE", outputs=["m"], run=RUN), TEAM).new
    above = store.ancestry([name("m")])
    assert {str(item.node.name.name) for item in above.relatives} >= {"a", "b", "c"}


def test_events_are_read_in_pages_that_fit_into_memory(store: LineageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpsynth_platform.lineage import graph_rows

    for part in "abcde":
        ingest.record(store, sent(inputs=[part * 1500]), TEAM)
    whole_page = [item.sequence for item in store.events()]
    monkeypatch.setattr(graph_rows, "PAGE_CHARACTERS", 100)  # less than one of them
    page = store.database.read(lambda connection: graph_rows.events(connection, after=0, run_id=None, most=500))
    assert (len(page), whole_page) == (1, [1, 2, 3, 4, 5])
    assert [item.sequence for item in store.events()] == whole_page


def test_our_own_events_have_the_form(store: LineageStore, emitter: Any, record: Path, events: Any) -> None:
    from dpsynth_platform.lineage.runs import StepRun

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
            ingest.record(store, conflicting, TEAM)
        assert refused.value.conflict
    forged = {"dpsynth_privacyUnit": {"unit": "none"}, "dpsynth_guarantee": {"ledgerEntry": "0" * 32, "epsilon": 0.1}}
    assert ingest.record(store, sent(outputs=[dataset("r", "v2", **forged)], time="1970-01-01T00:00:00Z"), TEAM).new
    assert [store.node(name(item)) for item in ("raw", "r")] == before
    assert [run.run_id for run in store.open_runs()] == [mine["run"]["runId"]]


def test_a_batch_is_taken_in_one_by_one(store: LineageStore) -> None:
    first, run = sent(inputs=["a"], outputs=["b"]), str(uuid.uuid4())
    end = sent("COMPLETE", run=run)
    parts = [first, first, sent(namespace="dpsynth"), b'{"run": 1}', end, sent("FAIL", run=run)]
    outcomes = ingest.record_all(store, b"[" + b",".join(parts) + b"]", TEAM)
    states = ["recorded", "known", "conflict", "refused", "recorded", "conflict"]
    assert [(item.number, item.state) for item in outcomes] == list(enumerate(states, 1))
    assert [bool(item.reason) for item in outcomes] == [not item.accepted for item in outcomes]
    assert len(list(store.events())) == 2
    for bad in (b"[]", first, b"[" + b",".join([b"1"] * 1001) + b"]"):
        with pytest.raises(LineageRefused, match="a list of 1 to 1000 events"):
            ingest.record_all(store, bad, TEAM)


def test_a_file_is_one_event_a_list_or_one_on_each_line(store: LineageStore, tmp_path: Path) -> None:
    file = tmp_path / "events"
    first, second = sent(outputs=["a"]), sent(outputs=["b"])

    def states(content: bytes) -> list[tuple[int, str]]:
        file.write_bytes(content)
        return [(item.number, item.state) for item in ingest.record_file(store, file, TEAM)]

    assert states(json.dumps(json.loads(first), indent=2).encode()) == [(1, "recorded")]
    assert states(first + b"\r\n\n" + second + b"\n{\n") == [(1, "known"), (3, "recorded"), (4, "refused")]
    assert states(b'{\n"a": 1,\n"a": 2}') == [(1, "refused")]
    assert states(b"") == []
    assert states(b" \n[" + first + b",\n" + sent(outputs=["c"]) + b", 1]\n") == [
        (1, "known"),
        (2, "recorded"),
        (3, "refused"),
    ]
    with pytest.raises(LineageRefused, match="a list of 1 to 1000 events"):
        states(b"[]")
    with pytest.raises(ConfigurationError, match=r"is packed by gzip; .* gunzip -k"):
        states(gzip.compress(first))
    assert states(b"[\n" + b" " * ingest.MOST_BYTES + b"\n" + first + b"\n]") == [(1, "refused")]
    long = b'{"x": "' + b"x" * ingest.MOST_BYTES + b'"}\n'
    assert states(long + second) == [(1, "refused"), (2, "known")]
    assert states(first + b"\n" + long.rstrip()) == [(1, "known"), (2, "refused")]
    with pytest.raises(ConfigurationError, match="no such file"):
        list(ingest.record_file(store, tmp_path / "none", TEAM))


def test_names_of_producers() -> None:
    assert ingest.producer_name("team-search.eu_1") == "team-search.eu_1"
    for bad in ("", " a", "a b", "a\n", "-a", "x" * 101, "é"):
        with pytest.raises(ConfigurationError, match="accepted: up to 100 letters"):
            ingest.producer_name(bad)
