"""Nothing that Dagster can repeat spends a second time, and no step works on what belongs to another run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from deployment import Deployment
from inside import InProcessAccelerator, inside
from line_cases import STEPS, ledger_of, run_here, small_deployment, storage_of

from assets.line import build_line
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.storage import Place, read_table
from dpsynth_platform.synth.planning import load_all
from dpsynth_platform.worker.job import WorkerJob

pytestmark = pytest.mark.end_to_end
PLACE = Place("people")
starts: list[str] = []


class FailingAccelerator(InProcessAccelerator):
    """A mechanism that is counted and fails, as a worker that crashed."""

    def runner(self, context: dg.AssetExecutionContext) -> Callable[[WorkerJob], None]:
        def run(job: WorkerJob) -> None:
            starts.append(job.mode)
            raise MechanismFailed("the worker was killed")

        return run


def failing(deployment: Deployment) -> FailingAccelerator:
    starts.clear()
    return FailingAccelerator(device="cpu", logs=str(deployment.settings.restricted / "logs"))


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return small_deployment(tmp_path)


def test_a_step_without_its_inputs_names_the_step_to_run(deployment: Deployment) -> None:
    for step in STEPS[1:-1]:
        ran = run_here(deployment, steps=[step], accelerator=inside(deployment))
        assert "people/raw has not been materialized; materialize it first" in ran.failures[step]
    assert "raw has not been materialized" in run_here(deployment, "people_release").failures["released"]
    assert ledger_of(deployment).entries() == []

    assert run_here(deployment, steps=["raw"]).success
    for step, missing in (("bounded", "scrubbed"), ("clearance", "scrubbed"), ("model", "clearance")):
        ran = run_here(deployment, steps=[step], accelerator=inside(deployment))
        assert f"people/{missing} has not been materialized; materialize it first" in ran.failures[step]
    assert ledger_of(deployment).entries() == []


def test_a_step_of_another_plan_names_the_step_to_run(candidate: Deployment) -> None:
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
    candidate.contract["privacy"]["guarantee"]["epsilon"] = 0.5
    candidate.write()
    assert run_here(candidate, steps=["raw"]).success
    for step, stale in (
        ("clearance", "scrubbed"),
        ("bounded", "scrubbed"),
        ("model", "clearance"),
        ("synthetic", "model"),
        ("audit", "canaries"),
        ("quality", "scrubbed"),
    ):
        ran = run_here(candidate, steps=[step], accelerator=inside(candidate))
        assert f"people/{stale} belongs to another contract, source version or plan" in ran.failures[step], step
        assert f"materialize people/{stale} again" in ran.failures[step]
    refused = run_here(candidate, "people_release").failures["released"]
    assert "belongs to another contract" in refused
    assert len(ledger_of(candidate).entries()) == 1


def test_a_purged_input_names_the_step_to_run(candidate: Deployment) -> None:
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
    storage = storage_of(candidate)
    shutil.rmtree(storage.require(PLACE, "bounded").directory)
    shutil.rmtree(storage.require(PLACE, "quality").directory)
    failed = run_here(candidate, steps=["quality"]).failures["quality"]
    assert "people/bounded: its output is gone (purged or never written); materialize people/bounded again" in failed


def test_launching_again_spends_nothing(candidate: Deployment) -> None:
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
    head = ledger_of(candidate).head()
    for steps in (None, ["model"], ["clearance", "bounded", "model"], ["canaries"], None):
        ran = run_here(candidate, steps=steps, accelerator=failing(candidate))
        assert ran.success, ran.failures
        assert starts == []
    assert ledger_of(candidate).head() == head


@pytest.mark.parametrize("policy", [dg.RetryPolicy(max_retries=3), None])
def test_no_retry_of_dagster_repeats_a_mechanism(deployment: Deployment, policy: dg.RetryPolicy | None) -> None:
    """A retry policy on the whole job, and the tag by which a run asks for retries."""
    settings = deployment.settings
    ((contract, family), *_), _ = load_all(settings)
    definitions = dg.Definitions(
        assets=build_line(contract, family, settings.user),
        jobs=[dg.define_asset_job("insisting", op_retry_policy=policy, tags={"dagster/max_retries": "5"})],
        resources=dict(build_definitions(settings).resources or {}) | {"accelerator": failing(deployment)},
    )
    with dg.DagsterInstance.local_temp(str(deployment.root)) as instance:
        result = definitions.resolve_job_def("insisting").execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    assert starts == ["fit"]
    assert not [event for event in result.all_events if event.event_type_value == "STEP_RESTARTED"]
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["started"]


def test_every_step_says_that_it_is_not_to_be_retried(deployment: Deployment) -> None:
    ((contract, family), *_), _ = load_all(deployment.settings)
    for asset in build_line(contract, family, "runner"):
        assert asset.op.tags["dagster/max_retries"] == "0"
        assert asset.op.retry_policy is None


def test_running_the_failed_step_again_spends_nothing(deployment: Deployment) -> None:
    first = run_here(deployment, accelerator=failing(deployment))
    assert first.failures.keys() == {"model"}
    entry = ledger_of(deployment).entries()[0]
    for steps in (["model"], ["clearance", "model"], None):
        again = run_here(deployment, steps=steps, accelerator=failing(deployment))
        assert not again.success
        assert starts == []
        assert entry.entry_id in next(iter(again.failures.values()))
    assert [item.entry_id for item in ledger_of(deployment).entries()] == [entry.entry_id]
    assert ledger_of(deployment).entry(entry.entry_id).state == "started"


def test_a_withdrawn_attempt_leaves_the_failed_one_in_the_way(deployment: Deployment) -> None:
    """A word that was given and withdrawn is no word: what started before it still asks for one."""
    assert not run_here(deployment, accelerator=failing(deployment)).success
    ledger = ledger_of(deployment)
    (first,) = ledger.entries()
    assert run_here(deployment, steps=["clearance"], spend_again=first.entry_id).success
    second = ledger.entries()[-1]
    assert (second.state, second.replaces) == ("reserved", first.entry_id)
    ledger.void(second.entry_id)

    starts.clear()
    again = run_here(deployment, accelerator=failing(deployment))
    assert f"--spend-again {first.entry_id}" in again.failures["clearance"]
    assert starts == []
    assert [entry.state for entry in ledger.entries()] == ["started", "void"]
    assert run_here(deployment, steps=["clearance"], spend_again=first.entry_id).success
    assert [entry.state for entry in ledger.entries()] == ["started", "void", "reserved"]
    assert ledger.verify().ok


REEXECUTE = """
import json, sys
import dagster as dg
from dpsynth_platform.operations.running import failures_of
job = dg.build_reconstructable_job("dpsynth_platform.definitions", "job_named", ("people_candidate",))
with dg.DagsterInstance.get() as instance:
    options = dg.ReexecutionOptions.from_failure(sys.argv[1], instance)
    with dg.execute_job(job, instance, reexecution_options=options) as again:
        assert not again.success
    events = [entry.dagster_event for entry in instance.all_logs(again.run_id) if entry.dagster_event is not None]
