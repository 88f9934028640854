"""What entries under `exclude` and `block` promise, checked again from what is stored; and long lists of relations."""

import datetime as dt

import pytest
from ledger_cases import KEYS, family, people, request

from dpsynth_platform.foundation.errors import BudgetExceeded, LedgerError
from dpsynth_platform.ledger import Ledger, chain, kinship, reservations, rows
from dpsynth_platform.ledger.replay import replay
from dpsynth_platform.scrub.fingerprints import rotated

KEPT_OUT = "it charges people whom its overlap policy keeps out"


@pytest.fixture
def kin(url):
    opened = Ledger(url)
    for name in ("home", "work"):
        opened.open_account(family(name, mode="per-owner"), KEYS)
    return opened


def ask(ledger, name, key, who, policy="compose", **more):
    return ledger.reserve(name, key, request(0.01, plan=key), who, policy, key_ids=KEYS, **more)


def spend(ledger, name, key, who, policy="compose", **more):
    entry = ask(ledger, name, key, who, policy, **more)
    ledger.start(entry.entry_id)
    return ledger.complete(entry.entry_id, "a" * 64)


def charge_everybody(monkeypatch):
    """A decision that forgets what the policy promises."""
    monkeypatch.setattr(reservations, "charge", lambda _connection, _account, _request, who, *_: (who, False))


@pytest.mark.parametrize("policy", ["exclude", "block"])
@pytest.mark.parametrize("other", ["home", "work"])
@pytest.mark.parametrize("state", ["reserved", "started", "spent"])
def test_somebody_who_took_part_before_is_found(kin, monkeypatch, policy, other, state):
    first = ask(kin, other, "first", people(1, 2))
    if state != "reserved":
        kin.start(first.entry_id)
    if state == "spent":
        kin.complete(first.entry_id, "a" * 64)
    charge_everybody(monkeypatch)
    entry = ask(kin, "home", "second", people(2, 3), policy)
    assert kin.verify().problems == (f"entry {entry.entry_id}: {KEPT_OUT}",)


@pytest.mark.parametrize("policy", ["exclude", "block"])
def test_whoever_only_waited_or_comes_later_is_no_problem(kin, monkeypatch, policy):
    kin.void(ask(kin, "work", "void", people(1)).entry_id)
    ask(kin, "work", "late", people(1), lifetime=dt.timedelta(hours=1))
    two_hours = dt.datetime.now(dt.UTC) + dt.timedelta(hours=2)
    monkeypatch.setattr(rows, "now", lambda: two_hours)
    entry = spend(kin, "home", "mine", people(1, 2), policy)
    assert len(kin.participants(entry.entry_id)) == 2
    spend(kin, "work", "after", people(1, 2))
    assert kin.verify().problems == ()


def test_promises_are_kept_under_other_keys(kin):
    spend(kin, "work", "w", people(1, 2))
    entry = spend(kin, "home", "h", people(1, 2, 3, 4), "exclude")
    assert len(kin.participants(entry.entry_id)) == 2
    kin.rotate_key("person", "key-3", lambda who: rotated(who, b"k" * 32), by="Ada", reason="r")
    assert kin.verify().problems == ()


@pytest.mark.parametrize("policy", ["exclude", "block"])
@pytest.mark.parametrize("why", ["another namespace", "names nobody"])
def test_a_promise_about_whom_nobody_can_compare_is_found(kin, monkeypatch, policy, why):
    if why == "names nobody":
        kin.open_account(family("all", mode="family"), KEYS)
        other = ask(kin, "all", "a", None)
    else:
        kin.open_account(family("abroad", mode="per-owner", namespace="patient"), ("other",))
        other = kin.reserve("abroad", "a", request(0.01), people(9), "compose", key_ids=("other",))
    monkeypatch.setattr(kinship, "incomparable_entries", lambda *_: [])
    entry = ask(kin, "home", "h", people(1), policy, related=[other.entry_id])
    (problem, *_) = kin.verify().problems
    assert f"entry {entry.entry_id} could not be reserved" in problem
    assert "cannot be checked against an earlier entry" in problem


def test_a_run_that_was_blocked_is_reserved_only_after_something_ended(kin, monkeypatch):
    waiting = ask(kin, "work", "w", people(1, 2))
    with pytest.raises(BudgetExceeded, match="looks at the data"):
        ask(kin, "home", "h", people(2, 3), "block")
    kin.void(waiting.entry_id)
    ask(kin, "home", "h", people(2, 3), "block")
    assert kin.verify().problems == ()
    with pytest.raises(BudgetExceeded, match="looks at the data"):
        ask(kin, "work", "again", people(3), "block")
    charge_everybody(monkeypatch)
    entry = ask(kin, "work", "again", people(3), "block")
    (problem, *_) = kin.verify().problems
    assert f"entry {entry.entry_id} could not be reserved: it was blocked for an overlap" in problem


# Many relations


@pytest.fixture
def related(kin, monkeypatch):
    monkeypatch.setattr(reservations, "MOST_RELATED", 3)
    return [spend(kin, "work", f"w{number}", people(number)).entry_id for number in range(8)]


def test_many_related_entries_are_recorded_in_parts(kin, related):
    entry = ask(kin, "home", "h", people(99), related=related)
    events = kin.history(subject=entry.entry_id)
    assert [event.kind for event in events] == [chain.RELATED, chain.RELATED, chain.RESERVED]
    assert events[-1].payload["related_before"] == 6
    assert sorted(name for event in events for name in event.payload["related"]) == sorted(related)
    assert kin.verify().problems == ()


def test_a_part_leaves_room_for_the_request():
    names = [f"{number:032x}" for number in range(reservations.MOST_RELATED)]
    assert len(chain.canonical({"related": names})) < chain.MAX_PAYLOAD / 3


@pytest.mark.parametrize("how", ["missing", "unknown", "late", "of nothing"])
def test_parts_that_do_not_fit_are_found(kin, related, how):
    entry = ask(kin, "home", "h", people(99), related=related)
    events = kin.history()
    parts = [event for event in events if event.kind == chain.RELATED]
    if how == "missing":
        events.remove(parts[0])
    elif how == "unknown":
        parts[0].payload["related"][0] = "f" * 32
    elif how == "late":
        events.append(parts[0])
    else:
        events.remove(
            next(event for event in events if event.kind == chain.RESERVED and event.subject == entry.entry_id)
        )
    told = " ".join(replay(events)[2])
    assert {
        "missing": "related entries are missing",
        "unknown": "related to an unknown entry",
        "late": "it was reserved already",
        "of nothing": "never reserved",
    }[how] in told


@pytest.mark.parametrize("kind", [chain.DECLARED_PUBLIC, chain.DISTRUSTED, chain.RELATED])
def test_what_only_decisions_record_cannot_be_recorded_otherwise(kin, kind):
    with pytest.raises(LedgerError, match="event kind"):
        kin.record(kind, "x", {})
