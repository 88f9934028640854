"""Killed in the mechanism, and everywhere around it: no orphan, no second spend, nothing half done in sight."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest
from inside import inside
from line_cases import PEOPLE, ledger_of, lineage_of, run_here, small_deployment, storage_of

from assets import model as model_step
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.operations.running import open_instance
from dpsynth_platform.synth.tabular import marginals, measurements
from dpsynth_platform.worker import run as worker

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

HOLDS_AFTER_THE_FIRST_DRAW = """
import sys
if "dpsynth_platform.worker" in sys.orig_argv:
    import os, pathlib, time
    from dpsynth_platform.synth.tabular import measurements
    append = measurements.MeasurementLog.counts
    def hold(log, kind, measured):
        append(log, kind, measured)
        pathlib.Path(__file__).with_name("held").write_text(f"{os.getpid()};")
        for _ in range(6000):
            time.sleep(0.1)  # a signal that comes just before a sleep is handled after it only
    measurements.MeasurementLog.counts = hold
"""


def wait_for(condition, seconds=300):
    """The condition's value once it is true; fails the test if it never is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} seconds")


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def session_of(leader):
    """Live processes of a session."""
    return [pid for pid, session in running().items() if session == leader]


def running():
    """Every live process, with its session."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[int(path.name)] = int(fields[3])
    return found


@pytest.fixture
def hold(tmp_path, monkeypatch):
    """Starts `dpsynth run`, whose worker stops after its first draw; returns the command and the worker's number."""
    directory = tmp_path / "sabotage"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(HOLDS_AFTER_THE_FIRST_DRAW)
    started = []

    def start(deployment, *arguments):
        held = directory / "held"
        held.unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)
            command = deployment.start("run", "people", *arguments)
        started.append(command)

        def is_held():
            assert command.poll() is None, command.communicate()
            return held.exists() and held.read_text().endswith(";")

        wait_for(is_held)
        return command, int(held.read_text().rstrip(";"))

    yield start
    for command in started:
        for pid in session_of(command.pid):
            os.kill(pid, signal.SIGKILL)
        command.communicate()


def ended(command):
    """Exit status and everything printed."""
    out, err = command.communicate(timeout=600)
    return command.returncode, out + err


def check_failed(deployment, runs, mechanisms):
    """All are closed as failed in Dagster and in lineage, and no output of `model` or later is in sight."""
    with open_instance(deployment.settings) as instance:
        statuses = [run.status.value for run in instance.get_runs()]
        assert statuses == ["FAILURE"] * runs
        info = instance.event_log_storage.get_concurrency_info("accelerator")
        assert (info.active_slot_count, info.pending_step_count) == (0, 0)
    ends = [node.state for node in lineage_of(deployment).runs.values() if node.job == "people.model"]
    assert ends == ["FAIL"] * mechanisms
    terminal = [
        event["run"]["runId"]
        for line in deployment.settings.lineage_file.read_text().splitlines()
        if (event := json.loads(line))["eventType"] in ("COMPLETE", "FAIL", "ABORT")
    ]
    assert len(terminal) == len(set(terminal)) == len(lineage_of(deployment).runs)
    for step in ("model", "synthetic", "audit", "quality", "released"):
        assert storage_of(deployment).read(PEOPLE, step) is None
    assert not list(deployment.settings.restricted.glob("people/all/model/*/model.json"))
    assert not (deployment.settings.home / "public").exists()


def states_of(deployment):
    return [entry.state for entry in ledger_of(deployment).entries()]


