"""A deployment that lives through simulated months: real processes of Dagster, a clock that is moved, and kills.

What belongs here: what the test of two months and the measured year share. What does not: what must hold at the end.

As in production, one process serves the code location and one is Dagster's daemon; the schedule, the sensors and every
run are theirs. Each run is a process of its own, each of its steps too, and the mechanism runs in a worker. A moved
clock (`moved_clock`) is in all of them. Whoever is dead is started again, as a supervisor would.
"""

from __future__ import annotations

import calendar
import copy
import datetime as dt
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import numpy as np
import pyarrow as pa
from dagster._core.storage.dagster_run import FINISHED_STATUSES, NOT_FINISHED_STATUSES
from deltalake import write_deltalake
from deployment import FAMILY, Deployment
from line_cases import REGIONS, SMALL

from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.operations.running import open_instance, process_of, step_failures
from dpsynth_platform.worker.codes import DONE, KILLED

T = TypeVar("T")
YEAR = 2026
PEOPLE = 500
MODELLED = 3
"""Columns that are."""
APPROVES = """
import sys
from dpsynth_platform.reviewing import decisions
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place
decisions.approve(Settings.from_environment(), Place(*sys.argv[1:]), "reviewer", "")
"""
PACE, PACE_OF_RUNS = 20, 3
"""How many times faster than the machine's the moved clock runs while something is waited for; and while a run is under
way, which Dagster gives up as dead if it takes five minutes to start."""
LOOK = 0.25
"""Seconds between two looks at what is waited for."""
KILLS = ("daemon", "code", "run", "step", "machine")
"""What may be killed: a service, a run's process, one of its steps' (or the worker), or everything at once."""


def months(number: int) -> list[str]:
    """The year's first months."""
    return [f"{YEAR}-{month:02d}" for month in range(1, number + 1)]


def rows_of(month: str) -> pa.Table:
    """One row a person and month: the same people come in every month."""
    at = np.random.default_rng(int(month[-2:]))
    first, region = dt.date.fromisoformat(f"{month}-01"), at.integers(0, 4, PEOPLE)
    return pa.table(
        {
            "person": pa.array([f"P{number:05d}" for number in range(PEOPLE)]),
            "visit": pa.array(int(month[-2:]) * 10_000 + np.arange(PEOPLE), pa.int64()),
            "day": pa.array([first + dt.timedelta(days=int(day)) for day in at.integers(0, 28, PEOPLE)], pa.date32()),
            "region": pa.array([REGIONS[number] for number in region]),
            "outcome": pa.array(np.where(region + at.integers(-1, 2, PEOPLE) > 1, "yes", "no").tolist()),
        }
    )


def monthly_deployment(root: Path, cap: float) -> Deployment:
    """A dataset with a cadence, whose family is charged as a whole, so that everyone may see when nothing is left."""
    contract: dict[str, Any] = copy.deepcopy(SMALL) | {
        "columns": {
            "person": {"type": "identifier"},
            "visit": {"type": "identifier"},
            "day": {"type": "date", "min": f"{YEAR}-01-01", "max": f"{YEAR}-12-31"},
            "region": {"type": "categorical", "values": REGIONS},
            "outcome": {"type": "categorical", "values": ["no", "yes"]},
        },
        "generate": {"method": "independent", "rows": 100},
        "retention": {"raw": "30d", "scrubbed": "7d", "bounded": "1d", "model": "7d", "synthetic": "30d"},
    }
    contract["source"]["period_column"] = "day"
    contract["privacy"] |= {"max_contributions": 1, "expected_units": PEOPLE}
    contract["release"] |= {"cadence": "monthly", "start": f"{YEAR}-01"}
    del contract["quality"]
    family = copy.deepcopy(FAMILY) | {"cap": {"epsilon": cap, "delta": 1.0e-4}}
    return Deployment(root, contract, family).write()


