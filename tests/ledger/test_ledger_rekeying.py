"""A rotation of fingerprint keys: everybody keeps what they were charged, and the record of it shows tampering."""

import json
import shutil
import signal
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import KEYS, family, people, request
from test_ledger_verification import tamper

from dpsynth_platform.foundation.errors import BudgetExceeded, LedgerError
from dpsynth_platform.ledger import Ledger, chain, database, rekeying, rows, schema
from dpsynth_platform.ledger.export import verify_export
from dpsynth_platform.scrub.fingerprints import rotated

KEY = b"3" * 32
NOW = (*KEYS, "key-3")


def renamed(participants, key=KEY):
    return np.sort(rotated(participants, key))


def rotate(ledger, key=KEY, key_id="key-3", namespace="person"):
    return ledger.rotate_key(namespace, key_id, lambda owners: rotated(owners, key), by="Ada", reason="a stolen disk")


def spend(ledger, name, key, who, *, rho=0.03, then="start", policy="compose"):
    entry = ledger.reserve(name, key, request(rho, plan=key), who, policy, key_ids=ledger.account(name).key_ids)
    if then == "void":
        return ledger.void(entry.entry_id)
    entry = ledger.start(entry.entry_id)
    return ledger.complete(entry.entry_id, "m") if then == "complete" else entry


@pytest.fixture
def filled(ledger):
    """Both modes, every state but reserved, an entry that names nobody and one of no one."""
    spend(ledger, "each", "a", people(1, 2, 3), then="complete")
    spend(ledger, "each", "b", people(3, 4))
    spend(ledger, "each", "c", people(5, 6), then="void")
    spend(ledger, "each", "d", people())
    spend(ledger, "everyone", "e", people(1, 9), then="complete")
    spend(ledger, "everyone", "f", None)
    assert ledger.verify().ok
    return ledger


def stored(ledger):
    """Participants by entry, and what each owner was charged, by family."""

    def work(connection):
        sets = {entry.key: rows.participants_of(connection, entry.entry_id) for entry in rows.entries(connection, None)}
        sums = {}
        for account in rows.accounts(connection):
            standing = rows.find_standing(connection, account.family, account.filter.nothing)
            if standing is not None:
                owed = standing.sums[standing.class_of]
                sums[account.family] = {
                    standing.owners[place : place + 1].tobytes(): owed[place].tobytes() for place in range(len(owed))
                }
        return sets, sums

    return ledger._database.read(work)


def check_rotation(ledger, url):
    before = ledger.entries()
    sets, sums = stored(ledger)
    heads = [ledger.head()]
    events = rotate(ledger)
    assert [event.subject for event in events] == ["each", "everyone"]
    assert ledger.entries() == before  # commitments and all else of an entry are what was reserved
    sets_now, sums_now = stored(ledger)
    for key, members in sets.items():
        assert members is None if sets_now[key] is None else np.array_equal(sets_now[key], renamed(members))
    for name, owed in sums.items():
        owners = np.frombuffer(b"".join(owed), "S16")
        names = [rotated(owners[place : place + 1], KEY).tobytes() for place in range(len(owners))]
        assert sums_now[name] == dict(zip(names, owed.values(), strict=True))
    again = Ledger(url)
    assert [account.key_ids for account in again.accounts()] == [NOW, NOW]
    report = again.verify(heads)
    assert report.ok, report.problems
    assert verify_export(json.dumps(again.export()), heads).ok


def test_everybody_keeps_what_they_were_charged(filled, url):
    check_rotation(filled, url)
    assert spend(filled, "each", "later", renamed(people(1, 7)), then="complete").state == "spent"
    rotate(filled, b"4" * 32, "key-4")
    assert filled.account("each").key_ids == (*NOW, "key-4")
    assert filled.verify().ok


def test_the_same_on_postgresql(postgresql_url):
    ledger = Ledger(postgresql_url)
    for name, mode in (("each", "per-owner"), ("everyone", "family")):
        ledger.open_account(family(name, mode=mode), KEYS)
    spend(ledger, "each", "a", people(1, 2, 3), then="complete")
    spend(ledger, "each", "b", people(3, 4))
    spend(ledger, "each", "c", people(5), then="void")
    spend(ledger, "everyone", "e", people(1, 9))
    check_rotation(ledger, postgresql_url)