def test_kills_in_the_mechanism(tmp_path, hold):
    """Worker, step process and command are killed in turn; each time only an explicit word spends again."""
    deployment = small_deployment(tmp_path)
    deployment.family["cap"]["epsilon"] = 4.0
    deployment.write()

    # The worker.
    command, worker = hold(deployment)
    left_before = ledger_of(deployment).left("tests", 1e-6)
    os.kill(worker, signal.SIGKILL)
    status, printed = ended(command)
    assert status == 1
    (entry,) = ledger_of(deployment).entries()
    (line,) = (line for line in printed.splitlines() if "the worker was killed" in line)
    assert line.count("killed") == 1
    assert f"ledger entry {entry.entry_id}, which had started" in line
    assert f"dpsynth run people --spend-again {entry.entry_id}" in line
    assert states_of(deployment) == ["started"]
    check_failed(deployment, 1, 1)
    first = ledger_of(deployment).entries()[0].entry_id

    # Without a word nothing is spent, and the message names entry and way out.
    refused = run_here(deployment).failures["clearance"]
    assert f"ledger entry {first} started and did not complete" in refused
    assert f"dpsynth run people --spend-again {first}" in refused
    assert states_of(deployment) == ["started"]
    assert ledger_of(deployment).left("tests", 1e-6) == left_before

    # The step process: its worker dies with it.
    command, worker = hold(deployment, "--spend-again", first)
    step = parent_of(worker)
    assert parent_of(step) != command.pid  # a step has a process of its own below the command's
    os.kill(step, signal.SIGKILL)
    wait_for(lambda: worker not in session_of(command.pid), 300)
    status, printed = ended(command)
    assert status == 1
    assert "model failed: its process was killed or ended without an error message; run again" in printed
    assert states_of(deployment) == ["started", "started"]
    check_failed(deployment, 2, 2)
    first_again, second = (entry.entry_id for entry in ledger_of(deployment).entries())
    assert first_again == first

    # The same word once more does not spend a third time.
    assert f"--spend-again {second}" in run_here(deployment, spend_again=first).failures["clearance"]
    assert states_of(deployment) == ["started", "started"]

    # The command itself: all of its processes die with it, and the next command closes the run.
    command, worker = hold(deployment, "--spend-again", second)
    os.kill(command.pid, signal.SIGKILL)
    wait_for(lambda: not session_of(command.pid), 300)
    with open_instance(deployment.settings) as instance:
        (run,) = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    again = deployment.here("run", "people")
    assert again.returncode == 1
    assert f"an earlier run was killed; it is closed as failed now: {run.run_id}" in again.stdout
    third = ledger_of(deployment).entries()[-1].entry_id
    assert f"--spend-again {third}" in again.stderr
    check_failed(deployment, 4, 3)
    assert states_of(deployment) == ["started"] * 3

    # The word, and no kill: it completes, and saying it again costs nothing.
    done = deployment.json("run", "people", "--spend-again", third)
    assert len(done["new_entries"]) == 1
    assert run_here(deployment, spend_again=third).success
    assert run_here(deployment).success
    assert states_of(deployment) == ["started"] * 3 + ["spent"]
    assert ledger_of(deployment).left("tests", 1e-6) < left_before
    assert ledger_of(deployment).verify().ok


@pytest.mark.parametrize("reached_first", ["all processes", "the worker", "the step, again and again"])
def test_cancelled_in_the_mechanism(tmp_path, hold, reached_first):
    """Ctrl-C ends the command at once and cleanly, whichever process receives it first. What started stays paid for."""
    deployment = small_deployment(tmp_path)
    command, worker = hold(deployment)
    if reached_first == "the worker":
        os.kill(worker, signal.SIGINT)
    elif reached_first == "the step, again and again":
        step = parent_of(worker)
        while ends_of(deployment)["people.model"] == "RUNNING":
            with suppress(ProcessLookupError):
                os.kill(step, signal.SIGINT)
    else:
        os.killpg(command.pid, signal.SIGINT)
    status, printed = ended(command)
    assert status == 1
    assert "Traceback" not in printed
    wait_for(lambda: worker not in session_of(command.pid), 300)
    assert states_of(deployment) == ["started"]
    ends = ends_of(deployment)
    assert ends["people.model"] == "ABORT"
    assert "RUNNING" not in ends.values()
    with open_instance(deployment.settings) as instance:
        (run,) = instance.get_runs()
        assert run.is_finished
        assert instance.event_log_storage.get_concurrency_info("accelerator").active_slot_count == 0


def ends_of(deployment):
    """The state of every run of a step, by its job."""
    return {node.job: node.state for node in lineage_of(deployment).runs.values()}


@pytest.fixture
def jobs(monkeypatch):
    """Every job that the mechanism was handed inside this process."""
    seen = []
    work = worker.run

    def run(job, progress):
        seen.append(job)
        work(job, progress)

    monkeypatch.setattr(worker, "run", run)
    return seen


def run_inside(deployment):
    """A run whose mechanism takes place in this process, where it can be patched."""
    return run_here(deployment, accelerator=inside(deployment))


class Killed(BaseException):
    """Stands for the end of the process: nothing in the code may catch it and go on."""


def kill_at(*_, **__):
    raise Killed