@dataclass
class Simulation:
    """A deployment with its two services and its clock.

    Attributes:
        instance: Dagster's storage, which this process reads beside the services.
        place: a directory with a short name, for the socket.
        chance: decides what is killed and when.
        kills: who is to be killed, one a month.
        became: how each month ended: `released`, or the code of what refused it.
        told: what happened, in words.
    """

    deployment: Deployment
    instance: dg.DagsterInstance
    place: Path
    chance: random.Random
    kills: list[str] = field(default_factory=list)
    became: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    services: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Of every process."""
        parts = [str(self.place), os.environ.get("PYTHONPATH", "")]
        return self.deployment.environment | {
            "PYTHONPATH": os.pathsep.join(filter(None, parts)),
            "DAGSTER_HOME": str(self.deployment.settings.dagster_home),
            "DPSYNTH_NOTIFY": f"sh -c 'cat >> {self.notices}'",
        }

    @property
    def notices(self) -> Path:
        """What people were told, a JSON object a line."""
        return self.deployment.root / "notices.jsonl"

    def say(self, words: str) -> None:
        self.told.append(f"{self.now():%Y-%m-%d %H:%M:%S} {words}")
        print(self.told[-1], flush=True)

    # The clock.

    def now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp((time.time_ns() + self._offset()) / 1e9, dt.UTC)

    def move_to(self, moment: dt.datetime) -> None:
        """Sets the clock forward; never back."""
        at = time.time_ns()
        by = int(moment.timestamp() * 1e9) - at
        if not (self.place / "clock").exists() or by > self._offset():
            with (self.place / "clock").open("a") as clock:
                clock.write(f"{at} {by}\n")

    def _offset(self) -> int:
        return int((self.place / "clock").read_text().split()[-1])

    # The services.

    def start(self) -> None:
        """Starts what is not there."""
        socket = self.place / "code.sock"
        (self.place / "workspace.yaml").write_text(
            f"load_from:\n  - grpc_server: {{socket: {socket}, location_name: dpsynth}}\n"
        )
        commands = {
            "code": ["dagster", "api", "grpc", "-m", "dpsynth_platform.definitions", "-s", str(socket)],
            "daemon": ["dagster._daemon", "run", "-w", str(self.place / "workspace.yaml")],
        }
        for name, command in commands.items():
            if name not in self.services or self.services[name].poll() is not None:
                with (self.place / f"{name}.log").open("ab") as log:
                    self.services[name] = subprocess.Popen(
                        [sys.executable, "-m", *command],
                        env=self.environment,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )

    def stop(self) -> None:
        """Ends everything, the services in order first."""
        for service in self.services.values():
            service.terminate()
        for service in self.services.values():
            try:
                service.wait(30)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait()
        for number in self.processes():
            _kill(number)

    def processes(self) -> list[int]:
        """Every live process of this simulation, by the clock that it finds on its path."""
        return [number for number in _numbers() if f"PYTHONPATH={self.place}".encode() in _read(number, "environ")]

    def wait_for(self, condition: Callable[[], T], what: str, seconds: float = 900) -> T:
        """The condition's value once it is true; meanwhile the clock runs fast, and whoever is dead is started."""
        began = time.monotonic()
        while not (found := condition()):
            if time.monotonic() - began > seconds:
                raise AssertionError(f"not within {seconds} seconds: {what}\n" + "\n".join(self.told))
            self.start()
            time.sleep(LOOK)
            under_way = self.instance.get_runs_count(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES))
            self.move_to(self.now() + LOOK * dt.timedelta(seconds=(PACE_OF_RUNS if under_way else PACE) - 1))
        return found

    # What happens in a month.

    def lives_through(self, month: str) -> None:
        """The month's rows come, the month ends, its candidate is approved, and days pass."""
        settings, first = self.deployment.settings, _end_of(month)
        self.move_to(first - dt.timedelta(hours=1))
        write_deltalake(str(settings.home / "sources" / "people"), rows_of(month), mode="append")
        self.move_to(first + dt.timedelta(seconds=5))
        place, phase = Place("people", month), self._next_kill()
        self._kill_during(phase == "candidate", "people_candidate", month)
        ended = self.wait_for(lambda: self.ended("people_candidate", month), f"a candidate of {month}")
        if ended == DONE:
            command = [sys.executable, "-c", APPROVES, place.dataset, month]
            subprocess.run(command, env=self.environment, check=True, timeout=600)
            self._kill_during(phase == "release", "people_release", month)
            ended = self.wait_for(lambda: self.ended("people_release", month), f"a release of {month}")
            ended = "released" if ended == DONE else ended
        self.became[month] = ended
        self.say(f"{month}: {ended}")
        self.let_pass(dt.timedelta(days=10))

    def let_pass(self, time_: dt.timedelta) -> None:
        """Moves the clock, and waits until the sweep has looked since."""
        self.move_to(self.now() + time_)
        since = self.now().timestamp()
        self.wait_for(lambda: self.swept(since), "a sweep")

    def is_scheduled(self) -> bool:
        """Whether the daemon knows of the schedule: months that ended before are a backfill's."""
        return any(state.instigator_name == "people_monthly" for state in self.instance.all_instigator_state())

    def swept(self, since: float) -> bool:
        """Whether the sensor `retention` has ended a look that began after a moment."""
        return "retention" in self.have_looked(since)

    def have_looked(self, since: float) -> set[str]:
        """Names of the sensors and schedules that have ended a look well which began after a moment."""
        found = set()
        for state in self.instance.all_instigator_state():
            ticks = self.instance.get_ticks(state.instigator_origin_id, state.selector_id, after=since)
            if any(tick.status.value in ("SKIPPED", "SUCCESS") for tick in ticks):
                found.add(state.instigator_name)
        return found

    def ended(self, job: str, month: str) -> str:
        """How the last run of a job and month ended: `DONE` or a code; empty while one is under way, or to come."""
        runs = self._runs(job, month)
        if not runs or any(run.status not in FINISHED_STATUSES for run in runs):
            return ""
        if runs[0].status == dg.DagsterRunStatus.SUCCESS:
            return DONE
        events = [entry.dagster_event for entry in self.instance.all_logs(runs[0].run_id) if entry.dagster_event]
        return next((code for _, _, code in step_failures(events) if code != KILLED), "")

    # Kills.

    def _next_kill(self) -> str:
        """In which phase of this month somebody is killed, if anybody."""
        return self.chance.choice(["candidate", "candidate", "release"]) if self.kills else ""

    def _kill_during(self, wanted: bool, job: str, month: str) -> None:
        """Kills the next of `kills` at a random moment of a run, or after its end where it has fewer steps."""
        if not wanted:
            return
        what, steps, after = self.kills.pop(0), self.chance.randrange(11), self.chance.uniform(0, 3)
        number = self.wait_for(lambda: self.run_process(job, month), f"a run of {job} for {month}")
        self.wait_for(lambda: self.steps_begun(job, month) >= steps, f"step {steps} of {job} for {month}")
        time.sleep(after)
        there = self.processes()
        victims = {
            "daemon": [self.services["daemon"].pid],
            "code": [self.services["code"].pid],
            "run": [number],
            "step": [item for item in there if number in _ancestors(item)],
            "machine": there,
        }[what]
        if what == "step" and victims:
            victims = [self.chance.choice(victims)]
        for victim in set(victims) & set(there):
            _kill(victim)
        self.say(f"{month}: killed {what} {after:.1f} s after step {steps} of {job} began")

    def run_process(self, job: str, month: str) -> int:
        """Number of the process of the job's run, 0 before there is one."""
        runs = self._runs(job, month)
        return (process_of(self.instance, runs[0].run_id) or 0) if runs else 0

    def steps_begun(self, job: str, month: str) -> float:
        """How many steps and checks the job's last run has begun; without end once it is over."""
        last = self._runs(job, month)[0]
        begun = self.instance.get_records_for_run(last.run_id, of_type=dg.DagsterEventType.STEP_START).records
        return math.inf if last.status in FINISHED_STATUSES else len(begun)

    def _runs(self, job: str, month: str) -> Sequence[dg.DagsterRun]:
        return self.instance.get_runs(dg.RunsFilter(job_name=job, tags={"dagster/partition": month}))


