"""A period is paid for once: what another run reserved, started or spent for it is in the way of a second payment."""

import datetime as dt

import pytest
from ledger_cases import KEYS, family, people, request

from dpsynth_platform.foundation.errors import SpendRepeated
from dpsynth_platform.ledger import rows
from dpsynth_platform.ledger.store import Ledger

MONTH = "2026-01"
OWNERS = people(1, 2, 3)


@pytest.fixture
def ledger(tmp_path):
    store = Ledger(f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}")
    store.open_account(family("people", mode="per-owner"), KEYS)
    return store


def reserve(ledger, key, *, period=MONTH, **more):
    wanted = request(dataset="visits", period=period, plan=key)
    return ledger.reserve("people", key, wanted, OWNERS, "compose", key_ids=KEYS, period_keys=[key], **more)


def completed(ledger, key, **more):
    entry = reserve(ledger, key, **more)
    ledger.start(entry.entry_id)
    return ledger.complete(entry.entry_id, "5" * 64)


def test_the_same_run_is_the_same_entry(ledger):
    first = reserve(ledger, "a")
    assert reserve(ledger, "a") == first
    spent = completed(ledger, "a")
    assert reserve(ledger, "a") == spent
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize("state", ["reserved", "started", "spent"])
def test_another_run_of_the_period_is_refused_and_leaves_nothing(ledger, state):
    first = reserve(ledger, "a")
    if state != "reserved":
        ledger.start(first.entry_id)
    if state == "spent":
        ledger.complete(first.entry_id, "5" * 64)
    head = ledger.head()
    way_out = f"dpsynth ledger void {first.entry_id}" if state == "reserved" else f"--spend-again {first.entry_id}"
    with pytest.raises(SpendRepeated, match=rf"visits/{MONTH}: ledger entry {first.entry_id} \({state}\).*{way_out}"):
        reserve(ledger, "b")
    with pytest.raises(SpendRepeated, match="A period is paid for once"):
        ledger.check_period("people", ["b"], request(dataset="visits", period=MONTH), None)
    assert ledger.head() == head


def test_other_periods_and_datasets_are_free(ledger):
    completed(ledger, "a")
    completed(ledger, "b", period="2026-02")
    other = request(dataset="visits_2", period=MONTH, plan="c")
    ledger.reserve("people", "c", other, OWNERS, "compose", key_ids=KEYS, period_keys=["c"])
    assert [entry.state for entry in ledger.entries()] == ["spent", "spent", "reserved"]


def test_the_days_of_a_period_are_paid_for_once_whatever_the_cadence(ledger):
    january = completed(ledger, "a")
    completed(ledger, "b", period="2026-02")
    way_out = rf"\(days of 2026-01\) already.* --spend-again {january.entry_id}"
    for week in ("2025-12-29-week", "2026-01-05-week"):
        with pytest.raises(SpendRepeated, match=way_out):
            reserve(ledger, "w", period=week)
        with pytest.raises(SpendRepeated, match=way_out):
            ledger.check_period("people", ["w"], request(dataset="visits", period=week), None)
    with pytest.raises(SpendRepeated, match="days of 2026-02"):
        reserve(ledger, "w", period="2026-01-26-week")
    reserve(ledger, "v", period="2026-03-02-week")
    with pytest.raises(SpendRepeated, match=r"days of 2026-03-02-week.*ledger void"):
        reserve(ledger, "m", period="2026-03")

    week = completed(ledger, "w", period="2026-01-05-week", replaces=january.entry_id)
    # Both runs are paid: neither is in the other's way, with the word or without.
    for word in (None, january.entry_id):
        assert reserve(ledger, "w", period="2026-01-05-week", replaces=word) == week
    assert reserve(ledger, "a") == january
    with pytest.raises(SpendRepeated, match=f"days of 2026-01-05-week.*{week.entry_id}"):
        reserve(ledger, "c")
    assert ledger.verify().ok


def test_what_is_void_or_past_its_deadline_is_not_in_the_way(ledger, monkeypatch):
    ledger.void(reserve(ledger, "a").entry_id)
    reserve(ledger, "b")
    later = rows.now() + dt.timedelta(hours=25)
    monkeypatch.setattr(rows, "now", lambda: later)
    reserve(ledger, "c")
    assert [entry.state for entry in ledger.entries()] == ["void", "void", "reserved"]


def test_the_word_names_the_last_payment_and_holds_for_one_more(ledger):
    first = completed(ledger, "a")
    second = reserve(ledger, "b", replaces=first.entry_id)
    assert reserve(ledger, "b", replaces=first.entry_id) == second, "whoever repeats the run repeats the word"
    ledger.start(second.entry_id)
    for word in (None, first.entry_id):
        with pytest.raises(SpendRepeated, match=second.entry_id):
            reserve(ledger, "c", replaces=word)
    # The second one fails: the ordinary word for another attempt at the same run.
    third = reserve(ledger, "b", replaces=second.entry_id)
    assert (third.attempt, third.replaces) == (2, second.entry_id)
    assert ledger.verify().ok


def test_mechanisms_of_one_run_are_not_in_each_others_way(ledger):
    wanted = request(dataset="visits", period=MONTH, plan="a")
    own = ["a-audited", "a"]

    def both(keys, of, word=None):
        return ledger.reserve_together(
            "people", keys, wanted, OWNERS, "compose", key_ids=KEYS, period_keys=of, replaces=word
        )

    first = both(own, own)
    assert both(own[1:], own) == first[1:], "the other one stands and is not due"
    for entry in first:
        with pytest.raises(SpendRepeated, match="A period is paid for once"):
            both(["b"], ["b"])
        ledger.start(entry.entry_id)
    # Which of two that were reserved together is named makes no difference.
    for word in (entry.entry_id for entry in first):
        ledger.check_period("people", ["b"], wanted, word)