def test_measured_but_not_estimated(tmp_path, jobs, monkeypatch):
    """A kill after the last draw: the next run fits what is stored, without a spend and without the data."""
    deployment = small_deployment(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(marginals, "read_measurements", kill_at)
        assert set(run_inside(deployment).failures) == {"model"}
    (entry,) = ledger_of(deployment).entries()
    (place,) = deployment.settings.restricted.glob("people/all/model/*/claim.json")
    assert measurements.is_complete(place.parent)
    assert entry.state == "started"
    stored = (place.parent / "measurements.jsonl").read_bytes()
    assert storage_of(deployment).read(PEOPLE, "model") is None

    ran = run_inside(deployment)
    assert ran.success, ran.failures
    assert states_of(deployment) == ["spent"]
    assert (place.parent / "measurements.jsonl").read_bytes() == stored
    assert [job.mode for job in jobs] == ["fit", "estimate"]
    paths = {name: value for name, value in dataclasses.asdict(jobs[1]).items() if value}
    assert set(paths) == {"plan", "model", "mode", "device"}


def test_resumed_by_a_real_worker_that_cannot_find_the_data(tmp_path, monkeypatch):
    """The same through a real worker, with the bounded rows out of the way."""
    deployment = small_deployment(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(marginals, "read_measurements", kill_at)
        run_inside(deployment)
    bounded = storage_of(deployment).require(PEOPLE, "bounded").directory
    (bounded / "table").rename(bounded / "elsewhere")
    ran = run_here(deployment, steps=["model"])
    assert ran.success, ran.failures
    assert states_of(deployment) == ["spent"]


@pytest.mark.parametrize("where", ["before complete", "after complete"])
def test_killed_between_the_worker_and_the_record(tmp_path, jobs, monkeypatch, where):
    """The worker has ended well, its step has not: the model is used, and nothing is spent twice."""
    deployment = small_deployment(tmp_path)
    with monkeypatch.context() as patch:
        if where == "before complete":
            patch.setattr(Ledger, "complete", kill_at)
        else:
            patch.setattr(model_step, "_record", kill_at)
        assert set(run_inside(deployment).failures) == {"model"}
    assert states_of(deployment) == ["started" if where == "before complete" else "spent"]
    assert storage_of(deployment).read(PEOPLE, "model") is None
    ran = run_inside(deployment)
    assert ran.success, ran.failures
    assert states_of(deployment) == ["spent"]
    assert [job.mode for job in jobs if job.mode == "fit"] == ["fit"]
    assert ledger_of(deployment).verify().ok


def test_killed_before_the_start(tmp_path, monkeypatch):
    """A reservation whose mechanism never started is used by the next run."""
    deployment = small_deployment(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "start", kill_at)
        assert set(run_inside(deployment).failures) == {"model"}
    assert states_of(deployment) == ["reserved"]
    assert run_inside(deployment).success
    assert states_of(deployment) == ["spent"]


def test_a_disk_that_is_full_before_the_mechanism_costs_nothing(tmp_path, monkeypatch):
    """What the worker is handed is written first: the entry stays reserved, and the same run goes on later."""
    deployment = small_deployment(tmp_path)
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        patch.setattr(
            "dpsynth_platform.operations.mechanism.write_fingerprints", lambda *_: (_ for _ in ()).throw(full)
        )
        ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.failures["model"].startswith("the machine says: no space left on device"), ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "reserved"
    assert run_here(deployment, accelerator=inside(deployment)).success
    assert [(item.entry_id, item.state) for item in ledger_of(deployment).entries()] == [(entry.entry_id, "spent")]


def test_a_model_that_was_changed_is_not_paid_for_again(candidate):
    """Files of a spent entry were altered: they are neither used, nor made anew at a second cost without a word."""
    assert states_of(candidate) == ["spent"]
    model = storage_of(candidate).require(PEOPLE, "model").directory
    log = model / "measurements.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"sigma":', b'"sigma" :', 1))
    ran = run_inside(candidate)
    assert not ran.success
    assert "was completed with another model" in ran.failures["model"]
    assert states_of(candidate) == ["spent"]


def test_a_completed_mechanism_is_not_run_again_after_its_model_was_purged(candidate):
    """One run has one completed model: no word brings a second one, and the message does not offer any."""
    assert states_of(candidate) == ["spent"]
    shutil.rmtree(storage_of(candidate).require(PEOPLE, "model").directory)
    (entry,) = ledger_of(candidate).entries()
    refused = run_inside(candidate).failures["clearance"]
    assert f"the model that ledger entry {entry.entry_id} paid for has been purged" in refused
    assert "--spend-again" not in refused
    assert not run_here(candidate, spend_again=entry.entry_id, accelerator=inside(candidate)).success
    assert states_of(candidate) == ["spent"]
