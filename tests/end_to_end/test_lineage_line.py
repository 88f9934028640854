"""What a whole run leaves in lineage: for each attempt a START and one end, with what was really read and written."""

import copy
import importlib.util
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest
from column_walk import Root, described, roots
from deployment import Deployment
from inside import inside
from line_cases import (
    PEOPLE,
    SMALL,
    STEPS,
    ledger_of,
    lineage_of,
    released,
    run_here,
    small_deployment,
    small_table,
    storage_of,
)

from assets.line import LINE
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.lineage import columns, facets, ingest, naming, uses
from dpsynth_platform.lineage.export import public_event
from dpsynth_platform.lineage.records import SyntheticRecord
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.sources import source

pytestmark = pytest.mark.end_to_end
TEXTS = {"full_name": "drop", "badge": "hash", "home_phone": "mask"}


def checks():
    """The lineage tests' own check of one event, against our facets and, where it is at hand, the specification."""
    spec = importlib.util.spec_from_file_location("lineage_checks", PACKAGE_ROOT / "tests" / "lineage" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def events_of(deployment):
    return [json.loads(line) for line in deployment.settings.lineage_file.read_text().splitlines()]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """The small one, with a text of each kind that needs no language model."""
    made = Deployment(tmp_path_factory.mktemp("lineage"), contract=copy.deepcopy(SMALL))
    table = small_table()
    for name, pii in TEXTS.items():
        made.contract["columns"][name] = {"type": "text", "pii": pii}
        table = table.append_column(name, pa.array([f"{name} {number}" for number in np.arange(table.num_rows)]))
    return made.write().with_source(table)


@pytest.fixture(scope="module")
def runs(deployment):
    """The Dagster run ids of candidate and release."""
    with dg.DagsterInstance.ephemeral() as instance:
        candidate = run_here(deployment, instance=instance, accelerator=inside(deployment))
        assert candidate.success, candidate.failures
    released(deployment)
    return candidate.result.run_id


@pytest.fixture(scope="module")
def graph(deployment, runs):
    return lineage_of(deployment)


def test_each_step_has_a_start_and_one_end(deployment, graph):
    kinds = {}
    for event in events_of(deployment):
        kinds.setdefault(event["job"]["name"], []).append(event["eventType"])
    assert kinds == {f"people.{step}": ["START", "COMPLETE"] for step in STEPS}
    assert len(graph.runs) == len(STEPS)


def test_every_event_is_valid(deployment, graph):
    module = checks()
    events = events_of(deployment)
    assert len(events) == 2 * len(STEPS)
    for event in events:
        module._check(event)
    used = {name for event in events for name, _ in module._all_facets(event)}
    assert {"schema", "columnLineage", "symlinks", "ownership", "version", "tags", "parent"} <= used
    assert len([name for name in used if name.startswith("dpsynth_")]) >= 5


def test_the_parent_is_the_dagster_run(graph, runs):
    parents = {node.job.removeprefix("people."): node.parent_run_id for node in graph.runs.values()}
    assert {parents[step] for step in STEPS if step != "released"} == {runs}
    assert parents["released"] != runs
    for node in graph.runs.values():
        step = node.job.removeprefix("people.")
        assert node.run_id == naming.run_id(node.parent_run_id, f"people/{step}")


def test_inputs_and_outputs_are_those_of_the_line(deployment, graph):
    storage = storage_of(deployment)
    home = deployment.settings.home

    def place(step):
        if step == "released":
            return naming.dataset_name(f"{storage.require(PEOPLE, 'released').facts['path']}/data")
        return naming.dataset_name(storage.location(PEOPLE, step))

    read_the_source = naming.dataset_name(home / "sources" / "people")
    nodes = {node.job.removeprefix("people."): node for node in graph.runs.values()}
    for step in LINE:
        expected = {place(name) for name in step.upstream}
        if step.name in ("raw", "scrubbed"):
            expected.add(read_the_source)
        assert set(nodes[step.name].inputs) == expected, step.name
        assert nodes[step.name].outputs == (place(step.name),)
    walked = {item.dataset for item in graph.upstream(place("released"))}
    assert walked == {place(step) for step in STEPS if step != "released"} | {read_the_source}


def outputs_of(deployment):
    """What each step said of its output when it completed."""
    ends = (event for event in events_of(deployment) if event["eventType"] == "COMPLETE")
    return {event["job"]["name"].removeprefix("people."): event["outputs"][0] for event in ends}


def test_every_released_column_walks_back_to_raw_ones_masked_or_says_why_not(deployment, graph):
    source = str(deployment.settings.home / "sources" / "people")
    outputs = outputs_of(deployment)
    known = described(events_of(deployment))
    release, synthetic, canaries = (outputs[step]["name"] for step in ("released", "synthetic", "canaries"))
    published = [field["name"] for field in outputs["released"]["facets"]["schema"]["fields"]]
    assert published == ["person", "visit", "region", "score", "outcome", "badge", "home_phone"]
    bait = columns.FROM_CONTRACT
    for name in published:
        found = roots(known, (release, name))
        if name in ("region", "score", "outcome"):
            assert found == {Root(source, name, masked=True), Root(canaries, name, masked=True, reason=bait)}
        else:
            reason = columns.FRESH_IDS if name in ("person", "visit") else columns.LEFT_EMPTY
            assert found == {Root(synthetic, name, masked=False, reason=reason)}


def test_the_five_records_of_the_release(deployment, graph):
    store = LineageStore(deployment.settings.ledger_url)
    for event in events_of(deployment):
        store.record(event)
    storage, ledger = storage_of(deployment), ledger_of(deployment)
    facts = storage.require(PEOPLE, "released").facts
    record = SyntheticRecord.of(store, ledger, facts["release_id"])
    module = checks()
    schema = json.loads((Path(facets.__file__).parent / "schemas/records-1-0-0/SyntheticRecord.json").read_text())
    module.Draft202012Validator(schema).validate(record.to_json())
    assert record.source.tables == (naming.dataset_name(deployment.settings.home / "sources" / "people"),)
    assert (record.source.dataset, record.source.family, record.dp.method) == ("people", "tests", "mst")
    assert Path(record.dp.dossier.name).is_file()
    statement = json.loads(Path(record.dp.dossier.name).read_text())["statement"]
    assert list(record.dp.covered) == statement["covered"]
    assert record.dp.epsilon == statement["guarantee"]["epsilon"]
    (model,) = record.checkpoints
    assert model.name == naming.dataset_name(storage.location(PEOPLE, "model"))
    assert [step.relation for step in model.path] == ["derived", "derived"]
    (entry,) = ledger.entries("tests")
    assert model.entries == (entry.entry_id,)
    assert (record.further_checks.ledger_entry, record.further_checks.commitment) == (entry.entry_id, entry.commitment)
    # It names restricted content by reference: no exact number of people, rows or hash of an output is in it.
    text = json.dumps(record.to_json())
    numbers = {int(word) for word in re.findall(r"(?<![\w.-])\d{3,}(?![\w.-])", text)}
    assert not numbers & {storage.require(PEOPLE, step).facts["rows"] for step in ("scrubbed", "bounded")}
    assert len(ledger.participants(entry.entry_id)) not in numbers
    assert not [step for step in STEPS if storage.require(PEOPLE, step).content_hash in text]


def test_every_event_has_the_form_that_we_ask_of_others(deployment, graph):
    for event in events_of(deployment):
        ingest.check(ingest.read(json.dumps(event).encode()))


def test_a_product_of_the_release_is_not_to_be_tested_on_the_line_s_own_data(deployment, graph, tmp_path):
    copied = tmp_path / "copy" / "ledger.db"
    copied.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(deployment.settings.home / "ledger" / "ledger.db")) as there:
        there.execute("VACUUM INTO ?", (str(copied),))
    store, storage = LineageStore(f"sqlite:///{copied}"), storage_of(deployment)
    release = storage.require(PEOPLE, "released").facts["release_id"]
    product = store.use(release, by="Ada", purpose="train", product="ranker", reason="ours").product
    nobody = uses.Families({}, {})
    assert uses.contaminations(store, product, nobody) == [], "the mechanism stands between it and the data"
    source = naming.dataset_name(deployment.settings.home / "sources" / "people")
    for data in (source, *(naming.dataset_name(storage.location(PEOPLE, step)) for step in ("scrubbed", "synthetic"))):
        (found,) = uses.contaminations(store, product, nobody, on=[data])
        assert (found.problem, found.release) == ("train-test", store.release(release).name)
    assert [use.product for use in uses.registered(store, store.release(release))] == [str(product)]
    (registered,) = list(store.events())[-1:]
    checks()._check(dict(registered.payload))


