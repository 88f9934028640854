import datetime as dt
import re
import time

import numpy as np
import pytest
from ledger_cases import DELTA, KEYS, family, people, request

from dpsynth_platform.foundation.errors import (
    AccountingError,
    BudgetExceeded,
    LedgerError,
    ReleaseRefused,
    SpendRepeated,
)
from dpsynth_platform.ledger import Ledger, rows
from dpsynth_platform.privacy.events import DiscreteGaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee


def spend(ledger, name, key, cost, who=None, policy="compose"):
    entry = ledger.reserve(name, key, cost, who, policy, key_ids=KEYS)
    ledger.start(entry.entry_id)
    return ledger.complete(entry.entry_id, "a" * 64)


def fill(ledger, name="everyone", rho=0.03, who=None):
    """Spends until a request is refused; returns the number of grants."""
    for count in range(1000):
        try:
            spend(ledger, name, f"fill-{count}", request(rho, plan=f"{count}"), who)
        except BudgetExceeded:
            return count
    raise AssertionError("the cap never held")


def pass_time(monkeypatch, hours):
    later = rows.now() + dt.timedelta(hours=hours)
    monkeypatch.setattr(rows, "now", lambda: later)


# Accounts


def test_opening_twice_gives_the_same_account(ledger):
    again = ledger.open_account(family("everyone", mode="family"), KEYS)
    assert again == ledger.account("everyone")
    assert [account.family for account in ledger.accounts()] == ["each", "everyone"]
    assert len(ledger.history(kinds=["opened"])) == 2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"epsilon": 40.0}, "cap.epsilon"),
        ({"epsilon": 3.9}, "cap.epsilon"),
        ({"delta": 1e-4}, "cap.delta"),
        ({"mode": "per-owner"}, "mode"),
        ({"unit": "example"}, "unit"),
        ({"adjacency": "zero-out"}, "adjacency"),
        ({"namespace": "customer"}, "namespace"),
    ],
)
def test_an_opened_account_is_sealed(ledger, change, named):
    before = ledger.head()
    with pytest.raises(LedgerError, match=rf"{named}: .* sealed for life"):
        ledger.open_account(family("everyone", **({"mode": "family"} | change)), KEYS)
    assert ledger.head() == before


def test_other_keys_freeze_the_account(ledger):
    with pytest.raises(LedgerError, match="frozen"):
        ledger.open_account(family("everyone", mode="family"), ["key-1", "another"])


def test_what_was_never_opened_is_named(ledger):
    with pytest.raises(LedgerError, match="'nobody' has no account"):
        ledger.admit("nobody", request())


# Admission


def test_refusal_says_what_is_left_and_changes_no_spend(ledger):
    fill(ledger, rho=0.1)
    entries = ledger.entries()
    left = ledger.left("everyone", DELTA)
    with pytest.raises(BudgetExceeded) as refused:
        ledger.admit("everyone", request(0.1, plan="one more"))
    message = str(refused.value)
    assert message.startswith(
        "census: the request (epsilon 2.143, delta 1e-06) does not fit under the cap of family everyone"
    )
    told = float(re.search(r"epsilon left at this delta: ([0-9.]+)\.", message).group(1))
    assert 0 < told <= left
    assert ledger.entries() == entries
    blocked = ledger.history(kinds=["blocked"])[-1]
    assert (blocked.subject, blocked.payload["dataset"], blocked.payload["reason"]) == ("everyone", "census", "cap")
    assert ledger.verify().ok


def test_a_dry_run_leaves_no_record(ledger):
    before = ledger.head()
    with pytest.raises(BudgetExceeded, match="does not fit under the cap"):
        ledger.admit("everyone", request(5.0), dry_run=True)
    assert ledger.admit("everyone", request(0.01), dry_run=True).epsilon_left > 0
    assert ledger.head() == before


def test_what_is_said_to_be_left_is_granted(ledger):
    from dpsynth_platform.privacy.renyi import zcdp_limit

    fill(ledger, rho=0.1)
    left = ledger.left("everyone", DELTA)
    ledger.admit("everyone", request(zcdp_limit(left, DELTA) * 0.99))
    with pytest.raises(BudgetExceeded):
        ledger.admit("everyone", request(zcdp_limit(left, DELTA) * 1.01))


def test_nothing_left_is_said_plainly(ledger):
    with pytest.raises(BudgetExceeded, match="epsilon left at this delta"):
        ledger.admit("everyone", request(5.0))
    spend(ledger, "everyone", "k", request(ledger_capacity(ledger)))
    with pytest.raises(BudgetExceeded, match=r"delta: 0(\.001)?\. Use a family of datasets about"):
        ledger.admit("everyone", request(0.001))


