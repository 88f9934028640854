"""The worker as a real process, with and without Dagster around it."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dagster import DagsterInstance, OpExecutionContext, PipesSubprocessClient, job, op
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

from dpsynth_platform.worker import codes, launch

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
SLEEPS = """
import time, numpy
def wait(*arguments, **named):
    time.sleep(120)
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


def test_no_word_of_an_exception_reaches_dagster(tmp_path, capfd):
    """The planted text is in the exception, its cause, stdout and the data; Dagster's storage must not hold it."""
    work = make_job(tmp_path)
    paths = sabotage(tmp_path / "sabotage", RAISES)
    failures = []

    @op
    def start(context: OpExecutionContext):
        import os

        os.environ["DPSYNTH_LEDGER_URL"] = "sqlite:///secret"
        try:
            command = launch.command(os.environ, parent=os.getpid(), log=tmp_path / "log")
            client = PipesSubprocessClient(cwd=str(ROOT), env={"PYTHONPATH": paths})
            client.run(context=context, command=command, extras=work.to_extras())
        except Exception as error:
            failures.append(str(error))
            raise
        finally:
            del os.environ["DPSYNTH_LEDGER_URL"]

    @job
    def one_op():
        start()

    home = tmp_path / "dagster"
    home.mkdir()
    with DagsterInstance.local_temp(str(home)) as instance:
        result = one_op.execute_in_process(instance=instance, raise_on_error=False)
        events = "".join(str(event) for event in instance.all_logs(result.run_id))
        assert not result.success
    assert codes.code_of_failure(failures[0]) == codes.UNEXPECTED
    assert MARK in (tmp_path / "log").read_text()  # planted where it may be, so that the search below means something
    printed = "".join(capfd.readouterr())
    assert "failed with code" in events
    stored = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert len(stored) > 1000
    assert MARK not in events
    assert MARK not in printed
    assert MARK.encode() not in stored


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
    assert wait_until((tmp_path / "model" / "claim.json").exists, 60)
    assert is_running(worker)
    # A crash would leave no image of the memory.
    assert re.search(r"Max core file size\s+0\s+0\s", Path(f"/proc/{worker}/limits").read_text())
    kill(process.pid if victim == "launcher" else worker)
    assert wait_until(lambda: not is_running(worker), 10)
    assert process.wait(10) == (-9 if victim == "launcher" else 0)
    process.stdout.close()
    if victim == "worker":
        status, _, _, _ = run_worker(tmp_path, dataclasses.replace(work))
        assert codes.code_of(status) == "claimed"
    assert not (tmp_path / "model" / "model.json").exists()