WHO = st.frozensets(st.integers(0, 6), max_size=5)
STEP = st.tuples(WHO, st.sampled_from([0.01, 0.05, 0.1]), st.sampled_from(["start", "complete", "void"]))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    mode=st.sampled_from(["per-owner", "family"]),
    history=st.lists(STEP, max_size=7),
    who=WHO,
    rho=st.sampled_from([0.01, 0.1, 0.2]),
    policy=st.sampled_from(["compose", "exclude", "block"]),
)
def test_the_next_decision_is_the_same_about_the_same_people(mode, history, who, rho, policy):
    """The ledger and its rotated copy are asked for the same people, each under their names there."""
    with tempfile.TemporaryDirectory() as directory:
        one, other = (Path(directory) / name for name in ("one.db", "other.db"))
        ledger = Ledger(f"sqlite:///{one}")
        ledger.open_account(family("f", mode=mode), KEYS)
        for number, (members, cost, then) in enumerate(history):
            try:
                spend(ledger, "f", f"k{number}", people(*members), rho=cost, then=then)
            except BudgetExceeded:
                assert mode == "family"
        shutil.copy(one, other)
        copy = Ledger(f"sqlite:///{other}")
        rotate(copy)

        def ask(asked, participants):
            try:
                entry = asked.reserve(
                    "f", "next", request(rho, plan="n"), participants, policy, key_ids=asked.account("f").key_ids
                )
            except BudgetExceeded as refusal:
                return str(refusal)
            return asked.participants(entry.entry_id)

        told, told_there = ask(ledger, people(*who)), ask(copy, renamed(people(*who)))
        if isinstance(told, str):
            assert told_there == told
        else:
            assert np.array_equal(told_there, renamed(told))
        assert copy.verify().ok


def test_participants_of_earlier_keys_are_refused(filled):
    """Otherwise people who have spent would come as strangers."""
    rotate(filled)
    before = filled.head()
    for key_ids in (KEYS, (), NOW[::-1], (*NOW, "key-4")):
        with pytest.raises(LedgerError, match="materialize scrubbed again"):
            filled.reserve("each", "next", request(), people(1), "compose", key_ids=key_ids)
    assert filled.head() == before
    entry = filled.reserve("each", "next", request(), renamed(people(1)), "compose", key_ids=NOW)
    assert np.array_equal(filled.participants(entry.entry_id), renamed(people(1)))
    assert filled.reserve("everyone", "nobody named", request(), None, "compose").state == "reserved"


def test_accounts_of_a_namespace_have_the_same_keys(filled):
    rotate(filled)
    with pytest.raises(LedgerError, match="frozen"):
        filled.open_account(family("each", mode="per-owner"), KEYS)
    with pytest.raises(LedgerError, match="frozen"):
        filled.open_account(family("newcomer", mode="family"), KEYS)
    assert filled.open_account(family("newcomer", mode="family"), NOW).key_ids == NOW
    assert filled.open_account(family("elsewhere", mode="family", namespace="patient"), ["p"]).key_ids == ("p",)
    rotate(filled, b"4" * 32, "key-4")
    assert filled.account("elsewhere").key_ids == ("p",)
    assert filled.verify().ok


def test_nothing_changes_between_a_reservation_and_its_mechanism(filled, monkeypatch):
    entry = filled.reserve("everyone", "waits", request(), people(1), "compose", key_ids=KEYS)
    before = filled.head()
    for ask in (lambda: rotate(filled), lambda: filled.check_rotation("person")):
        with pytest.raises(LedgerError, match=rf"census \(entry {entry.entry_id}, until .*Nothing was changed"):
            ask()
    assert filled.head() == before
    filled.start(entry.entry_id)
    assert [account.family for account in filled.check_rotation("person")] == ["each", "everyone"]
    rotate(filled)
    assert filled.complete(entry.entry_id, "m").state == "spent"
    assert filled.verify().ok


