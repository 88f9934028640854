"""Looking at the ledger: what is new since a link, what a family had spent by when, how many more releases fit."""

import dataclasses
import sqlite3

import pytest
from ledger_cases import DELTA, KEYS, family, people, request

from dpsynth_platform.foundation.errors import BudgetExceeded
from dpsynth_platform.ledger import Ledger, chain
from dpsynth_platform.ledger.composition import spent_over_time
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.records import CostRequest, Head
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import (
    BoundedRangeSelectionEvent,
    GaussianCountsEvent,
    ThresholdedCountsEvent,
    dp_sgd_event,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.synth.planning import audited_key

BEGINNING = Head(0, chain.GENESIS)


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}")
    made.open_account(family("all", mode="family", epsilon=4.0), KEYS)
    made.open_account(family("each", mode="per-owner", epsilon=4.0, namespace="patient"), KEYS)
    return made


def spend(ledger, key, rho=0.03, *, to="all", participants=None):
    ids = KEYS if participants is not None else ()
    entry = ledger.reserve(to, key, request(rho), participants, "compose", key_ids=ids)
    ledger.start(entry.entry_id)
    return ledger.complete(entry.entry_id, "model")


def test_what_is_new_is_what_came_after_a_link(ledger):
    first = ledger.changes_since(BEGINNING)
    assert (first.after, [event.kind for event in first.events], first.entries) == (0, ["opened", "opened"], ())
    assert ledger.changes_since(first.head) is None
    one, two = spend(ledger, "one"), ledger.reserve("all", "two", request(), None, "compose")
    news = ledger.changes_since(first.head)
    assert news.after == first.head.sequence
    assert news.events == tuple(ledger.history(after=first.head.sequence))
    assert news.entries == (one, two)
    # Of entries only those that something happened to.
    void = ledger.void(two.entry_id)
    assert ledger.changes_since(news.head).entries == (void,)
    assert ledger.changes_since(BEGINNING).entries == (one, void)


def test_where_a_link_is_another_all_of_it_is_new(ledger, tmp_path):
    spend(ledger, "one")
    known = ledger.head()
    for link in (Head(known.sequence, "0" * 64), Head(known.sequence + 5, known.hash)):
        news = ledger.changes_since(link)
        assert (news.after, len(news.events)) == (0, known.sequence)
    with sqlite3.connect(tmp_path / "ledger" / "ledger.db") as database:
        database.execute("update event set hash = ? where sequence = ?", ("1" * 64, known.sequence))
    assert ledger.changes_since(known).after == 0


def test_what_a_family_had_spent_by_when(ledger):
    spend(ledger, "one")
    reserved = ledger.reserve("all", "two", request(), None, "compose")
    ledger.void(reserved.entry_id)
    spend(ledger, "elsewhere", to="each", participants=people(1, 2))
    asked = ledger.ask_raise("all", epsilon=5.0, delta=1e-5, by="engineer", reason="more")
    ledger.approve_raise("all", asked.sequence, by="reviewer")
    entries = {entry.entry_id: entry for entry in ledger.entries()}
    found = list(spent_over_time(ledger.history(), entries, "all"))
    assert [item.event.kind for item in found] == ["opened", "reserved", "reserved", "void", "raised"]
    nothing, one, two, again, raised = (item.epsilon for item in found)
    curve, delta = request().curve, 1e-5
    assert nothing == 0
    assert one == pytest.approx(curve.epsilon(delta), rel=1e-9)
    assert one >= curve.epsilon(delta)
    assert one < two < 2 * one
    assert again == raised == one
    assert [item.cap for item in found] == [4.0] * 4 + [5.0]
    assert [item.epsilon for item in spent_over_time(ledger.history(), entries, "nobody's")] == []


@pytest.mark.parametrize("rho", [0.03, 0.11, 0.2])
def test_so_many_more_fit_as_are_granted_one_after_another(ledger, rho):
    spend(ledger, "before", 0.05)
    found, granted = ledger.remaining("all", request(rho), most=50), 0
    with pytest.raises(BudgetExceeded):
        for number in range(100):
            ledger.reserve("all", f"run-{number}", request(rho), None, "compose")
            granted += 1
    assert found == granted > 0
    assert ledger.remaining("all", request(rho), most=50) == 0


def test_how_many_more_fit_is_counted_no_further_than_asked_and_for_fresh_people(ledger):
    alone = ledger.remaining("each", request(), most=1000)
    spend(ledger, "one", to="each", participants=people(1, 2))
    assert ledger.remaining("each", request(), most=1000) == alone > 3
    assert ledger.remaining("each", request(), most=3) == 3
    assert ledger.remaining("each", request(delta=1e-4), most=3) == 0


def test_what_is_left_and_used_of_several_families_is_what_each_has(ledger):
    spend(ledger, "one")
    asked = [("all", request(), 1), ("each", request(), 2), ("all", request(0.3), 1)]
    assert ledger.left_for_each(asked) == [ledger.left_for(*each) for each in asked]
    used = ledger.used_of_all()
    assert 0 < used["all"] < 1
    assert used["each"] == 0, "an owner who was never charged"


