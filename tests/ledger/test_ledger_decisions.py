"""Approvals, refusals and withdrawals in the ledger: who may, in which order, and what an auditor sees of it."""

import json

import pytest
from ledger_cases import request

from dpsynth_platform.foundation.errors import LedgerError, ReleaseRefused
from dpsynth_platform.foundation.people import person_key
from dpsynth_platform.ledger import caps, chain, decisions
from dpsynth_platform.ledger.export import verify_export
from dpsynth_platform.ledger.words import in_words
from dpsynth_platform.release.evidence import standing_approvals

CANDIDATE, RELEASE = "c" * 64, "census-0123456789abcdef"


@pytest.fixture
def entry(ledger):
    entry = ledger.reserve("everyone", "k", request(runner="Ada"), None, "compose").entry_id
    ledger.start(entry)
    ledger.complete(entry, "5" * 64)
    return entry


@pytest.fixture
def released(ledger, entry):
    """The release of a candidate that Bo approved; gives the entry's id."""
    ledger.approve(CANDIDATE, by="Bo", entry_id=entry)
    ledger.release(RELEASE, candidate=CANDIDATE, entry_id=entry, check=standing_approvals)
    return entry


def is_whole(ledger):
    found, offline = ledger.verify().problems, verify_export(json.dumps(ledger.export())).problems
    assert found == offline
    return found == ()


def test_a_publication_is_recorded_once_and_only_where_the_decisions_allow_it(ledger, entry):
    """The check sees what is decided at the very moment, and nothing is recorded where it raises."""
    seen = []

    def check(decisions):
        seen.append([item.decision for item in decisions])
        if not standing_approvals(decisions):
            raise ReleaseRefused("not approved")

    def release(**changes):
        return ledger.release(RELEASE, **{"candidate": CANDIDATE, "entry_id": entry, "check": check} | changes)

    with pytest.raises(ReleaseRefused, match="not approved"):
        release()
    ledger.approve(CANDIDATE, by="Bo", entry_id=entry)
    ledger.refuse(CANDIDATE, by="Cy", entry_id=entry, reason="why")
    with pytest.raises(ReleaseRefused, match="not approved"):
        release()
    assert ledger.history(kinds=["released"]) == []
    ledger.approve(CANDIDATE, by="Bo", entry_id=entry)
    first = release()
    assert (first.subject, first.payload) == (RELEASE, {"entry": entry, "candidate": CANDIDATE})
    assert release() == first
    assert ledger.history(kinds=["released"]) == [first]
    assert seen[1:3] == [["approve", "refuse"], ["approve", "refuse", "approve"]]
    with pytest.raises(LedgerError, match="recorded for another candidate"):
        release(candidate="d" * 64, check=list)
    ledger.refuse(CANDIDATE, by="Cy", entry_id=entry, reason="why")
    with pytest.raises(ReleaseRefused, match="not approved"):
        release()
    assert is_whole(ledger)


def test_what_cannot_be_published(ledger, released):
    ledger.withdraw(RELEASE, by="Cy", reason="why")
    with pytest.raises(ReleaseRefused, match=f"{RELEASE} was withdrawn, which is for ever"):
        ledger.release(RELEASE, candidate=CANDIDATE, entry_id=released, check=list)
    unpaid = ledger.reserve("everyone", "k2", request(runner="Ada"), None, "compose").entry_id
    with pytest.raises(LedgerError, match="is reserved, so it pays for no release"):
        ledger.release("census-1", candidate="d" * 64, entry_id=unpaid, check=list)
    with pytest.raises(LedgerError, match="event kind 'released'"):
        ledger.record("released", "census-1", {"entry": released, "candidate": CANDIDATE})
    assert [event.subject for event in ledger.history(kinds=["released"])] == [RELEASE]


def test_a_refusal_holds_for_whatever_the_entry_paid_for(ledger, entry):
    """Other words about the rows, or other rows of the model, are another candidate: a no stays, a yes does not."""
    other = ledger.reserve("everyone", "k2", request(runner="Ada"), None, "compose").entry_id
    ledger.approve(CANDIDATE, by="Bo", entry_id=entry)
    ledger.refuse(CANDIDATE, by="Cy", entry_id=entry, reason="why")
    ledger.approve("d" * 64, by="Bo", entry_id=entry)
    assert [item.decision for item in ledger.approvals("d" * 64, entry)] == ["refuse", "approve"]
    assert [item.decision for item in ledger.approvals(CANDIDATE, entry)] == ["approve", "refuse"]
    assert [item.decision for item in ledger.approvals("e" * 64, entry)] == ["refuse"]
    assert ledger.approvals("e" * 64, other) == []


