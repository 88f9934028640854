"""`dpsynth lineage`: what it shows, records and refuses, and its exit status."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from ledger_cases import KEYS, family, request
from sqlalchemy import insert

from dpsynth_platform.cli.lineage import lineage_app
from dpsynth_platform.foundation.errors import LineageRefused
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.ledger.words import in_words
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.runs import StepRun
from dpsynth_platform.lineage.store import LineageStore

Use = Callable[..., tuple[int, str, str]]

CONTRACT = """
dataset: visits
description: Visits to a clinic.
owners: [clinic@example.org]
source: {uri: /data/visits, key: [patient_id]}
family: clinic
privacy:
  unit: user
  owner_columns: [patient_id]
  namespace: patient
  max_contributions: 2
  guarantee: {epsilon: 1.0, delta: 1.0e-6}
  expected_units: 1000
columns:
  patient_id: {type: identifier}
  age: {type: integer, min: 0, max: 120}
generate: {rows: 100}
release: {uri: /public/visits}
"""
FAMILY = """
family: clinic
unit: user
namespace: patient
mode: family
cap: {epsilon: 4.0, delta: 1.0e-5}
"""
BASE = {"_producer": "https://example.org/p", "_schemaURL": "https://example.org/F.json"}


def told(kind: str, inputs: list[Any], outputs: list[Any], job: str, namespace: str = "team", **facets: Any) -> Any:
    """A run event; strings among the datasets are products' names."""

    def dataset(item: Any) -> Any:
        return {"namespace": "dpsynth:products", "name": item} if isinstance(item, str) else item

    return {
        "eventType": kind,
        "eventTime": "2026-03-01T00:00:00Z",
        "producer": BASE["_producer"],
        "schemaURL": BASE["_schemaURL"],
        "run": {"runId": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{job} {outputs}")), "facets": facets},
        "job": {"namespace": namespace, "name": job},
        "inputs": [dataset(item) for item in inputs],
        "outputs": [dataset(item) for item in outputs],
    }


def place(path: str, version: str = "", **facets: Any) -> Any:
    if version:
        facets["version"] = {"datasetVersion": version}
    return {"namespace": "file", "name": path, "facets": {name: BASE | facet for name, facet in facets.items()}}


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for part, content in (("contracts/visits", CONTRACT), ("families/clinic", FAMILY)):
        file = tmp_path / "deploy" / f"{part}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(content)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(tmp_path / "deploy"))
    monkeypatch.setenv("DPSYNTH_LINEAGE_TOKENS", str(tmp_path / "tokens"))
    monkeypatch.setenv("DPSYNTH_USER", "Ada")
    return Settings.from_environment()


@pytest.fixture
def store(settings: Settings) -> LineageStore:
    """The line of one release, which a ledger entry paid for."""
    ledger = Ledger(settings.ledger_url)
    ledger.open_account(family("f", mode="family"), KEYS)
    entry = ledger.reserve("f", "k", request(), None, "compose").entry_id
    said = {"epsilon": 1.0, "delta": 1e-6, "method": "mst", "tier": "strong", "weighting": "rows", "accounting": "pld"}
    paid = {"dpsynth_guarantee": {"ledgerEntry": entry} | said}
    unit = {
        "unit": "user",
        "adjacency": "add-or-remove",
        "namespace": "n",
        "ownerColumns": ["p"],
        "maxContributions": 1,
    }
    opened = LineageStore(settings.ledger_url)
    table = place("/data/visits", dpsynth_privacyUnit=unit)
    model = place("/model", "1", datasetType={"datasetType": "MODEL"}, **paid)
    opened.record(told("COMPLETE", [table], [model], "visits.model", "dpsynth"))
    release = place(
        "/public/visits/data", "visits-1", **paid, dpsynth_privacyUnit=unit, dpsynth_release={"releaseId": "visits-1"}
    )
    opened.record(told("COMPLETE", [place("/model")], [release], "visits.released", "dpsynth"))
    return opened


@pytest.fixture
def use(capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs a command; returns status, standard output and standard error."""
    app = typer.Typer()
    app.add_typer(lineage_app)

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            app(list(map(str, arguments)))
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_a_use_is_registered_and_shown(use: Use, store: LineageStore, settings: Settings) -> None:
    words = ("--release", "visits-1", "--purpose", "train", "--product", "ranker")
    status, out, _ = use("use", *words, "--reason", "ticket 7", "--as", "Bo", "--json")
    assert (status, json.loads(out)["product"]) == (0, "dpsynth:products:ranker")
    assert json.loads(out)["contamination"] == []
    assert '"dpsynth_use"' in settings.lineage_file.read_text(), "it stands in the operator's record"
    status, out, _ = use("show", "--release", "visits-1")
    assert status == 0
    for line in (
        "file:/public/visits/data (release visits-1)",
        "  derived: file:/model (model)",
        "    trained-on: file:/data/visits (dataset)",
        "  trained-on: dpsynth:products:ranker (checkpoint)",
        "train dpsynth:products:ranker, by Bo: ticket 7",
    ):
        assert line in out
    shown = json.loads(use("show", "--release", "visits-1", "--json")[1])
    assert [item["product"] for item in shown["uses"]] == ["dpsynth:products:ranker"]
    assert [item["name"] for item in shown["downstream"]] == ["dpsynth:products:ranker"]
    assert shown["upstream"][0]["path"] == ["file:/public/visits/data", "derived file:/model"]
    record = json.loads(use("show", "--release", "visits-1", "--record", "--json")[1])["record"]
    assert (record["release_id"], record["source"]["family"]) == ("visits-1", "f")
    assert '"ledger_entry": ' in use("show", "--release", "visits-1", "--record")[1]
    assert use("show", "--dataset", "visits", "--record")[0] == 2
    below = json.loads(use("show", "--dataset", "visits", "--json")[1])
    assert (below["name"], len(below["downstream"])) == ("/data/visits", 3)
    assert use("use", *words)[0] == 2, "without a reason"
    assert use("use", "--release", "visits-1", "--purpose", "train", "--reason", "r")[0] == 2, "without a product"
    status, _, err = use("use", "--release", "visits-2", "--purpose", "other", "--reason", "r")
    assert (status, "names no single release" in err) == (1, True)


def test_a_tree_shows_the_data_first_and_nothing_twice(use: Use, settings: Settings) -> None:
    """Of a release: synthetic rows before the report on them, though both are one step away; other names in passing."""
    table = {"schema": {"fields": [{"name": "age"}]}}
    origin = {"inputFields": [{"namespace": "file", "name": "/z/source", "field": "age"}]}
    lineage = {"columnLineage": {"fields": {"age": origin}}}
    source, report = place("/z/source", **table), place("/a/report")
    also = {"symlinks": {"identifiers": [{"namespace": "dpsynth", "name": "visits/synthetic", "type": "TABLE"}]}}
    synthetic = place("/m/synthetic", **table, **lineage, **also)
    released = place("/r/data", "visits-1", dpsynth_release={"releaseId": "visits-1"}, **table)
    store = LineageStore(settings.ledger_url)
    store.record(told("COMPLETE", [source], [synthetic], "visits.synthetic", "dpsynth"))
    store.record(told("COMPLETE", [source, synthetic], [report], "visits.quality", "dpsynth"))
    store.record(told("COMPLETE", [report, synthetic], [released], "visits.released", "dpsynth"))
    lines = use("show", "--release", "visits-1")[1].splitlines()
    start = lines.index("Ancestors") + 1
    assert lines[start : start + 5] == [
        "  derived: file:/m/synthetic (dataset), also called dpsynth:visits/synthetic",
        "    derived: file:/z/source (dataset)",
        "  derived: file:/a/report (dataset)",
        "    derived: file:/m/synthetic (dataset) (shown above)",
        "    derived: file:/z/source (dataset) (shown above)",
    ]
    assert "also called dpsynth:visits/synthetic" in use("show", "--dataset", "/m/synthetic")[1].splitlines()


def test_contamination_ends_a_pipeline(use: Use, store: LineageStore) -> None:
    use("use", "--release", "visits-1", "--purpose", "train", "--product", "ranker", "--reason", "r")
    assert use("contamination", "--product", "ranker") == (0, use("contamination", "--product", "ranker")[1], "")
    status, out, _ = use("contamination", "--product", "ranker", "--on", "visits")
    assert (status, "train-test contamination: dpsynth:products:ranker" in out) == (5, True)
    status, out, _ = use("contamination", "--product", "ranker", "--on", "visits", "--json")
    (found,) = json.loads(out)["contamination"]
    assert (status, found["problem"], found["origin"]) == (5, "train-test", "file:/data/visits")
    assert found["product_path"][-1] == "trained-on file:/data/visits"
    status, _, err = use("contamination", "--product", "nobody's")
    assert (status, "contains no dataset, model or release" in err) == (1, True)


def test_events_of_others_are_taken_in_with_a_word_on_each_refusal(
    use: Use, store: LineageStore, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    good = told("COMPLETE", [place("/public/visits/data"), "web"], ["search"], "train")
    file.write_text("\n".join(map(json.dumps, (good, {}, told("COMPLETE", [], ["x"], "y", "dpsynth")))))
    status, out, _ = use("ingest", file, "--source", "team")
    assert (status, "line 2: refused: " in out, "line 3: conflict: " in out) == (1, True, True)
    assert "1 recorded, 0 known before, 2 refused" in out
    file.write_text(json.dumps([good, {}]))
    status, out, _ = use("ingest", file, "--source", "team")
    assert (status, "event 2: refused: " in out) == (1, True)
    file.write_text("[]")
    status, _, err = use("ingest", file, "--source", "team")
    assert (status, "accepted: a list of 1 to 1000 events" in err) == (1, True)
    file.write_text(json.dumps(good))
    assert json.loads(use("ingest", file, "--source", "team", "--json")[1]) == {
        "recorded": 0,
        "known": 1,
        "refused": [],
    }
    assert "trained-on: dpsynth:products:search" not in use("show", "--release", "visits-1")[1], "it is no model"
    assert "derived: dpsynth:products:search (dataset)" in use("show", "--release", "visits-1")[1]
    status, _, err = use("show", "--model", "search")
    assert (status, "contains 'search' as a dataset" in err, "accepted: --dataset search" in err) == (1, True, True)
    assert use("show", "--dataset", "search")[0] == 0
    assert use("ingest", file, "--source", "a b")[0] == 1
    assert use("ingest", tmp_path / "none", "--source", "team")[0] == 1


def test_a_checkpoint_is_declared_public_by_somebody(use: Use, store: LineageStore, settings: Settings) -> None:
    status, out, _ = use("declare-public", "hub/llm", "--reason", "its card", "--as", "Bo", "--json")
    assert (status, json.loads(out)["name"], json.loads(out)["by"]) == (0, "dpsynth:products:hub/llm", "Bo")
    event = Ledger(settings.ledger_url).history()[-1]
    assert (event.kind, event.payload["reason"]) == ("declared-public", "its card")
    assert "declared public by Bo" in use("show", "--model", "hub/llm")[1]
    status, _, err = use("declare-public", "/model", "--reason", "r")
    assert (status, "this platform's own" in err) == (1, True)
    assert use("declare-public", "hub/llm")[0] == 2
    assert use("show", "--model", "visits-1")[0] == 1, "a release is no model"
    assert [use("show")[0], use("show", "--release", "visits-1", "--model", "m")[0]] == [2, 2]


def test_status_and_flush(use: Use, store: LineageStore, settings: Settings) -> None:
    assert use("status")[0] == 0
    LineageEmitter.of(settings).complete(StepRun("run", "visits", "raw"))
    (target,) = json.loads(use("status", "--json")[1])["targets"]
    assert (target["target"], target["delivered"], target["waiting"]) == ("file", 2, 0)
    sequences = [event.sequence for event in store.events()]
    waiting = [{"target": target, "sequence": sequences[0]} for target in ("file", "elsewhere")]
    store.database.write(
        lambda connection: connection.execute(insert(tables.outbox), waiting), guards=("lineage_event",)
    )
    status, out, _ = use("flush")
    assert (status, "file: 1 delivered" in out) == (0, True)
    status, _, err = use("flush", "--give-up", "nowhere")
    assert (status, "accepted: elsewhere, file" in err) == (1, True)
    assert json.loads(use("flush", "--give-up", "elsewhere", "--json")[1])["given_up"] == 1
    status, out, _ = use("status")
    assert (status, "elsewhere refused event 1, COMPLETE of visits.model: given up by hand" in out) == (1, True)
    assert "1 lineage events were refused by elsewhere" in out


def test_a_token_is_shown_once(use: Use, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    made = json.loads(use("token", "team", "--json")[1])
    assert settings.lineage_tokens is not None
    assert made["token"] not in settings.lineage_tokens.read_text()
    assert "earlier token" not in use("token", "another")[1]
    assert "1 earlier token of team: still valid; --replace revokes" in use("token", "team")[1]
    assert "2 earlier tokens of team: revoked" in use("token", "team", "--replace")[1]
    assert use("token", "no name")[0] == 1
    status, _, err = use("serve", "--host", "0.0.0.0", "--port", "99999")
    assert status == 2
    monkeypatch.setenv("DPSYNTH_LINEAGE_TOKENS", "")
    status, _, err = use("token", "team")
    assert (status, "DPSYNTH_LINEAGE_TOKENS is not set" in err) == (1, True)
    status, _, err = use("serve", "--host", "0.0.0.0")
    assert (status, "anyone who reaches the receiver may report" in err) == (1, True)


def test_declarations_say_what_is_new_of_them(use: Use, store: LineageStore, settings: Settings) -> None:
    store.record(told("COMPLETE", ["web"], ["known"], "train"), origin="ingested", source="team")
    words = ("--reason", "its card", "--as", "Bo")
    assert "exactly the name dpsynth:products:tpyo" in use("declare-public", "tpyo", *words)[1]
    assert "exactly the name" not in use("declare-public", "known", *words)[1]
    number = len(Ledger(settings.ledger_url).history())
    again = json.loads(use("declare-public", "known", *words, "--json")[1])
    assert (again["new"], again["event"]) == (False, number)
    assert "already declares this" in use("declare-public", "known", *words)[1]
    assert len(Ledger(settings.ledger_url).history()) == number
    assert "Bo declared it public before" in use("declare-public", "known", "--reason", "r", "--as", "Cy")[1]
    for own in ("dpsynth:visits/model", "dpsynth:ledger:x", "file:/data/visits"):
        namespace, _, name = own.rpartition(":")
        with pytest.raises(LineageRefused, match=r"own|guarded"):
            store.declare_public(DatasetName(namespace, name), by="Bo", reason="r")
    shown = [words for _, words in in_words(Ledger(settings.ledger_url).history())]
    assert "dpsynth:products:known: its card" in shown


def test_an_event_is_distrusted_and_shown(use: Use, store: LineageStore) -> None:
    event = told("COMPLETE", ["web"], ["theirs"], "train")
    number = store.record(event, origin="ingested", source="team").sequence
    assert f"reported by the producer team: event {number}" in use("show", "--dataset", "theirs")[1]
    status, out, _ = use("distrust", number, "--reason", "another path", "--as", "Bo", "--json")
    done = json.loads(out)
    assert (status, done["event"], done["source"], done["by"]) == (0, number, "team", "Bo")
    shown = json.loads(use("show", "--dataset", "theirs", "--json")[1])
    assert (shown["upstream"], shown["told_by_others"]) == ([], [])
    assert [item["reason"] for item in shown["distrusted"]] == ["another path"]
    assert f"distrusted: event {number} of the producer team, by Bo" in use("show", "--dataset", "theirs")[1]
    assert use("distrust", number, "--reason", "again")[0] == 1
    assert use("distrust", 1, "--reason", "ours")[0] == 1
    assert use("distrust", number)[0] == 2


def test_a_withdrawn_release_is_used_with_a_warning(use: Use, store: LineageStore, settings: Settings) -> None:
    words = ("use", "--release", "visits-1", "--purpose", "train", "--product", "ranker", "--reason", "r")
    assert json.loads(use(*words, "--json")[1])["withdrawn"] is None
    assert "WITHDRAWN" not in use("show", "--release", "visits-1")[1]
    ledger = Ledger(settings.ledger_url)
    (entry,) = ledger.entries()
    ledger.start(entry.entry_id)
    ledger.complete(entry.entry_id, "a" * 64)
    ledger.release("visits-1", candidate="c" * 64, entry_id=entry.entry_id, check=list)
    ledger.withdraw("visits-1", by="Cy", reason="a wrong table")
    for out in (use(*words)[1], use("show", "--release", "visits-1")[1]):
        assert "WITHDRAWN: release visits-1 was withdrawn by Cy" in out
        assert "(a wrong table)" in out
    assert json.loads(use(*words, "--json")[1])["withdrawn"]["by"] == "Cy"


def test_the_impact_of_a_column_is_a_list(use: Use, settings: Settings) -> None:
    def described(path: str, before: str, version: str = "1", **more: Any) -> Any:
        origin = {"namespace": "file", "name": before, "field": "age", "transformations": [more]}
        return place(
            path,
            version,
            schema={"fields": [{"name": "age"}]},
            columnLineage={"fields": {"age": {"inputFields": [origin]}}},
        )

    source = place("/data/visits", schema={"fields": [{"name": "age"}, {"name": "patient_id"}]})
    scrubbed = described("/r/scrubbed", "/data/visits", type="DIRECT", subtype="IDENTITY")
    rows = described("/r/rows", "/r/scrubbed", type="DIRECT", subtype="AGGREGATION", masking=True)
    store = LineageStore(settings.ledger_url)
    store.record(told("COMPLETE", [source], [scrubbed], "visits.scrubbed", "dpsynth"))
    store.record(told("COMPLETE", [place("/r/scrubbed")], [rows], "visits.synthetic", "dpsynth"))
    status, out, _ = use("impact", "--dataset", "visits", "--column", "age", "--json")
    assert (status, json.loads(out)["name"], json.loads(out)["column"]) == (0, "file:/data/visits", "age")
    found = [(row["name"], row["column"], row["direct"], row["masked"]) for row in json.loads(out)["drawn"]]
    assert found == [("file:/r/scrubbed", "age", True, False), ("file:/r/rows", "age", True, True)]
    assert "masked" in use("impact", "--dataset", "visits", "--column", "age")[1]
    assert json.loads(use("impact", "--dataset", "visits", "--json")[1])["drawn"][0]["column"] is None
    assert "nothing in the graph is drawn from it" in use("impact", "--dataset", "visits", "--column", "patient_id")[1]
    status, _, err = use("impact", "--dataset", "visits", "--column", "height")
    assert (status, "has no column 'height'; accepted: age, patient_id" in err) == (1, True)


def test_no_secret_in_the_names_of_others_is_printed(use: Use, settings: Settings) -> None:
    loaded = {
        "namespace": "jdbc:postgresql://loader:hunter2@db.internal/patients?password=hunter3",
        "name": "load",
        "facets": {"version": BASE | {"datasetVersion": "https://u:hunter4@x.org/1"}},
    }
    store = LineageStore(settings.ledger_url)
    store.record(told("COMPLETE", [place("/data/visits")], [loaded], "load"), origin="ingested", source="theirs")
    raw = "jdbc:postgresql://db.internal:patients?password=hunter3/load"
    for words in (("show", "--dataset", "visits"), ("impact", "--dataset", "visits"), ("show", "--dataset", raw)):
        for form in ((), ("--json",)):
            status, out, err = use(*words, *form)
            assert (status, "hunter" in out + err) == (0, False)
            assert "jdbc:postgresql://db.internal" in out
    status, out, err = use("contamination", "--product", raw)
    assert (status, "hunter" in out + err) == (0, False)
