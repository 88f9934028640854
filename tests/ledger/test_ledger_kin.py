"""Kin: the same people in other families, found inside the reservation; and what is visible of them."""

import datetime as dt
import threading
from dataclasses import replace

import numpy as np
import pytest
from ledger_cases import KEYS, family, people, request

from dpsynth_platform.foundation.errors import BudgetExceeded, LedgerError
from dpsynth_platform.ledger import Ledger, chain
from dpsynth_platform.ledger.replay import replay

OTHER = ("other-1", "other-2")


@pytest.fixture
def kin(url):
    """Two families of one namespace, one of another, one with another unit, one that normalizes otherwise."""
    opened = Ledger(url)
    for name in ("home", "work"):
        opened.open_account(family(name, mode="per-owner"), KEYS)
    opened.open_account(family("abroad", mode="per-owner", namespace="patient"), OTHER)
    return opened


def spend(ledger, name, key, who, *, rho=0.01, keys=KEYS, policy="compose", **more):
    entry = ledger.reserve(name, key, request(rho, plan=key), who, policy, key_ids=keys, **more)
    ledger.start(entry.entry_id)
    return ledger.complete(entry.entry_id, "a" * 64)


def ask(ledger, who, policy, *, key="asked", related=()):
    return ledger.reserve("home", key, request(0.01, plan=key), who, policy, key_ids=KEYS, related=related)


def events_without_chance(ledger):
    """What anybody can see of the ledger, less ids, times, hashes and commitments, which are random."""
    seen = []
    for event in ledger.history():
        told = {key: value for key, value in event.payload.items() if key not in ("commitment", "deadline", "related")}
        seen.append((event.kind, told, event.payload.get("commitment") is None, len(event.payload.get("related", ()))))
    return seen


def test_exclude_leaves_out_who_took_part_in_another_family(kin):
    spend(kin, "work", "w", people(1, 2))
    kin.reserve("work", "waiting", request(0.01, plan="waiting"), people(5), "compose", key_ids=KEYS)
    entry = ask(kin, people(2, 3, 5), "exclude")
    assert np.array_equal(kin.participants(entry.entry_id), people(3))


def test_compose_leaves_nobody_out_and_lists_the_kin(kin):
    first = spend(kin, "work", "w", people(1, 2))
    mine = spend(kin, "home", "m", people(2))
    spend(kin, "abroad", "p", people(2), keys=OTHER)
    entry = ask(kin, people(2, 3), "compose")
    assert np.array_equal(kin.participants(entry.entry_id), people(2, 3))
    found = kin.kin(kin.account("home"), before=entry.entry_id)
    assert [(item.entry.entry_id, item.relation, item.incomparable) for item in found] == [
        (first.entry_id, "namespace", None),
        (mine.entry_id, "family", None),
    ]
    assert kin.overlaps(people(2, 3), [first.entry_id]) == {first.entry_id: 1}
    assert kin.verify().ok


def test_kin_before_an_entry_are_those_reserved_before_it(kin):
    first = spend(kin, "work", "w", people(1))
    entry = ask(kin, people(1), "compose")
    spend(kin, "work", "later", people(1))
    assert [item.entry.entry_id for item in kin.kin(kin.account("home"), before=entry.entry_id)] == [first.entry_id]
    assert len(kin.kin(kin.account("home"))) == 3


def test_block_meets_people_of_another_family(kin):
    spend(kin, "work", "w", people(1, 2))
    with pytest.raises(BudgetExceeded, match="looks at the data") as raised:
        ask(kin, people(2, 3), "block")
    assert "work" not in str(raised.value).replace("of another family", "")  # which family it was stays unsaid
    ask(kin, people(3), "block", key="others")


@pytest.mark.parametrize("state", ["void", "expired"])
def test_what_never_ran_counts_for_nobody(kin, state, monkeypatch):
    waiting = kin.reserve("work", "w", request(0.01, plan="w"), people(1), "compose", key_ids=KEYS)
    if state == "void":
        kin.void(waiting.entry_id)
    else:
        later = dt.datetime.now(dt.UTC) + dt.timedelta(days=2)
        monkeypatch.setattr("dpsynth_platform.ledger.rows.now", lambda: later)
    assert kin.kin(kin.account("home")) == []
    assert len(kin.participants(ask(kin, people(1), "block").entry_id)) == 1


def test_a_failed_mechanism_counts(kin):
    started = kin.reserve("work", "w", request(0.01, plan="w"), people(1), "compose", key_ids=KEYS)
    kin.start(started.entry_id)
    assert len(kin.participants(ask(kin, people(1, 2), "exclude").entry_id)) == 1


