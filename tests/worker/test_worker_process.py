"""The worker as a real process, with and without Dagster around it."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from dagster import AssetExecutionContext, DagsterInstance, MaterializeResult, asset, materialize
from worker_cases import (
    MARK,
    ROOT,
    estimate_only,
    is_running,
    kill,
    make_job,
    pipes_environment,
    run_worker,
    sabotage,
    wait_until,
)

from dpsynth_platform.worker import codes, lifeline, local
from dpsynth_platform.worker.launch import Start
from resources import AcceleratorResource

RAISES = f"""
import numpy
def fail(*arguments, **named):
    print("{MARK}")
    try:
        int("{MARK}")
    except ValueError as cause:
        raise KeyError("{MARK}") from cause
numpy.bincount = fail
"""
ABORTS_AT_EXIT = """
import atexit, os
atexit.register(os.abort)
"""
SLEEPS = """
import time, numpy
def wait(*arguments, **named):
    for _ in range(1200):
        time.sleep(0.1)  # a signal that comes just before a sleep is handled after it only
numpy.bincount = wait
"""


def codes_in(messages):
    """The outcome codes among Pipes messages."""
    payloads = [json.loads(line) for line in messages.splitlines()]
    found = [message["params"]["payload"] for message in payloads if message["method"] == "report_custom_message"]
    return [payload["code"] for payload in found]


def test_a_job_runs_once_and_its_estimation_again(tmp_path):
    work = make_job(tmp_path)
    status, printed, messages, log = run_worker(tmp_path, work)
    assert (status, printed, codes_in(messages)) == (0, b"", [codes.DONE]), log
    assert "choosing pairs: 1 of 1" in messages
    assert (tmp_path / "model" / "model.json").exists()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600

    status, printed, messages, _ = run_worker(tmp_path, work)
    assert (codes.code_of(status), printed, codes_in(messages)) == ("claimed", b"", ["claimed"])

    (tmp_path / "model" / "model.json").unlink()
    status, _, _, _ = run_worker(tmp_path, estimate_only(work))
    assert status == 0
    assert (tmp_path / "model" / "model.json").exists()


def test_ledger_credentials_in_the_environment_stop_it(tmp_path):
    status, _, messages, _ = run_worker(tmp_path, make_job(tmp_path), DPSYNTH_LEDGER_URL="sqlite:///secret")
    assert (codes.code_of(status), codes_in(messages)) == ("credentials", ["credentials"])
    assert list((tmp_path / "model").iterdir()) == []


def test_it_runs_under_pipes_or_not_at_all(tmp_path):
    command = [sys.executable, "-m", "dpsynth_platform.worker", "--parent", "1", "--log", str(tmp_path / "log")]
    assert codes.code_of(subprocess.run(command, cwd=ROOT).returncode) == codes.KILLED  # no child of process 1
    command[4] = "{parent}"
    starter = "import os, subprocess, sys; a = sys.argv[1:]; a[4] = str(os.getpid()); sys.exit(subprocess.call(a))"
    ended = subprocess.run([sys.executable, "-c", starter, *command], cwd=ROOT, capture_output=True)
    assert (codes.code_of(ended.returncode), ended.stdout, ended.stderr) == ("configuration", b"", b"")


def materialized(directory, work, monkeypatch, **resource):
    """A model of Dagster that runs a job through the resource: (success, failure, events, what is stored)."""
    monkeypatch.chdir(ROOT)

    @asset(key=["people", "model"])
    def model(context: AssetExecutionContext) -> MaterializeResult:
        AcceleratorResource(logs=str(directory / "logs"), **resource).runner(context)(work)
        return MaterializeResult()

    home = directory / "dagster"
    home.mkdir()
    with DagsterInstance.local_temp(str(home)) as instance:
        result = materialize([model], instance=instance, raise_on_error=False)
        events = "".join(str(event) for event in instance.all_logs(result.run_id))
    failures = [event.step_failure_data.error.cause.message for event in result.all_events if event.is_step_failure]
    stored = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert len(stored) > 1000
    return result.success, "".join(failures), events, stored


def test_no_word_of_an_exception_reaches_dagster(tmp_path, monkeypatch, capfd):
    """The planted text is in the exception, its cause, stdout and the data; Dagster's storage must not hold it."""
    work = make_job(tmp_path)
    monkeypatch.setenv("PYTHONPATH", sabotage(tmp_path / "sabotage", RAISES))
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", "sqlite:///secret")
    success, failure, events, stored = materialized(tmp_path, work, monkeypatch)
    assert not success
    assert "; its restricted log says why (details: restricted log worker-" in failure
    (log,) = (tmp_path / "logs").iterdir()  # messages and context are gone
    assert MARK in log.read_text()  # planted where it may be, so that the search below means something
    assert MARK not in events
    assert MARK not in "".join(capfd.readouterr())
    assert MARK.encode() not in stored
    assert work.grant.encode() not in stored


