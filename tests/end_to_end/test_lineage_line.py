"""What a whole run leaves in lineage: for each attempt a START and one end, with what was really read and written."""

import importlib.util
import json

import dagster as dg
import pytest
from inside import inside
from line_cases import PEOPLE, lineage_of, released, run_here, small_deployment, storage_of

from assets.line import LINE
from dpsynth_platform import source
from dpsynth_platform.lineage import naming
from dpsynth_platform.settings import PACKAGE_ROOT
from dpsynth_platform.storage import STEPS

pytestmark = pytest.mark.end_to_end


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
    return small_deployment(tmp_path_factory.mktemp("lineage"))


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
        deployment.settings.lineage_file.unlink(missing_ok=True)

        def fails(*_, error=error):
            raise error

        monkeypatch.setattr(source, "batches", fails)
        assert not run_here(deployment).success
        ends = {node.job: node.state for node in lineage_of(deployment).runs.values()}
        assert ends["people.scrubbed"] == end
        assert set(ends) <= {"people.raw", "people.canaries", "people.scrubbed"}
        assert sorted(ends.values()).count("RUNNING") == 0
        (last,) = [item for item in events_of(deployment) if item["eventType"] == end]
        assert last["outputs"] == []
        assert last["run"]["facets"]["errorMessage"]["message"]
        checks()._check(last)
        assert "marked text" not in deployment.settings.lineage_file.read_text()