@contextmanager
def simulated(root: Path, *, cap: float, seed: int, kills: Iterable[str] = ()) -> Iterator[Simulation]:
    """A deployment on the year's first day, with its services; ends them."""
    deployment = monthly_deployment(root, cap)
    with (
        tempfile.TemporaryDirectory(prefix="year", dir="/tmp") as name,  # a socket's path must be short
        open_instance(deployment.settings) as instance,
    ):
        made = Simulation(deployment, instance, Path(name), random.Random(seed), list(kills))
        shutil.copyfile(Path(__file__).with_name("moved_clock.py"), made.place / "sitecustomize.py")
        made.move_to(dt.datetime(YEAR, 1, 31, 12, tzinfo=dt.UTC))
        made.start()
        try:
            made.wait_for(made.is_scheduled, "the daemon")
            yield made
        finally:
            made.stop()


def _end_of(month: str) -> dt.datetime:
    year, number = map(int, month.split("-"))
    return dt.datetime(year, number, calendar.monthrange(year, number)[1], tzinfo=dt.UTC) + dt.timedelta(days=1)


def _kill(number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


def _numbers() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _read(number: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{number}/{name}").read_bytes()
    except OSError:
        return b""


def _ancestors(number: int) -> list[int]:
    found = []
    while number > 1:
        stat = _read(number, "stat")
        number = int(stat.rpartition(b")")[2].split()[1]) if stat else 0
        found.append(number)
    return found