def test_a_refusal_needs_a_reason(ledger, entry):
    for nothing in ("", " ", "\u200b"):
        with pytest.raises(LedgerError, match="reason"):
            ledger.refuse(CANDIDATE, by="Bo", entry_id=entry, reason=nothing)
    assert ledger.approvals(CANDIDATE, entry) == []


def test_a_withdrawal_is_recorded_once_and_the_first_one_stands(ledger, released):
    left = ledger.left("everyone", 1e-6)
    first = ledger.withdraw(RELEASE, by="Cy", reason="a wrong column")
    assert (first.release, first.candidate, first.entry_id) == (RELEASE, CANDIDATE, released)
    assert ledger.withdraw(RELEASE, by="Di", reason="another reason") == first
    assert ledger.withdraw(RELEASE, by="", reason="") == first
    assert ledger.withdrawals() == [first]
    assert [item.decision for item in ledger.approvals(CANDIDATE, released)] == ["approve", "withdraw"]
    assert ledger.left("everyone", 1e-6) == left
    assert ledger.entry(released).state == "spent"
    assert in_words(ledger.history())[-1] == (
        "Cy",
        f"candidate cccccccccccc, entry {released[:12]}: a wrong column",
    )
    assert is_whole(ledger)


@pytest.mark.parametrize(
    ("release", "by", "reason", "words"),
    [
        ("census-ffff", "Cy", "why", "records no publication"),
        (RELEASE, " ", "why", "name"),
        (RELEASE, "Cy", "\u2060", "reason"),
    ],
)
def test_what_was_not_published_and_who_says_nothing(ledger, released, release, by, reason, words):
    with pytest.raises(LedgerError, match=words):
        ledger.withdraw(release, by=by, reason=reason)
    assert ledger.withdrawals() == []


def test_other_words_about_the_same_model_do_not_bring_it_back(ledger, released):
    """An edited description makes another candidate of the very rows that were withdrawn."""
    ledger.withdraw(RELEASE, by="Cy", reason="why")
    assert [item.decision for item in ledger.approvals("d" * 64, released)] == ["withdraw"]
    with pytest.raises(ReleaseRefused, match="--after-withdrawal"):
        ledger.approve("d" * 64, by="Bo", entry_id=released)
    with pytest.raises(ReleaseRefused, match="withdrew a release of this content"):
        ledger.approve("d" * 64, by="Cy", entry_id=released, after_withdrawal=True)
    ledger.approve("d" * 64, by="Bo", entry_id=released, after_withdrawal=True)
    assert is_whole(ledger)


def test_a_model_of_another_entry_is_not_concerned(ledger, released):
    ledger.withdraw(RELEASE, by="Cy", reason="why")
    assert ledger.approvals("d" * 64, "0" * 32) == []


def test_what_was_withdrawn_needs_the_word_and_another_person(ledger, released):
    with pytest.raises(ReleaseRefused, match="leave --after-withdrawal out"):
        ledger.approve(CANDIDATE, by="Bo", entry_id=released, after_withdrawal=True)
    ledger.withdraw(RELEASE, by="Cy", reason="why")
    with pytest.raises(ReleaseRefused, match=f"withdrawn as release {RELEASE}.*--after-withdrawal"):
        ledger.approve(CANDIDATE, by="Bo", entry_id=released)
    for name in ("Cy", " C Y"):
        with pytest.raises(ReleaseRefused, match="withdrew a release of this content"):
            ledger.approve(CANDIDATE, by=name, entry_id=released, after_withdrawal=True)
    with pytest.raises(ReleaseRefused, match="ran this release"):
        ledger.approve(CANDIDATE, by="ada", entry_id=released, after_withdrawal=True)
    assert standing_approvals(ledger.approvals(CANDIDATE, released)) == ()
    again = ledger.approve(CANDIDATE, by="Bo", entry_id=released, after_withdrawal=True)
    assert standing_approvals(ledger.approvals(CANDIDATE, released)) == (again,)
    assert in_words(ledger.history())[-1] == ("Bo", f"although {RELEASE} was withdrawn")
    assert is_whole(ledger)


@pytest.mark.parametrize(
    ("kind", "subject", "payload", "words"),
    [
        (chain.WITHDRAWN, "census-ffff", {"by": "Cy"}, "could not be withdrawn"),
        (chain.WITHDRAWN, RELEASE, {"by": " "}, "could not be withdrawn"),
        (chain.WITHDRAWN, RELEASE, {"by": "Cy", "candidate": "d" * 64}, "could not be withdrawn"),
        (chain.APPROVED, CANDIDATE, {"by": "Bo", "after_withdrawal": RELEASE}, "without naming"),
        (chain.RELEASED, "census-ffff", {"entry": "0" * 32}, "nothing was spent on it"),
        (chain.RELEASED, RELEASE, {"candidate": "d" * 64}, "another candidate's"),
    ],
)
def test_an_auditor_finds_what_could_not_have_been_decided(ledger, released, kind, subject, payload, words):
    forge(ledger, kind, subject, {"entry": released, "candidate": CANDIDATE, "reason": "why"} | payload)
    (problem,) = ledger.verify().problems
    assert words in problem