def test_an_expired_reservation_does_not_stand_in_the_way(filled, monkeypatch):
    import datetime as dt

    entry = filled.reserve("each", "waits", request(), people(1), "compose", key_ids=KEYS)
    later = rows.now() + dt.timedelta(hours=25)
    monkeypatch.setattr(rows, "now", lambda: later)
    rotate(filled)
    assert filled.entry(entry.entry_id).state == "void"
    with pytest.raises(LedgerError, match="has expired"):
        filled.start(entry.entry_id)
    assert filled.verify().ok


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"namespace": "nowhere"}, "no account"),
        ({"new_key_id": "key-2"}, "in use already"),
        ({"by": "\u200b"}, "a name and a reason"),
        ({"reason": " "}, "a name and a reason"),
        ({"rekey": lambda owners: np.full(len(owners), b"x" * 16, "S16")}, "share a fingerprint"),
        ({"rekey": lambda owners: owners[1:]}, "share a fingerprint"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(filled, change, told):
    asked = {
        "namespace": "person",
        "new_key_id": "key-3",
        "rekey": lambda owners: rotated(owners, KEY),
        "by": "Ada",
        "reason": "why",
    } | change
    before, export = stored(filled), filled.export()
    with pytest.raises(LedgerError, match=told):
        filled.rotate_key(**asked)
    assert filled.export() == export
    assert str(stored(filled)) == str(before)


def test_the_record_names_keys_and_commitments_and_nobody(filled):
    commitments = {entry.entry_id: entry.commitment for entry in filled.entries()}
    each, _ = rotate(filled)
    assert each.payload == {
        "namespace": "person",
        "key_ids": {"was": list(KEYS), "now": list(NOW)},
        "by": "Ada",
        "reason": "a stolen disk",
    }
    anew = filled.history(after=each.sequence, kinds=["recommitted"])
    assert sorted(event.subject for event in anew) == sorted(name for name, was in commitments.items() if was)
    assert all(set(event.payload) == {"commitment"} for event in anew)
    assert not {event.payload["commitment"] for event in anew} & set(commitments.values())
    text = json.dumps(filled.export())
    for owner in range(10):
        for name in (people(owner), renamed(people(owner))):
            assert name.tobytes().hex() not in text


def test_earlier_fingerprints_are_not_left_in_the_file(ledger, url):
    """Sets of several pages: SQLite would leave parts of them in pages that it has no use for."""
    for key, who, then in (
        ("a", range(500), "start"),
        ("b", range(300, 1200), "start"),
        ("c", range(2000, 2600), "void"),
    ):
        spend(ledger, "each", key, people(*who), rho=0.01, then=then)
    earlier = [people(owner).tobytes() for owner in (*range(1200), *range(2000, 2600))]

    def found():
        files = b"".join(file.read_bytes() for file in Path(url.removeprefix("sqlite:///")).parent.iterdir())
        return sum(name in files for name in earlier)

    assert found() > 0.9 * len(earlier)
    rotate(ledger)
    assert found() == 0
    assert ledger.erase_replaced() is None


def test_a_reader_that_keeps_earlier_fingerprints_is_told(ledger, url, monkeypatch):
    """Their pages stay in the write-ahead log while somebody still reads them, and go when that one closes."""
    monkeypatch.setattr(database, "EMPTYING_SECONDS", 0.1)
    spend(ledger, "each", "a", people(*range(500)), rho=0.01)
    path = Path(url.removeprefix("sqlite:///"))

    def found():
        files = b"".join(file.read_bytes() for file in path.parent.iterdir())
        return sum(people(owner).tobytes() in files for owner in range(500))

    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM event").fetchone()
    rotate(ledger)
    assert str(ledger.erase_replaced()).startswith("another process is using the ledger, so its files still hold")
    assert found() > 0
    reader.execute("COMMIT")  # still connected, and reading no more
    assert ledger.erase_replaced() is None
    assert found() == 0
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM event").fetchone()
    rotate(ledger, key=b"4" * 32, key_id="key-4")
    assert ledger.erase_replaced() is not None
    reader.close()
    ledger.head()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE participants SET fingerprints = zeroblob(16)",
        "UPDATE participants SET nonce = zeroblob(32)",
    ],
)
def test_tampering_is_not_covered_up(filled, url, statement):
    """New commitments to changed participants would make them look right for ever."""
    tamper(url, statement)
    before = filled.head()
    with pytest.raises(LedgerError, match="verify"):
        rotate(filled)
    assert filled.head() == before


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE participants SET fingerprints = zeroblob(16)", "participants do not match their commitment"),
        ("UPDATE participants SET nonce = zeroblob(32)", "participants do not match their commitment"),
        ("UPDATE standing SET owners = zeroblob(length(owners))", "the standing of its owners"),
        ("UPDATE account SET terms = replace(terms, ',\"key-3\"', '')", "terms differs from what the chain records"),
        ("UPDATE event SET payload = '{}' WHERE kind = 'recommitted'", "its content does not match its hash"),
        ("DELETE FROM event WHERE kind = 'rekeyed'", "missing"),
    ],
)
def test_whatever_is_changed_by_hand_after_a_rotation_is_found(filled, url, statement, told):
    rotate(filled)
    tamper(url, statement)
    assert any(told in problem for problem in filled.verify().problems)