def ledger_capacity(ledger):
    sealed = ledger.account("everyone").filter
    return max(limit / order for limit, order in zip(sealed.limits, sealed.orders, strict=False)) * (1 - 1e-7)


def test_delta_above_the_accounts_is_refused(ledger):
    with pytest.raises(BudgetExceeded, match=r"delta 0\.0001 exceeds"):
        ledger.admit("everyone", request(0.001, delta=1e-4))


def test_other_units_and_adjacencies_are_not_converted(ledger):
    with pytest.raises(LedgerError, match="adjacency 'zero-out' differs"):
        ledger.admit("everyone", request(adjacency="zero-out"))
    with pytest.raises(LedgerError, match="adjacency"):
        ledger.reserve("everyone", "k", request(adjacency="replace-one"), None, "compose")


def test_event_and_guarantee_must_agree():
    from dpsynth_platform.ledger.records import CostRequest

    with pytest.raises(AccountingError):
        CostRequest.of(
            DiscreteGaussianCountsEvent(5.0, "add-or-remove", 1),
            dataset="census",
            period=None,
            guarantee=Guarantee(1.0, 1e-6, "user", "add-or-remove", 2),
            plan_digest="a" * 64,
            runner="runner",
        )


def test_a_run_that_is_paid_for_is_admitted_again(ledger):
    cost = request(0.1, plan="0")
    spend(ledger, "everyone", "paid", cost)
    fill(ledger, rho=0.05)
    admission = ledger.admit("everyone", cost, keys=["paid"])
    assert admission.entry.state == "spent"
    with pytest.raises(BudgetExceeded):
        ledger.admit("everyone", cost, keys=["unpaid"])
    with pytest.raises(BudgetExceeded):
        ledger.admit("everyone", cost, keys=["paid"], replaces=admission.entry.entry_id)


def test_per_owner_verdicts_do_not_depend_on_other_entries(ledger):
    before = ledger.left("each", DELTA)
    assert fill_each(ledger, people(1, 2), 40) == 40
    assert ledger.left("each", DELTA) == before
    ledger.admit("each", request(0.1))
    with pytest.raises(BudgetExceeded):
        ledger.admit("each", request(5.0))


def fill_each(ledger, who, times):
    for count in range(times):
        spend(ledger, "each", f"each-{count}", request(0.1, plan=f"{count}"), who)
    return times


def test_admission_is_quick_with_a_long_history(ledger):
    for count in range(60):
        spend(ledger, "everyone", f"k{count}", request(0.001, plan=f"{count}"))
    started = time.process_time()
    ledger.admit("everyone", request())
    assert time.process_time() - started < 2
    with pytest.raises(BudgetExceeded) as refused:
        ledger.admit("everyone", request(3.0))
    assert len(str(refused.value)) < 500


# Reservation


def test_the_same_key_gives_the_same_entry(ledger):
    first = ledger.reserve("everyone", "k", request(), people(1, 2), "compose", key_ids=KEYS)
    assert ledger.reserve("everyone", "k", request(), people(1, 2, 3), "compose", key_ids=KEYS) == first
    assert np.array_equal(ledger.participants(first.entry_id), people(1, 2))
    ledger.start(first.entry_id)
    done = ledger.complete(first.entry_id, "m")
    assert ledger.reserve("everyone", "k", request(), people(1, 2), "compose", key_ids=KEYS) == done
    assert len(ledger.entries()) == 1
    assert ledger.entry_for_key("k") == done
    assert ledger.entry_for_key("other") is None


def test_a_key_belongs_to_one_plan_and_one_family(ledger):
    ledger.reserve("everyone", "k", request(), None, "compose")
    with pytest.raises(LedgerError, match="another plan or family"):
        ledger.reserve("everyone", "k", request(plan="other"), None, "compose")
    with pytest.raises(LedgerError, match="another plan or family"):
        ledger.reserve("each", "k", request(), people(1), "compose", key_ids=KEYS)


def test_family_mode_charges_everybody_whoever_took_part(ledger):
    spend(ledger, "everyone", "a", request(ledger_capacity(ledger)), people(1))
    with pytest.raises(BudgetExceeded):
        ledger.reserve("everyone", "b", request(0.01), people(2), "compose", key_ids=KEYS)


