"""Raising a cap: two people, the chain, and what fits before and after."""

import math

import pytest
from ledger_cases import DELTA, KEYS, family, people, request

from dpsynth_platform.foundation.errors import BudgetExceeded, LedgerError
from dpsynth_platform.ledger import Ledger, chain, schema
from dpsynth_platform.ledger.filter import RenyiFilter


def test_a_raise_needs_two_people_and_the_file_must_follow(ledger, url):
    ledger.start(ledger.reserve("everyone", "a", request(0.3), None, "compose").entry_id)
    cost = request(0.3, plan="b")
    with pytest.raises(BudgetExceeded):
        ledger.reserve("everyone", "b", cost, None, "compose")
    asked = ledger.ask_raise("everyone", epsilon=8.0, delta=1e-5, by="Ada", reason="a second survey")
    with pytest.raises(BudgetExceeded):
        ledger.reserve("everyone", "b", cost, None, "compose")
    with pytest.raises(LedgerError, match="sealed for life"):
        ledger.open_account(family("everyone", mode="family", epsilon=8.0), KEYS)
    raised = ledger.approve_raise("everyone", asked.sequence, by="Bo", reason="seen")
    assert (raised.epsilon, raised.delta) == (8.0, 1e-5)
    ledger.reserve("everyone", "b", cost, None, "compose")
    told = (
        rf"raised to epsilon 8, delta 1e-05 \(event {ledger.head().sequence - 1}\); declare cap\.epsilon: 8.0 in "
        r"families/everyone\.yaml, where it is 4.0$"
    )
    for asks in (lambda old: ledger.open_account(old, KEYS), ledger.check_declared):
        with pytest.raises(LedgerError, match=told):
            asks(family("everyone", mode="family", epsilon=4.0))
    assert ledger.check_declared(family("everyone", mode="family", epsilon=8.0)) == raised
    assert ledger.check_declared(family("strangers", mode="family")) is None
    assert ledger.open_account(family("everyone", mode="family", epsilon=8.0), KEYS) == raised
    assert Ledger(url).verify([ledger.head()]).ok
    event = ledger.history(kinds=["raised"])[0]
    assert (event.subject, event.payload["by"], event.payload["asked"]) == ("everyone", "Bo", asked.sequence)


def test_orders_and_weights_stay_so_that_the_raised_filter_holds_from_the_start(ledger):
    before = ledger.account("everyone").filter
    asked = ledger.ask_raise("everyone", epsilon=8.0, delta=2e-5, by="Ada")
    after = ledger.approve_raise("everyone", asked.sequence, by="Bo").filter
    assert (after.orders, after.weights, after.slack_share) == (before.orders, before.weights, before.slack_share)
    assert all(new >= old for new, old in zip(after.limits, before.limits, strict=True))
    fresh = RenyiFilter.seal(8.0, 2e-5)
    # What keeping the weights costs: some of the Gaussian capacity of an account sealed for the larger cap.
    assert 0.75 * fresh.left([], DELTA) < after.left([], DELTA) <= fresh.left([], DELTA)


@pytest.mark.parametrize("name", ["Ada", " ada ", "\uff21da", "a\u00a0da"])
def test_who_asked_cannot_approve(ledger, name):
    asked = ledger.ask_raise("everyone", epsilon=8.0, delta=1e-5, by="Ada")
    with pytest.raises(LedgerError, match="somebody else"):
        ledger.approve_raise("everyone", asked.sequence, by=name)
    assert ledger.account("everyone").epsilon == 4.0


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (4.0, 1e-5),
        (3.0, 1e-4),
        (8.0, 1e-6),
        (math.nan, 1e-5),
        (math.inf, 1e-5),
        (8.0, math.nan),
        (8.0, 1.0),
        (8.0, 0.0),
        (-1.0, 1e-5),
    ],
)
def test_only_a_larger_possible_cap_can_be_asked_for(ledger, epsilon, delta):
    before = ledger.head()
    with pytest.raises(LedgerError, match=r"can only be raised|accepted"):
        ledger.ask_raise("everyone", epsilon=epsilon, delta=delta, by="Ada")
    assert ledger.head() == before


def test_approvals_name_a_request_of_that_family_and_that_cap(ledger):
    first = ledger.ask_raise("everyone", epsilon=5.0, delta=1e-5, by="Ada")
    second = ledger.ask_raise("everyone", epsilon=9.0, delta=1e-5, by="Ada")
    for name, sequence in (("each", first.sequence), ("everyone", 1), ("everyone", 99), ("everyone", -1)):
        with pytest.raises(LedgerError, match="does not ask"):
            ledger.approve_raise(name, sequence, by="Bo")
    with pytest.raises(LedgerError, match="name"):
        ledger.approve_raise("everyone", first.sequence, by=" ")
    with pytest.raises(LedgerError, match="name"):
        ledger.ask_raise("everyone", epsilon=5.0, delta=1e-5, by="\u200b")
    ledger.approve_raise("everyone", first.sequence, by="Bo")
    for asked in (first, second):
        with pytest.raises(LedgerError, match="changed since"):
            ledger.approve_raise("everyone", asked.sequence, by="Cy")
    with pytest.raises(LedgerError, match="no account"):
        ledger.ask_raise("nobody", epsilon=5.0, delta=1e-5, by="Ada")


def test_owners_who_were_exhausted_take_part_again_after_a_raise(ledger):
    for count in range(3):
        ledger.start(
            ledger.reserve(
                "each", f"k{count}", request(0.1, plan=f"{count}"), people(1), "compose", key_ids=KEYS
            ).entry_id
        )
    asked = ledger.ask_raise("each", epsilon=8.0, delta=1e-5, by="Ada")
    entry = ledger.reserve("each", "before", request(0.1, plan="before"), people(1), "compose", key_ids=KEYS)
    assert len(ledger.participants(entry.entry_id)) == 0
    ledger.approve_raise("each", asked.sequence, by="Bo")
    entry = ledger.reserve("each", "after", request(0.1, plan="after"), people(1), "compose", key_ids=KEYS)
    assert len(ledger.participants(entry.entry_id)) == 1
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("raised", {"cap": {"epsilon": 9.0, "delta": 1e-5}, "asked": 1, "by": "Bo", "reason": ""}),
        ("raised", {"cap": {"epsilon": 9.0, "delta": 1e-5}, "asked": 3, "by": "Bo", "reason": ""}),
        ("raised", {"cap": {"epsilon": 8.0, "delta": 1e-5}, "asked": 3, "by": "ADA", "reason": ""}),
    ],
)
def test_a_raise_that_nobody_could_give_is_found_in_a_consistent_chain(ledger, kind, payload):
    """Someone who can write the database appends a well-linked event and changes the account to match."""
    ledger.ask_raise("everyone", epsilon=8.0, delta=1e-5, by="Ada")

    def forge(connection):
        terms = connection.execute(schema.account.select().where(schema.account.c.family == "everyone")).one().terms
        event = chain.append(connection, "2026-01-01T00:00:00+00:00", kind, "everyone", payload)
        mine = schema.account.c.family == "everyone"
        connection.execute(schema.account.update().where(mine).values(terms=chain.raised_terms(terms, event)))

    ledger._database.write(forge)
    assert any("could not be raised" in problem for problem in ledger.verify().problems)
