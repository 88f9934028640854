"""Two mechanisms of one run: reserved together or not at all, for the same people, and always in the same order."""

import datetime as dt

import pytest
from ledger_cases import KEYS, people, request

from dpsynth_platform.foundation.errors import BudgetExceeded, LedgerError, SpendRepeated
from dpsynth_platform.ledger import chain, rows
from dpsynth_platform.ledger.filter import RenyiFilter

PAIR = ("audited", "run")


def together(ledger, cost=0.03, *, family="everyone", members=None, keys=PAIR, **words):
    key_ids = () if members is None else KEYS
    return ledger.reserve_together(family, keys, request(cost), members, "compose", key_ids=key_ids, **words)


def cost_of_which(times, account):
    """A zCDP cost of which so many fit under the account's cap, and one more does not."""
    limits: RenyiFilter = account.filter
    most = max(limit / order for limit, order in zip(limits.limits, limits.orders, strict=False))
    return most / (times + 0.5)


def reserved_order(ledger):
    return [event.subject for event in ledger.history(kinds=[chain.RESERVED])]


def test_two_entries_of_one_cost(ledger):
    first, second = together(ledger)
    assert (first.key, second.key) == PAIR
    assert first.request == second.request
    assert reserved_order(ledger) == [first.entry_id, second.entry_id]
    assert ledger.entries() == [first, second]
    assert together(ledger) == [first, second]
    assert ledger.verify().ok


def test_both_are_charged(ledger):
    cost = cost_of_which(2, ledger.account("everyone"))
    together(ledger, cost)
    with pytest.raises(BudgetExceeded):
        ledger.reserve("everyone", "another", request(cost), None, "compose")
    assert ledger.verify().ok


def test_where_one_of_two_fits_neither_is_reserved(ledger):
    cost = cost_of_which(1, ledger.account("everyone"))
    with pytest.raises(BudgetExceeded, match="2 times over"):
        ledger.admit("everyone", request(cost), times=2)
    with pytest.raises(BudgetExceeded, match=r"2 times over.*Nothing was spent"):
        together(ledger, cost)
    assert ledger.entries() == []
    assert [event.payload["key"] for event in ledger.history(kinds=[chain.BLOCKED])] == [None, "run"]
    ledger.reserve("everyone", "run", request(cost), None, "compose")  # one by itself has its place


def test_a_pair_that_lacks_is_asked_for_as_a_pair(ledger, monkeypatch):
    """Expired or given back, whichever of them: what is charged no more would be charged anew."""
    cost = cost_of_which(2, ledger.account("everyone"))
    first, _ = together(ledger, cost)
    assert ledger.admit("everyone", request(cost), keys=PAIR).due == 0
    ledger.void(first.entry_id)
    assert ledger.admit("everyone", request(cost), keys=PAIR).due == 1
    together(ledger, cost)
    later = rows.now() + dt.timedelta(days=400)
    monkeypatch.setattr(rows, "now", lambda: later)
    assert ledger.admit("everyone", request(cost), keys=PAIR).due == 2
    ledger.reserve("everyone", "another", request(cost), None, "compose")
    with pytest.raises(BudgetExceeded, match="2 times over"):
        ledger.admit("everyone", request(cost), keys=PAIR)


def test_what_was_advised_fits(ledger):
    cost = cost_of_which(1, ledger.account("everyone"))
    with pytest.raises(BudgetExceeded, match="left at this delta for each"):
        together(ledger, cost)
    together(ledger, cost / 4)  # half the epsilon is about a quarter of the zCDP cost


def test_owners_who_can_afford_one_of_two_are_in_neither(ledger):
    cost = cost_of_which(2, ledger.account("each"))
    spent = ledger.reserve("each", "before", request(cost), people(1, 2), "compose", key_ids=KEYS)
    ledger.start(spent.entry_id)
    first, second = together(ledger, cost, family="each", members=people(1, 2, 3, 4))
    for entry in (first, second):
        assert ledger.participants(entry.entry_id).tolist() == people(3, 4).tolist()
    for entry in (first, second):
        ledger.start(entry.entry_id)
    assert ledger.verify().ok


def test_who_is_let_in_near_the_edge_is_within_the_cap(ledger):
    """Costs are rounded up as they add up: who is let in must also be within the cap when all of it is replayed."""
    account = ledger.account("each")
    most = max(limit / order for limit, order in zip(account.filter.limits, account.filter.orders, strict=False))

    def takes_part(number, before):
        """Whether who has spent so much is let into both."""
        owner = people(number)
        earlier = ledger.reserve("each", f"before {number}", request(before), owner, "compose", key_ids=KEYS)
        ledger.start(earlier.entry_id)
        keys = (f"audited {number}", f"run {number}")
        entries = together(ledger, most / 4, family="each", members=owner, keys=keys)
        for entry in entries:
            ledger.start(entry.entry_id)
        one, other = (len(ledger.participants(entry.entry_id)) for entry in entries)
        assert one == other
        return bool(one)

    fits, too_much = 0.4 * most, 0.6 * most
    for number in range(10):
        middle = (fits + too_much) / 2
        fits, too_much = (middle, too_much) if takes_part(number, middle) else (fits, middle)
    assert fits < too_much < fits * 1.001
    assert ledger.verify().ok


def test_a_failed_first_one_makes_the_waiting_second_one_anew(ledger):
    first, second = together(ledger)
    ledger.start(first.entry_id)
    with pytest.raises(SpendRepeated):
        together(ledger)
    again, after = together(ledger, replaces=first.entry_id)
    assert (again.replaces, again.attempt, after.replaces, after.attempt) == (first.entry_id, 2, None, 2)
    assert ledger.entry(second.entry_id).state == "void"
    assert reserved_order(ledger)[-2:] == [again.entry_id, after.entry_id]
    assert together(ledger, replaces=first.entry_id) == [again, after]
    assert ledger.verify().ok


def test_a_failed_second_one_leaves_the_first_one_as_it_is(ledger):
    first, second = together(ledger)
    ledger.start(first.entry_id)
    spent = ledger.complete(first.entry_id, "a" * 64)
    ledger.start(second.entry_id)
    assert together(ledger, replaces=second.entry_id)[0] == spent
    again = ledger.entry_for_key("run")
    assert (again.replaces, again.attempt, again.state) == (second.entry_id, 2, "reserved")
    assert ledger.verify().ok


def test_a_reservation_that_expired_is_made_anew_beside_what_was_spent(ledger, monkeypatch):
    first, second = together(ledger)
    ledger.start(first.entry_id)
    spent = ledger.complete(first.entry_id, "a" * 64)
    later = dt.datetime.fromisoformat(second.deadline) + dt.timedelta(seconds=1)
    monkeypatch.setattr(rows, "now", lambda: later)
    with pytest.raises(LedgerError, match="has expired; materialize clearance again"):
        ledger.start(second.entry_id)
    kept, anew = together(ledger)
    assert kept == spent
    assert (anew.attempt, anew.state) == (2, "reserved")
    assert ledger.verify().ok


def test_no_word_is_for_a_stranger(ledger):
    together(ledger)
    with pytest.raises(LedgerError, match="only this run's latest entry, if it failed, can be replaced"):
        together(ledger, replaces="0" * 32)
    with pytest.raises(LedgerError, match="there is no entry"):
        together(ledger, keys=("other audited", "other run"), replaces="0" * 32)
