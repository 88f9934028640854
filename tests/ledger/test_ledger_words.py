"""The chain in words: by whom each event is and what it says."""

import datetime as dt

import pytest
from ledger_cases import KEYS, family, people, request

from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.records import ChainEvent
from dpsynth_platform.ledger.words import UNREADABLE, broken_words, change_words, in_words, whole_words
from dpsynth_platform.scrub.fingerprints import rotated

NEW = b"k" * 32


@pytest.fixture
def ledger(tmp_path):
    opened = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    opened.open_account(family("surveys", mode="per-owner"), KEYS)
    return opened


def cost_of(asked):
    return f"census: epsilon {asked.guarantee.epsilon:g}, delta 1e-06"


def told(ledger, kind):
    return [
        words for event, words in zip(ledger.history(), in_words(ledger.history()), strict=True) if event.kind == kind
    ]


def test_holds_and_requests_for_erasure_are_told_with_who_and_why(ledger):
    ledger.record("hold-placed", "census", {"dataset": "census", "period": None, "by": "Ada", "reason": "a lawsuit"})
    ledger.record("hold-lifted", "census", {"hold": 2, "by": "Bo", "reason": "settled"})
    ledger.record("erased", "person", {"owners": 3, "by": "Cy", "reason": "a letter"})
    ledger.record("readmitted", "person", {"owners": 2, "by": "Cy", "reason": "a mistake"})
    assert in_words(ledger.history())[-4:] == [
        ("Ada", "a lawsuit"),
        ("Bo", "hold 2: settled"),
        ("Cy", "3 owners are erased now: a letter"),
        ("Cy", "2 owners are erased now: a mistake"),
    ]


def test_a_run_is_told_with_its_runner(ledger):
    ledger.bind("dataset census", "surveys", ["person_id", "partner_id"])
    entry = ledger.reserve("surveys", "key", request(runner="Ada"), people(1, 2), "compose", key_ids=KEYS)
    ledger.start(entry.entry_id)
    ledger.complete(entry.entry_id, "5" * 64)
    ledger.approve("c" * 64, by="Bo", entry_id=entry.entry_id, reason="seen")
    ledger.release("census-0123456789abcdef", candidate="c" * 64, entry_id=entry.entry_id, check=list)
    ledger.record("purged", "census", {"step": "bounded", "output": "x", "reason": "expired"})
    assert in_words(ledger.history()) == [
        ("", "cap 4, delta 1e-05; mode per-owner"),
        ("", "attached to surveys, owners in person_id, partner_id"),
        ("Ada", f"{cost_of(entry.request)}; commitment {entry.commitment[:12]}"),
        ("Ada", ""),
        ("Ada", "model 555555555555"),
        ("Bo", "seen"),
        ("Ada", f"candidate cccccccccccc, in the dossier by its commitment 0123456789ab; entry {entry.entry_id[:12]}"),
        ("", "bounded: expired"),
    ]


def test_raises_and_rotations_are_told_with_who_did_them(ledger):
    asked = ledger.ask_raise("surveys", epsilon=5.0, delta=1e-5, by="Ada", reason="third wave")
    assert told(ledger, "raise-asked") == [("Ada", "4 -> 5, delta 1e-05: third wave")]
    ledger.approve_raise("surveys", asked.sequence, by="Bo")
    assert told(ledger, "raised") == [("Bo", "4 -> 5, delta 1e-05")]
    ledger.reserve("surveys", "key", request(), people(1), "compose", key_ids=KEYS, lifetime=dt.timedelta(0))
    ledger.rotate_key("person", "key-3", lambda old: rotated(old, NEW), by="Cy", reason="a stolen disk")
    assert told(ledger, "rekeyed") == [("Cy", "key key-3 added: a stolen disk")]
    ((by, words),) = told(ledger, "recommitted")
    assert (by, words.partition(" ")[0], len(words)) == ("Cy", "commitment", len("commitment ") + 12)
    assert told(ledger, "void") == [("", "deadline passed")]


def test_a_refusal_and_a_second_attempt_are_told(ledger):
    from dpsynth_platform.foundation.errors import BudgetExceeded

    with pytest.raises(BudgetExceeded):
        ledger.admit("surveys", request(40.0, runner="Ada"))
    assert told(ledger, "blocked") == [("Ada", f"{cost_of(request(40.0))}: cap")]
    first = ledger.reserve("surveys", "key", request(), people(1), "compose", key_ids=KEYS).entry_id
    ledger.start(first)
    ledger.reserve("surveys", "key", request(), people(1), "compose", key_ids=KEYS, replaces=first)
    assert told(ledger, "reserved")[1][1].endswith(f"; again, after entry {first[:12]}")


def test_an_event_that_was_tampered_with_hides_no_other():
    events = [
        ChainEvent(1, "2026", "raised", "surveys", {"asked": 7, "cap": {}, "by": "Ada"}, "", ""),
        ChainEvent(2, "2026", "reserved", "0", {"request": None}, "", ""),
        ChainEvent(3, "2026", "started", "0", {}, "", ""),
        ChainEvent(4, "2026", "noted", "census", {"reason": "whatever", "by": "Bo"}, "", ""),
    ]
    assert in_words(events) == [*[("", UNREADABLE)] * 3, ("Bo", "whatever")]


def test_what_changes_in_a_raise():
    assert change_words({"epsilon": 4.0, "delta": 1e-5}, {"epsilon": 4.0, "delta": 2e-5}) == "4, delta 1e-05 -> 2e-05"


def test_a_verification_counts_in_words():
    last, told = "2026-11-20T11:12:13.000000+00:00", "last event 2026-11-20 11:12 UTC"
    assert whole_words(15, 1, last, 1) == (
        f"15 events and 1 entry, all as written; 1 published dossier leads into this chain; {told}"
    )
    assert whole_words(1, 2, last, 2) == (
        f"1 event and 2 entries, all as written; 2 published dossiers lead into this chain; {told}"
    )
    assert whole_words(0, 0, None, 0) == "0 events and 0 entries, all as written"
    assert broken_words(1, 1) == "FAIL: 1 event and 1 entry, not as written"
