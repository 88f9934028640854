"""Real processes on one SQLite ledger: races, kills, and what remains."""

import signal
import subprocess
import sys
import textwrap

import pytest
from ledger_cases import KEYS, family, people, request
from ledger_forks import outputs

from dpsynth_platform.foundation.errors import LedgerError, SpendRepeated
from dpsynth_platform.ledger import Ledger

RACE = """
    from ledger_cases import KEYS, family, people, request
    from dpsynth_platform.foundation.errors import BudgetExceeded
    from dpsynth_platform.ledger import Ledger
    url, who, mode = sys.argv[1:]
    ledger = Ledger(url)
    ledger.open_account(family("f", mode=mode), KEYS)
    sys.stdout.write("ready "); sys.stdout.flush()
    for turn in range(6):
        try:
            cost = request(0.05, plan=f"{who}{turn}")
            entry = ledger.reserve("f", f"{who}-{turn}", cost, people(1, 2), "compose", key_ids=KEYS)
        except BudgetExceeded:
            continue
        ledger.start(entry.entry_id)
        print(entry.entry_id)
"""


@pytest.mark.parametrize("mode", ["family", "per-owner"])
def test_racing_processes_never_overspend(processes, url, mode):
    """Capacity is about 0.36: seven requests of 0.05 fit, whoever asks and however they interleave."""
    alone = Ledger(url + ".alone")
    alone.open_account(family("f", mode="family"), KEYS)
    sealed = alone.account("f").filter
    curve = request(0.05).curve
    expected = next(count for count in range(1, 100) if not sealed.fits([(curve, 0.0)] * (count + 1)))

    found = outputs(processes.run(RACE, *([url, who, mode] for who in range(4))))
    assert all(told[0] == "ready" for told in found)
    ledger = Ledger(url)
    assert ledger.verify().ok
    granted = [entry for told in found for entry in told[1:]]
    if mode == "family":
        assert len(granted) == expected
        assert all(ledger.entry(entry).state == "started" for entry in granted)
    else:
        assert len(granted) == 24  # nobody is refused
        charged = sum(len(ledger.participants(entry)) == 2 for entry in granted)
        assert charged == expected
    assert len(ledger.accounts()) == 1


START = """
    from dpsynth_platform.foundation.errors import SpendRepeated
    from dpsynth_platform.ledger import Ledger
    ledger = Ledger(sys.argv[1])
    try:
        ledger.start(sys.argv[2])
        print("started")
    except SpendRepeated:
        print("repeated")
"""


def test_an_entry_starts_in_one_process_only(processes, ledger, url):
    entry = ledger.reserve("everyone", "k", request(), people(1), "compose", key_ids=KEYS)
    found = outputs(processes.run(START, *[[url, entry.entry_id]] * 4))
    assert sorted(found) == [["repeated"]] * 3 + [["started"]]


SAME_KEY = """
    from ledger_cases import KEYS, people, request
    from dpsynth_platform.ledger import Ledger
    ledger = Ledger(sys.argv[1])
    print(ledger.reserve("each", "the-key", request(), people(1, 2), "compose", key_ids=KEYS).entry_id)
"""


def test_one_key_is_one_entry_for_all_processes(processes, ledger, url):
    found = outputs(processes.run(SAME_KEY, *[[url]] * 4))
    assert len({told[0] for told in found}) == 1
    assert len(ledger.entries()) == 1


KILLED = """
    import os, signal
    from ledger_cases import KEYS, people, request
    from dpsynth_platform.ledger import Ledger, chain, reservations
    ledger = Ledger(sys.argv[1])
    moment = sys.argv[2]
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)
    if moment == "inside reserve":
        reservations.to_blob = die
    entry = ledger.reserve("everyone", "k", request(), people(1), "compose", key_ids=KEYS)
    if moment == "after reserve":
        die()
    if moment == "inside start":
        chain.transition_values = die
    ledger.start(entry.entry_id)
    die()
"""


@pytest.mark.parametrize(
    ("moment", "state"),
    [("inside reserve", None), ("after reserve", "reserved"), ("inside start", "reserved"), ("after start", "started")],
)
def test_a_killed_process_leaves_whole_steps(processes, ledger, url, moment, state):
    ((code, _, error),) = processes.run(KILLED, [url, moment])
    assert code == -signal.SIGKILL, error
    again = Ledger(url)
    entry = again.entry_for_key("k")
    assert (entry.state if entry else None) == state
    assert again.verify().ok
    if state == "started":
        with pytest.raises(SpendRepeated):
            again.reserve("everyone", "k", request(), people(1), "compose", key_ids=KEYS)
    else:
        again.start(again.reserve("everyone", "k", request(), people(1), "compose", key_ids=KEYS).entry_id)
        assert len(again.entries()) == 1


HOLD = """
    import sqlite3
    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_held_lock_is_named_and_readers_go_on(ledger, url, monkeypatch):
    from dpsynth_platform.ledger import database

    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    database._engine_of.cache_clear()  # one that is there waits as long as ever
    waiting = Ledger(url)
    path = url.removeprefix("sqlite:///")
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys\n" + textwrap.dedent(HOLD), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(LedgerError, match="locked by another process"):
            waiting.reserve("everyone", "k", request(), None, "compose")
        assert waiting.entries() == []
    finally:
        process.communicate(timeout=120)
    assert waiting.reserve("everyone", "k", request(), None, "compose").state == "reserved"
