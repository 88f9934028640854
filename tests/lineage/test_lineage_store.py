from __future__ import annotations

import json
import multiprocessing
import uuid
from typing import Any

import pytest
from event_cases import TEAM, dataset, event, model, name, own
from graph_cases import graph_of
from ledger_cases import KEYS, family, request
from sqlalchemy import create_engine, delete, text
from writing_processes import record_many

from dpsynth_platform.foundation.errors import ConfigurationError, LedgerError, LineageRefused
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.schema import metadata
from dpsynth_platform.lineage import intake
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import LEDGER_NAMESPACE, Ancestry
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_from_json, twice
from dpsynth_platform.synth.planning import audited_key


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def migrated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of each kind."""
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("new_postgresql")()
    LineageStore(url)
    return url


@pytest.fixture
def url(migrated: str) -> str:
    """It again, emptied."""
    engine = create_engine(migrated)
    with engine.begin() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(delete(table))
    engine.dispose()
    return migrated


@pytest.fixture
def store(url: str) -> LineageStore:
    return LineageStore(url)


def reported(store: LineageStore, *events: Any, source: str = TEAM) -> None:
    for item in events:
        assert store.record(item, origin="ingested", source=source).new


def ours(store: LineageStore, *events: Any) -> None:
    for item in events:
        assert store.record(item).new


def reached(found: Ancestry) -> dict[str, int]:
    return {relative.node.name.name: relative.distance for relative in found.relatives}


def path(found: Ancestry, text: str) -> list[tuple[str, str]]:
    relative = found.by_name.get(name(text))
    assert relative is not None
    return [(step.node.name, step.relation) for step in relative.path]


def links(*texts: str) -> dict[str, Any]:
    return {"identifiers": [{"namespace": "s3://lake", "name": text, "type": "TABLE"} for text in texts]}


# Events


def test_an_event_is_recorded_once(store: LineageStore, url: str) -> None:
    first = own("START", ["a"])
    found = store.record(first)
    assert (found.sequence, found.new) == (1, True)
    assert store.record(json.loads(json.dumps(first))) == type(found)(1, new=False)
    assert LineageStore(url).record(first).new is False
    assert [item.payload for item in store.events()] == [first]


def test_of_our_runs_the_first_start_and_the_first_end_stand(store: LineageStore) -> None:
    run = str(uuid.uuid4())
    ours(store, own("START", run=run), own("RUNNING", run=run), own("FAIL", run=run))
    for kind in ("START", "COMPLETE", "ABORT", "FAIL"):
        found = store.record(own(kind, ["a"], ["b"], run=run))
        assert (found.sequence, found.new) == (None, False)
    ended = str(uuid.uuid4())
    ours(store, own("COMPLETE", run=ended))
    assert store.record(own("START", run=ended)).new is False
    assert [item.kind for item in store.events()] == ["START", "RUNNING", "FAIL", "COMPLETE"]
    assert [item.kind for item in store.events(run_id=run)] == ["START", "RUNNING", "FAIL"]
    assert [item.sequence for item in store.events(after=2)] == [3, 4]
    assert reached(store.ancestry([name("b")])) == {}


def test_the_database_itself_holds_the_rule(store: LineageStore, url: str) -> None:
    run = str(uuid.uuid4())
    ours(store, own("START", run=run), own("COMPLETE", run=run))
    columns = "digest, received_at, event_time, origin, source, run_id, kind, job_namespace, job_name, payload"
    with create_engine(url).connect() as connection:
        for kind in ("START", "FAIL"):
            values = f"9, '{kind}', '', '', 'own', '', '{run}', '{kind}', '', '', '{{}}'"
            with pytest.raises(Exception, match=r"(?i)unique"), connection.begin():
                connection.execute(text(f"INSERT INTO lineage_event (sequence, {columns}) VALUES ({values})"))


def test_pages_lose_and_repeat_nothing(store: LineageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsynth_platform.lineage.store._PAGE", 2)
    ours(store, *(own("OTHER") for _ in range(5)))
    assert [item.sequence for item in store.events()] == [1, 2, 3, 4, 5]


def test_open_runs_are_ours(store: LineageStore) -> None:
    going, done = str(uuid.uuid4()), str(uuid.uuid4())
    parent = {"run": {"runId": "the-run"}, "job": {"namespace": "dagster", "name": "j"}}
    ours(store, own("START", run=going, parent=parent), own("START", run=done), own("COMPLETE", run=done))
    reported(store, event("START"))
    (found,) = store.open_runs()
    assert (found.run_id, found.parent_run_id, found.launcher, found.job) == (going, "the-run", "dagster", "train")
    assert found.start["run"]["runId"] == going


BAD: dict[str, Any] = {
    "no object": [],
    "nothing": {},
    "no time": {**event(), "eventTime": None},
    "no job": {**event(), "job": None},
    "no run id": {**event(), "run": {"facets": {}}},
    "long run id": event(run="x" * 201),
    "another type": event("FINISHED"),
    "control character": event(outputs=[dataset("a\x00b")]),
    "half a character": event(outputs=[dataset("\ud800")]),
    "empty name": event(outputs=[dataset("")]),
    "long name": event(outputs=[dataset("x" * 2001)]),
    "no list": {**event(), "outputs": {}},
    "no dataset": {**event(), "inputs": ["x"]},
    "facet": event(outputs=[{**dataset("a"), "facets": {"schema": 1}}]),
    "facets": event(outputs=[{**dataset("a"), "facets": [1]}]),
    "run facets": {**event(), "run": {"runId": "r", "facets": "x"}},
    "version": event(outputs=[dataset("a", version={"no": "text"})]),  # type: ignore[arg-type]
    "symlinks": event(outputs=[dataset("a", symlinks={"identifiers": "b"})]),
    "a symlink": event(outputs=[dataset("a", symlinks={"identifiers": ["b"]})]),
    "renamed from": event(
        outputs=[dataset("a", lifecycleStateChange={"lifecycleStateChange": "RENAME", "previousIdentifier": 3})]
    ),
    "ledger entry": event(outputs=[dataset("a", dpsynth_guarantee={"ledgerEntry": 7})]),
    "tags": event(outputs=[dataset("a", tags={"tags": 5})]),
    "a tag": event(inputs=[dataset("a", tags={"tags": ["x"]})]),
    "a parent's run": event(parent={"run": "x"}),
    "a parent's run id": event(parent={"run": {"runId": {}}}),
    "a parent's job": event(parent={"job": 3}),
    "not a number": event(extra={"x": float("nan")}),
    "many": event(inputs=[f"i{number}" for number in range(1001)]),
    "dataset event": {"eventTime": "t", "dataset": "a"},
}


def test_nonsense_is_refused_without_being_quoted(store: LineageStore) -> None:
    for case, bad in BAD.items():
        with pytest.raises(LineageRefused, match="accepted") as refused:
            store.record(bad, origin="ingested", source=TEAM)
        assert not refused.value.conflict, case
    assert list(store.events()) == []


def test_too_many_pairs_are_refused_and_leave_nothing(store: LineageStore) -> None:
    wide = event(inputs=[f"i{n}" for n in range(400)], outputs=[f"o{n}" for n in range(300)])
    with pytest.raises(LineageRefused, match="inputs times outputs"):
        store.record(wide, origin="ingested", source=TEAM)
    assert store.node(name("i1")) is None


# What others may not


def test_others_do_not_speak_for_us(store: LineageStore) -> None:
    run, parent = own("START"), event("START", job="x")
    ours(store, run)
    reported(store, parent)
    refused = {
        "jobs of namespace": event(namespace="dpsynth"),
        "jobs of namespace ": event(namespace=" DPSynth "),
        "platform's own": event(run=run["run"]["runId"]),
        "namespace 'dpsynth:ledger'": event(outputs=[{"namespace": "dpsynth:ledger", "name": "e"}]),
        "namespace 'dpsynth:ledger' ": event(
            outputs=[dataset("a", symlinks={"identifiers": [{"namespace": "dpsynth:ledger", "name": "e"}]})]
        ),
    }
    for message, bad in refused.items():
        with pytest.raises(LineageRefused, match=message.strip()) as caught:
            store.record(bad, origin="ingested", source=TEAM)
        assert caught.value.conflict
    with pytest.raises(LineageRefused, match="another producer's"):
        store.record(event("COMPLETE", run=parent["run"]["runId"]), origin="ingested", source="another")
    with pytest.raises(ConfigurationError):
        store.record(event(), origin="ingested")
    assert len(list(store.events())) == 2


def test_nobody_ends_our_run_by_being_first(store: LineageStore) -> None:
    run = str(uuid.uuid4())
    reported(store, event("START", ["x"], run=run), event("COMPLETE", ["x"], ["planted"], run=run))
    ours(store, own("START", ["a"], run=run), own("COMPLETE", ["a"], ["b"], run=run))
    assert reached(store.ancestry([name("b")])) == {"b": 0, "a": 1}


def test_a_second_end_of_a_run_of_others_is_a_conflict_and_a_second_start_adds(store: LineageStore) -> None:
    run = str(uuid.uuid4())
    first, end = event("START", ["a"], run=run), event("COMPLETE", outputs=["m"], run=run)
    reported(store, first, event("START", ["b"], run=run), end)
    assert store.record(end, origin="ingested", source=TEAM).new is False
    with pytest.raises(LineageRefused, match="ended before") as caught:
        store.record(event("FAIL", run=run), origin="ingested", source=TEAM)
    assert caught.value.conflict
    assert reached(store.ancestry([name("m")])) == {"m": 0, "a": 1, "b": 1}
    assert [item.kind for item in store.events()] == ["START", "RUNNING", "COMPLETE"]


def test_what_we_said_of_our_datasets_stays(store: LineageStore) -> None:
    unit = {"unit": "user"}
    made = own(inputs=["raw"], outputs=[dataset("r", "v1", dpsynth_privacyUnit=unit)], job="census.released")
    ours(store, made)
    before = store.node(name("r"))
    assert before is not None
    assert (before.kind, before.own, before.facets["dpsynth_privacyUnit"]) == ("release", True, unit)
    claims = {"dpsynth_privacyUnit": {"unit": "none"}, "dpsynth_guarantee": {"ledgerEntry": "0" * 32}}
    reported(store, event(inputs=[dataset("r", **claims)], outputs=["m"]), event(outputs=[model("r", "v2", **claims)]))
    reported(store, {"eventTime": "t", "producer": "p", "dataset": dataset("r", **claims)})
    assert store.node(name("r")) == before
    assert reached(store.ancestry([name("r")])) == {"r": 0, "raw": 1}
    # Of what we only read, others may tell more, but not otherwise than we.
    ours(store, own("START", [dataset("src", ownership={"owners": ["us"]})]))
    reported(store, event(inputs=[dataset("src", ownership={"owners": ["they"]}, documentation={"description": "d"})]))
    node = store.node(name("src"))
    assert node is not None
    assert (node.facets["ownership"], node.facets["documentation"]) == ({"owners": ["us"]}, {"description": "d"})


def test_what_was_told_before_we_wrote_a_dataset_is_not_believed(store: LineageStore) -> None:
    reported(store, event(inputs=["elsewhere"], outputs=[model("d", dpsynth_privacyUnit={"unit": "none"})]))
    ours(store, own(inputs=["raw"], outputs=[dataset("d", "v1", schema={"fields": []})]))
    node = store.node(name("d"))
    assert node is not None
    assert (node.kind, node.own, set(node.facets)) == ("dataset", True, {"version", "schema"})
    assert set(node.facet_events.values()) == {2}
    assert reached(store.ancestry([name("d")])) == {"d": 0, "raw": 1, "elsewhere": 1}, "suspicion stays"


# Relations


def test_relations_follow_from_what_a_run_read_and_wrote(store: LineageStore) -> None:
    run = str(uuid.uuid4())
    reported(
        store,
        event("START", [model("base"), dataset("reviews", "7")], run=run),
        event("COMPLETE", ["more"], [model("m", "1")], run=run),
        event(inputs=[model("m")], outputs=["text"]),
    )
    edges = {
        (edge.parent.name, edge.relation, edge.child_version, edge.parent_version) for edge in store.edges(name("m"))
    }
    assert edges >= {("base", "base", "1", ""), ("reviews", "trained-on", "1", "7"), ("more", "trained-on", "1", "")}
    found = store.ancestry([name("text")])
    assert path(found, "reviews") == [("m", "derived"), ("reviews", "trained-on")]
    assert found.unknown == (name("base"),)
    assert reached(store.descent([name("reviews")])) == {"reviews": 0, "m": 1, "text": 2}
    assert store.descent([name("reviews")]).unknown == ()


def test_of_our_runs_only_what_completed_is_related_of_others_everything(store: LineageStore) -> None:
    ours(store, own("START", ["a"], ["mine"]), own("FAIL", ["a"], ["mine"]), own("RUNNING", ["a"], ["mine"]))
    reported(store, event("RUNNING", ["a"], [model("theirs")]))
    assert reached(store.descent([name("a")])) == {"a": 0, "theirs": 1}


def test_job_and_dataset_events(store: LineageStore) -> None:
    job = {key: value for key, value in event(inputs=["a"], outputs=["b"]).items() if key not in ("run", "eventType")}
    reported(store, job, {"eventTime": "t", "producer": "p", "dataset": dataset("b", symlinks=links("c"))})
    assert [item.kind for item in store.events()] == ["JOB", "DATASET"]
    assert reached(store.ancestry([name("c")])) == {"c": 0, "b": 0, "a": 1}


def test_cycles_are_walked_once(store: LineageStore) -> None:
    reported(
        store,
        event(inputs=["a"], outputs=["b"]),
        event(inputs=["b"], outputs=["c"]),
        event(inputs=["c"], outputs=["a"]),
    )
    reported(store, event(inputs=["a"], outputs=["a"]))
    assert reached(store.ancestry([name("a")])) == {"a": 0, "c": 1, "b": 2}
    assert reached(store.descent([name("a")])) == {"a": 0, "b": 1, "c": 2}


def test_a_renamed_dataset_stays_related(store: LineageStore) -> None:
    renamed = {"lifecycleStateChange": "RENAME", "previousIdentifier": {"namespace": "s3://lake", "name": "old"}}
    reported(
        store, event(inputs=["source"], outputs=["old"]), event(outputs=[dataset("new", lifecycleStateChange=renamed)])
    )
    reported(store, event(inputs=["new"], outputs=["m"]))
    found = store.ancestry([name("m")])
    assert reached(found) == {"m": 0, "new": 1, "old": 1, "source": 2}
    assert path(found, "source") == [("new", "derived"), ("old", "alias"), ("source", "derived")]
    assert reached(store.descent([name("old")])) == {"old": 0, "new": 0, "m": 1}


def test_a_path_is_a_shortest_one_though_aliases_cost_nothing(store: LineageStore) -> None:
    reported(
        store,
        event(inputs=["x"], outputs=["m"]),
        event(inputs=["far"], outputs=["x"]),
        event(outputs=[dataset("m", symlinks=links("m1"))]),
        event(outputs=[dataset("m1", symlinks=links("m2"))]),
        event(inputs=["far"], outputs=["m2"]),
    )
    found = store.ancestry([name("m")])
    assert reached(found)["far"] == 1
    assert [step for step, _ in path(found, "far")] == ["m1", "m2", "far"]
    distances = [relative.distance for relative in found.relatives]
    assert distances == sorted(distances)


def test_times_decide_nothing(store: LineageStore) -> None:
    reported(store, event(inputs=["b"], outputs=["c"], time="2026-01-01T00:00:00Z"))
    reported(store, event(inputs=["a"], outputs=["b"], time="2036-01-01T00:00:00Z"))
    reported(store, event(inputs=["z"], outputs=["b"], time="1970-01-01T00:00:00Z"))
    assert reached(store.ancestry([name("c")])) == {"c": 0, "b": 1, "a": 2, "z": 2}


def test_several_starts_and_missing_ones(store: LineageStore) -> None:
    reported(store, event(inputs=["a"], outputs=["b"]), event(inputs=["x"], outputs=["y"]))
    found = store.ancestry([name("b"), name("y"), name("nowhere"), name("b")])
    assert reached(found) == {"b": 0, "y": 0, "a": 1, "x": 1}
    assert found.missing == (name("nowhere"),)
    assert found.by_name.get(name("x")).start == name("y")  # type: ignore[union-attr]
    assert name("a") in found.by_name and name("nowhere") not in found.by_name


# Checkpoints


def test_a_checkpoint_without_an_origin_is_unknown_until_it_is_declared_public(store: LineageStore, url: str) -> None:
    reported(
        store,
        event(inputs=[model("llama"), "reviews"], outputs=[model("tuned")]),
        event(outputs=[model("from-nothing")]),
    )
    reported(store, event(inputs=[model("tuned"), model("from-nothing")], outputs=[model("m")]))
    assert set(store.ancestry([name("m")]).unknown) == {name("llama"), name("from-nothing")}
    assert store.ancestry([name("llama")]).unknown == (name("llama"),)
    declared = store.declare_public(name("llama"), by="Ada", reason="weights of 2024, trained on the web")
    assert store.public(name("llama")) == declared
    assert store.public(name("m")) is None
    assert store.ancestry([name("m")]).unknown == (name("from-nothing"),)
    assert [item.kind for item in Ledger(url).history()] == ["declared-public"]
    assert Ledger(url).verify().ok
    store.declare_public(name("unheard"), by="Ada", reason="of")
    assert store.ancestry([name("unheard")]).missing == store.ancestry([name("unheard")]).unknown == ()


def test_models_that_came_of_each_other_alone_are_unknown(store: LineageStore) -> None:
    """Round and round, also by way of another name, there is no origin; one thing outside the round is one."""
    reported(store, *(event(inputs=[model(one)], outputs=[model(two)]) for one, two in ("ab", "bc", "ca", "cd")))
    assert set(store.ancestry([name("d")]).unknown) == {name(text) for text in "abcd"}
    link = {"identifiers": [{"namespace": "s3://lake", "name": "nickname", "type": "MODEL"}]}
    reported(store, event(inputs=["nickname"], outputs=[model("odd", symlinks=link)]))
    assert store.ancestry([name("odd")]).unknown == (name("odd"),)
    reported(store, event(inputs=["reviews"], outputs=[model("b")]))
    assert store.ancestry([name("d")]).unknown == ()


def test_a_declaration_settles_what_was_made_of_it(store: LineageStore) -> None:
    reported(store, *(event(inputs=[model(one)], outputs=[model(two)]) for one, two in ("ab", "ba", "bc")))
    store.declare_public(name("a"), by="Ada", reason="published weights")
    assert store.ancestry([name("c")]).unknown == ()


def test_what_is_ours_is_not_declared_public(store: LineageStore) -> None:
    ours(store, own(inputs=["raw"], outputs=[model("ours")]))
    with pytest.raises(LineageRefused, match="own"):
        store.declare_public(name("ours"), by="Ada", reason="r")
    for by, reason in (("", "r"), ("Ada", " ")):
        with pytest.raises(ConfigurationError):
            store.declare_public(name("x"), by=by, reason=reason)


def test_a_long_name_can_be_declared(store: LineageStore) -> None:
    long = name("x" * 2000)
    store.declare_public(long, by="Ada", reason="r")
    assert store.public(long) is not None


def test_a_model_may_say_itself_what_it_was_made_from(store: LineageStore) -> None:
    reported(store, event(inputs=["weights"], outputs=["x"]))
    ours(store, own(inputs=["raw"], outputs=[model("ours")]))
    base = {"baseModels": [{"namespace": "s3://lake", "name": "weights"}]}
    trained = {"trainedOn": [{"namespace": "s3://lake", "name": "reviews"}]}
    card = dataset("theirs", dpsynth_baseModel=base, dpsynth_training=trained)
    forged = dataset("ours", dpsynth_baseModel=base)
    reported(store, *({"eventTime": "t", "producer": "p", "dataset": item} for item in (card, forged)))
    found = store.ancestry([name("theirs")])
    assert reached(found) == {"theirs": 0, "weights": 1, "reviews": 1}
    assert (path(found, "weights"), path(found, "reviews")) == ([("weights", "base")], [("reviews", "trained-on")])
    assert found.unknown == (name("weights"),)
    assert reached(store.ancestry([name("ours")])) == {"ours": 0, "raw": 1}


# Mechanisms


def test_a_guarantee_leads_to_its_ledger_entry(store: LineageStore, url: str) -> None:
    ledger = Ledger(url)
    ledger.open_account(family("f", mode="family"), KEYS)
    entry = ledger.reserve("f", "k", request(), None, "compose")
    paid = entry.request.guarantee
    guarantee = {"ledgerEntry": entry.entry_id, **{key: getattr(paid, key) for key in ("epsilon", "delta", "unit")}}
    guarantee["adjacency"] = paid.adjacency
    ours(store, own("START", outputs=[model("started", dpsynth_guarantee=guarantee)]))
    ours(store, own(inputs=["raw"], outputs=[model("ours", dpsynth_guarantee=guarantee)]))
    ours(store, own(outputs=[model("lost", dpsynth_guarantee=guarantee | {"ledgerEntry": "f" * 32})]))
    reference = {"ledgerEntry": entry.entry_id, "namespace": "person", "commitment": "forged"}
    reported(
        store,
        event(inputs=["ours", dataset("copy", dpsynth_guarantee=guarantee)], outputs=[model("theirs")]),
        event(outputs=[dataset("smaller", dpsynth_guarantee=guarantee | {"epsilon": paid.epsilon / 2})]),
        event(outputs=[dataset("larger", dpsynth_guarantee=guarantee | {"epsilon": paid.epsilon * 2})]),
        event(outputs=[dataset("nan", dpsynth_guarantee=guarantee | {"epsilon": "1"})]),
        event(outputs=[dataset("other unit", dpsynth_guarantee=guarantee | {"unit": "example"})]),
        event(outputs=[dataset("unheard", dpsynth_guarantee=guarantee | {"ledgerEntry": "e"})]),
        event(outputs=["ours", "forged"], dpsynth_participants=reference),
    )
    found = store.descent([DatasetName(LEDGER_NAMESPACE, entry.entry_id)]).relatives[1:]
    below = {relative.node.name.name: relative.path[0].relation for relative in found}
    assert [below[item] for item in ("ours", "copy", "smaller")] == ["paid-by"] * 3
    assert {item for item in below if below[item] == "claims"} == {"larger", "nan", "other unit", "forged"}
    assert "started" not in below
    for item, relations in (("lost", ["claims"]), ("unheard", ["claims"]), ("ours", ["paid-by"])):
        (mechanism,) = store.ancestry([name(item)]).of_kind("mechanism")
        assert [step.relation for step in mechanism.path] == relations
    (mechanism,) = store.ancestry([name("theirs")]).of_kind("mechanism")
    assert [step.relation for step in mechanism.path] in (["base", "paid-by"], ["trained-on", "paid-by"])


def test_a_guarantee_of_two_mechanisms_is_held_against_both(store: LineageStore, url: str) -> None:
    ledger = Ledger(url)
    ledger.open_account(family("f", mode="family"), KEYS)
    ledger.reserve("f", audited_key("k"), request(), None, "compose")
    entry = ledger.reserve("f", "k", request(), None, "compose")
    paid = entry.request.guarantee
    both = epsilon(twice(event_from_json(entry.request.event)), paid.delta).epsilon
    assert both > paid.epsilon
    guarantee = paid.to_json() | {"ledgerEntry": entry.entry_id}
    reported(
        store,
        event(outputs=[dataset("one", dpsynth_guarantee=guarantee)]),
        event(outputs=[dataset("both", dpsynth_guarantee=guarantee | {"epsilon": both})]),
        event(outputs=[dataset("more", dpsynth_guarantee=guarantee | {"epsilon": both * 1.001})]),
    )
    found = store.descent([DatasetName(LEDGER_NAMESPACE, entry.entry_id)]).relatives[1:]
    assert {relative.node.name.name: relative.path[0].relation for relative in found} == {
        "one": "paid-by",
        "both": "paid-by",
        "more": "claims",
    }


# Finding, uses, the graph


def test_finding(store: LineageStore) -> None:
    logical = {"identifiers": [{"namespace": "dpsynth", "name": "census/released", "type": "TABLE"}]}
    place = DatasetName("file", "/public/census/r-1/data")
    released = {
        "namespace": place.namespace,
        "name": place.name,
        "facets": {"symlinks": logical, "version": {"datasetVersion": "r-1"}},
    }
    ours(store, own(outputs=[released], job="census.released"))
    for wanted in ("/public/census/r-1/data", "file:///public/census/r-1/data", "census/released", "r-1", str(place)):
        assert [node.name for node in store.find(wanted)] == [place], wanted
    reported(store, event(outputs=["deep/er"]))
    assert [node.name for node in store.find("s3://lake/deep/er")] == [name("deep/er")]
    assert [node.name for node in store.find("deep/er")] == [name("deep/er")]
    assert store.find("nothing") == []


def test_uses(store: LineageStore, check: Any) -> None:
    ours(store, own(inputs=["raw"], outputs=[dataset("rel", "r-1")], job="census.released"))
    reported(store, event(outputs=[model("seen")]))
    used = store.use("r-1", by="Ada", purpose="train", product="ranker", reason="ticket 7")
    (registered,) = store.events(after=used.event - 1)
    check(dict(registered.payload))
    assert used.product == DatasetName("dpsynth:products", "ranker")
    store.use(name("rel"), by="Ada", purpose="evaluate", product="seen", reason="r")
    store.use("r-1", by="Ada", purpose="other", product="s3://lake/board", reason="r")
    store.use("r-1", by="Ada", purpose="other", reason="looked at")
    below = {relative.node.name.name: relative.relation for relative in store.descent([name("raw")]).relatives}
    assert below == {"raw": None, "rel": "derived", "ranker": "trained-on", "board": "used-by"}
    assert [edge.relation for edge in store.edges(name("seen"))] == ["evaluated-on"]
    ranker = store.find("ranker")[0]
    assert (ranker.kind, ranker.own) == ("checkpoint", False)
    assert store.ancestry([ranker.name]).unknown == ()
    assert store.use("r-1", by="Ada", purpose="train", product="ranker", reason="again").product == ranker.name
    for bad in ({"release": "raw"}, {"release": "r-2"}, {"purpose": "sell"}, {"product": "rel"}):
        with pytest.raises(LineageRefused):
            store.use(**{"release": "r-1", "by": "Ada", "purpose": "train", "product": "p", "reason": "r"} | bad)  # type: ignore[arg-type]


def test_the_graph_is_what_was_recorded(store: LineageStore) -> None:
    ours(store, own("START", ["a"]), done := own(inputs=["a"], outputs=[dataset("b", schema={"fields": []})]))
    reported(store, event(inputs=["b"], outputs=["c"]), event(inputs=[dataset("b", schema={"fields": ["x"]})]))
    graph = graph_of(store)
    assert [(item.dataset.name, item.distance) for item in graph.upstream(name("c"))] == [("b", 1), ("a", 2)]
    assert graph.runs[done["run"]["runId"]].state == "COMPLETE"
    assert graph.facets[name("b")]["schema"] == {"fields": []}


def test_the_graph_tells_of_our_runs_what_we_told(store: LineageStore) -> None:
    run = str(uuid.uuid4())
    reported(store, event("START", ["x"], run=run, job="theirs"), event("FAIL", outputs=["planted"], run=run))
    ours(store, own("START", ["a"], run=run), own(inputs=["a"], outputs=["b"], run=run))
    found = graph_of(store).runs[run]
    assert (found.job, found.state, found.inputs, found.outputs) == ("train", "COMPLETE", (name("a"),), (name("b"),))


def test_the_graph_reads_events_of_any_shape(store: LineageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The specification demands no type; and what was recorded before stricter reading stays."""
    untyped = event(inputs=["a"], outputs=["b"])
    del untyped["eventType"]
    empty = {**event(), "inputs": None, "outputs": None}
    empty["run"]["facets"] = None
    reported(store, untyped, empty)
    monkeypatch.setattr(intake, "_check_parent", lambda parent: None)
    odd = [event(parent=parent) for parent in ({"run": "x"}, {"run": {"runId": "y"}})]
    reported(store, *odd)
    runs = graph_of(store).runs
    assert runs[untyped["run"]["runId"]].outputs == (name("b"),)
    assert runs[empty["run"]["runId"]].inputs == ()
    assert [runs[item["run"]["runId"]].parent_run_id for item in odd] == [None, "y"]


