"""What happens without anybody watching: lineage of killed runs is closed, and what has expired is deleted."""

import datetime as dt
import json
import os
import shutil
from dataclasses import replace

import dagster as dg
import pytest
from deltalake import DeltaTable, write_deltalake
from inside import inside
from line_cases import (
    PEOPLE,
    add_dataset,
    ledger_of,
    lineage_of,
    run_here,
    small_deployment,
    small_table,
    storage_of,
)

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.errors import LineageStuck, SourceError
from dpsynth_platform.lineage import outbox
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.runs import StepRun
from dpsynth_platform.notices import notifying
from dpsynth_platform.reviewing import decisions
from dpsynth_platform.sources import source
from sensors.notices import failure_sensor

pytestmark = pytest.mark.end_to_end


@pytest.fixture
def deployment(tmp_path):
    return small_deployment(tmp_path)


def look(deployment, name, instance):
    """One tick of a sensor; what it says."""
    repository = build_definitions(deployment.settings).get_repository_def()
    context = dg.build_sensor_context(instance=instance, repository_def=repository)
    tick = repository.get_sensor_def(name).evaluate_tick(context)
    assert not tick.run_requests
    return tick.skip_message


def test_all_sensors_are_on_by_default(deployment):
    repository = build_definitions(deployment.settings).get_repository_def()
    status = {sensor.name: sensor.default_status for sensor in repository.sensor_defs}
    runs = ("interrupted_runs", "set_back_runs")
    names = ("approvals", "retention", "reservations", *runs, "lineage_close_out", "lineage_outbox", "contract_files")
    assert status == dict.fromkeys(names, dg.DefaultSensorStatus.RUNNING)


def test_notices_have_a_sensor_where_somebody_takes_them(deployment):
    settings = replace(deployment.settings, notify=("true",))
    sensors = {sensor.name: sensor for sensor in build_definitions(settings).get_repository_def().sensor_defs}
    for name in ("notifications", "run_failures"):
        assert sensors[name].default_status == dg.DefaultSensorStatus.RUNNING


@pytest.fixture
def told(deployment):
    """The notices that a command was handed; the deployment names it as its receiver."""
    file = deployment.root / "told.jsonl"
    deployment.told = ("sh", "-c", f"cat >> {file}")
    return lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def look_for_failures(deployment, instance, receiver):
    settings = replace(deployment.settings, notify=receiver)
    return failure_sensor(settings)(dg.build_sensor_context(instance=instance)).skip_message


def test_a_run_that_failed_is_told_once_by_step_and_code_alone(deployment, told, monkeypatch):
    """On a real instance. What its message says, and who ran it, stays there; the ledger need not be there."""
    shutil.rmtree(deployment.settings.home / "sources" / "people")
    with dg.DagsterInstance.local_temp(str(deployment.root)) as instance:
        first = run_here(deployment, instance=instance, user="Ada Lovelace")
        assert first.failures.keys() == {"raw"}
        assert look_for_failures(deployment, instance, deployment.told) == "1 notices sent, 0 wait"
        assert look_for_failures(deployment, instance, deployment.told) == "0 notices sent, 0 wait"
        second = run_here(deployment, instance=instance)
        assert look_for_failures(deployment, instance, ("false",)) == "0 notices sent, 1 wait"
        later = notifying._now() + dt.timedelta(minutes=1)
        monkeypatch.setattr(notifying, "_now", lambda: later)
        assert look_for_failures(deployment, instance, deployment.told) == "1 notices sent, 0 wait"
    one, two = told()
    assert [one["id"], two["id"]] == [f"run-{ran.result.run_id}" for ran in (first, second)]
    assert (one["event"], one["dataset"], one["period"], one["release"]) == ("run-failed", "people", None, None)
    assert one["text"].startswith("people: a run of job people_candidate failed in step raw (source); ")
    for word in ("Ada", "Delta", str(deployment.root)):
        assert word not in json.dumps([one, two])


def test_a_run_that_the_budget_refused_is_told_of_as_blocked_and_not_as_failed(deployment, told):
    """What became of a request under `on_overlap: block` depends on the data, and is told to nobody outside."""
    deployment.contract["privacy"]["guarantee"]["epsilon"] = 2.5
    deployment.family["cap"]["epsilon"] = 2.0
    deployment.write()
    with dg.DagsterInstance.local_temp(str(deployment.root)) as instance:
        ran = run_here(deployment, instance=instance)
        assert "budget" in [step.metadata["code"].value for step in failed_steps(ran)]
        assert look_for_failures(deployment, instance, deployment.told) == "0 notices sent, 0 wait"
    assert told() == []