def test_what_may_leave_is_valid_and_keeps_the_whole_descent(deployment, graph):
    module, events = checks(), events_of(deployment)
    public = [public_event(event) for event in events]
    for event in public:
        module._check(event)
    assert described(public) == described(events)
    for before, after in zip(events, public, strict=True):
        names = [{name for name, _ in module._all_facets(event)} for event in (before, after)]
        assert names[0] == names[1]
        assert [item["name"] for item in before["outputs"]] == [item["name"] for item in after["outputs"]]
    # Exact numbers of restricted tables stand in no event at all; those of the release may.
    counts = {storage_of(deployment).require(PEOPLE, step).facts["rows"] for step in ("scrubbed", "bounded")}
    numbers = {int(word) for word in re.findall(r"(?<![\w.-])\d{3,}(?![\w.-])", json.dumps(public))}
    assert min(counts) > 500
    assert 200 in numbers
    assert not counts & numbers


def test_every_table_describes_every_column_and_nobody_in_clear(deployment, graph):
    source = str(deployment.settings.home / "sources" / "people")
    known = described(events_of(deployment))
    tables = {step: output for step, output in outputs_of(deployment).items() if "schema" in output["facets"]}
    assert set(tables) == {"scrubbed", "canaries", "bounded", "synthetic", "released"}
    for output in tables.values():
        for field in output["facets"]["schema"]["fields"]:
            found = roots(known, (output["name"], field["name"]))
            assert found
            for root in found:
                assert root.reason or root.dataset == source
                assert root.masked or root.column not in ("person", *TEXTS) or root.reason


