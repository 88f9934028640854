"""Many processes on one ledger at once, and processes killed in the middle: on SQLite and on a real PostgreSQL."""

import multiprocessing
import os
import random
import signal
import sqlite3
import threading
import time
from contextlib import closing
from multiprocessing import forkserver
from pathlib import Path

import pytest
from ledger_cases import KEYS, people
from ledger_cases import request as cost_of
from race_worker import RACE_RHO, live, race

from dpsynth_platform.foundation.errors import BudgetExceeded
from dpsynth_platform.ledger import Ledger

pytestmark = pytest.mark.slow

PROCESSES = 32
TURNS = 16
KILLS = 200
AT_ONCE = 8


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}"
    return request.getfixturevalue("postgresql_url")


@pytest.fixture(scope="module")
def processes():
    """Whole processes that share nothing: each opens its own ledger after it was forked off a server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["race_worker", "pytest"])
    with pytest.MonkeyPatch.context() as patch:
        here = Path(__file__).parent
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(map(str, (here, here.parents[1])))
        )  # where it finds what it preloads
        forkserver.ensure_running()
    return context


def test_a_budget_that_fits_exactly_k_is_granted_exactly_k_times(ledger, url, processes, tmp_path):
    """32 processes, 512 requests, room for fewer than a hundred; the rest get a clear refusal."""
    sealed, curve = ledger.account("everyone").filter, cost_of(RACE_RHO).curve
    room = next(count for count in range(1, 1000) if not sealed.fits([(curve, 0.0)] * (count + 1)))
    assert PROCESSES < room < PROCESSES * TURNS / 4

    told = tmp_path / "told"
    racing = [processes.Process(target=race, args=(url, name, TURNS, told)) for name in range(PROCESSES)]
    for process in racing:
        process.start()
    for process in racing:
        process.join(timeout=600)
        assert process.exitcode == 0
    counts = [tuple(map(int, line.split())) for line in told.read_text().splitlines()]
    assert len(counts) == PROCESSES
    assert (sum(granted for granted, _ in counts), sum(refused for _, refused in counts)) == (
        room,
        PROCESSES * TURNS - room,
    )
    entries = ledger.entries("everyone")
    assert len(entries) == room
    assert {entry.state for entry in entries} == {"started"}
    assert len(ledger.history(kinds=["blocked"])) == PROCESSES * TURNS - room
    assert ledger.verify().ok


def test_processes_killed_at_random_points_lose_nothing(ledger, url, processes, tmp_path):
    """200 kills: no start that was told is lost, nothing is over-spent, the chain holds, the accounts go on."""
    choose, told, killed = random.SystemRandom(), tmp_path / "told", 0
    while killed < KILLS:
        batch = [
            processes.Process(target=live, args=(url, f"{killed}-{number}", told))
            for number in range(min(AT_ONCE, KILLS - killed))
        ]
        for process in batch:
            process.start()
        wait_for(told, killed // AT_ONCE + 1)
        for process in batch:
            time.sleep(choose.uniform(0, 0.05))
            os.kill(process.pid, signal.SIGKILL)
        for process in batch:
            process.join(timeout=120)
            assert process.exitcode == -signal.SIGKILL
        killed += len(batch)
    again = Ledger(url)
    report = again.verify()
    assert report.ok, report.problems
    states = {entry.entry_id: entry.state for entry in again.entries()}
    told_started = told.read_text().splitlines()
    assert len(told_started) >= KILLS // AT_ONCE
    assert {states[entry] for entry in told_started} <= {"started", "spent"}
    for family in ("everyone", "each"):
        entry = again.reserve(family, f"after-{family}", cost_of(0.0001), people(1000), "compose", key_ids=KEYS)
        assert again.start(entry.entry_id).state == "started"
    with pytest.raises(BudgetExceeded):
        again.reserve("everyone", "too much", cost_of(1.0), None, "compose")


def wait_for(told, starts):
    """Until so many starts were told: however slow the machine is, the killed were at work."""
    until = time.monotonic() + 300
    while not told.exists() or len(told.read_text().splitlines()) < starts:
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_new_ledger_that_another_is_making_is_waited_for(tmp_path):
    """SQLite itself does not wait where a file that is being written to is to be turned to write-ahead logging."""
    directory = tmp_path / "new"
    directory.mkdir(mode=0o700)
    with closing(sqlite3.connect(directory / "ledger.db", isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        done = threading.Timer(0.5, other.execute, ("COMMIT",))
        done.start()
        ledger = Ledger(f"sqlite:///{directory / 'ledger.db'}")
        done.join()
    assert ledger.entries() == []
