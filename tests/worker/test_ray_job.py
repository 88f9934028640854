"""Workers as Ray jobs: the command, and a real cluster of one machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_cases import ROOT, is_running, make_job, pipes_environment, wait_until

from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.worker import cluster, codes, ray_job
from dpsynth_platform.worker.choice import RayChoice
from dpsynth_platform.worker.launch import Start
from dpsynth_platform.worker.launchers import launcher_of
from dpsynth_platform.worker.ray_job import RayLauncher, entrypoint


def choice(address: str = "http://head:8265", **changes: Any) -> RayChoice:
    small = {"cpus": 1, "memory": "200MB", "python": sys.executable}
    return validated(RayChoice, {"launcher": "ray", "address": address} | small | changes, "test")


def test_the_command_hands_on_a_list_of_variables(tmp_path: Path) -> None:
    """What a cluster's processes hold does not reach the worker, whatever it is; values keep their spaces."""
    shows = tmp_path / "shows"
    shows.write_text(f"#!{shutil.which('sh')}\nprintf '%s\\n' \"$@\"\n/usr/bin/env\n")
    shows.chmod(0o700)
    start = Start(tmp_path / "model", tmp_path / "a log", {"DAGSTER_PIPES_CONTEXT": "some context"})
    found = subprocess.run(
        ["sh", "-c", entrypoint(choice(python=str(shows)), start)],
        env={"PATH": os.environ["PATH"], "HOME": "/a home", "RAY_SECRET": "x", "DPSYNTH_LEDGER_URL": "secret"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = found.stdout.splitlines()
    alive = str(tmp_path / "a log-alive.log")
    assert told[:6] == ["-m", "dpsynth_platform.worker", "--alive", alive, "--log", str(tmp_path / "a log")]
    variables = {name for name, _, _ in (line.partition("=") for line in told[6:])} - {"PWD", "SHLVL", "_"}
    assert variables == {"PATH", "HOME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "DAGSTER_PIPES_CONTEXT"}
    assert {"HOME=/a home", "DAGSTER_PIPES_CONTEXT=some context"} <= set(told)


def test_no_cluster_is_told_before_anything_is_spent() -> None:
    pytest.importorskip("ray.job_submission")
    with socket.socket() as held:  # bound and not listening, so that connections are refused
        held.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"launcher: ray: no cluster accepts jobs at {address}"):
            launcher_of(choice(address))


def unused_ports() -> Iterator[int]:
    """Below those that Ray gives to its processes."""
    for port in range(8300, 9900):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                yield port


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of this machine, of the test alone."""
    pytest.importorskip("ray.job_submission")
    from ray.job_submission import JobSubmissionClient

    command = Path(sys.executable).with_name("ray")
    ports = unused_ports()
    dashboard = next(ports)
    options = [
        "--head",
        "--block",
        "--disable-usage-stats",
        "--num-cpus=2",
        "--port=0",
        f"--ray-client-server-port={next(ports)}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}",
        "--object-store-memory=80000000",
        f"--temp-dir={tmp_path_factory.mktemp('r')}",  # sockets' paths must be short
    ]
    environment = os.environ | {"RAY_SECRET": "x", "DPSYNTH_LEDGER_URL": "secret", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([str(command), "start", *options], env=environment, stdout=subprocess.DEVNULL) as head:
        try:
            found = f"http://127.0.0.1:{dashboard}"

            def answers() -> bool:
                assert head.poll() is None
                try:
                    return bool(JobSubmissionClient(found).list_jobs() == [])
                except (OSError, RuntimeError):
                    return False

            assert wait_until(answers, 300)
            yield found
        finally:
            head.terminate()


def here(directory: Path) -> Start:
    environment = pipes_environment(directory, make_job(directory).to_extras())
    pipes = {name: value for name, value in environment.items() if name.startswith("DAGSTER_PIPES_")}
    return Start(directory / "model", directory / "log", pipes)


@pytest.mark.slow
def test_a_worker_runs_in_a_job_that_is_gone_afterwards(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a real cluster; a second start at the same place ends with the worker's own code."""
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.2)
    start, launcher = here(tmp_path), RayLauncher(choice(address))
    launcher.check([], [])
    assert launcher.run(start) == 0, start.log.read_text()
    assert (tmp_path / "model" / "model.json").exists()
    assert "choosing pairs: 1 of 1" in (tmp_path / "messages").read_text()
    assert not start.alive.exists()
    assert codes.code_of(launcher.run(start)) == "claimed"


@pytest.mark.slow
def test_an_interrupted_step_takes_its_job_with_it(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, launcher = here(tmp_path), RayLauncher(choice(address, python=str(tmp_path / "sleeps")))
    (tmp_path / "sleeps").write_text(f"#!{shutil.which('sh')}\necho $$ > {tmp_path}/pid\nexec sleep 120\n")
    (tmp_path / "sleeps").chmod(0o700)

    def interrupted(look: Any, _: float) -> int:
        assert wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"), 180)
        assert look() is None  # it runs
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_job, "wait_for_exit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launcher.run(start)
    assert wait_until(lambda: not is_running(int((tmp_path / "pid").read_text())), 120)
    assert all(job.status.is_terminal() for job in launcher._client.list_jobs())