def failed_steps(ran):
    return [event.step_failure_data.user_failure_data for event in ran.result.all_events if event.is_step_failure]


@pytest.fixture
def paced(deployment):
    """The deployment, which asks for a run of each new version, once a day at most."""
    deployment.contract["release"]["on_new_version"] = "1d"
    return deployment.write()


def asked(deployment, cursor=None):
    """One tick of the sensor of new versions: what it asks for, its words, and its cursor."""
    repository = build_definitions(deployment.settings).get_repository_def()
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, repository_def=repository, cursor=cursor)
        tick = repository.get_sensor_def("new_versions").evaluate_tick(context)
    return [(item.run_key, item.job_name) for item in tick.run_requests or []], tick.skip_message, tick.cursor


def change_source(deployment):
    """A new version of the source."""
    write_deltalake(str(deployment.settings.home / "sources" / "people"), small_table(seed=5), mode="overwrite")


def test_nobody_who_did_not_ask_is_run_for_a_new_version(deployment):
    assert "new_versions" not in {item.name for item in build_definitions(deployment.settings).sensors}


def test_a_new_version_is_asked_for_once(paced, monkeypatch):
    name = DeltaTable(str(paced.settings.home / "sources" / "people")).metadata().id
    ((request,), words, cursor) = asked(paced)
    assert (request, words) == ((f"people:{name}@0", "people_candidate"), None)
    with monkeypatch.context() as patch:  # while nothing changes, no table is opened
        patch.setattr(source, "pin", None)
        assert asked(paced, cursor) == ([], "no new version", cursor)
    # Without its cursor it asks under the same key, which Dagster runs once; and not for what was run.
    assert asked(paced)[0] == [request]
    assert run_here(paced, steps=["raw"]).success
    assert asked(paced)[0] == []
    change_source(paced)
    assert asked(paced, cursor)[0] == [(f"people:{name}@1", "people_candidate")]


def test_versions_that_change_no_row_are_no_news(paced):
    """Compaction and vacuum after a run: nothing is asked for, and the run again spends nothing."""
    root = str(paced.settings.home / "sources" / "people")
    write_deltalake(root, small_table(seed=5, first_person=9000), mode="append")
    assert run_here(paced, accelerator=inside(paced)).success
    DeltaTable(root).optimize.compact()
    DeltaTable(root).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert DeltaTable(root).version() > 2
    assert asked(paced)[:2] == ([], "no new version")
    rows = storage_of(paced).require(PEOPLE, "scrubbed").facts["rows"]
    shutil.rmtree(storage_of(paced).require(PEOPLE, "scrubbed").directory)
    assert run_here(paced, accelerator=inside(paced)).success
    assert storage_of(paced).require(PEOPLE, "scrubbed").facts["rows"] == rows
    assert [entry.state for entry in ledger_of(paced).entries()] == ["spent"]


def test_a_version_that_cannot_be_told_from_the_last_one_waits_for_a_person(paced):
    assert run_here(paced, steps=["raw"]).success
    log = paced.settings.home / "sources" / "people" / "_delta_log"
    DeltaTable(str(log.parent)).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    DeltaTable(str(log.parent)).create_checkpoint()
    for commit in log.glob("*.json"):
        commit.unlink()
    found, words, _ = asked(paced)
    assert found == []
    assert words.startswith(
        "people: a new version waits: the source's log does not say any more whether versions after"
    )
    assert words.endswith("run it by hand, dpsynth run people")


def test_a_new_version_waits_for_its_time_and_for_the_candidate(paced, monkeypatch):
    assert run_here(paced, accelerator=inside(paced)).success
    change_source(paced)
    found, words, cursor = asked(paced)
    assert found == []
    assert words.startswith("people: a new version waits: the next one is due at ")
    with monkeypatch.context() as patch:
        # A day later; the day is the contract's, and what waits is looked at again although nothing changed.
        patch.setattr("sensors.new_versions.dt", Later)
        found, words, cursor = asked(paced, cursor)
        assert (found, words.partition("waits: ")[2]) == (
            [],
            "a candidate of an earlier version waits to be released or refused",
        )
        decisions.refuse(paced.settings, PEOPLE, "reviewer", "a test of what follows")
        assert len(asked(paced, cursor)[0]) == 1