def test_old_participants_put_back_are_found(filled, url, tmp_path):
    """The sets, nonces and all, as they were before: people under names that nobody bears any more."""
    path = Path(url.removeprefix("sqlite:///"))
    shutil.copy(path, tmp_path / "earlier.db")
    rotate(filled)
    with sqlite3.connect(path) as connection:
        connection.execute("ATTACH ? AS earlier", [str(tmp_path / "earlier.db")])
        for table in ("participants", "standing"):
            connection.execute(f"DELETE FROM {table}")
            connection.execute(f"INSERT INTO {table} SELECT * FROM earlier.{table}")
    assert any("do not match their commitment" in problem for problem in filled.verify().problems)


@pytest.mark.parametrize(
    ("kind", "payload", "told"),
    [
        ("rekeyed", {"was": ["key-1", "key-2"], "now": ["key-1", "key-2", "x"]}, "it was not recommitted"),
        ("rekeyed", {"was": ["key-1", "key-2"], "now": ["x", "y", "z"]}, "keys of each could not be changed"),
        ("rekeyed", {"was": ["key-1"], "now": ["key-1", "x"]}, "keys of each could not be changed"),
        (
            "rekeyed",
            {"was": ["key-1", "key-2"], "now": ["key-1", "key-2", "key-1"]},
            "keys of each could not be changed",
        ),
        ("recommitted", None, "could not be recommitted"),
    ],
)
def test_a_change_of_keys_that_could_not_be_is_found_in_a_consistent_chain(filled, kind, payload, told):
    """Someone who can write the database appends a well-linked event and changes the account to match."""
    entry_id = filled.entries("each")[0].entry_id

    def forge(connection):
        if kind == "recommitted":
            chain.append(connection, rows.now_text(connection), kind, entry_id, {"commitment": "0" * 64})
            return
        table = schema.account
        terms = connection.execute(table.select().where(table.c.family == "each")).one().terms
        event = chain.append(connection, rows.now_text(connection), kind, "each", {"key_ids": payload})
        connection.execute(
            table.update().where(table.c.family == "each").values(terms=chain.rekeyed_terms(terms, event))
        )

    filled._database.write(forge)
    problems = filled.verify().problems
    assert any(told in problem for problem in problems), problems
    assert any(told in problem for problem in verify_export(json.dumps(filled.export())).problems)


def test_one_account_of_a_namespace_alone_cannot_change_its_keys(ledger):
    """Its owners could not be compared with the other's any more."""

    def forge(connection):
        rekeying._rekey_account(
            connection, rows.get_account(connection, "each"), "key-3", lambda owners: rotated(owners, KEY), "Ada", "why"
        )

    ledger._database.write(forge)
    assert ledger.verify().problems == ("account each: its keys are not those of its namespace",)


def test_a_reservation_that_lies_across_a_change_of_keys_is_found(ledger, monkeypatch):
    ledger.reserve("each", "k", request(), people(1), "compose", key_ids=KEYS)
    with monkeypatch.context() as broken:
        broken.setattr(rows, "reserved", lambda *_: [])
        rotate(ledger)
    assert any("keys of each could not be changed" in problem for problem in ledger.verify().problems)


KILLED = """
    import os, signal
    from dpsynth_platform.ledger import Ledger, rekeying
    from dpsynth_platform.scrub.fingerprints import rotated
    url, name, number = sys.argv[1:]
    calls = 0
    real = getattr(rekeying, name) if hasattr(rekeying, name) else None
    def counted(*arguments):
        global calls
        calls += 1
        if calls == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    if real is not None:
        setattr(rekeying, name, counted)
    Ledger(url).rotate_key("person", "key-3", lambda owners: rotated(owners, b"3" * 32), by="Ada", reason="why")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("where", "number", "rotated_then"),
    [
        ("rotatable", 1, False),
        ("_rename_standing", 1, False),
        ("_rename_participants", 1, False),
        ("commitment", 4, False),
        ("_rekey_account", 2, False),
        ("the end", 1, True),
    ],
)
def test_a_killed_rotation_leaves_the_old_keys_or_the_new(processes, filled, url, where, number, rotated_then):
    ((code, _, error),) = processes.run(KILLED, [url, where, number])
    assert code == -signal.SIGKILL, error
    again = Ledger(url)
    report = again.verify()
    assert report.ok, report.problems
    expected, who = (NOW, renamed(people(1, 2))) if rotated_then else (KEYS, people(1, 2))
    assert {account.key_ids for account in again.accounts()} == {expected}
    entry = again.reserve("each", "next", request(0.001), who, "compose", key_ids=expected)
    kin = again.kin(again.account("each"), before=entry.entry_id)
    named = [item.entry.entry_id for item in kin if item.incomparable is None]
    assert 2 in again.overlaps(who, named).values()  # both have been charged before
    again.void(entry.entry_id)
    if not rotated_then:
        rotate(again)
        assert again.verify().ok
