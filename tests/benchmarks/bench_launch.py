"""How long a launch in Dagster takes until its first step works. Not a test.

    python tests/benchmarks/bench_launch.py           # three launches of the small test deployment's candidate

Starts Dagster's UI and daemon (`dpsynth up`), launches the job as the UI does, and prints for each milestone of the run
the seconds by the clock since the launch, and the processor seconds of all of Dagster's processes until then. The
deployment is new, so the first launch has the files to make that others find. Processor seconds of later launches are
too few, since processes of earlier ones end meanwhile.

On two cores at a load of 1 to 2.6, the first step works 5.3 to 8.9 s after the launch (six launches, median 6.5 s; the
first of a deployment 6.3 s, with 6.2 to 6.8 processor seconds). Before the modules of later steps were imported while
the first step works, and the fork server started together with the run's own imports: 9.3 to 10.2 s. Until the run
starts, which is Dagster's own work, 2.5 to 5.4 s pass. A queued run waits one second at most, before five.

What belongs here: timing. What does not: asserting; what is loaded is held by `tests/end_to_end/test_definitions.py`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
LAUNCHES, WAIT = 3, 300
TICK = os.sysconf("SC_CLK_TCK")
LOCATIONS = "{repositoriesOrError{... on RepositoryConnection{nodes{name location{name}}}}}"
LAUNCH = """mutation($p: ExecutionParams!) {
  launchRun(executionParams: $p) {__typename ... on LaunchRunSuccess {run {runId}}}
}"""
EVENTS = """query($r: ID!, $c: String) {
  logsForRun(runId: $r, afterCursor: $c) {
    ... on EventConnection {cursor events {... on MessageEvent {timestamp message stepKey eventType}}}
  }
}"""
MILESTONES = ("RUN_STARTING", "RUN_START", "STEP_START", "the first step works", "RUN_SUCCESS")


def ask(url: str, query: str, **variables: Any) -> Any:
    """The data of a GraphQL answer."""
    body = json.dumps({"query": query, "variables": variables}).encode()
    with urlopen(Request(f"{url}/graphql", body, {"content-type": "application/json"}), timeout=WAIT) as answer:
        return json.load(answer)["data"]


def processor_seconds(session: int) -> float:
    """Of all living processes of a session, with those whose end they waited for."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            total += sum(map(int, fields[11:15]))
    return total / TICK


def launch(url: str, session: int) -> dict[str, tuple[float, float]]:
    """Milestones of one run: seconds by the clock and processor seconds since its launch."""
    (repository,) = ask(url, LOCATIONS)["repositoriesOrError"]["nodes"]
    job = {
        "repositoryName": repository["name"],
        "repositoryLocationName": repository["location"]["name"],
        "jobName": "people_candidate",
    }
    began, spent = time.time(), processor_seconds(session)
    launched = ask(url, LAUNCH, p={"selector": job, "runConfigData": {}, "mode": "default"})["launchRun"]
    run, cursor, found = launched["run"]["runId"], None, {}
    while not found.keys() & {"RUN_SUCCESS", "RUN_FAILURE"}:
        page = ask(url, EVENTS, r=run, c=cursor)["logsForRun"]
        cursor, processor = page["cursor"], processor_seconds(session) - spent
        for event in page["events"]:
            works = event["eventType"] is None and event["stepKey"] == "people__raw"
            kind = MILESTONES[3] if works else str(event["eventType"])
            found.setdefault(kind, (float(event["timestamp"]) / 1000 - began, processor))
        time.sleep(0.1)
    return found


if __name__ == "__main__":
    sys.path.append(str(ROOT / "tests" / "end_to_end"))
    from line_cases import small_deployment

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as made:
        deployment = small_deployment(Path(made))
        up = subprocess.Popen(
            [sys.executable, "-m", "dpsynth_platform", "up", "--port", str(port)],
            env=deployment.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(WAIT):
                try:
                    ask(address, LOCATIONS)
                    break
                except OSError:
                    time.sleep(1)
            print(f"load of the machine: {os.getloadavg()[0]:.1f}")
            print("| launch | " + " | ".join(MILESTONES) + " |\n" + "| --- " * (len(MILESTONES) + 1) + "|")
            for number in range(LAUNCHES):
                at = launch(address, up.pid)
                cells = [
                    f"{at[name][0]:.1f} s, {at[name][1]:.1f} processor" if name in at else "" for name in MILESTONES
                ]
                print(f"| {number + 1} | " + " | ".join(cells) + " |", flush=True)
        finally:
            up.terminate()
            with suppress(subprocess.TimeoutExpired):
                up.wait(60)
            with suppress(ProcessLookupError):
                os.killpg(up.pid, signal.SIGKILL)
            time.sleep(1)
