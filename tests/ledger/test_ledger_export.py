"""The auditor's export: whole, without fingerprints, and verifiable with nothing but itself."""

import json

import pytest
from ledger_cases import KEYS, people, request

from dpsynth_platform.errors import LedgerError
from dpsynth_platform.ledger.export import verify_export
from dpsynth_platform.ledger.records import Head


@pytest.fixture
def filled(ledger):
    for count, name in enumerate(["each", "everyone", "each"]):
        cost = request(0.01, plan=f"{count}", runner="Ada")
        entry = ledger.reserve(name, f"k{count}", cost, people(count, 10), "compose", key_ids=KEYS)
        ledger.start(entry.entry_id)
    ledger.complete(entry.entry_id, "m")
    asked = ledger.ask_raise("everyone", epsilon=8.0, delta=1e-5, by="Ada")
    ledger.approve_raise("everyone", asked.sequence, by="Bo")
    return ledger


def test_an_export_verifies_offline_and_names_what_it_cannot_check(filled):
    report = verify_export(json.dumps(filled.export()), [filled.head()])
    assert report.problems == ()
    assert (report.head, report.entries, report.unchecked) == (filled.head(), 3, ("each",))
    assert report.events == len(filled.history())
    assert verify_export(json.dumps(filled.export(), indent=2)).ok


def test_an_export_tells_nothing_of_owners(filled):
    text = json.dumps(filled.export())
    for owner in people(0, 1, 2, 10):
        assert bytes(owner).hex() not in text
    assert "fingerprint" not in text
    assert "nonce" not in text


def change(document, table, index, **values):
    document[table][index].update(values)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda d: change(d, "events", 2, payload="{}"), "its content does not match its hash"),
        (lambda d: d["events"].pop(3), "missing"),
        (lambda d: d["events"].pop(), "head is not its last event"),
        (lambda d: change(d, "entries", 0, state="void"), "state differs"),
        (lambda d: d["entries"].pop(), "missing from its table"),
        (lambda d: change(d, "accounts", 1, terms=d["accounts"][1]["terms"].replace("8.0", "9.0")), "terms differs"),
        (lambda d: change(d, "entries", 0, cost="[0.0]"), "its cost is not its curve's"),
        (lambda d: change(d, "accounts", 0, settled="[0.0]"), "its running sum"),
    ],
)
def test_a_changed_export_is_found(filled, edit, told):
    document = filled.export()
    edit(document)
    report = verify_export(json.dumps(document))
    assert any(told in problem for problem in report.problems), report.problems


def test_an_export_that_was_cut_short_shows_against_a_published_head(filled):
    published = filled.head()
    document = filled.export()
    document["events"] = document["events"][:2]
    document["entries"], document["head"] = [], {"sequence": 2, "hash": document["events"][1]["hash"]}
    document["accounts"][1]["terms"] = document["events"][0]["payload"]
    for account in document["accounts"]:
        account["settled"] = json.dumps([0.0] * len(json.loads(account["settled"])))
    assert verify_export(json.dumps(document)).ok
    assert any("published head" in problem for problem in verify_export(json.dumps(document), [published]).problems)
    assert not verify_export(json.dumps(document), [Head(99, "0" * 64)]).ok


def test_spend_beyond_the_cap_is_found_offline(ledger, monkeypatch):
    from dpsynth_platform.ledger import verdicts

    with monkeypatch.context() as broken:
        broken.setattr(verdicts, "refusal_of", lambda *_: None)
        for count in range(3):
            ledger.reserve("everyone", f"k{count}", request(0.2, plan=f"{count}"), None, "compose")
    assert verify_export(json.dumps(ledger.export())).problems == ("account everyone: charged beyond its cap",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "dpsynth-ledger-export-1"}',
        '{"format": "dpsynth-ledger-export-1", "head": {}, "events": [{}], "accounts": [], "entries": []}',
        '{"format": "dpsynth-ledger-export-1", "head": {}, "events": [], "accounts": [{"family": "f"}], "entries": []}',
        '{"format": "dpsynth-ledger-export-2", "head": {}, "events": [], "accounts": [], "entries": []}',
        "[" * 100_000,
    ],
)
def test_what_is_no_export_is_refused(text):
    with pytest.raises(LedgerError, match="export"):
        verify_export(text)


def test_an_empty_ledger_exports(url):
    from dpsynth_platform.ledger import Ledger

    assert verify_export(json.dumps(Ledger(url).export())).ok
