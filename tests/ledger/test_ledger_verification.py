import json
import sqlite3

import pytest
from ledger_cases import KEYS, people, request

from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.records import Head


@pytest.fixture
def filled(ledger):
    for count, name in enumerate(["each", "everyone", "each"]):
        cost = request(0.01, plan=f"{count}", runner="Ada")
        entry = ledger.reserve(name, f"k{count}", cost, people(count, 10), "compose", key_ids=KEYS)
        ledger.start(entry.entry_id)
    ledger.complete(entry.entry_id, "m")
    ledger.approve("c" * 64, by="Bo", entry_id=entry.entry_id)
    assert ledger.verify().ok
    return ledger


def tamper(url, *statements):
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    for statement in statements:
        assert connection.execute(statement).rowcount != 0
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE event SET payload = '{}' WHERE sequence = 3", "event 3: its content does not match its hash"),
        ("UPDATE event SET payload = 'x' WHERE sequence = 3", "event 3: its payload cannot be read"),
        ("UPDATE event SET at = '2020' WHERE sequence = 4", "event 4: its content does not match its hash"),
        ("UPDATE event SET subject = 'x' WHERE sequence = 5", "event 5: its content does not match its hash"),
        ("UPDATE event SET previous = 'x' WHERE sequence = 5", "event 5: does not follow from the event before it"),
        ("DELETE FROM event WHERE sequence = 6", "event 6: missing"),
        ("DELETE FROM event WHERE sequence = 1", "event 1: missing"),
        ("DELETE FROM event WHERE sequence > 8", "state differs from what the chain records"),
        ("UPDATE entry SET state = 'void' WHERE run_key = 'k0'", "state differs from what the chain records"),
        ("UPDATE entry SET request = '{}' WHERE run_key = 'k0'", "request differs from what the chain records"),
        ("UPDATE entry SET deadline = '2099' WHERE run_key = 'k0'", "deadline differs"),
        ("DELETE FROM entry WHERE run_key = 'k1'", "recorded in the chain but missing from its table"),
        (
            "INSERT INTO entry SELECT 'new', family, 'new', 1, state, request, commitment, replaces, reserved_at, "
            "deadline, started_at, finished_at, model_digest, void_reason, cost FROM entry LIMIT 1",
            "in its table but not recorded in the chain",
        ),
        ("UPDATE account SET terms = replace(terms, '4.0', '9.0')", "terms differs from what the chain records"),
        ("UPDATE entry SET cost = '[0.0]' WHERE run_key = 'k0'", "its cost is not its curve's"),
        (
            "UPDATE account SET settled = replace(settled, '[', '[0')",
            "its running sum is not that of its started entries",
        ),
        ("UPDATE account SET settled = '[0.0]'", "its running sum is not that of its started entries"),
        ("UPDATE standing SET sums = zeroblob(length(sums))", "the standing of its owners"),
        ("UPDATE standing SET sums = x'00'", "the standing of its owners"),
        ("DELETE FROM standing WHERE family = 'each'", "the standing of its owners"),
        ("UPDATE participants SET fingerprints = zeroblob(16)", "participants do not match their commitment"),
        ("UPDATE participants SET fingerprints = x'00'", "participants do not match their commitment"),
        ("UPDATE participants SET nonce = x'00'", "participants do not match their commitment"),
        ("DELETE FROM participants", "participants do not match their commitment"),
    ],
)
def test_whatever_is_changed_by_hand_is_found(filled, url, statement, told):
    tamper(url, statement)
    report = filled.verify()
    assert not report.ok
    assert any(told in problem for problem in report.problems), report.problems


def test_a_rewritten_chain_shows_against_a_published_head(filled, url):
    published = filled.head()
    assert filled.verify([published]).ok
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    last = connection.execute("SELECT sequence FROM event ORDER BY sequence DESC").fetchone()[0]
    connection.close()
    assert last == published.sequence
    tamper(url, f"DELETE FROM event WHERE sequence = {last}")  # the approval: no table but the chain holds it
    assert filled.verify().ok
    report = filled.verify([published])
    (cut,) = report.problems
    assert cut.startswith(f"event {last}: a dossier was published at this event, the chain ends at event {last - 1}:")
    filled.record("noted", "census", {})
    assert filled.verify([published]).problems == (f"event {last}: a published head names another chain",)
    assert not filled.verify([Head(published.sequence + 100, "0" * 64)]).ok


def test_a_forged_curve_is_found_even_in_a_consistent_chain(ledger, monkeypatch):
    """The curve is recomputed from the event."""
    honest = request(0.05)
    from dataclasses import replace

    from dpsynth_platform.privacy.renyi import zcdp_curve

    ledger.reserve("everyone", "k", replace(honest, curve=zcdp_curve(0.0001)), None, "compose")
    assert any("curve is not its event's" in problem for problem in ledger.verify().problems)


@pytest.mark.parametrize("name", ["everyone", "each"])
def test_an_account_beyond_its_cap_is_found(ledger, monkeypatch, name):
    from dpsynth_platform.ledger import verdicts
    from dpsynth_platform.ledger.standing import Standing

    def everybody(_, participants, *__):
        return participants == participants

    with monkeypatch.context() as broken:
        broken.setattr(verdicts, "refusal_of", lambda *_: None)
        broken.setattr(Standing, "affordable", everybody)
        for count in range(3):
            ledger.reserve(name, f"k{count}", request(0.2, plan=f"{count}"), people(1, 2), "compose", key_ids=KEYS)
    assert ledger.verify().problems == (f"account {name}: charged beyond its cap",)


def test_an_empty_ledger_verifies(url):
    report = Ledger(url).verify()
    assert report.ok
    assert report.head == Head(0, "0" * 64)


def test_events_are_json_that_anyone_can_hash(filled):
    import hashlib

    previous = "0" * 64
    for event in filled.history():
        link = {
            "at": event.at,
            "kind": event.kind,
            "payload": json.dumps(event.payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
            "previous": previous,
            "sequence": event.sequence,
            "subject": event.subject,
        }
        text = json.dumps(link, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        previous = hashlib.sha256(text.encode()).hexdigest()
        assert event.hash == previous
