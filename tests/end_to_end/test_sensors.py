"""What happens without anybody watching: lineage of killed runs is closed, and what has expired is deleted."""

import datetime as dt
import os
from dataclasses import replace

import dagster as dg
import pytest
from inside import inside
from line_cases import PEOPLE, ledger_of, lineage_of, run_here, small_deployment, storage_of

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.errors import LineageStuck
from dpsynth_platform.lineage import outbox
from dpsynth_platform.lineage.emitter import LineageEmitter, StepRun

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
    names = ("approvals", "retention", "lineage_close_out", "lineage_outbox")
    assert status == dict.fromkeys(names, dg.DefaultSensorStatus.RUNNING)


def test_notices_have_a_sensor_where_somebody_takes_them(deployment):
    settings = replace(deployment.settings, notify=("true",))
    sensors = {sensor.name: sensor for sensor in build_definitions(settings).get_repository_def().sensor_defs}
    assert sensors["notifications"].default_status == dg.DefaultSensorStatus.RUNNING


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


def test_what_has_expired_is_deleted_and_recorded(deployment):
    assert run_here(deployment, accelerator=inside(deployment)).success
    storage = storage_of(deployment)
    bounded, model = (storage.require(PEOPLE, step).directory for step in ("bounded", "model"))
    for path in [bounded, *bounded.rglob("*")]:
        os.utime(path, (1e9, 1e9))
    with dg.DagsterInstance.ephemeral() as instance:
        assert look(deployment, "retention", instance).startswith("1 ")
        assert look(deployment, "retention", instance).startswith("0 ")
    assert not bounded.exists()
    assert model.exists()
    (event,) = ledger_of(deployment).history(kinds=["purged"])
    assert (event.subject, event.payload["step"]) == ("people", "bounded")
    (purged,) = [node for node in lineage_of(deployment).runs.values() if node.job == "people.purge"]
    assert purged.state == "COMPLETE"
    # The model is there, so the line can still be run, and nothing is spent.
    assert run_here(deployment, accelerator=inside(deployment)).success
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["spent"]
