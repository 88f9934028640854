"""Machines whose clocks differ share a ledger: what one has found expired starts on no other, and time never falls."""

import contextlib
import datetime as dt
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from ledger_cases import KEYS, family, people, request
from ledger_forks import outputs

from dpsynth_platform.foundation.errors import BudgetExceeded, LedgerError
from dpsynth_platform.ledger import Ledger, chain, reservations, rows

DAY = dt.timedelta(days=1)
FAMILIES = ("home", "work", "away")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql_url")
    return f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}"


@pytest.fixture
def kin(url):
    opened = Ledger(url)
    for name in FAMILIES:
        opened.open_account(family(name, mode="per-owner"), KEYS)
    return opened


@pytest.fixture
def clock(monkeypatch):
    """Sets this process's clock so many hours off."""

    def off_by(hours):
        now = dt.datetime.now
        monkeypatch.setattr(rows, "now", lambda: now(dt.UTC) + dt.timedelta(hours=hours))

    return off_by


def ask(ledger, name, key, who, policy="compose", **more):
    return ledger.reserve(name, key, request(0.01, plan=key), who, policy, key_ids=KEYS, **more)


# Two real processes


AHEAD = """
    import datetime as dt
    from ledger_cases import KEYS, people, request
    from dpsynth_platform.ledger import Ledger, rows
    url, hours, start = sys.argv[1:]
    now = rows.now
    rows.now = lambda: now() + dt.timedelta(hours=float(hours))
    ledger = Ledger(url)
    entry = ledger.reserve("home", "h", request(0.01, plan="h"), people(1, 2), "exclude", key_ids=KEYS)
    if start == "start":
        ledger.start(entry.entry_id)
    print(entry.entry_id, len(ledger.participants(entry.entry_id)))
"""

START = """
    from dpsynth_platform.foundation.errors import LedgerError
    from dpsynth_platform.ledger import Ledger
    try:
        print(Ledger(sys.argv[1]).start(sys.argv[2]).state)
    except LedgerError as refusal:
        print(str(refusal).replace(" ", "_"))
"""


@pytest.mark.parametrize("start", ["start", "wait"])
def test_what_another_process_found_expired_starts_nowhere(processes, kin, url, start):
    waiting = ask(kin, "work", "w", people(1))
    ((mine, number),) = outputs(processes.run(AHEAD, [url, 25, start]))
    assert number == "2", "by that clock nobody else takes part"
    ((said,),) = outputs(processes.run(START, [url, waiting.entry_id]))
    assert "has_expired;_materialize_clearance_again" in said
    assert (kin.entry(waiting.entry_id).state, kin.entry(waiting.entry_id).void_reason) == ("void", "deadline passed")
    kinds = [(event.kind, event.subject) for event in kin.history(kinds=[chain.VOID, chain.RESERVED])]
    assert kinds[-2:] == [(chain.VOID, waiting.entry_id), (chain.RESERVED, mine)]
    times = [event.at for event in kin.history()]
    assert times == sorted(times)
    assert kin.verify().problems == ()


def test_within_the_deadline_by_every_clock_it_starts_and_is_seen(processes, kin, url):
    waiting = ask(kin, "work", "w", people(1))
    ((_, number),) = outputs(processes.run(AHEAD, [url, 23, "start"]))
    assert number == "1"
    assert outputs(processes.run(START, [url, waiting.entry_id])) == [["started"]]
    assert kin.verify().problems == ()


# The ledger's time


@pytest.mark.parametrize("policy", ["compose", "exclude", "block"])
def test_a_decision_makes_what_it_found_expired_final_for_all_accounts(kin, clock, policy):
    waiting = [ask(kin, name, name, people(number)) for number, name in enumerate(FAMILIES)]
    clock(25)
    ask(kin, "home", "h", people(0, 1, 2), policy)
    assert [kin.entry(entry.entry_id).state for entry in waiting] == ["void"] * 3


def test_a_clock_that_is_behind_reads_the_ledgers_time(kin, clock):
    clock(30)
    first = ask(kin, "home", "a", people(1))
    clock(0)
    second = ask(kin, "home", "b", people(1))
    assert first.reserved_at <= second.reserved_at < second.deadline
    assert dt.datetime.fromisoformat(second.deadline) - dt.datetime.fromisoformat(second.reserved_at) == DAY
    clock(-1000)
    kin.start(second.entry_id)
    assert kin.verify().problems == ()


def test_a_clock_that_is_ahead_sets_others_back_once(kin, clock):
    waiting = ask(kin, "work", "w", people(1))
    clock(24 * 365)
    ask(kin, "home", "h", people(2))
    clock(0)
    with pytest.raises(LedgerError, match="has expired; materialize clearance again"):
        kin.start(waiting.entry_id)
    again = ask(kin, "work", "w", people(1))
    clock(24 * 365 + 20)
    ask(kin, "home", "i", people(3))
    clock(0)
    assert kin.start(again.entry_id).state == "started"
    left = ask(kin, "away", "left", people(4))
    assert kin.void(left.entry_id).state == "void"
    assert kin.verify().problems == ()


