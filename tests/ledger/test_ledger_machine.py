"""The ledger against a model of itself: whatever the order of calls, states move one way and the cap holds."""

import datetime as dt
import functools
import tempfile

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from ledger_cases import KEYS as IDS
from ledger_cases import family, people, request

from dpsynth_platform.foundation.errors import BudgetExceeded, LedgerError, SpendRepeated
from dpsynth_platform.ledger import Ledger, rows
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.scrub.fingerprints import rotated

CAP = (3.0, 1e-5)
RAISED = (5.0, 2e-5)
FILTER = RenyiFilter.seal(*CAP)
LARGER = RenyiFilter(*RAISED, FILTER.orders, FILTER.weights, FILTER.slack_share)
COSTS = {plan: request(rho, plan=plan) for plan, rho in {"small": 0.01, "large": 0.06, "huge": 0.15}.items()}
KEYS = st.tuples(st.sampled_from("abcdef"), st.sampled_from(sorted(COSTS)))
OWNERS = st.frozensets(st.integers(0, 4), max_size=4)
POLICIES = st.sampled_from(["compose", "exclude"])


def fits(plans, limits):
    return fits_in_order(tuple(plans), limits)


@functools.cache
def fits_in_order(plans, limits):
    return limits.fits([(COSTS[plan].curve, 0.0) for plan in plans])