def test_exhausted_owners_are_left_out_silently(ledger):
    """Capacity is about 0.34: three entries of 0.1 fit, the fourth does not."""
    for count in range(3):
        spend(ledger, "each", f"k{count}", request(0.1, plan=f"{count}"), people(1, 2))
    entry = ledger.reserve("each", "k3", request(0.1, plan="3"), people(1, 2, 3), "compose", key_ids=KEYS)
    assert np.array_equal(ledger.participants(entry.entry_id), people(3))
    empty = ledger.reserve("each", "k4", request(0.1, plan="4"), people(1, 2), "compose", key_ids=KEYS)
    assert len(ledger.participants(empty.entry_id)) == 0
    assert ledger.verify().ok
    assert entry.to_json().keys() == empty.to_json().keys()
    assert not ledger.history(kinds=["blocked"])


def test_people_who_come_once_pay_once(ledger):
    """Twelve monthly releases over people who appear once cost each of them one release."""
    for month in range(12):
        entry = spend(ledger, "each", f"m{month}", request(0.3, plan=f"{month}"), people(month, 100 + month))
        assert len(ledger.participants(entry.entry_id)) == 2
    assert ledger.verify().ok


@pytest.mark.parametrize("name", ["everyone", "each"])
def test_exclude_leaves_out_who_was_charged_before(ledger, name):
    spend(ledger, name, "a", request(0.01), people(1, 2))
    entry = ledger.reserve(name, "b", request(0.01, plan="b"), people(2, 3), "exclude", key_ids=KEYS)
    assert np.array_equal(ledger.participants(entry.entry_id), people(3))


@pytest.mark.parametrize("name", ["everyone", "each"])
def test_block_refuses_any_overlap_and_says_that_it_looked(ledger, name):
    spend(ledger, name, "a", request(0.01), people(1, 2))
    with pytest.raises(BudgetExceeded, match="looks at the data"):
        ledger.reserve(name, "b", request(0.01, plan="b"), people(2, 3), "block", key_ids=KEYS)
    assert ledger.history(kinds=["blocked"])[-1].payload["reason"] == "overlap"
    assert ledger.entry_for_key("b") is None
    ledger.reserve(name, "c", request(0.01, plan="c"), people(3), "block", key_ids=KEYS)


def test_void_entries_cost_nobody(ledger):
    entry = ledger.reserve("each", "a", request(0.3), people(1), "block", key_ids=KEYS)
    ledger.void(entry.entry_id)
    again = ledger.reserve("each", "a", request(0.3), people(1), "block", key_ids=KEYS)
    assert again.attempt == 2
    assert len(ledger.participants(again.entry_id)) == 1


@pytest.mark.parametrize(("name", "policy"), [("each", "compose"), ("everyone", "exclude"), ("everyone", "block")])
def test_participants_are_needed_where_they_decide(ledger, name, policy):
    with pytest.raises(LedgerError, match="participants are needed"):
        ledger.reserve(name, "k", request(), None, policy)


def test_unsorted_participants_and_unknown_policies_are_refused(ledger):
    with pytest.raises(LedgerError, match="sorted"):
        ledger.reserve("each", "k", request(), people(1, 2)[::-1], "compose", key_ids=KEYS)
    with pytest.raises(LedgerError, match="policy"):
        ledger.reserve("each", "k", request(), people(1), "whatever", key_ids=KEYS)
    assert ledger.entries() == []


# Transitions


def test_an_entry_starts_once(ledger):
    entry = ledger.reserve("everyone", "k", request(), None, "compose")
    assert ledger.start(entry.entry_id).state == "started"
    with pytest.raises(SpendRepeated):
        ledger.start(entry.entry_id)
    ledger.complete(entry.entry_id, "m")
    with pytest.raises(SpendRepeated):
        ledger.start(entry.entry_id)


def test_what_started_is_never_refunded(ledger):
    entry = ledger.reserve("everyone", "k", request(), None, "compose")
    ledger.start(entry.entry_id)
    with pytest.raises(LedgerError, match="only a reserved entry can become void"):
        ledger.void(entry.entry_id)
    ledger.complete(entry.entry_id, "m")
    with pytest.raises(LedgerError, match="only a reserved entry can become void"):
        ledger.void(entry.entry_id)


def test_completion_names_one_model(ledger):
    entry = ledger.reserve("everyone", "k", request(), None, "compose")
    with pytest.raises(LedgerError, match="only a started entry"):
        ledger.complete(entry.entry_id, "m")
    ledger.start(entry.entry_id)
    done = ledger.complete(entry.entry_id, "m")
    assert ledger.complete(entry.entry_id, "m") == done
    with pytest.raises(LedgerError, match="another model"):
        ledger.complete(entry.entry_id, "n")


