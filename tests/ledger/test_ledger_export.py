"""The auditor's export: whole, without fingerprints, and verifiable with nothing but itself."""

import json
import re
from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ledger_cases import KEYS, family, people, request

from dpsynth_platform.foundation.errors import LedgerError, VerificationFailed
from dpsynth_platform.foundation.signature import fingerprint, public_pem
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.export import sign_export, verify_export
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


def test_an_export_is_the_same_whoever_and_however_many_took_part(tmp_path):
    """But for what is drawn or follows from it: ids, commitments and hashes of the chain, and moments."""
    told = []
    for name, taking_part in (("few", people(1, 2)), ("many", people(*range(500)))):
        ledger = Ledger(f"sqlite:///{tmp_path / name}.db")
        ledger.open_account(family("each", mode="per-owner"), KEYS)
        spent = ledger.reserve("each", "a", request(0.01), taking_part, "compose", key_ids=KEYS)
        ledger.start(spent.entry_id)
        ledger.complete(spent.entry_id, "m")
        ledger.reserve("each", "b", request(0.01, plan="b"), taking_part[:1], "exclude", key_ids=KEYS)
        text = json.dumps(ledger.export(), sort_keys=True)
        drawn = {entry.entry_id: f"entry {number}" for number, entry in enumerate(ledger.entries())}
        for entry_id, label in drawn.items():
            text = text.replace(entry_id, label)
        told.append(json.loads(re.sub(r"\b[0-9a-f]{64}\b|\d{4}-\d\d-\d\dT[\d:.+]+", "*", text)))
    for document in told:
        document["entries"].sort(key=lambda entry: entry["entry_id"])
    assert told[0] == told[1]


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
    (problem,) = verify_export(json.dumps(document), [published]).problems
    assert "the chain ends at event 2: it is older, or its end was cut off" in problem
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


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_key_that_stands_twice_is_refused(filled, place):
    """One reader would show the one, another the other."""
    text = json.dumps(sign_export(filled.export(), KEY))
    forged = '"entries": ' + json.dumps([row | {"state": "void"} for row in filled.export()["entries"]])
    twice = "{" + forged + ", " + text[1:] if place == "first" else text[:-1] + ", " + forged + "}"
    assert json.loads(twice).keys() == json.loads(text).keys()
    with pytest.raises(LedgerError, match="no export"):
        verify_export(twice, public_key=public_pem(KEY.public_key()))


def test_half_a_character_is_a_problem_and_no_bare_exception(filled):
    """JSON can write what UTF-8 cannot: `canonical` refuses it, and no hash is of it."""
    text = json.dumps(sign_export(filled.export(), KEY))
    head = filled.head().hash
    for old in ("Ada", head, filled.entries()[0].entry_id, "everyone", "opened", "key-1"):
        for given in (None, public_pem(KEY.public_key())):
            changed = text.replace(old, "\\ud800")
            assert changed != text
            with suppress(LedgerError):
                assert not verify_export(changed, public_key=given).ok


def test_nothing_with_half_a_character_is_recorded(filled):
    before = filled.head()
    for record in (
        lambda: filled.record("noted", "x\udc80", {}),
        lambda: filled.record("noted", "x", {"why": "\udc80"}),
        lambda: filled.bind("x\udc80", "everyone", ["a"]),
        lambda: filled.reserve("everyone", "kk", request(0.01, runner="ada\udc80"), None, "compose"),
    ):
        with pytest.raises(LedgerError, match=r"JSON values only|half a character"):
            record()
    assert filled.head() == before


KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
NAME = fingerprint(KEY.public_key())


def test_a_signature_is_held_against_the_given_key(filled):
    text = json.dumps(sign_export(filled.export(), KEY), indent=3, sort_keys=True)
    for given in (public_pem(KEY.public_key()), KEY.public_key().public_bytes_raw()):
        report = verify_export(text, [filled.head()], given)
        assert (report.problems, report.key_fingerprint, report.key_trusted) == ((), NAME, True)
    report = verify_export(text)
    assert (report.ok, report.key_fingerprint, report.key_trusted) == (True, NAME, False)
    with pytest.raises(VerificationFailed, match="not an Ed25519 key"):
        verify_export(text, public_key=b"no key")


def test_another_key_or_none_does_not_pass_for_the_deployments(filled):
    given = public_pem(KEY.public_key())
    (problem,) = verify_export(json.dumps(sign_export(filled.export(), OTHER)), public_key=given).problems
    assert problem == f"the export is signed by another key, {fingerprint(OTHER.public_key())}"
    assert verify_export(json.dumps(filled.export()), public_key=given).problems == ("the export is not signed",)
    unsigned = verify_export(json.dumps(filled.export()))
    assert (unsigned.ok, unsigned.key_fingerprint) == (True, None)
    named_as_mine = sign_export(filled.export(), OTHER)
    named_as_mine["signature"]["public_key"] = given.decode()
    for trusted in (None, given):
        report = verify_export(json.dumps(named_as_mine), public_key=trusted)
        assert report.problems == ("the export's content is not what its key signed",)


def test_a_consistent_forgery_is_found_by_its_signature(ledger, filled):
    """Another ledger's whole content under this one's signature: everything hangs together but the signature."""
    signed = sign_export(filled.export(), KEY)
    ledger.record("noted", "census", {})
    forged = ledger.export() | {"signature": signed["signature"]}
    assert verify_export(json.dumps(ledger.export())).ok
    assert verify_export(json.dumps(forged)).problems == ("the export's content is not what its key signed",)


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: change(d, "entries", 0, state="void"),
        lambda d: change(d, "events", 0, at="2020-01-01T00:00:00+00:00"),
        lambda d: d.update(more=1),
        lambda d: d["events"].append(dict(d["events"][-1])),
        lambda d: d["accounts"].pop(),
        lambda d: d.update(head={"sequence": 1, "hash": "0" * 64}),
        lambda d: d.update(more=float("nan")),
    ],
)
def test_a_signed_export_that_was_changed_is_told_first(filled, edit):
    document = sign_export(filled.export(), KEY)
    edit(document)
    report = verify_export(json.dumps(document), public_key=public_pem(KEY.public_key()))
    assert report.problems[0] == "the export's content is not what its key signed"


@pytest.mark.parametrize(
    "signature",
    [None, [], {}, "", {"public_key": 1, "value": "00"}, {"public_key": "x", "value": "00"}, {"value": "zz"}],
)
def test_a_signature_that_cannot_be_read_is_a_problem(filled, signature):
    report = verify_export(json.dumps(filled.export() | {"signature": signature}))
    assert report.problems == ("the export's signature cannot be read",)
    damaged = sign_export(filled.export(), KEY)
    damaged["signature"]["value"] = "no hex"
    assert not verify_export(json.dumps(damaged)).ok


def test_an_empty_ledger_exports(url):
    from dpsynth_platform.ledger import Ledger

    assert verify_export(json.dumps(Ledger(url).export())).ok