def asked(event, delta=DELTA):
    claim = Guarantee(epsilon(event, delta).epsilon, delta, "user", "add-or-remove", 1)
    return CostRequest.of(event, dataset="census", period=None, guarantee=claim, plan_digest="a" * 64, runner="runner")


EVENTS = {
    "counts": GaussianCountsEvent(1.3, "add-or-remove", 1),
    "training": dp_sgd_event(records=50_000, batch_size=500, noise_multiplier=0.833, steps=1000),
    "thresholds": ThresholdedCountsEvent(30.0, 150.0, "add-or-remove", 1),
}


@pytest.mark.parametrize("name", EVENTS)
def test_as_much_is_left_as_a_release_claims_exactly_while_it_fits(ledger, name):
    """Beside `remaining`, which adds up its very cost: no page says that more is left than is granted."""
    like = asked(EVENTS[name], 5e-6 if name == "thresholds" else DELTA)
    for number in range(200):
        fits = ledger.remaining("all", like, most=2)
        for times in (1, 2):
            left = ledger.left_for("all", like, times)
            assert (left + 0.001 > like.guarantee.epsilon) == (fits >= times), (number, times, left)
        if not fits:
            break
        ledger.reserve("all", str(number), like, None, "compose")
    else:
        pytest.fail("the cap was never reached")
    if name == "thresholds":
        assert (left, ledger.used_of_all()["all"] < 1) == (0, True)


def test_nothing_is_left_for_a_release_whose_delta_is_not_accepted(ledger):
    beyond = dataclasses.replace(request(), guarantee=dataclasses.replace(request().guarantee, delta=1e-4))
    assert ledger.left_for("all", beyond) == ledger.remaining("all", beyond, most=1) == 0


def test_a_learned_bound_is_part_of_what_is_spent_before_the_first_release(ledger):
    bound = asked(BoundedRangeSelectionEvent(2.0, "add-or-remove", 1))
    assert accounts.left_in_words((), "family", 0) == ("no release is charged yet, so that all of it is left",)
    assert accounts.left_in_words((), "per-owner", 0) == ("no release is charged yet",)
    entry = ledger.reserve("all", "bound", bound, None, "compose")
    ledger.start(entry.entry_id)
    assert accounts.left_like_last(ledger, ledger.entries()) == {}
    (sentence,) = accounts.left_in_words((), "family", ledger.used_of_all()["all"])
    assert sentence == "no release is charged yet; learned bounds take 52% of the cap"


@pytest.mark.parametrize("void", [0, 1])
def test_a_run_of_two_mechanisms_counts_twice_also_where_one_of_them_is_void(ledger, void):
    """What is left for another such run is for both."""
    entries = ledger.reserve_together("all", (audited_key("run"), "run"), request(), None, "compose")
    ((_, times),) = accounts.last_releases(ledger.entries()).values()
    ledger.void(entries[void].entry_id)
    ((_, still),) = accounts.last_releases(ledger.entries()).values()
    assert times == still == 2


def test_a_cap_too_small_for_any_mechanism_is_used_up():
    sealed = RenyiFilter.seal(0.001, 1e-9)
    assert max(sealed.limits[:-1]) < 0 and sealed.used(sealed.nothing) == 1
    none = "no release is charged yet, and the cap has no room for one"
    assert accounts.left_in_words((), "family", sealed.used(sealed.nothing)) == (none,)


def test_a_cap_is_used_up_when_nothing_more_fits(ledger):
    shares = []
    while ledger.remaining("all", request(), most=1):
        spend(ledger, str(len(shares)))
        shares.append(ledger.used_of_all()["all"])
    assert shares == pytest.approx([shares[0] * number for number in range(1, len(shares) + 1)])
    assert shares[-1] <= 1 < shares[-1] + shares[0]


def test_shares_of_owners_by_what_they_have_left(ledger):
    assert ledger.owner_spending("each").shares() == ()
    spend(ledger, "one", 0.2, to="each", participants=people(*range(30)))
    spend(ledger, "two", 0.2, to="each", participants=people(*range(10)))
    report = ledger.owner_spending("each")
    shares = report.shares(steps=4)
    assert [step[:2] for step in shares] == [
        (number * report.epsilon_left_unspent / 4, (number + 1) * report.epsilon_left_unspent / 4)
        for number in range(4)
    ]
    assert sum(share for _, _, share in shares) == pytest.approx(1)
    for item in report.classes:
        (share,) = (share for low, high, share in shares if low < item["epsilon_left"] <= high)
        assert share >= item["owners"] / 30
    # Who has nothing left is in the first step.
    assert ledger.owner_spending("each").shares(steps=1) == ((0.0, report.epsilon_left_unspent, 1.0),)