def test_expired_reservations_are_void_and_free_their_budget(ledger, monkeypatch):
    cost = request(ledger_capacity(ledger))
    entry = ledger.reserve("everyone", "a", cost, None, "compose")
    with pytest.raises(BudgetExceeded):
        ledger.admit("everyone", cost)
    pass_time(monkeypatch, 25)
    ledger.admit("everyone", cost)
    with pytest.raises(LedgerError, match="expired"):
        ledger.start(entry.entry_id)
    assert ledger.entry(entry.entry_id).state == "void"
    second = ledger.reserve("everyone", "a", cost, None, "compose")
    assert second.attempt == 2
    pass_time(monkeypatch, 50)
    third = ledger.reserve("everyone", "b", request(ledger_capacity(ledger), plan="b"), None, "compose")
    assert ledger.entry(second.entry_id).void_reason == "deadline passed"
    assert ledger.verify().ok
    ledger.start(third.entry_id)


def test_started_entries_never_expire(ledger, monkeypatch):
    cost = request(ledger_capacity(ledger))
    entry = ledger.reserve("everyone", "a", cost, None, "compose")
    ledger.start(entry.entry_id)
    pass_time(monkeypatch, 24 * 365)
    with pytest.raises(BudgetExceeded):
        ledger.reserve("everyone", "b", request(0.01, plan="b"), None, "compose")
    assert ledger.entry(entry.entry_id).state == "started"


def test_another_attempt_needs_an_explicit_word_and_is_another_spend(ledger):
    cost = request(0.2)
    first = ledger.reserve("everyone", "k", cost, None, "compose")
    ledger.start(first.entry_id)
    with pytest.raises(SpendRepeated, match=first.entry_id):
        ledger.reserve("everyone", "k", cost, None, "compose")
    with pytest.raises(LedgerError, match="can be replaced"):
        ledger.reserve("everyone", "k", cost, None, "compose", replaces="0" * 32)
    with pytest.raises(BudgetExceeded):  # 0.2 twice is beyond the cap, and the first is not refunded
        ledger.reserve("everyone", "k", cost, None, "compose", replaces=first.entry_id)
    assert ledger.attempts("k") == [ledger.entry(first.entry_id)]


def test_attempts_are_kept_and_the_last_counts(ledger):
    cost = request(0.05)
    first = ledger.reserve("everyone", "k", cost, None, "compose")
    ledger.start(first.entry_id)
    second = ledger.reserve("everyone", "k", cost, None, "compose", replaces=first.entry_id)
    assert ledger.reserve("everyone", "k", cost, None, "compose", replaces=first.entry_id) == second
    ledger.start(second.entry_id)
    with pytest.raises(LedgerError, match="can be replaced"):
        ledger.reserve("everyone", "k", cost, None, "compose", replaces="f" * 32)
    done = ledger.complete(second.entry_id, "m")
    assert [entry.state for entry in ledger.attempts("k")] == ["started", "spent"]
    assert [entry.attempt for entry in ledger.attempts("k")] == [1, 2]
    assert ledger.entry_for_key("k") == done
    with pytest.raises(LedgerError, match="is spent"):
        ledger.reserve("everyone", "k", cost, None, "compose", replaces=second.entry_id)
    assert ledger.verify().ok


def test_a_withdrawn_attempt_does_not_give_the_word_again(ledger):
    """What is void never ran: the entry that started before it still stands, and a third attempt is asked for anew."""
    cost = request(0.02)
    first = ledger.start(ledger.reserve("everyone", "k", cost, None, "compose").entry_id)
    second = ledger.void(ledger.reserve("everyone", "k", cost, None, "compose", replaces=first.entry_id).entry_id)
    assert ledger.entry_for_key("k") == first
    with pytest.raises(SpendRepeated, match=first.entry_id):
        ledger.reserve("everyone", "k", cost, None, "compose")
    with pytest.raises(LedgerError, match="can be replaced"):
        ledger.reserve("everyone", "k", cost, None, "compose", replaces=second.entry_id)
    third = ledger.reserve("everyone", "k", cost, None, "compose", replaces=first.entry_id)
    assert (third.attempt, third.replaces) == (3, first.entry_id)
    assert ledger.entry_for_key("k") == third
    assert ledger.verify().ok


@pytest.mark.parametrize("before", ["nothing", "void"])
def test_only_a_started_entry_of_the_run_can_be_replaced(ledger, before):
    other = ledger.start(ledger.reserve("each", "other", request(0.01), people(1), "compose", key_ids=KEYS).entry_id)
    if before == "void":
        ledger.void(ledger.reserve("everyone", "k", request(), None, "compose").entry_id)
    head = ledger.head()
    for named in (other.entry_id, "f" * 32, *(entry.entry_id for entry in ledger.attempts("k"))):
        with pytest.raises(LedgerError, match=r"there is no entry .* of this run to replace"):
            ledger.reserve("everyone", "k", request(), None, "compose", replaces=named)
    assert ledger.head() == head