class LedgerMachine(RuleBasedStateMachine):
    """Model: for each entry its state, plan, deadline and charged owners."""

    mode = "family"
    entries = Bundle("entries")

    @initialize()
    def open(self):
        self.directory = tempfile.TemporaryDirectory()
        self.clock = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        self.real_now, rows.now = rows.now, lambda: self.clock
        self.ledger = Ledger(f"sqlite:///{self.directory.name}/ledger.db")
        self.ledger.open_account(family("f", mode=self.mode, epsilon=CAP[0], delta=CAP[1]), IDS)
        self.model = {}
        self.latest = {}
        self.limits, self.asked = FILTER, None
        self.key_ids = IDS

    def teardown(self):
        if hasattr(self, "directory"):
            rows.now = self.real_now
            self.directory.cleanup()

    def people(self, *owners):
        """Their fingerprints under the present keys."""
        found = people(*owners)
        for key_id in self.key_ids[len(IDS) :]:
            found = rotated(found, key_id.encode())
        return np.sort(found)

    def live(self):
        return [
            entry
            for entry in self.model.values()
            if entry["state"] in ("started", "spent") or (entry["state"] == "reserved" and entry["until"] > self.clock)
        ]

    def expire(self):
        for entry in self.model.values():
            if entry["state"] == "reserved" and entry["until"] <= self.clock:
                entry["state"] = "void"

    @rule(target=entries, key=KEYS, owners=OWNERS, policy=POLICIES, again=st.booleans())
    def reserve(self, key, owners, policy, again):
        name, plan = key[0] + key[1], key[1]
        latest = self.latest.get(name)
        replaces = latest if again else None
        try:
            entry = self.ledger.reserve(
                "f", name, COSTS[plan], self.people(*owners), policy, replaces=replaces, key_ids=self.key_ids
            )
        except SpendRepeated:
            assert not again and self.model[latest]["state"] == "started"
            return multiple()
        except BudgetExceeded:
            self.expire()
            alone = [] if self.mode == "per-owner" else [item["plan"] for item in self.live()]
            assert not fits([*alone, plan], self.limits)
            return multiple()
        except LedgerError:
            assert again and self.model[latest]["state"] != "started"
            return multiple()
        self.expire()
        if entry.entry_id in self.model:
            assert self.model[entry.entry_id]["state"] == entry.state
            return multiple()
        seen = set().union(*(item["owners"] for item in self.live()))
        expected = owners - seen if policy == "exclude" else owners
        if self.mode == "per-owner":
            histories = {o: [item["plan"] for item in self.live() if o in item["owners"]] for o in expected}
            expected = {o for o in expected if fits([*histories[o], plan], self.limits)}
        assert np.array_equal(self.ledger.participants(entry.entry_id), self.people(*expected))
        self.model[entry.entry_id] = {
            "state": "reserved",
            "plan": plan,
            "owners": set(expected),
            "until": self.clock + dt.timedelta(hours=24),
        }
        self.latest[name] = entry.entry_id
        return entry.entry_id

    @rule(entry_id=entries)
    def start(self, entry_id):
        entry = self.model[entry_id]
        try:
            self.ledger.start(entry_id)
        except SpendRepeated:
            assert entry["state"] in ("started", "spent")
        except LedgerError:
            assert entry["state"] == "void" or entry["until"] <= self.clock
            entry["state"] = "void"
        else:
            assert entry["state"] == "reserved"
            entry["state"] = "started"

    @rule(entry_id=entries)
    def complete(self, entry_id):
        entry = self.model[entry_id]
        try:
            self.ledger.complete(entry_id, "m")
        except LedgerError:
            assert entry["state"] in ("reserved", "void")
        else:
            assert entry["state"] in ("started", "spent")
            entry["state"] = "spent"

    @rule(entry_id=consumes(entries))
    def void(self, entry_id):
        entry = self.model[entry_id]
        try:
            self.ledger.void(entry_id)
        except LedgerError:
            assert entry["state"] in ("started", "spent")
        else:
            assert entry["state"] in ("reserved", "void")
            entry["state"] = "void"

    @rule(key=KEYS, entry_id=entries)
    def replace_what_is_not_the_latest_failure(self, key, entry_id):
        """No other entry of another run, or of another state, is a word for another spend."""
        name, plan = key[0] + key[1], key[1]
        if self.latest.get(name) == entry_id:
            return
        latest = self.model.get(self.latest.get(name))
        before = len(self.ledger.entries())
        try:
            entry = self.ledger.reserve(
                "f", name, COSTS[plan], self.people(0), "compose", replaces=entry_id, key_ids=self.key_ids
            )
        except LedgerError:
            pass  # rolled back as a whole
        except BudgetExceeded:
            self.expire()
        else:  # an entry that was made with exactly this word, or a new attempt after one that is void
            self.expire()
            assert entry.replaces == entry_id
            if entry.entry_id not in self.model:
                assert latest is not None and latest["state"] == "void"
                self.ledger.void(entry.entry_id)
                self.model[entry.entry_id] = {"state": "void", "plan": plan, "owners": set(), "until": self.clock}
                self.latest[name] = entry.entry_id
                return
        assert len(self.ledger.entries()) == before

    @rule(by=st.sampled_from(["Ada", "Bo"]))
    def ask_raise(self, by):
        try:
            self.asked = self.ledger.ask_raise("f", epsilon=RAISED[0], delta=RAISED[1], by=by), by
        except LedgerError:
            assert self.limits is LARGER

    @rule(by=st.sampled_from(["ada", "Bo"]))
    def approve_raise(self, by):
        if self.asked is None:
            return
        event, asker = self.asked
        try:
            self.ledger.approve_raise("f", event.sequence, by=by)
        except LedgerError:
            assert self.limits is LARGER or asker.casefold() == by.casefold()
        else:
            assert asker.casefold() != by.casefold()
            self.limits = LARGER

    @rule()
    def rotate_key(self):
        key_id = f"key-{len(self.key_ids) + 1}"
        try:
            self.ledger.rotate_key(
                "person", key_id, lambda owners: rotated(owners, key_id.encode()), by="Ada", reason="why"
            )
        except LedgerError:
            assert any(entry["state"] == "reserved" for entry in self.live())
        else:
            self.expire()
            assert not any(entry["state"] == "reserved" for entry in self.model.values())
            self.key_ids = (*self.key_ids, key_id)

    @rule()
    def open_again(self):
        self.ledger = Ledger(f"sqlite:///{self.directory.name}/ledger.db")

    @rule(hours=st.sampled_from([1, 13, 25]))
    def wait(self, hours):
        self.clock += dt.timedelta(hours=hours)

    @invariant()
    def ledger_is_what_the_model_says(self):
        if not hasattr(self, "model"):
            return
        for entry in self.ledger.entries():
            expected = self.model[entry.entry_id]
            expired = expected["state"] == "reserved" and expected["until"] <= self.clock
            assert entry.state == expected["state"] or (expired and entry.state == "void")
        if self.mode == "family":
            assert fits([item["plan"] for item in self.live()], self.limits) or not self.live()
        for owner in range(5):
            history = [item["plan"] for item in self.live() if owner in item["owners"]]
            assert not history or fits(history, self.limits)
        report = self.ledger.verify()
        assert report.ok, report.problems


class PerOwnerMachine(LedgerMachine):
    mode = "per-owner"


SETTINGS = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestFamilyMode = LedgerMachine.TestCase
TestFamilyMode.settings = SETTINGS
TestPerOwnerMode = PerOwnerMachine.TestCase
TestPerOwnerMode.settings = SETTINGS