@pytest.mark.parametrize("policy", ["exclude", "block"])
@pytest.mark.parametrize("why", ["namespace", "unit", "normalizes", "names nobody"])
def test_kin_that_cannot_be_compared_stop_exclude_and_block_for_all_to_see(kin, policy, why):
    """A public fact: the refusal is the same whoever is concerned."""
    related = ()
    if why == "namespace":
        related = (spend(kin, "abroad", "k", people(9), keys=OTHER).entry_id,)
    elif why == "unit":
        kin.open_account(family("odd", mode="per-owner", unit="group"), KEYS)
        spend_group(kin)
    elif why == "normalizes":
        kin.open_account(family("odd", mode="per-owner", owner_normalization=["trim"]), KEYS)
        spend(kin, "odd", "k", people(9))
    else:
        kin.open_account(family("odd", mode="family"), KEYS)
        spend(kin, "odd", "k", None)
    told = set()
    for who in (people(9), people(1)):
        with pytest.raises(BudgetExceeded, match="cannot be checked") as raised:
            ask(kin, who, policy, related=related)
        told.add(str(raised.value))
    assert len(told) == 1
    assert why in told.pop()
    assert kin.history(kinds=["blocked"])[-1].payload["reason"] == "incomparable"
    assert ask(kin, people(9), "compose", related=related).state == "reserved"


def spend_group(ledger):
    asked = request(0.01, plan="g")
    asked = replace(asked, guarantee=replace(asked.guarantee, unit="group"))
    entry = ledger.reserve("odd", "g", asked, people(9), "compose", key_ids=KEYS)
    ledger.start(entry.entry_id)


def test_related_entries_must_be_in_the_ledger(kin):
    with pytest.raises(LedgerError, match="no ledger entry"):
        ask(kin, people(1), "compose", related=("f" * 32,))
    with pytest.raises(LedgerError, match="no ledger entry"):
        kin.kin(kin.account("home"), related=("f" * 32,))
    assert kin.entries("home") == []


def test_the_chain_says_under_which_policy_and_what_was_related(kin):
    abroad = spend(kin, "abroad", "k", people(9), keys=OTHER)
    entry = ask(kin, people(1), "compose", related=(abroad.entry_id,))
    payload = kin.history(kinds=["reserved"], subject=entry.entry_id)[0].payload
    assert (payload["policy"], payload["related"]) == ("compose", [abroad.entry_id])
    (found,) = kin.kin(kin.account("home"), related=payload["related"], before=entry.entry_id)
    assert (found.relation, found.entry) == ("ancestry", abroad)
    assert "patient" in found.incomparable


def test_a_chain_that_relates_to_what_there_was_not_is_found(kin):
    ask(kin, people(1), "compose")
    events = kin.history()
    events[-1].payload["related"] = ["f" * 32]
    assert any("related to an unknown entry" in problem for problem in replay(events)[2])


@pytest.mark.parametrize("policy", ["compose", "exclude"])
def test_what_shows_does_not_depend_on_who_takes_part(tmp_path, policy):
    """Two worlds that differ in one person, who is new in the one and took part in another family in the other."""
    worlds = []
    for number, there in enumerate((1, 50)):
        ledger = Ledger(f"sqlite:///{tmp_path / str(number) / 'ledger.db'}")
        for name in ("home", "work"):
            ledger.open_account(family(name, mode="per-owner"), KEYS)
        first = spend(ledger, "work", "w", people(there, 2, 3))
        entry = ask(ledger, people(1, 4), policy, related=(first.entry_id,))
        ledger.start(entry.entry_id)
        worlds.append(
            (
                events_without_chance(ledger),
                [(item.relation, item.incomparable, item.entry.state) for item in ledger.kin(ledger.account("home"))],
                ledger.left("home", 1e-6),
                ledger.verify().problems,
            )
        )
        expected = people(4) if policy == "exclude" and there == 1 else people(1, 4)
        assert np.array_equal(ledger.participants(entry.entry_id), expected)
    assert worlds[0] == worlds[1]


def test_exclude_stays_silent_where_nobody_is_left(kin):
    spend(kin, "work", "w", people(1))
    entry = ask(kin, people(1), "exclude")
    assert entry.state == "reserved"
    assert entry.commitment is not None
    assert len(kin.participants(entry.entry_id)) == 0


def race(url):
    """Two families of one namespace ask for the same person at the same moment, under `block`."""
    for name in ("home", "work"):
        Ledger(url).open_account(family(name, mode="per-owner"), KEYS)
    ready, outcomes = threading.Barrier(2), []

    def run(name):
        ledger = Ledger(url)
        ready.wait()
        try:
            ledger.reserve(name, name, request(0.01, plan=name), people(1), "block", key_ids=KEYS)
            outcomes.append("granted")
        except BudgetExceeded:
            outcomes.append("blocked")

    threads = [threading.Thread(target=run, args=(name,)) for name in ("home", "work")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["blocked", "granted"]
    kinds = [event.kind for event in Ledger(url).history(kinds=[chain.RESERVED, chain.BLOCKED])]
    assert kinds == [chain.RESERVED, chain.BLOCKED]


def test_of_two_families_at_once_the_later_sees_the_earlier(url):
    race(url)


def test_of_two_families_at_once_on_postgresql(postgresql_url):
    race(postgresql_url)
