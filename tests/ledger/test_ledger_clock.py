"""One transaction is one moment: a deadline has passed for all of its decision or for none of it."""

import datetime as dt

import pytest
from ledger_cases import KEYS, people, request

from dpsynth_platform.foundation.errors import BudgetExceeded
from dpsynth_platform.ledger import rows
from dpsynth_platform.ledger.filter import RenyiFilter


@pytest.fixture
def at_the_deadline(monkeypatch):
    """A clock that passes a deadline between any two readings of it."""

    def patch(entry):
        deadline = dt.datetime.fromisoformat(entry.deadline)
        tick = dt.timedelta(microseconds=1)
        readings = iter([deadline - tick])
        monkeypatch.setattr(rows, "now", lambda: next(readings, deadline + tick))

    return patch


def most_of(account):
    """A zCDP cost of which one fits under the account's cap and two do not."""
    limits: RenyiFilter = account.filter
    return 0.6 * max(limit / order for limit, order in zip(limits.limits, limits.orders, strict=False))


def test_a_reservation_at_its_deadline_is_void_or_counted(ledger, at_the_deadline):
    cost = most_of(ledger.account("everyone"))
    first = ledger.reserve("everyone", "a", request(cost, plan="a"), None, "compose")
    at_the_deadline(first)
    with pytest.raises(BudgetExceeded):
        ledger.reserve("everyone", "b", request(cost, plan="b"), None, "compose")
    assert ledger.entry(first.entry_id).state == "reserved"
    ledger.reserve("everyone", "b", request(cost, plan="b"), None, "compose")  # a moment later it has passed
    assert ledger.entry(first.entry_id).state == "void"


def test_an_owner_at_a_reservations_deadline_is_charged_or_free(ledger, at_the_deadline):
    cost = most_of(ledger.account("each"))
    first = ledger.reserve("each", "a", request(cost, plan="a"), people(1, 2), "compose", key_ids=KEYS)
    at_the_deadline(first)
    second = ledger.reserve("each", "b", request(cost, plan="b"), people(1, 2), "compose", key_ids=KEYS)
    assert ledger.entry(first.entry_id).state == "reserved"
    assert len(ledger.participants(second.entry_id)) == 0


def test_what_starts_in_time_says_so(ledger, at_the_deadline):
    entry = ledger.reserve("everyone", "a", request(), None, "compose")
    at_the_deadline(entry)
    assert ledger.start(entry.entry_id).started_at < entry.deadline