@pytest.mark.parametrize(
    ("kind", "subject", "payload", "words"),
    [
        (chain.WITHDRAWN, RELEASE, {"by": "Di", "candidate": CANDIDATE}, "could not be withdrawn"),
        (chain.APPROVED, CANDIDATE, {"by": "Bo"}, "without naming"),
        (chain.RELEASED, RELEASE, {"candidate": CANDIDATE}, "it was withdrawn"),
        (chain.APPROVED, CANDIDATE, {"by": "cy", "after_withdrawal": RELEASE}, "by the person who withdrew it"),
    ],
)
def test_an_auditor_finds_what_a_withdrawal_forbids(ledger, released, kind, subject, payload, words):
    ledger.withdraw(RELEASE, by="Cy", reason="why")
    forge(ledger, kind, subject, {"entry": released, "reason": "why"} | payload)
    (problem,) = ledger.verify().problems
    assert words in problem


def forge(ledger, kind, subject, payload):
    at = "2027-01-01T00:00:00.000000+00:00"
    ledger._database.write(lambda connection: chain.append(connection, at, kind, subject, payload))


# Names that look alike

TWIN, LATIN = "аса", "aca"  # the first is wholly Cyrillic


def test_a_twin_of_the_runners_name_approves_nothing(ledger):
    paid = ledger.reserve("everyone", "twin", request(runner=LATIN), None, "compose").entry_id
    with pytest.raises(ReleaseRefused, match="ran this release"):
        ledger.approve(CANDIDATE, by=TWIN, entry_id=paid)
    with pytest.raises(ReleaseRefused, match="ran this release"):
        ledger.approve(CANDIDATE, by="Bo", entry_id=paid, runners=["ВО"])


def test_a_twin_seconds_no_raise_and_no_withdrawal(ledger, released):
    asked = ledger.ask_raise("everyone", epsilon=5.0, delta=1e-5, by=LATIN)
    with pytest.raises(LedgerError, match="somebody else must approve it"):
        ledger.approve_raise("everyone", asked.sequence, by=TWIN)
    ledger.withdraw(RELEASE, by=TWIN, reason="why")
    with pytest.raises(ReleaseRefused, match="withdrew a release"):
        ledger.approve(CANDIDATE, by=LATIN, entry_id=released, after_withdrawal=True)


def test_approvals_of_twins_count_once(ledger, entry):
    for name in (LATIN, TWIN, "ACA", "Di"):
        ledger.approve(CANDIDATE, by=name, entry_id=entry)
    assert [item.by for item in standing_approvals(ledger.approvals(CANDIDATE, entry))] == [LATIN, "Di"]


@pytest.mark.parametrize("name", ["R\u0456ta", "Rita\u200d"])
def test_no_decision_is_recorded_under_a_name_that_mixes_or_hides(ledger, released, name):
    before = ledger.head()
    for decide in (
        lambda: ledger.approve(CANDIDATE, by=name, entry_id=released),
        lambda: ledger.refuse(CANDIDATE, by=name, entry_id=released, reason="why"),
        lambda: ledger.withdraw(RELEASE, by=name, reason="why"),
        lambda: ledger.ask_raise("everyone", epsilon=5.0, delta=1e-5, by=name),
    ):
        with pytest.raises(LedgerError, match="accepted: a name in the letters of one script"):
            decide()
    assert ledger.head() == before


def test_what_twins_and_mixed_names_decided_before_still_verifies(ledger, monkeypatch):
    """By the rule of its time: case, blanks and invisible characters alone made no other person."""
    paid = ledger.reserve("everyone", "twin", request(runner=LATIN), None, "compose").entry_id
    asked = ledger.ask_raise("everyone", epsilon=5.0, delta=1e-5, by=LATIN)
    with monkeypatch.context() as patch:
        for module in (decisions, caps):
            patch.setattr(module, "same_person", lambda one, other: person_key(one) == person_key(other))
        patch.setattr(decisions, "name_problem", lambda _: None)
        ledger.approve(CANDIDATE, by=TWIN, entry_id=paid)
        ledger.refuse(CANDIDATE, by="R\u0456ta", entry_id=paid, reason="why")
        ledger.approve_raise("everyone", asked.sequence, by=TWIN)
    assert ledger.verify().problems == ()