class Later:
    """The module `datetime`, of the day after tomorrow."""

    UTC = dt.UTC

    class datetime(dt.datetime):
        @classmethod
        def now(cls, zone):
            return dt.datetime.now(zone) + dt.timedelta(days=2)


def test_after_a_mechanism_that_failed_a_new_version_waits_for_a_person(paced, monkeypatch):
    assert run_here(paced, steps=["raw", "scrubbed", "canaries", "clearance"]).success
    (entry,) = ledger_of(paced).entries()
    ledger_of(paced).start(entry.entry_id)
    change_source(paced)
    monkeypatch.setattr("sensors.new_versions.dt", Later)
    found, words, _ = asked(paced)
    assert (found, words) == (
        [],
        f"people: a new version waits: ledger entry {entry.entry_id} is started and not completed",
    )


def test_a_source_that_is_away_holds_up_no_other(paced):
    add_dataset(paced, "others", small_table(first_person=5000))
    shutil.rmtree(paced.settings.home / "sources" / "people")
    ((request,), _, cursor) = asked(paced)
    assert request[1] == "others_candidate"
    with pytest.raises(SourceError, match=r"people: source\.uri: .*: there is no Delta table at this place"):
        asked(paced, cursor)


def test_lineage_of_ended_runs_is_closed_and_no_other(deployment):
    job = build_definitions(deployment.settings).resolve_job_def("people_candidate")
    with dg.DagsterInstance.ephemeral() as instance:
        failed, going = (
            instance.create_run_for_job(job, status=status)
            for status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED)
        )
        emitter = LineageEmitter.of(deployment.settings)
        emitter.start(StepRun(failed.run_id, "people", "model"))
        emitter.start(StepRun(going.run_id, "people", "raw"))
        assert look(deployment, "lineage_close_out", instance) == "1 lineage runs closed"
        assert look(deployment, "lineage_close_out", instance) == "0 lineage runs closed"
    states = {node.job: node.state for node in lineage_of(deployment).runs.values()}
    assert states == {"people.model": "FAIL", "people.raw": "RUNNING"}


def test_lineage_events_that_are_stuck_are_seen_until_they_arrive(deployment, monkeypatch, tmp_path):
    monkeypatch.setattr(outbox, "_FIRST_PAUSE", dt.timedelta(hours=1))  # longer than a busy machine takes for a look
    monkeypatch.setattr(outbox, "_LONGEST_PAUSE", dt.timedelta(hours=1))
    for name, value in {"TYPE": "http", "URL": "http://127.0.0.1:9", "RETRY": '{"total": 0}'}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    warning = "did not reach the OpenLineage transport (ConnectionError)"
    assert warning in LineageEmitter.of(deployment.settings).start(StepRun("run", "people", "raw")).warnings[0]
    with dg.DagsterInstance.ephemeral() as instance:
        assert look(deployment, "lineage_outbox", instance) == "0 deliveries; 0 failed and will be tried again"
        monkeypatch.setattr(outbox, "STUCK_AFTER", dt.timedelta(0))
        with pytest.raises(LineageStuck, match="1 lineage events wait for the OpenLineage transport since"):
            look(deployment, "lineage_outbox", instance)
        for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(tmp_path / "sent"), "APPEND": "true"}.items():
            monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
        LineageEmitter.of(deployment.settings).flush()
        assert look(deployment, "lineage_outbox", instance).startswith("0 deliveries")
    assert len((tmp_path / "sent").read_text().splitlines()) == 1


def test_what_has_expired_is_deleted_and_recorded(candidate):
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
    storage = storage_of(candidate)
    bounded, model = (storage.require(PEOPLE, step).directory for step in ("bounded", "model"))
    for path in [bounded, *bounded.rglob("*")]:
        os.utime(path, (1e9, 1e9))
    with dg.DagsterInstance.ephemeral() as instance:
        assert look(candidate, "retention", instance).startswith("1 ")
        assert look(candidate, "retention", instance).startswith("0 ")
    assert not bounded.exists()
    assert model.exists()
    (event,) = ledger_of(candidate).history(kinds=["purged"])
    assert (event.subject, event.payload["step"]) == ("people", "bounded")
    (purged,) = [node for node in lineage_of(candidate).runs.values() if node.job == "people.purge"]
    assert purged.state == "COMPLETE"
    # The model is there, so the line can still be run, and nothing is spent.
    assert run_here(candidate, accelerator=inside(candidate)).success
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