def test_a_release_depends_on_all_modelled_columns_together(deployment, graph):
    outputs = outputs_of(deployment)
    whole = outputs["synthetic"]["facets"]["columnLineage"]["dataset"]
    assert {(item["name"], item["field"]) for item in whole} == {
        (outputs["bounded"]["name"], name) for name in ("region", "score", "outcome")
    }
    assert all(item["transformations"][0]["masking"] for item in whole)


def test_every_dataset_is_tagged(deployment, graph):
    for step, output in outputs_of(deployment).items():
        tags = {(tag.get("field"), tag["key"]): tag["value"] for tag in output["facets"]["tags"]["tags"]}
        assert tags.pop((None, "zone")) == {"audit": "operator", "released": "public"}.get(step, "restricted")
        text = {(name, "pii"): pii for name, pii in TEXTS.items() if pii != "drop"}
        ids = {("person", "identifier"): "true", ("visit", "identifier"): "true"}
        expected = {
            "scrubbed": text | {("_owner", "pseudonym"): "true", ("_record", "pseudonym"): "true"},
            "synthetic": text | ids,
            "released": text | ids,
        }
        treated = {key: value for key, value in tags.items() if key[1] == "treatment"}
        if step in expected:
            assert tags == expected[step] | treated
        assert len(treated) == (7 if step in ("synthetic", "released") else 0)
    sources = [
        item for event in events_of(deployment) for item in event["inputs"] if item["name"].endswith("/sources/people")
    ]
    assert len(sources) == 4
    for item in sources:
        found = {tag["field"]: tag["value"] for tag in item["facets"]["tags"]["tags"] if tag["key"] == "pii"}
        assert found == TEXTS


def test_model_and_release_say_what_they_are(deployment, graph):
    outputs = outputs_of(deployment)
    told = outputs["model"]["facets"]
    assert told["datasetType"]["datasetType"] == "MODEL"
    assert told["dpsynth_guarantee"]["method"] == "mst"
    assert "columnLineage" not in told
    told = outputs["released"]["facets"]
    path = storage_of(deployment).require(PEOPLE, "released").facts["path"]
    dossier = json.loads((Path(path) / "dossier.json").read_text())
    assert told["dpsynth_release"]["releaseId"] == dossier["release"]["id"]
    assert told["dpsynth_release"]["candidateCommitment"] == dossier["commitments"]["candidate"]
    assert told["dpsynth_release"]["ledgerHash"] == dossier["ledger"]["head"]["hash"]


def test_audit_and_declared_rows_are_assertions_on_the_synthetic_rows(deployment, graph):
    asserted = {
        event["job"]["name"]: (item["name"], item["inputFacets"]["dataQualityAssertions"]["assertions"])
        for event in events_of(deployment)
        for item in event["inputs"]
        if "dataQualityAssertions" in item.get("inputFacets", {})
    }
    assert set(asserted) == {"people.audit", "people.released"}
    synthetic = outputs_of(deployment)["synthetic"]["name"]
    (audit,), (rows,) = (found for name, found in asserted.values() if name == synthetic)
    assert audit["assertion"] == "epsilon_lower_bound_at_most"
    assert (rows["success"], rows["expected"], rows["actual"]) == (True, "200", "200")


def test_versions_are_those_that_were_read(deployment, graph):
    """An input's version is the directory of that output, and no hash of it."""
    for event in events_of(deployment):
        if event["eventType"] != "COMPLETE":
            continue
        for item in event["inputs"]:
            name = naming.DatasetName(item["namespace"], item["name"]).name
            step = name.rpartition("/")[2]
            record = storage_of(deployment).read(PEOPLE, step)
            if "/restricted/" in name and record.path is not None:
                assert item["facets"]["version"]["datasetVersion"] == record.directory.name

    hashes = [storage_of(deployment).require(PEOPLE, step).content_hash for step in STEPS]
    assert not [digest for digest in hashes if digest in deployment.settings.lineage_file.read_text()]


def test_a_step_that_fails_and_one_that_is_cancelled(tmp_path, monkeypatch):
    """FAIL with a safe word, ABORT, and nothing for steps that never started."""
    deployment = small_deployment(tmp_path)
    for error, end in ((ValueError("marked text"), "FAIL"), (KeyboardInterrupt("marked text"), "ABORT")):

        def fails(*_, error=error):
            raise error

        monkeypatch.setattr(source, "batches", fails)
        assert not run_here(deployment).success
        ends = {node.job: node.state for node in lineage_of(deployment).runs.values()}  # of each job the latest
        assert ends["people.scrubbed"] == end
        assert set(ends) <= {"people.raw", "people.canaries", "people.scrubbed"}
        assert sorted(ends.values()).count("RUNNING") == 0
        (last,) = [item for item in events_of(deployment) if item["eventType"] == end]
        assert last["outputs"] == []
        assert last["run"]["facets"]["errorMessage"]["message"]
        checks()._check(last)
        assert "marked text" not in deployment.settings.lineage_file.read_text()