def test_a_clock_that_is_years_ahead_writes_nothing(kin, clock):
    before = kin.head()
    clock(24 * 366 * 11)
    with pytest.raises(LedgerError, match="Set the clock right"):
        ask(kin, "home", "h", people(1))
    assert kin.head() == before
    clock(0)
    ask(kin, "home", "h", people(1))


def test_a_ledger_is_not_opened_at_the_end_of_time(tmp_path, monkeypatch):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setattr(rows, "now", lambda: dt.datetime(9999, 12, 31, tzinfo=dt.UTC))
    with pytest.raises(LedgerError, match=r"clock of this machine says 9999-12-31.*Set the clock right"):
        ledger.open_account(family("home", mode="per-owner"), KEYS)
    monkeypatch.undo()
    ledger.open_account(family("home", mode="per-owner"), KEYS)


# A history from before that rule


def test_a_history_in_which_both_started_is_found(kin, clock, monkeypatch):
    waiting = ask(kin, "work", "w", people(1))
    with monkeypatch.context() as patch:
        patch.setattr(reservations, "void_expired", lambda _: [])
        patch.setattr(chain, "last_time", lambda _: None)
        now = dt.datetime.now(dt.UTC)
        patch.setattr(rows, "now", lambda: now + 25 * DAY / 24)
        mine = ask(kin, "home", "h", people(1, 2), "exclude")
        kin.start(mine.entry_id)
        patch.setattr(rows, "now", lambda: now)
        kin.start(waiting.entry_id)
    (problem, *_) = kin.verify().problems
    assert f"entry {waiting.entry_id} could not become started: entry {mine.entry_id} was reserved as if" in problem


class SkewMachine(RuleBasedStateMachine):
    """Hosts with clocks of their own: under `exclude`, nobody takes part in two of what starts."""

    entries = Bundle("entries")

    @initialize()
    def open(self):
        self.directory = tempfile.TemporaryDirectory()
        self.real_now, rows.now = rows.now, lambda: self.time + self.ahead[self.host]
        self.time, self.ahead, self.host = dt.datetime(2026, 1, 1, tzinfo=dt.UTC), [dt.timedelta()] * 3, 0
        url = f"sqlite:///{self.directory.name}/ledger.db"
        self.hosts = [Ledger(url) for _ in self.ahead]
        for name in FAMILIES:
            self.hosts[0].open_account(family(name, mode="per-owner", epsilon=100), KEYS)
        self.made = []  # in the chain's order: id, owners, policy
        self.started = set()

    def teardown(self):
        if hasattr(self, "directory"):
            problems = self.hosts[0].verify().problems
            rows.now = self.real_now
            self.directory.cleanup()
            assert problems == ()

    @rule(host=st.integers(0, 2), hours=st.sampled_from([-30, -2, 0, 2, 23, 25, 60]))
    def set_clock(self, host, hours):
        self.ahead[host] = dt.timedelta(hours=hours)

    @rule(hours=st.sampled_from([1, 13, 25]))
    def wait(self, hours):
        self.time += dt.timedelta(hours=hours)

    @rule(
        target=entries,
        host=st.integers(0, 2),
        name=st.sampled_from(FAMILIES),
        key=st.sampled_from("abc"),
        owners=st.frozensets(st.integers(0, 3), min_size=1),
        policy=st.sampled_from(["compose", "exclude", "block"]),
    )
    def reserve(self, host, name, key, owners, policy):
        self.host = host
        try:
            entry = ask(self.hosts[host], name, f"{name}-{key}-{policy}", people(*owners), policy)
        except (BudgetExceeded, LedgerError):
            return multiple()
        if any(entry.entry_id == known for known, _, _ in self.made):
            return multiple()
        charged = self.hosts[host].participants(entry.entry_id)
        self.made.append((entry.entry_id, {owner for owner in owners if people(owner)[0] in charged}, policy))
        return entry.entry_id

    @rule(host=st.integers(0, 2), entry=entries)
    def start(self, host, entry):
        self.host = host
        with contextlib.suppress(LedgerError):
            self.hosts[host].start(entry)
            self.started.add(entry)

    @rule(host=st.integers(0, 2))
    def sweep(self, host):
        self.host = host
        self.hosts[host].void_expired()

    @invariant()
    def nobody_takes_part_twice_under_a_promise(self):
        if not hasattr(self, "hosts"):
            return
        seen = set()
        for entry, owners, policy in self.made:
            if entry in self.started:
                assert policy == "compose" or not owners & seen
                seen |= owners
        times = [event.at for event in self.hosts[0].history()]
        assert times == sorted(times)


TestSkewedClocks = SkewMachine.TestCase
TestSkewedClocks.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