def test_libraries_that_abort_at_exit_do_not_undo_what_was_done(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", sabotage(tmp_path / "sabotage", ABORTS_AT_EXIT))
    success, failure, _, _ = materialized(tmp_path, make_job(tmp_path), monkeypatch)
    assert success, failure


def test_progress_reaches_dagster(tmp_path, monkeypatch):
    success, failure, events, _ = materialized(tmp_path, make_job(tmp_path), monkeypatch)
    assert success, failure
    assert "choosing pairs: 1 of 1" in events
    assert (tmp_path / "model" / "model.json").exists()


@pytest.mark.parametrize("victim", ["launcher", "worker"])
def test_killed_in_the_mechanism(tmp_path, victim):
    """No orphan goes on; the claim stays, and a second start is refused."""
    work = make_job(tmp_path)
    environment = pipes_environment(tmp_path, work.to_extras(), PYTHONPATH=sabotage(tmp_path / "sabotage", SLEEPS))
    launcher = (
        "import os, subprocess, sys\n"
        f"worker = subprocess.Popen([sys.executable, '-m', 'dpsynth_platform.worker', '--parent', str(os.getpid()),"
        f" '--log', {str(tmp_path / 'log')!r}])\n"
        "print(worker.pid, flush=True)\n"
        "sys.exit(worker.wait() != -9)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", launcher], env=environment, cwd=ROOT, stdout=subprocess.PIPE)
    worker = int(process.stdout.readline())
    assert wait_until((tmp_path / "model" / "claim.json").exists, 180)
    assert is_running(worker)
    # A crash would leave no image of the memory.
    assert re.search(r"Max core file size\s+0\s+0\s", Path(f"/proc/{worker}/limits").read_text())
    kill(process.pid if victim == "launcher" else worker)
    assert wait_until(lambda: not is_running(worker), 120)
    assert process.wait(120) == (-9 if victim == "launcher" else 0)
    process.stdout.close()
    if victim == "worker":
        status, _, _, _ = run_worker(tmp_path, dataclasses.replace(work))
        assert codes.code_of(status) == "claimed"
    assert not (tmp_path / "model" / "model.json").exists()


def test_an_interrupted_step_stops_its_worker(tmp_path, monkeypatch):
    """The worker is told, and killed where it does not listen."""
    work = make_job(tmp_path)
    environment = pipes_environment(tmp_path, work.to_extras())
    monkeypatch.setenv("PYTHONPATH", sabotage(tmp_path / "sabotage", SLEEPS))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(local, "STOP_SECONDS", 300.0)  # however busy the machine is, it listens
    pipes = {name: value for name, value in environment.items() if name.startswith("DAGSTER_PIPES_")}
    started = []

    def interrupted(process, timeout=None):
        if not started:
            started.append(process.pid)
            assert wait_until((tmp_path / "model" / "claim.json").exists, 180)
            raise KeyboardInterrupt
        return wait(process, timeout)

    wait = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        local.LocalLauncher().run(Start(work.model_directory, tmp_path / "log", pipes))
    assert not is_running(started[0])
    assert codes_in((tmp_path / "messages").read_text()) == ["interrupted"]


KEEPS_ITS_STATE = """
import pathlib, signal, sys, time
told = []
signal.signal(signal.SIGINT, lambda *_: told.append(1))
pathlib.Path(sys.argv[1], "ready").touch()
while not (told and pathlib.Path(sys.argv[1], "both came").exists()):
    time.sleep(0.01)
pathlib.Path(sys.argv[1], "kept").touch()
"""