def test_a_database_away_is_a_safe_error(tmp_path: Any) -> None:
    path = tmp_path / "l" / "ledger.db"
    store = LineageStore(f"sqlite:///{path}")
    for item in path.parent.iterdir():
        item.unlink()
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 20)
    with pytest.raises(LedgerError):
        store.record(own())


# Processes


def test_processes_that_record_at_once(url: str) -> None:
    shared = [str(uuid.uuid4()) for _ in range(5)]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=record_many, args=(url, shared, 5)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    events = list(LineageStore(url).events())
    assert [item.sequence for item in events] == list(range(1, 2 * (5 + 2 * 5) + 1))
    assert len({(item.run_id, item.kind) for item in events}) == len(events)


# Search


def test_what_facets_and_jobs_say_is_found_in_any_case(store: LineageStore) -> None:
    def found(text: str, most: int = 9) -> list[str]:
        return [node.name.name for node in store.described_with(text, most=most)]

    for number, column in enumerate(["Age", "größe", "50%_of", 'a"b\\c']):
        schema = {"fields": [{"name": column, "type": "string"}]}
        ours(
            store,
            own(inputs=["source"], outputs=[dataset(f"t{number}", "1", schema=schema)], job=f"visits.step{number}"),
        )
    assert (found("AGE"), found("%_"), found('"B\\'), found("nothing")) == (["t0"], ["t2"], ["t3"], [])
    # What is not ASCII is escaped in the database, each case in its own way: the caller looks closer.
    assert "t1" in found("GRÖSSE")
    assert found("string", most=2) == ["t3", "t2"]

    def jobs(text: str) -> list[tuple[str, list[str]]]:
        return [(job.name, [node.name.name for node in nodes]) for job, nodes in store.jobs(text, most=2)]

    assert jobs("STEP") == [("visits.step3", ["t3"]), ("visits.step2", ["t2"])]
    assert jobs("_tep") == []
    ours(store, own("START", ["source"], job="visits.step0"))
    assert jobs("visits") == [("visits.step0", ["t0"]), ("visits.step3", ["t3"])]
    ours(store, own("START", ["source"], job="visits.new"))
    assert jobs("visits.new") == [("visits.new", [])]
