"""What happens without anybody watching: lineage of killed runs is closed, and what has expired is deleted."""

import os

import dagster as dg
import pytest
from inside import inside
from line_cases import PEOPLE, ledger_of, lineage_of, run_here, small_deployment, storage_of

from dpsynth_platform.definitions import build_definitions
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
    assert status == dict.fromkeys(("approvals", "retention", "lineage_close_out"), dg.DefaultSensorStatus.RUNNING)


def test_lineage_of_ended_runs_is_closed_and_no_other(deployment):
    job = build_definitions(deployment.settings).resolve_job_def("people_candidate")
    with dg.DagsterInstance.ephemeral() as instance:
        failed, going = (
            instance.create_run_for_job(job, status=status)
            for status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED)
        )
        emitter = LineageEmitter(deployment.settings.lineage_file)
        emitter.start(StepRun(failed.run_id, "people", "model"))
        emitter.start(StepRun(going.run_id, "people", "raw"))
        assert look(deployment, "lineage_close_out", instance) == "1 lineage runs closed"
        assert look(deployment, "lineage_close_out", instance) == "0 lineage runs closed"
    states = {node.job: node.state for node in lineage_of(deployment).runs.values()}
    assert states == {"people.model": "FAIL", "people.raw": "RUNNING"}


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