print(json.dumps(failures_of(events)))
"""


@pytest.mark.slow
def test_reexecution_from_failure_spends_nothing(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's own re-execution of a failed run, as the UI's button does it, in processes of their own."""
    patches = deployment.root / "patches"
    patches.mkdir()
    (patches / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'dpsynth_platform.worker' in sys.orig_argv:\n"
        "    from dpsynth_platform.synth.tabular import domain\n"
        "    del domain.Domain.encode\n"
    )
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(patches), *filter(None, [os.environ.get("PYTHONPATH")])]))
        failed = deployment.here("run", "people", "--json")
    assert [step for step, _ in json.loads(failed.stdout)["failures"]] == ["model"]
    entry = ledger_of(deployment).entries()[0]
    environment = deployment.environment | {"DAGSTER_HOME": str(deployment.settings.dagster_home)}
    command = [sys.executable, "-c", REEXECUTE, json.loads(failed.stdout)["run_ids"][0]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    ((step, message),) = json.loads(done.stdout)
    assert step == "model"
    assert entry.entry_id in message
    assert [(item.entry_id, item.state) for item in ledger_of(deployment).entries()] == [(entry.entry_id, "started")]


def test_other_constraints_make_other_rows_and_no_new_spend(deployment: Deployment) -> None:
    """Constraints belong to no mechanism: its measurements are fitted anew, and nothing before is done again."""
    deployment.contract["generate"]["rows"] = "auto"
    deployment.write()
    assert run_here(deployment, accelerator=inside(deployment)).success
    storage, head = storage_of(deployment), ledger_of(deployment).head()
    model, first = storage.require(PLACE, "model"), storage.require(PLACE, "synthetic")
    rows = list(read_table(first.directory / "table"))
    # All of 1500 rows, at most two of each of 1000 people, but for the held-out ones, and with some canaries.
    assert 1000 < first.facts["rows"] == sum(batch.num_rows for batch in rows) < 1700
    assert any(row["region"] == "east" and row["score"] > 2 for batch in rows for row in batch.to_pylist())

    rules = [{"forbid": {"region": "east", "score": {"min": 3}}}, {"column": "region", "determines": "outcome"}]
    deployment.contract["generate"]["constraints"] = rules
    deployment.write()
    ran = run_here(deployment, accelerator=failing(deployment))
    assert ran.success, ran.failures
    assert starts == []
    # Other rows are another audit and another candidate, which are recorded; nothing else is.
    assert [event.kind for event in ledger_of(deployment).history(after=head.sequence)] == ["audited", "candidate"]
    assert storage.require(PLACE, "model").content_hash == model.content_hash
    second = storage.require(PLACE, "synthetic")
    assert second.content_hash != first.content_hash
    found: dict[str, set[str]] = {}
    for row in pa.Table.from_batches(read_table(second.directory / "table")).to_pylist():
        assert not (row["region"] == "east" and row["score"] > 2)
        found.setdefault(row["region"], set()).add(row["outcome"])
    assert all(len(outcomes) == 1 for outcomes in found.values())

    assert run_here(deployment, accelerator=failing(deployment)).success
    assert storage.require(PLACE, "synthetic").content_hash == second.content_hash

    shutil.rmtree(model.directory)
    deployment.contract["generate"]["constraints"] = rules[:1]
    deployment.write()
    gone = run_here(deployment, steps=["raw", "synthetic"]).failures["synthetic"]
    assert "its output is gone (purged or never written)" in gone