def test_a_second_interruption_leaves_the_worker_its_time(tmp_path, monkeypatch):
    """Ctrl-C reaches a step twice: from the keyboard, and from its run."""
    monkeypatch.setattr(local, "command", lambda *_: [sys.executable, "-c", KEEPS_ITS_STATE, str(tmp_path)])
    monkeypatch.setattr(local, "STOP_SECONDS", 300.0)
    waits, wait = [threading.Event(), threading.Event()], subprocess.Popen.wait

    def waited(process, timeout=None):
        next((event for event in waits if not event.is_set()), waits[-1]).set()
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", waited)

    def twice():
        """Each while the launcher waits: for the worker, then for its end. The worker stays until both have come."""
        assert wait_until((tmp_path / "ready").exists, 120)
        for waiting in waits:
            assert waiting.wait(120)
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)  # subprocess itself waits half as long
        (tmp_path / "both came").touch()

    # Whoever starts the tests in the background has the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupting = threading.Thread(target=twice)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            local.LocalLauncher().run(Start(tmp_path / "model", tmp_path / "log", {}))
    finally:
        interrupting.join()
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "kept").exists()


def test_a_cluster_ends_it_in_order(tmp_path):
    """By SIGTERM, which the first process of a container would not even notice."""
    with worker_on_a_lifeline(tmp_path) as process:
        assert wait_until((tmp_path / "model" / "claim.json").exists, 180)
        process.terminate()
        process.send_signal(signal.SIGINT)
        assert codes.code_of(process.wait(120)) == "interrupted"
    assert codes_in((tmp_path / "messages").read_text()) == ["interrupted"]


@pytest.mark.parametrize("end", ["stands still", "is gone"])
def test_it_dies_without_a_sign_of_life(tmp_path, end):
    """By a clock that this test moves, each time after the worker has looked: no pause of either makes a difference."""
    with worker_on_a_lifeline(tmp_path) as process:
        assert wait_until((tmp_path / "model" / "claim.json").exists, 180)
        for number in range(1, 5):  # signs for longer than the worker waits for one
            put(tmp_path / "alive", number)
            looks_again(tmp_path, process)
            put(tmp_path / "clock", number * 0.7 * lifeline.PATIENCE_SECONDS)
            looks_again(tmp_path, process)
        if end == "is gone":
            (tmp_path / "alive").unlink()
        else:
            put(tmp_path / "clock", 4 * lifeline.PATIENCE_SECONDS)
        assert process.wait(120) == lifeline.KILLED_STATUS
        assert codes.code_of(process.returncode) == codes.KILLED


def put(path, value):
    """Writes a file that another process reads at any time."""
    path.with_suffix(".new").write_text(str(value))
    path.with_suffix(".new").replace(path)


def looks_again(directory, process):
    """Returns when the worker has looked for a sign of life since, from the beginning to the end, and goes on."""
    looks = directory / "looks"

    def count():
        return looks.stat().st_size if looks.exists() else 0

    before = count()
    assert wait_until(lambda: count() >= before + 2 or process.poll() is not None, 120)
    assert process.poll() is None


@contextlib.contextmanager
def worker_on_a_lifeline(directory):
    """A worker that sleeps in its mechanism, and that waits for signs of life by the clock in a file."""
    put(directory / "alive", 0)
    put(directory / "clock", 0)
    impatient = SLEEPS + (
        "import pathlib, types\n"
        "from dpsynth_platform.worker import lifeline\n"
        f"clock, looks = (pathlib.Path({str(directory)!r}, name) for name in ('clock', 'looks'))\n"
        "def looked(_):\n"
        "    with looks.open('a') as file:\n"
        "        file.write('.')\n"
        "    time.sleep(0.02)\n"
        "lifeline.time = types.SimpleNamespace(monotonic=lambda: float(clock.read_text()), sleep=looked)\n"
    )
    code = sabotage(directory / "sabotage", impatient)
    environment = pipes_environment(directory, make_job(directory).to_extras(), PYTHONPATH=f"{code}:{ROOT}")
    command = [sys.executable, "-m", "dpsynth_platform.worker", "--alive", str(directory / "alive")]
    process = subprocess.Popen([*command, "--log", str(directory / "log")], env=environment, cwd=ROOT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