def test_a_run_has_one_completed_model(ledger):
    """The given-up mechanism may end after all, while the second has its model already; or before it."""
    cost = request(0.01)
    for key, late in (("k", True), ("l", False)):
        first = ledger.start(ledger.reserve("everyone", key, cost, None, "compose").entry_id)
        second = ledger.reserve("everyone", key, cost, None, "compose", replaces=first.entry_id)
        ledger.start(second.entry_id)
        done, other = (second, first) if late else (first, second)
        completed = ledger.complete(done.entry_id, "m")
        with pytest.raises(LedgerError, match=f"{done.entry_id} completed this run; it has one model"):
            ledger.complete(other.entry_id, "n")
        assert ledger.complete(done.entry_id, "m") == ledger.entry_for_key(key) == completed
        assert ledger.reserve("everyone", key, cost, None, "compose") == completed
        with pytest.raises(LedgerError, match="is spent"):
            ledger.reserve("everyone", key, cost, None, "compose", replaces=done.entry_id)


def test_replacing_needs_an_entry(ledger):
    with pytest.raises(LedgerError, match="to replace"):
        ledger.reserve("everyone", "k", request(), None, "compose", replaces="0" * 32)
    with pytest.raises(LedgerError, match="no ledger entry"):
        ledger.start("0" * 32)


# Decisions and records


def test_the_runner_cannot_approve(ledger):
    entry = spend(ledger, "everyone", "k", request(runner="Ada"))
    for name in ("Ada", " ada "):
        with pytest.raises(ReleaseRefused, match="ran this release"):
            ledger.approve("c" * 64, by=name, entry_id=entry.entry_id)
    with pytest.raises(ReleaseRefused):
        ledger.approve("c" * 64, by="Bo", entry_id=entry.entry_id, runners=["bo"])
    for nobody in ("", " ", "\u200b", "\x00\u2060"):
        for decide in (ledger.approve, ledger.refuse):
            with pytest.raises(LedgerError, match="name"):
                decide("c" * 64, by=nobody, entry_id=entry.entry_id, reason="why")
    with pytest.raises(LedgerError):
        ledger.approve("c" * 64, by="Bo", entry_id="0" * 32)
    assert ledger.approvals("c" * 64, entry.entry_id) == []


def test_decisions_are_kept_in_order(ledger):
    entry = spend(ledger, "everyone", "k", request(runner="Ada"))
    ledger.refuse("c" * 64, by="Ada", entry_id=entry.entry_id, reason="not yet")
    ledger.approve("c" * 64, by="Bo", entry_id=entry.entry_id)
    ledger.approve("d" * 64, by="Cy", entry_id=entry.entry_id)
    assert [(item.decision, item.by, item.reason) for item in ledger.approvals("c" * 64, entry.entry_id)] == [
        ("refuse", "Ada", "not yet"),
        ("approve", "Bo", ""),
    ]


def test_other_records_stand_in_the_chain(ledger):
    event = ledger.record("purged", "census", {"step": "raw", "outputs": 1})
    assert ledger.history(subject="census") == [event]
    assert ledger.history(after=event.sequence) == []
    for kind in ("spent", "", "Two words"):
        with pytest.raises(LedgerError):
            ledger.record(kind, "census", {})
    for payload in ({"value": float("nan")}, {"value": object()}, {"value": "x" * 100_000}):
        with pytest.raises(LedgerError):
            ledger.record("purged", "census", payload)
    assert ledger.head().sequence == event.sequence


def test_the_chain_holds_no_fingerprint_and_no_number_of_people(ledger, url):
    small = ledger.reserve("each", "a", request(0.01), people(1), "compose", key_ids=KEYS)
    large = ledger.reserve("each", "b", request(0.01, plan="b"), people(*range(500)), "compose", key_ids=KEYS)
    told = "".join(str(event) for event in ledger.history())
    for owner in people(*range(500)):
        assert bytes(owner).hex() not in told
    sizes = [len(str(event.payload)) for event in ledger.history(kinds=["reserved"])]
    assert abs(sizes[0] - sizes[1]) <= 2
    assert small.commitment != large.commitment
    same = Ledger(url).entry(small.entry_id)
    assert same == small


def test_participants_are_only_named_where_they_were_given(ledger):
    entry = ledger.reserve("everyone", "k", request(), None, "compose")
    assert entry.commitment is None
    with pytest.raises(LedgerError, match="names no participants"):
        ledger.participants(entry.entry_id)
